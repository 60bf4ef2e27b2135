"""A look inside the models of a comparison: did tokens grow alike, by depth, in training?"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import AutoConfig, AutoModel, PreTrainedModel

from finetune.engine.results import write_json
from finetune.experiments import analyze, report
from finetune.experiments.analyze import NONE, ArmResult, TaskResult
from finetune.experiments.statistics import LEVEL
from hf_graphattn.diagnostics import Diagnosis, diagnose, figures
from hf_graphattn.diagnostics.drawing import DPI
from hf_graphattn.loading import load_any
from hf_graphattn.shell import diagnose as shell

# Of each statistic its name, and whether tokens with more of it are less alike.
STATISTICS = {
    "cosine": ("cosine similarity of tokens", False),
    "high_to_dc": ("high-frequency over DC energy", True),
    "effective_rank": ("effective rank", True),
}
HEADINGS = ("", "embeddings", "last layer", "difference there", "95 % interval", "p, Holm")
EMBEDDINGS, LAST = 0, -1  # depths
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
    torch.manual_seed(0)
    first_model = (
        AutoModel.from_config(AutoConfig.from_pretrained(plain))
        if start is None
        else AutoModel.from_pretrained(start)
    )
    before = _diagnosis(first_model, plain, rows)
    after = {
        seed: {arm: _diagnosis(load_any(str(path)), path, rows) for arm, path in of_seed.items()}
        for seed, of_seed in tqdm(runs.items(), desc=f"Looking inside {name}", unit="seed")
    }
    drawn = figures({"before": before} | after[next(iter(runs))])
    for figure in FIGURES:
        drawn[figure].savefig(folder / f"{name}-{figure}.png", dpi=DPI)
    numbers = {
        "sequences": before.parts[0].sequences,
        "figures": list(FIGURES),
        "before": _by_depth(before),
        "seeds": {
            seed: {arm: _by_depth(diagnosis) for arm, diagnosis in of_seed.items()}
            for seed, of_seed in after.items()
        },
    }
    write_json(folder / f"{name}-depth.json", numbers)


def _diagnosis(model: PreTrainedModel, folder: Path, rows: Sequence[Any]) -> Diagnosis:
    """Of a model that reads them by the tokenizer or the image processor in the folder."""
    if isinstance(rows[0], str):
        tokenizer = shell.load_tokenizer(str(folder))
        length = shell.readable(LENGTH, model, tokenizer)
        ids = shell.token_ids(tokenizer, list(rows), length, len(rows))
        batches = shell.batches(model, tokenizer, ids, BATCH)
        return diagnose(model, batches, max_sequences=len(rows))
    pixels = shell.load_processor(str(folder))(list(rows), return_tensors="pt")["pixel_values"]
    return diagnose(model, [{"pixel_values": pixels}], max_sequences=len(rows))


def _by_depth(diagnosis: Diagnosis) -> dict[str, list[float]]:
    """Each statistic by depth; by frequency and index, for tools/figures.py, two spectra."""
    part = diagnosis.parts[0]
    spectra = {
        "fourier_response": part.fourier_response.mean.mean((0, 1)).tolist(),  # layers, heads
        "singular_values": part.singular_values.mean.tolist(),
    }
    return {name: part.by_depth[name].mean.tolist() for name in STATISTICS} | spectra


def section(name: str, folder: Path) -> list[str]:
    """The lines on a study, where `finetune.studies.look` has looked inside; else none."""
    source = folder / f"{name}-depth.json"
    if not source.is_file():
        return []
    numbers = json.loads(source.read_text("utf-8"))
    seeds = list(numbers["seeds"])
    compared = [analyze.against_baseline([_result(numbers, s, LAST)])[0] for s in STATISTICS]
    rows = [row for task in compared for row in _rows(numbers, task)]
    return [
        f"## Inside: {numbers['sequences']} rows of the validation set, seeds {', '.join(seeds)}",
        "",
        *report.Table([dict(zip(HEADINGS, row, strict=True)) for row in rows]).markdown(),
        "",
        "GFSA's and p-LaT's papers hold that their filters keep tokens from growing alike: a lower "
        "cosine, more high-frequency energy, a higher rank than plain attention has. That of A - I "
        f"calls it Laplacian smoothing, and claims no such thing. {verdict(compared)} Means over "
        "the seeds; differences paired by seed, p corrected over the arms of a statistic. The "
        f"figures are of seed {seeds[0]}.",
        "",
        *(f"![{f} by depth]({name}-{f}.png)" for f in numbers["figures"]),
        "",
    ]


def verdict(compared: Sequence[TaskResult]) -> str:
    """Which arms' tokens were shown to be less alike, or more, by which statistics."""
    statistics, ways = defaultdict(list), {"better": "less", "worse": "more"}
    for task in compared:
        arms = defaultdict(list)
        for arm in task.arms:
            if arm.paired and arm.paired.corrected_p <= LEVEL:
                arms[ways[task.direction_of(arm.paired)]].append(arm.name)
        for way, names in arms.items():
            statistics[way, ", ".join(names)].append(task.task)
    parts = [
        f"tokens are {way} alike in {alike} by {', '.join(titles)}"
        for (way, alike), titles in statistics.items()
    ]
    return f"Shown here: {'; '.join(parts) or 'no difference in any of these'}."


def _result(numbers: Mapping[str, Any], statistic: str, depth: int) -> TaskResult:
    """A statistic at one depth, as a comparison's metric: better is less alike."""
    title, more_is_less_alike = STATISTICS[statistic]
    values: dict[str, dict[int, float]] = defaultdict(dict)
    for seed, by_arm in numbers["seeds"].items():
        for arm, by_statistic in by_arm.items():
            values[arm][int(seed)] = by_statistic[statistic][depth]
    arms = [ArmResult(arm, by_seed) for arm, by_seed in values.items()]
    return TaskResult(title, statistic, more_is_less_alike, arms)


def _rows(numbers: Mapping[str, Any], last: TaskResult) -> Iterator[list[str]]:
    """The table's rows on one statistic: the start, plain attention, and each arm against it."""
    start = numbers["before"][last.metric]
    yield [f"{last.task}: before", f"{start[EMBEDDINGS]:.3f}", f"{start[LAST]:.3f}", *[NONE] * 3]
    first = _result(numbers, last.metric, EMBEDDINGS)
    for at_first, arm in zip(first.arms, last.arms, strict=True):
        p = f"{arm.paired.corrected_p:.3g}" if arm.paired else NONE
        means = [f"{at_first.mean:.3f}", f"{arm.mean:.3f}"]
        yield [f"{last.task}: {arm.name}", *means, *report.difference(arm.paired, 3), p]
