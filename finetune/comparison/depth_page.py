"""What the page of evidence says of a look inside: did tokens grow alike?"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from finetune.comparison.statistics import LEVEL, bootstrap_interval, holm, permutation_p
from finetune.comparison.tables import NONE, pipes

# Statistic -> its name, and whether more of it is tokens that are less alike.
STATISTICS = {
    "cosine": ("cosine similarity of tokens", False),
    "high_to_dc": ("high-frequency over DC energy", True),
    "effective_rank": ("effective rank", True),
}


def section(name: str, folder: Path) -> list[str]:
    """The lines on a study, where `finetune.comparison.depth` has looked inside; else none."""
    source = folder / f"{name}-depth.json"
    if not source.is_file():
        return []
    found = json.loads(source.read_text("utf-8"))
    seeds = found["seeds"]
    lines = [
        f"### Inside: {found['sequences']} texts of the validation set, seeds {', '.join(seeds)}",
        "",
        *pipes(["", "embeddings", "last layer", "difference there", "95 % interval", "p, Holm"],
               [row for statistic in STATISTICS for row in rows(found, statistic)]),
        "",
        "The papers hold that their filters keep tokens from growing alike: a lower cosine, more "
        f"high-frequency energy, a higher rank than plain attention has. {verdict(found)} Means "
        "over the seeds; differences paired by seed, p corrected over the arms of a statistic. The "
        f"figures are of seed {next(iter(seeds))}.",
        "",
    ]  # fmt: skip
    figures = [f"![{f} by depth]({folder.name}/{name}-{f}.png)" for f in found["figures"]]
    return [*lines, *figures, ""]


def rows(found: Mapping[str, Any], statistic: str) -> Iterator[list[str]]:
    """The table's rows on one statistic: the start, plain attention, and each arm against it."""
    title, _ = STATISTICS[statistic]
    plain, *arms = next(iter(found["seeds"].values()))
    begun = found["before"][statistic]
    yield [f"{title}: before", f"{begun[0]:.3f}", f"{begun[-1]:.3f}", NONE, NONE, NONE]
    compared = dict(zip(arms, compare(found, statistic), strict=True))
    for arm in (plain, *arms):
        first, last = (
            fmean(seed[arm][statistic][depth] for seed in found["seeds"].values())
            for depth in (0, -1)
        )
        words = [NONE] * 3
        if arm in compared:
            mean, interval, p = compared[arm]
            between = f"{interval.low:+.3f} to {interval.high:+.3f}" if interval else NONE
            words = [f"{mean:+.3f}", between, f"{p:.3g}"]
        yield [f"{title}: {arm}", f"{first:.3f}", f"{last:.3f}", *words]


def compare(found: Mapping[str, Any], statistic: str) -> list[tuple[float, Any, float]]:
    """Of each arm but plain attention: mean difference at the last layer, interval, p by Holm."""
    seeds = list(found["seeds"].values())
    plain, *arms = seeds[0]
    differences = [[s[arm][statistic][-1] - s[plain][statistic][-1] for s in seeds] for arm in arms]
    corrected = holm([permutation_p(values) for values in differences])
    return [
        (fmean(values), bootstrap_interval(values), p)
        for values, p in zip(differences, corrected, strict=True)
    ]


def verdict(found: Mapping[str, Any]) -> str:
    """Which arms' tokens were shown to be less alike, or more, by which statistics."""
    _, *arms = next(iter(found["seeds"].values()))
    shown = defaultdict(list)  # (less or more, arms) -> statistics that show it
    for statistic, (title, more_is_less_alike) in STATISTICS.items():
        ways = defaultdict(list)
        for arm, (mean, _, p) in zip(arms, compare(found, statistic), strict=True):
            if p <= LEVEL:
                ways["less" if (mean > 0) == more_is_less_alike else "more"].append(arm)
        for way, of_arms in ways.items():
            shown[way, ", ".join(of_arms)].append(title)
    said = [
        f"tokens are {way} alike in {of_arms} by {', '.join(titles)}"
        for (way, of_arms), titles in shown.items()
    ]
    return f"Shown here: {'; '.join(said) or 'no difference in any of these'}."
