"""VARIANT_CASES: one row a variant, with its formula in plain float64.

The formulas are read from the papers, row by row and head by head; no line calls the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

import hf_graphattn as ga

# (A (B, H, N, N), V (B, H, N, D), name -> scalars (H,)) -> output (B, H, N, D)
Formula = Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor]
# (a row's scores, what a mask adds to them, name -> the head's scalar) -> the row's weights
Weights = Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor]


def softmax(scores: Tensor, bias: Tensor, scalars: dict[str, Tensor]) -> Tensor:
    return (scores + bias).softmax(0)


@dataclass(frozen=True)
class VariantCase:
    """A variant as the tests meet it.

    config: settings far from neutral, every scalar learned. neutral: at plain attention, if any
    settings are. start: the scalars that the tests give it, a function of the number of heads.
    backends: every backend that can compute it and runs everywhere. has_matrix: whether some matrix
    times the values is the output. weights: how a row's scores become A.
    """

    config: ga.VariantConfig
    neutral: ga.VariantConfig | None
    start: Callable[[int], dict[str, Tensor]]
    formula: Formula
    backends: tuple[str, ...]
    has_matrix: bool = True
    weights: Weights = softmax

    def output(self, *inputs: Any, value: Tensor, scalars: dict[str, Tensor]) -> Tensor:
        """The formula, of what `attention` takes."""
        return self.formula(attention(*inputs, self.weights, scalars), value, scalars)


def attention(
    query: Tensor,
    key: Tensor,
    scaling: float,
    mask: Tensor | None,
    causal: bool,
    weights: Weights = softmax,
    scalars: Mapping[str, Tensor] = MappingProxyType({}),
) -> Tensor:
    """A, (B, H, N, N): a row that may attend nowhere is zero."""
    batch, heads, length, _ = query.shape
    matrix = torch.zeros(batch, heads, length, length, dtype=query.dtype)
    for b in range(batch):
        for h in range(heads):
            for x in range(length):
                scores = (key[b, h] @ query[b, h, x]) * scaling
                bias = torch.zeros_like(scores)
                allowed = torch.ones(length, dtype=torch.bool)
                if causal:
                    allowed[x + 1 :] = False
                if mask is not None:
                    row = mask.expand(batch, heads, length, length)[b, h, x]
                    if row.dtype == torch.bool:
                        allowed = allowed & row
                    else:
                        allowed, bias = allowed & (row > float("-inf")), row
                if allowed.any():
                    own = {name: each[h] for name, each in scalars.items()}
                    matrix[b, h, x, allowed] = weights(scores[allowed], bias[allowed], own)
    return matrix


def gfsa(matrix: Tensor, value: Tensor, scalars: dict[str, Tensor]) -> Tensor:
    """arXiv 2312.04234, eq. 4 to 6, for order 4, with A^2 formed."""
    order, out = 4, torch.zeros_like(value)
    for h in range(value.shape[1]):
        for b in range(value.shape[0]):
            a, v = matrix[b, h], value[b, h]
            power = a + (order - 1) * (a @ a - a)
            w_0, w_1, w_K = (scalars[name][h] for name in ("w_0", "w_1", "w_K"))
            out[b, h] = w_0 * v + w_1 * (a @ v) + w_K * (power @ v)
    return out


def plat(matrix: Tensor, value: Tensor, scalars: dict[str, Tensor]) -> Tensor:
    """arXiv 2311.03235, eq. 11 and 12, with eps = 0.01: row by row, differences taken."""
    out = torch.zeros_like(value)
    for h, p in enumerate(scalars["p"]):
        for b in range(value.shape[0]):
            for x in range(value.shape[2]):
                distance = ((value[b, h, x] - value[b, h]) ** 2).sum(-1) + 1e-2
                weight = matrix[b, h, x] * distance ** ((p - 2) / 2)
                out[b, h, x] = weight @ value[b, h]
    return out


def laplacian(matrix: Tensor, value: Tensor, scalars: dict[str, Tensor]) -> Tensor:
    """arXiv 2507.21040, sec. 4.2: A - step I."""
    out = torch.zeros_like(value)
    for h, step in enumerate(scalars["step"]):
        for b in range(value.shape[0]):
            out[b, h] = matrix[b, h] @ value[b, h] - step * value[b, h]
    return out


def polynomial(matrix: Tensor, value: Tensor, scalars: dict[str, Tensor]) -> Tensor:
    """Sum of c_k A^k, every power formed."""
    out = torch.zeros_like(value)
    for h, coefficients in enumerate(scalars["coefficients"]):
        for b in range(value.shape[0]):
            for k, weight in enumerate(coefficients):
                out[b, h] += weight * torch.linalg.matrix_power(matrix[b, h], k) @ value[b, h]
    return out


def xsa(matrix: Tensor, value: Tensor, scalars: dict[str, Tensor]) -> Tensor:
    """arXiv 2603.09078: of each row, the part along the token's own value."""
    out = torch.zeros_like(value)
    for h, exclusion in enumerate(scalars["exclusion"]):
        for b in range(value.shape[0]):
            for x in range(value.shape[2]):
                own, once = value[b, h, x], matrix[b, h, x] @ value[b, h]
                out[b, h, x] = once - exclusion * (once @ own) / (own @ own) * own
    return out


def even(matrix: Tensor) -> Tensor:
    """U, (B, N, N): in float64 A is above zero where a token may see another."""
    seen = (matrix > 0).double()
    return seen / seen.sum(-1, keepdim=True).clamp_min(1)


def shaped(matrix: Tensor, value: Tensor, scalars: dict[str, Tensor]) -> Tensor:
    """arXiv 2311.01906: alpha I + beta A - gamma U."""
    out = torch.zeros_like(value)
    for h in range(value.shape[1]):
        alpha, beta, gamma = (scalars[name][h] for name in ("alpha", "beta", "gamma"))
        mixed = beta * matrix[:, h] - gamma * even(matrix[:, h])
        out[:, h] = alpha * value[:, h] + mixed @ value[:, h]
    return out


def attnscale(matrix: Tensor, value: Tensor, scalars: dict[str, Tensor]) -> Tensor:
    """arXiv 2203.05962: U and (1 + omega) times what else A is."""
    out = torch.zeros_like(value)
    for h, omega in enumerate(scalars["omega"]):
        mean = even(matrix[:, h])
        out[:, h] = (mean + (1 + omega) * (matrix[:, h] - mean)) @ value[:, h]
    return out


def laser(matrix: Tensor, value: Tensor, scalars: dict[str, Tensor]) -> Tensor:
    """arXiv 2411.03493, with values clamped by 4: zero where a token may see nothing."""
    total = matrix @ (4 * torch.tanh(value / 4)).exp()
    seen = matrix.any(-1, keepdim=True)
    return total.where(seen, torch.ones_like(total)).log()


def sink(scores: Tensor, bias: Tensor, scalars: dict[str, Tensor]) -> Tensor:
    """gpt-oss: one more term in the denominator."""
    exponentials = (scores + bias).exp()
    return exponentials / (exponentials.sum() + scalars["sink"].abs())


def temperature(scores: Tensor, bias: Tensor, scalars: dict[str, Tensor]) -> Tensor:
    """arXiv 2501.19399: scores times s log n + b. What float64 weighs with 0 is not seen."""
    seen = int((softmax(scores, bias, scalars) > 0).sum())
    factor = scalars["slope"] * math.log(seen) + scalars["offset"]
    return (factor * scores + bias).softmax(0)


def product(matrix: Tensor, value: Tensor, scalars: dict[str, Tensor]) -> Tensor:
    return matrix @ value


VARIANT_CASES: dict[str, VariantCase] = {
    "attnscale": VariantCase(
        config=ga.AttnScaleConfig(omega=0.5),
        neutral=ga.AttnScaleConfig(),
        start=lambda heads: {"omega": torch.linspace(-0.6, 1.2, heads)},
        formula=attnscale,
        backends=("eager", "sdpa"),
    ),
    "degree1": VariantCase(
        config=ga.Degree1Config(w_0=0.3, w_1=0.8),
        neutral=ga.Degree1Config(),
        start=lambda heads: {
            "w_0": torch.linspace(-0.5, 0.4, heads),
            "w_1": torch.linspace(0.5, 1.5, heads),
        },
        formula=lambda matrix, value, own: (
            own["w_0"].view(-1, 1, 1) * value + own["w_1"].view(-1, 1, 1) * (matrix @ value)
        ),
        backends=("eager", "sdpa"),
    ),
    "gain": VariantCase(
        config=ga.GainConfig(beta=0.6),
        neutral=ga.GainConfig(),
        start=lambda heads: {"beta": torch.linspace(-0.5, 1.5, heads)},
        formula=lambda matrix, value, own: own["beta"].view(-1, 1, 1) * (matrix @ value),
        backends=("eager", "sdpa"),
    ),
    "gfsa": VariantCase(
        config=ga.GFSAConfig(order=4, w_0=-0.3, w_1=0.8, trainable=("w_0", "w_1", "w_K")),
        neutral=ga.GFSAConfig(order=4, trainable=("w_0", "w_1", "w_K")),
        start=lambda heads: {
            "w_0": torch.linspace(-0.5, 0.5, heads),
            "w_1": torch.linspace(0.5, 1.5, heads),
            "w_K": torch.linspace(0.4, -0.4, heads) + 0.1,
        },
        formula=gfsa,
        backends=("eager", "sdpa", "shared"),
    ),
    "laplacian": VariantCase(
        config=ga.LaplacianConfig(trainable=("step",)),
        neutral=ga.LaplacianConfig(step=0.0, trainable=("step",)),
        start=lambda heads: {"step": torch.linspace(-0.5, 1.5, heads)},
        formula=laplacian,
        backends=("eager", "sdpa"),
    ),
    "laser": VariantCase(
        config=ga.LASERConfig(clamp=4.0),  # which float16 holds too
        neutral=None,
        start=lambda heads: {},
        formula=laser,
        backends=("eager", "sdpa"),
        has_matrix=False,
    ),
    "plat": VariantCase(
        config=ga.PLaTConfig(p=1.5, eps=1e-2, trainable=("p",)),
        neutral=ga.PLaTConfig(p=2.0, trainable=("p",)),
        start=lambda heads: {"p": torch.linspace(1.2, 2.9, heads)},
        formula=plat,
        backends=("blockwise", "eager"),
    ),
    "polynomial": VariantCase(
        config=ga.PolynomialConfig(coefficients=(0.2, 0.9, -0.3, 0.4)),
        neutral=ga.PolynomialConfig(),
        start=lambda heads: {
            "coefficients": torch.linspace(-0.8, 0.9, 4 * heads).view(4, heads).T.contiguous()
        },
        formula=polynomial,
        backends=("eager", "sdpa", "shared"),
    ),
    "shaped": VariantCase(
        config=ga.ShapedConfig(alpha=0.4, beta=0.7, gamma=0.6),
        neutral=ga.ShapedConfig(),
        start=lambda heads: {
            "alpha": torch.linspace(-0.5, 0.8, heads),
            "beta": torch.linspace(1.3, 0.6, heads),
            "gamma": torch.linspace(0.9, -0.4, heads),
        },
        formula=shaped,
        backends=("eager", "sdpa"),
    ),
    "sink": VariantCase(
        config=ga.SinkConfig(sink=0.5),
        neutral=ga.SinkConfig(),
        start=lambda heads: {"sink": torch.linspace(-0.7, 2.0, heads)},
        formula=product,
        backends=("eager", "sdpa"),
        weights=sink,
    ),
    "temperature": VariantCase(
        config=ga.TemperatureConfig(slope=0.3, offset=0.8),
        neutral=ga.TemperatureConfig(),
        start=lambda heads: {
            "slope": torch.linspace(0.4, -0.3, heads),
            "offset": torch.linspace(0.7, 1.4, heads),
        },
        formula=product,
        backends=("eager", "sdpa"),
        weights=temperature,
    ),
    "xsa": VariantCase(
        config=ga.XSAConfig(exclusion=0.8, trainable=("exclusion",)),
        neutral=ga.XSAConfig(exclusion=0.0, trainable=("exclusion",)),
        start=lambda heads: {"exclusion": torch.linspace(1.1, -0.5, heads)},
        formula=xsa,
        backends=("eager", "sdpa"),
    ),
}
WITH_NEUTRAL = {name: case for name, case in VARIANT_CASES.items() if case.neutral}
WITH_MATRIX = {name: case for name, case in VARIANT_CASES.items() if case.has_matrix}
WITH_SCALARS = {name: case for name, case in VARIANT_CASES.items() if case.config.scalars}


@dataclass(frozen=True)
class FirstLayerCase:
    """A variant whose filters read the first layer's values, V_0.

    formula: (A, V, V_0, name -> learned scalars (H, 1, 1)) -> output (B, H, N, D).
    """

    config: ga.VariantConfig
    formula: Callable[[Tensor, Tensor, Tensor, dict[str, Tensor]], Tensor]


FIRST_LAYER_CASES = {
    "neutreno": FirstLayerCase(
        ga.NeuTRENOConfig(pull=0.6, trainable=("pull",)),
        lambda matrix, value, first, own: matrix @ value + own["pull"] * (first - value),
    ),
    "value_pair": FirstLayerCase(
        ga.ValuePairConfig(),
        lambda matrix, value, first, own: matrix @ (own["keep"] * value + own["share"] * first),
    ),
    "value_residual": FirstLayerCase(
        ga.ValueResidualConfig(trainable=("share",)),
        lambda matrix, value, first, own: (
            matrix @ ((1 - own["share"]) * value + own["share"] * first)
        ),
    ),
}


@dataclass(frozen=True)
class TokenCase:
    """A variant that filters tokens after attention.

    neutral: where the model is plain. formula: (x (N, C), which tokens each may see (N, N), name ->
    scalars (C,)) -> tokens (N, C).
    """

    config: ga.VariantConfig
    neutral: ga.VariantConfig
    formula: Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor]


def contranorm(x: Tensor, seen: Tensor, scalars: dict[str, Tensor]) -> Tensor:
    """arXiv 2303.06562: each token moves away from the mean of those that are like it."""
    unit, out = x / x.norm(dim=-1, keepdim=True), []
    for i, own in enumerate(x):
        weights = (unit[seen[i]] @ unit[i]).softmax(0)
        out.append(own + scalars["scale"] * (own - weights @ x[seen[i]]))
    return torch.stack(out)


def featscale(x: Tensor, seen: Tensor, scalars: dict[str, Tensor]) -> Tensor:
    """arXiv 2203.05962: the mean of the tokens, and what else they are, a channel."""
    means = torch.stack([x[seen[i]].sum(0) / max(1, int(seen[i].sum())) for i in range(len(x))])
    return x + scalars["dc"] * means + scalars["hf"] * (x - means)


TOKEN_CASES = {
    "contranorm": TokenCase(
        ga.ContraNormConfig(scale=0.3, trainable=("scale",)),
        ga.ContraNormConfig(scale=0.0),
        contranorm,
    ),
    "featscale": TokenCase(ga.FeatScaleConfig(dc=0.4, hf=-0.3), ga.FeatScaleConfig(), featscale),
}
