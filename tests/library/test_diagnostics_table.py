"""What a diagnosis prints: a row a layer, the same in a notebook, a short repr."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from diagnosing import QUICK, whole
from tiny import build

import hf_graphattn as ga
from hf_graphattn.diagnostics import Diagnosis, diagnose

NUMBERS = ("cosine", "high_to_dc", "effective_rank", "entropy", "largest_eigenvalue", "homophily")


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    torch.manual_seed(0)
    model = ga.patch_model(build("BERT"), ga.GFSAConfig(order=4, w_K=0.25, layers=(1,)))
    return diagnose(model, whole(model), **QUICK)


def test_a_row_a_layer_with_the_numbers_to_three_digits(diagnosis: Diagnosis) -> None:
    (part,) = diagnosis.parts
    lines = str(diagnosis).splitlines()
    assert lines[0].startswith(
        f"{diagnosis.model}: 3 sequences, {part.tokens} tokens without padding"
    )
    rows = {line.split()[0]: line.split() for line in lines}
    assert rows["embeddings"][1:] == [f"{part.by_depth[n].mean[0]:.3g}" for n in NUMBERS[:3]]
    for layer, variant in enumerate(("plain", "gfsa")):
        states = [f"{part.by_depth[n].mean[layer + 1]:.3g}" for n in NUMBERS[:3]]
        heads = [f"{part.by_head[n].mean[layer].mean():.3g}" for n in NUMBERS[3:]]
        learned = ["w_K", "0.25"] if layer else []
        assert rows[str(layer)] == [str(layer), variant, *states, *heads, *learned]
    assert max(map(len, lines)) <= 100


def test_a_notebook_shows_every_layer_and_the_repr_is_a_line(diagnosis: Diagnosis) -> None:
    assert diagnosis._repr_html_().count("<tr>") == 1 + 1 + 2  # headings, embeddings, layers
    assert repr(diagnosis) == (
        f"<Diagnosis of {diagnosis.model}: model of 2 layers x 4 heads (plain, gfsa); 3 sequences>"
    )


def test_learned_scalars_go_from_the_least_head_to_the_greatest(diagnosis: Diagnosis) -> None:
    part = diagnosis.parts[0]
    scalars = {"w_K": np.array([[np.nan] * 4, [0.5, -0.25, 0.125, 0.0]])}
    text = str(dataclasses.replace(diagnosis, parts=(dataclasses.replace(part, scalars=scalars),)))
    assert "w_K -0.25..0.5" in text
    assert text.count("w_K") == 1  # the other layer has none


def test_numbers_that_are_not_finite_are_dashes(diagnosis: Diagnosis) -> None:
    part = diagnosis.parts[0]
    cosine = dataclasses.replace(part.by_depth["cosine"], mean=np.array([0.1, np.nan, np.inf]))
    broken = dataclasses.replace(part, by_depth={**part.by_depth, "cosine": cosine})
    text = str(dataclasses.replace(diagnosis, parts=(broken,)))
    rows = [line.split() for line in text.splitlines() if line[:1].isdigit()]
    assert [row[2] for row in rows] == ["-", "-"]
