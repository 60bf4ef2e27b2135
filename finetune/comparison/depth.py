"""A look inside the models of one seed of a comparison: tokens by depth, before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, PreTrainedModel

from finetune.outputs import write_json
from hf_graphattn.diagnostics import Diagnosis, diagnose, figures
from hf_graphattn.diagnostics.command import batches, load, token_ids

FIGURES = ("cosine_similarity", "high_to_dc")
STATISTICS = ("cosine", "high_to_dc", "effective_rank")
LENGTH, BATCH = 128, 8


def look(
    name: str, start: str | None, runs: Mapping[str, Path], texts: Sequence[str], folder: Path
) -> None:
    """Write ``<name>-depth.json`` and a figure a statistic into ``folder``.

    Args:
        name: the study's.
        start: the checkpoint that all arms began from; None is nothing, fresh weights.
        runs: each arm's run of one seed, with its weights.
        texts: what the models read, a sequence each, cut to 128 tokens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    first = next(iter(runs.values()))
    before = _fresh(first) if start is None else AutoModel.from_pretrained(start)
    loaded = {arm: load(str(path)) for arm, path in runs.items()}
    tokenizer = next(iter(loaded.values()))[1]
    models = {"before": (before, tokenizer), **loaded}
    found = {arm: _diagnosis(*pair, texts) for arm, pair in models.items()}
    drawn = figures(found)
    for figure in FIGURES:
        drawn[figure].savefig(folder / f"{name}-{figure}.png", dpi=110)
    write_json(folder / f"{name}-depth.json", _numbers(found, first.name))


def _diagnosis(model: PreTrainedModel, tokenizer: Any, texts: Sequence[str]) -> Diagnosis:
    ids = token_ids(tokenizer, list(texts), LENGTH, len(texts))
    return diagnose(model, batches(model, tokenizer, ids, BATCH), max_sequences=len(texts))


def _fresh(path: Path) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModel.from_config(AutoConfig.from_pretrained(path))


def _numbers(found: Mapping[str, Diagnosis], seed: str) -> dict[str, Any]:
    parts = {arm: diagnosis.parts[0] for arm, diagnosis in found.items()}
    return {
        "sequences": next(iter(parts.values())).sequences,
        "seed": seed.removeprefix("seed-"),
        "figures": list(FIGURES),
        "models": {
            arm: {name: part.by_depth[name].mean.tolist() for name in STATISTICS}
            for arm, part in parts.items()
        },
    }
