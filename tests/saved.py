"""Patched tiny models whose scalars have moved, to be saved and loaded."""

from __future__ import annotations

import torch
from tiny import MODELS
from transformers import PreTrainedModel

import hf_graphattn as ga

CONFIGS = {
    "attnscale": ga.AttnScaleConfig(),
    "gfsa": ga.GFSAConfig(order=4, w_0=-0.01, trainable=("w_0", "w_K")),
    "plat": ga.PLaTConfig(trainable=("p",)),
    "laplacian": ga.LaplacianConfig(step=0.3),
    "laser": ga.LASERConfig(clamp=5.0),
    "neutreno": ga.NeuTRENOConfig(trainable=("pull",)),
    "polynomial": ga.PolynomialConfig(coefficients=(0.1, 0.8, 0.2)),
    "shaped": ga.ShapedConfig(gamma=0.2),
    "value_residual": ga.ValueResidualConfig(trainable=("share",)),
    "xsa": ga.XSAConfig(exclusion=0.5, trainable=("exclusion",)),
}


def patched(architecture: str, variant: str = "gfsa", **build: object) -> PreTrainedModel:
    model = ga.patch_model(MODELS[architecture](**build), CONFIGS[variant])
    with torch.no_grad():
        for _, parameter in ga.filter_parameters(model):
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model
