"""A look inside the models of a comparison: tokens by depth, before and after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import AutoConfig, AutoModel, PreTrainedModel

from finetune.engine.results import write_json
from finetune.studies.look_page import STATISTICS
from hf_graphattn.diagnostics import Diagnosis, diagnose, figures
from hf_graphattn.diagnostics.drawing import DPI
from hf_graphattn.loading.load import load_any
from hf_graphattn.shell.diagnose import (
    batches,
    load_processor,
    load_tokenizer,
    readable,
    token_ids,
)

FIGURES = ("cosine_similarity", "high_to_dc")
LENGTH, BATCH = 128, 8


def look(
    name: str,
    start: str | None,
    runs: Mapping[int, Mapping[str, Path]],
    rows: Sequence[Any],
    folder: Path,
) -> None:
    """Write ``<name>-depth.json`` and, for the first seed, a figure for each of `FIGURES`.

    Args:
        name: the study's.
        start: the checkpoint that all arms began from; None is none, but fresh weights.
        runs: by seed and arm the folder of each run, with its weights; the baseline first.
        rows: what the models read, texts or images; texts are cut to 128 tokens or to what they can
            read.
        folder: where to write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    first = next(iter(runs.values()))
    plain = next(iter(first.values()))
    begun = _fresh(plain) if start is None else AutoModel.from_pretrained(start)
    before = _diagnosis(begun, plain, rows)
    found = {
        seed: {arm: _diagnosis(load_any(str(path)), path, rows) for arm, path in of_seed.items()}
        for seed, of_seed in tqdm(runs.items(), desc=f"Looking inside {name}", unit="seed")
    }
    drawn = figures({"before": before} | found[next(iter(runs))])
    for figure in FIGURES:
        drawn[figure].savefig(folder / f"{name}-{figure}.png", dpi=DPI)
    numbers = {
        "sequences": before.parts[0].sequences,
        "figures": list(FIGURES),
        "before": _by_depth(before),
        "seeds": {
            seed: {arm: _by_depth(diagnosis) for arm, diagnosis in of_seed.items()}
            for seed, of_seed in found.items()
        },
    }
    write_json(folder / f"{name}-depth.json", numbers)


def _diagnosis(model: PreTrainedModel, folder: Path, rows: Sequence[Any]) -> Diagnosis:
    """Of a model that reads them by the tokenizer or the image processor in the folder."""
    if isinstance(rows[0], str):
        tokenizer = load_tokenizer(str(folder))
        length = readable(LENGTH, model, tokenizer)
        ids = token_ids(tokenizer, list(rows), length, len(rows))
        return diagnose(model, batches(model, tokenizer, ids, BATCH), max_sequences=len(rows))
    pixels = load_processor(str(folder))(list(rows), return_tensors="pt")["pixel_values"]
    return diagnose(model, [{"pixel_values": pixels}], max_sequences=len(rows))


def _fresh(path: Path) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModel.from_config(AutoConfig.from_pretrained(path))


def _by_depth(diagnosis: Diagnosis) -> dict[str, list[float]]:
    by_depth = diagnosis.parts[0].by_depth
    return {name: by_depth[name].mean.tolist() for name in STATISTICS}
