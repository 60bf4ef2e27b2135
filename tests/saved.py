"""Patched tiny models whose scalars have moved, to be saved and loaded."""

from __future__ import annotations

import torch
from cases import FIRST_LAYER_CASES, VARIANT_CASES
from tiny import MODELS
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
