"""The forms of attention that are timed, on raw queries, keys and values (B, H, N, D).

The published forms are written plainly, as the papers' codes compute them: A, and for GFSA A^2, are
formed. Each form has a float64 check before it is timed (`check`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import scaled_dot_product_attention

import hf_graphattn as ga

# q, k, v, causal, dropout; and a boolean mask, which holds the causality too. None: no mask.
Form = Callable[..., Tensor]

CONFIGS = {
    "gfsa": ga.GFSAConfig(order=4, w_0=-0.1, w_K=0.2),
    "laplacian": ga.LaplacianConfig(step=0.1, trainable=("step",)),
    "plat": ga.PLaTConfig(trainable=("p",)),
    "gain": ga.GainConfig(beta=1.1),
    "degree1": ga.Degree1Config(w_0=0.1),
    "sink": ga.SinkConfig(sink=0.5),
    "temperature": ga.TemperatureConfig(slope=0.1),
    "degree2": ga.PolynomialConfig(coefficients=(0.1, 1.0, 0.1)),
}
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}


def plain(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout: float, mask: Tensor | None = None
) -> Tensor:
    """Attention as transformers computes it by default."""
    causal = causal and mask is None
    shared = k.shape[1] < q.shape[1]
    return scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, dropout_p=dropout, enable_gqa=shared
    )


def ours(variant: str, backend: str = "auto") -> Form:
    """The library's filter; its scalars are learned, one set for all calls."""
    filters: dict[tuple[int, torch.device, torch.dtype], ga.GraphFilter] = {}

    def form(
        q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout: float, mask: Tensor | None = None
    ) -> Tensor:
        place = (q.shape[1], q.device, q.dtype)
        if place not in filters:
            built = CONFIGS[variant].build(q.shape[1]).to(q.device)
            filters[place] = built.double() if q.dtype == torch.float64 else built
            filters[place].backend = backend
        causal = causal and mask is None
        return ga.attention(q, k, v, filters[place], mask=mask, is_causal=causal, dropout_p=dropout)

    return form


def padding(batch: int, length: int, causal: bool, device: str) -> Tensor:
    """A mask as transformers makes it of sequences of half the length to all of it, padded right.

    It is boolean, (B, 1, N, N), True where a query may attend.
    """
    real = torch.linspace(length // 2, length, batch, device=device)
    positions = torch.arange(length, device=device)
    mask = (positions < real[:, None])[:, None, None].expand(-1, 1, length, -1)
    return mask & (positions[:, None] >= positions) if causal else mask.contiguous()


def matrix(
    q: Tensor, k: Tensor, causal: bool, dropout: float, mask: Tensor | None = None
) -> Tensor:
    """A, (B, H, N, N), after dropout."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal and mask is None:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return drop(scores.softmax(-1), dropout)


def published_gfsa(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout: float, mask: Tensor | None = None
) -> Tensor:
    """`w_0 I + w_1 A + w_K (A + (K-1)(A A - A))`, formed, times V."""
    config, a = CONFIGS["gfsa"], matrix(q, k, causal, dropout, mask)
    identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    power = a + (config.order - 1) * (a @ a - a)
    return (config.w_0 * identity + config.w_1 * a + config.w_K * power) @ v


def published_plat(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout: float, mask: Tensor | None = None
) -> Tensor:
    """Every weight times a power of the values' distance, all N x N matrices kept."""
    config, heads = CONFIGS["plat"], v.shape[1]
    p = torch.tensor(config.p, dtype=v.dtype, device=v.device)
    p = p.repeat_interleave(heads // len(config.p)).view(-1, 1, 1)
    squares = v.square().sum(-1)
    distance = squares.unsqueeze(-1) + squares.unsqueeze(-2) - 2 * v @ v.mT
    factor = (distance.clamp_min(0) + config.eps) ** ((p - 2) / 2)
    return (matrix(q, k, causal, dropout, mask) * factor) @ v


def plain_laplacian(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout: float, mask: Tensor | None = None
) -> Tensor:
    """`A V - step V`, A formed."""
    return matrix(q, k, causal, dropout, mask) @ v - CONFIGS["laplacian"].step * v


# What each form is checked against in float64, by the first word of its name.
CHECKED = {
    "gfsa": published_gfsa,
    "laplacian": plain_laplacian,
    "plat": published_plat,
}
FORMS: dict[str, Form] = {
    "plain": plain,
    "gfsa": ours("gfsa"),
    "laplacian": ours("laplacian"),
    "plat": ours("plat"),
    "published gfsa": published_gfsa,
    "published plat": published_plat,
    **{name: ours(name) for name in ("gain", "degree1", "sink", "temperature")},
    # What the rule of backends.choose chooses between.
    "gfsa sdpa": ours("gfsa", "sdpa"),
    "gfsa eager": ours("gfsa", "eager"),
    "laplacian sdpa": ours("laplacian", "sdpa"),
    "laplacian eager": ours("laplacian", "eager"),
    "plat blockwise": ours("plat", "blockwise"),
    "plat eager": ours("plat", "eager"),
}
DEFAULT = tuple(FORMS)[:6]
KEEPS_MATRICES = ("published gfsa", "published plat", "gfsa eager", "laplacian eager", "plat eager")


def states(length: int, heads: int, width: int, batch: int, device: str, dtype: torch.dtype):
    """Fresh q, k, v that require gradients: views of (B, N, H, D), as in transformers' models."""
    shape = (batch, length, heads, width)
    return [
        torch.randn(shape, device=device, dtype=dtype).transpose(1, 2).requires_grad_()
        for _ in range(3)
    ]


def check(device: str, dtype: torch.dtype) -> None:
    """Ours against the published forms in float64, outputs and gradients; raises if they differ."""
    checked = [(form, CHECKED[form.split()[0]]) for form in FORMS if form.split()[0] in CHECKED]
    for variant, published in checked:
        for causal, padded in itertools.product((False, True), repeat=2):
            own = states(67, 4, 32, 2, device, dtype)
            mask = padding(2, 67, causal, device) if padded else None
            precise = [x.detach().double().requires_grad_() for x in own]
            upstream = torch.randn(own[0].shape, device=device, dtype=torch.float64)
            got = FORMS[variant](*own, causal, 0.0, mask)
            expected = published(*precise, causal, 0.0, mask)
            got.backward(upstream.to(dtype))
            expected.backward(upstream)
            pairs = [
                (got, expected),
                *((x.grad, y.grad) for x, y in zip(own, precise, strict=True)),
            ]
            for one, other in pairs:
                error = (one.double() - other).abs().max() / other.abs().max()
                if error > TOLERANCE[dtype]:
                    raise ValueError(f"{variant} is wrong by {error:.1e}: nothing is timed.")
