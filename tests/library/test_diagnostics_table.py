"""What a diagnosis prints: a table that fits a terminal, the same in a notebook, a short repr."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from diagnosing import QUICK, whole
from tiny import build

import hf_graphattn as ga
from hf_graphattn.diagnostics import Diagnosis, Part, diagnose

NUMBERS = ("cosine", "high_to_dc", "effective_rank", "entropy", "largest_eigenvalue", "homophily")


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    torch.manual_seed(0)
    model = ga.patch_model(build("BERT"), ga.GFSAConfig(order=4, w_K=0.25, layers=(1,)))
    return diagnose(model, whole(model), **QUICK)


def deeper(part: Part, layers: int) -> Part:
    """The part with its last layer many times over."""
    more = layers - part.layers

    def grown(values: np.ndarray) -> np.ndarray:
        return np.concatenate([values, np.repeat(values[-1:], more, axis=0)])

    def summaries(of: dict) -> dict:
        return {n: dataclasses.replace(s, mean=grown(s.mean), std=s.std) for n, s in of.items()}

    return dataclasses.replace(
        part,
        variants=part.variants + part.variants[-1:] * more,
        by_depth=summaries(part.by_depth),
        by_head=summaries(part.by_head),
        scalars={name: grown(values) for name, values in part.scalars.items()},
    )


def test_a_row_a_layer_with_the_numbers_to_three_digits(found: Diagnosis) -> None:
    (part,) = found.parts
    lines = str(found).splitlines()
    assert lines[0].startswith(f"{found.model}: 3 sequences, {part.tokens} tokens without padding")
    rows = {line.split()[0]: line.split() for line in lines}
    assert rows["embeddings"][1:] == [f"{part.by_depth[n].mean[0]:.3g}" for n in NUMBERS[:3]]
    for layer, variant in enumerate(("plain", "gfsa")):
        states = [f"{part.by_depth[n].mean[layer + 1]:.3g}" for n in NUMBERS[:3]]
        heads = [f"{part.by_head[n].mean[layer].mean():.3g}" for n in NUMBERS[3:]]
        learned = ["w_K", "0.25"] if layer else []
        assert rows[str(layer)] == [str(layer), variant, *states, *heads, *learned]
    assert any(line.startswith("Cosine similarity by depth: from ") for line in lines)
    assert any(line.startswith("Singular values and effective rank: ") for line in lines)


@pytest.mark.parametrize("layers", [2, 12, 24, 96])
def test_it_fits_a_terminal_however_deep_the_model(found: Diagnosis, layers: int) -> None:
    part = deeper(found.parts[0], layers) if layers > 2 else found.parts[0]
    both = (dataclasses.replace(part, name="encoder"), dataclasses.replace(part, name="decoder"))
    for parts in ((part,), both):
        text = str(dataclasses.replace(found, parts=parts))
        assert len(text.splitlines()) <= 40
        assert max(map(len, text.splitlines())) <= 100
        first = [line.split()[0] for line in text.splitlines() if line.strip()]
        assert {"0", str(layers - 1)} <= set(first)
        left_out = sum(int(line.split()[0]) for line in text.splitlines() if " more " in line)
        shown = sum(word.isdigit() for word in first) - sum(
            " more " in line for line in text.splitlines()
        )
        assert shown + left_out == layers * len(parts)


def test_a_notebook_shows_every_layer_and_the_repr_is_a_line(found: Diagnosis) -> None:
    deep = dataclasses.replace(found, parts=(deeper(found.parts[0], 96),))
    html = deep._repr_html_()
    assert html.count("<tr>") == 1 + 1 + 96
    assert "<li>Cosine similarity by depth: " in html
    assert repr(found) == (
        f"<Diagnosis of {found.model}: model of 2 layers x 4 heads (plain, gfsa); 3 sequences>"
    )
    assert len(repr(found)) < 120


def test_learned_scalars_are_told_from_the_least_head_to_the_greatest(found: Diagnosis) -> None:
    part = found.parts[0]
    scalars = {"w_K": np.array([[np.nan] * 4, [0.5, -0.25, 0.125, 0.0]])}
    text = str(dataclasses.replace(found, parts=(dataclasses.replace(part, scalars=scalars),)))
    assert "w_K -0.25..0.5" in text
    assert text.count("w_K") == 1  # the other layer has none


def test_numbers_that_are_not_finite_are_dashes(found: Diagnosis) -> None:
    part = found.parts[0]
    cosine = dataclasses.replace(part.by_depth["cosine"], mean=np.array([0.1, np.nan, np.inf]))
    broken = dataclasses.replace(part, by_depth={**part.by_depth, "cosine": cosine})
    text = str(dataclasses.replace(found, parts=(broken,)))
    rows = [line.split() for line in text.splitlines() if line[:1].isdigit()]
    assert [row[2] for row in rows] == ["-", "-"]
    assert "nothing can be read off" in text
