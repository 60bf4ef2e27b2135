"""Patched tiny models whose scalars have moved, to be saved and loaded."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
from cases import FIRST_LAYER_CASES, VARIANT_CASES, VariantCase
from tensors import built
from tiny import HEADS, MODELS, deep
from transformers import PreTrainedModel

import hf_graphattn as ga

CONFIGS = {name: case.config for name, case in (VARIANT_CASES | FIRST_LAYER_CASES).items()} | {
    "gfsa": ga.GFSAConfig(order=4, w_0=-0.01, trainable=("w_0", "w_K")),
    "laplacian": ga.LaplacianConfig(step=0.3),
    "plat": ga.PLaTConfig(trainable=("p",)),
}


def patched(architecture: str, variant: str = "gfsa", **build: object) -> PreTrainedModel:
    model = ga.patch_model(MODELS[architecture](**build), CONFIGS[variant])
    with torch.no_grad():
        for _, parameter in ga.filter_parameters(model):
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def every_variant(
    architecture: str,
    cases: Mapping[str, VariantCase] = VARIANT_CASES,
    stacks: int = 1,
    **settings: object,
) -> PreTrainedModel:
    """A model with a layer of each variant in so many of its stacks together, every scalar learned.

    With one: in each stack. An encoder and a decoder may share them, each having half."""
    torch.manual_seed(0)
    model = deep(architecture, -(-len(cases) // stacks), **settings)
    ga.patch_model(model, ga.GFSAConfig())
    for name, case in zip(ga.graph_filters(model), itertools.cycle(cases.values()), strict=False):
        model.get_submodule(name).graph_filter = built(case, HEADS)
    found = [each.variant_config.variant for each in ga.graph_filters(model).values()]
    assert set(found) == set(cases)
    return model
