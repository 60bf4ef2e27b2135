"""What the page of evidence says of a look inside: did tokens grow alike?"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune.experiments.gather import NONE, ArmResult, TaskResult, against_baseline
from finetune.experiments.statistics import LEVEL
from finetune.experiments.tables import Table, difference

# Of each statistic its name, and whether tokens with more of it are less alike.
STATISTICS = {
    "cosine": ("cosine similarity of tokens", False),
    "high_to_dc": ("high-frequency over DC energy", True),
    "effective_rank": ("effective rank", True),
}
HEADINGS = ("", "embeddings", "last layer", "difference there", "95 % interval", "p, Holm")
EMBEDDINGS, LAST = 0, -1  # depths


def section(name: str, folder: Path) -> list[str]:
    """The lines on a study, where `finetune.studies.look` has looked inside; else none."""
    source = folder / f"{name}-depth.json"
    if not source.is_file():
        return []
    found = json.loads(source.read_text("utf-8"))
    seeds = list(found["seeds"])
    compared = [against_baseline([_result(found, s, LAST)])[0] for s in STATISTICS]
    return [
        f"### Inside: {found['sequences']} rows of the validation set, seeds {', '.join(seeds)}",
        "",
        *Table(HEADINGS, [list(_rows(found, task)) for task in compared]).markdown(),
        "",
        "GFSA's and p-LaT's papers hold that their filters keep tokens from growing alike: a lower "
        "cosine, more high-frequency energy, a higher rank than plain attention has. That of A - I "
        f"calls it Laplacian smoothing, and claims no such thing. {verdict(compared)} Means over "
        "the seeds; differences paired by seed, p corrected over the arms of a statistic. The "
        f"figures are of seed {seeds[0]}.",
        "",
        *(f"![{f} by depth]({folder.name}/{name}-{f}.png)" for f in found["figures"]),
        "",
    ]


def verdict(compared: Sequence[TaskResult]) -> str:
    """Which arms' tokens were shown to be less alike, or more, by which statistics."""
    shown = defaultdict(list)  # (less or more, arms) -> statistics that show it
    for task in compared:
        ways = defaultdict(list)
        for arm in task.arms:
            if arm.paired is not None and arm.paired.corrected_p <= LEVEL:
                is_less = (arm.paired.mean > 0) == task.greater_is_better
                ways["less" if is_less else "more"].append(arm.name)
        for way, arms in ways.items():
            shown[way, ", ".join(arms)].append(task.task)
    said = [
        f"tokens are {way} alike in {arms} by {', '.join(titles)}"
        for (way, arms), titles in shown.items()
    ]
    return f"Shown here: {'; '.join(said) or 'no difference in any of these'}."


def _result(found: Mapping[str, Any], statistic: str, depth: int) -> TaskResult:
    """A statistic at one depth, as a comparison's metric: better is less alike."""
    title, more_is_less_alike = STATISTICS[statistic]
    seeds = found["seeds"]

    def result(arm: str) -> ArmResult:
        return ArmResult(
            arm, {int(seed): of_seed[arm][statistic][depth] for seed, of_seed in seeds.items()}
        )

    arms = [result(arm) for arm in next(iter(seeds.values()))]
    return TaskResult(title, statistic, more_is_less_alike, arms)


def _rows(found: Mapping[str, Any], last: TaskResult) -> Iterator[list[str]]:
    """The table's rows on one statistic: the start, plain attention, and each arm against it."""
    begun = found["before"][last.metric]
    yield [f"{last.task}: before", f"{begun[EMBEDDINGS]:.3f}", f"{begun[LAST]:.3f}", *[NONE] * 3]
    first = _result(found, last.metric, EMBEDDINGS)
    for at_first, arm in zip(first.arms, last.arms, strict=True):
        p = f"{arm.paired.corrected_p:.3g}" if arm.paired else NONE
        means = [f"{at_first.mean:.3f}", f"{arm.mean:.3f}"]
        yield [f"{last.task}: {arm.name}", *means, *difference(arm.paired, 3), p]
