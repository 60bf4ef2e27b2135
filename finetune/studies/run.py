"""The studies of `evidence.yaml`: calls of compare.py and sweep.py, some with a look inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets

from finetune import compare, sweep
from finetune.studies import ROOT, look, rows_by_name
from tasks import demo_lm, image_classification

Effect = str | Sequence[str | float]
ROWS = 32  # of the validation set, for the look inside


@dataclass(frozen=True)
class Given:
    """What the command line says: where data, a model and the results are, and how to run."""

    glue: str
    ptb: str
    bert: str
    shakespeare: str
    processes: int
    threads: int
    runs: Path
    docs: Path
    report_only: bool


@dataclass(frozen=True, kw_only=True)
class Study:
    """A row of `evidence.yaml`, which says what each field is."""

    name: str
    title: str
    script: str
    seeds: int
    first_seed: int = 0
    flags: str
    paper: str
    reported: Sequence[Mapping[str, str]] = ()

    def words(self, given: Given) -> list[str]:
        """What compare.py and sweep.py both take."""
        call = ["--script", str(ROOT / "finetune" / self.script), "--seeds", str(self.seeds)]
        call += ["--first_seed", str(self.first_seed)]
        call += ["--processes", str(given.processes), "--threads", str(given.threads)]
        call += ["--output_dir", str(given.runs / self.name)]
        call += ["--report_only"] if given.report_only else []
        return call + [_filled(word, given) for word in self.flags.split()]


@dataclass(frozen=True, kw_only=True)
class Comparison(Study):
    """A call of compare.py; with ``reads``, a look inside the models of all complete seeds.

    ``own`` are arms beside the file's, as compare.py's ``--variant_flags`` takes them; ``effects``
    the papers' own figures for an arm: before, after, and where, if that is not plain; or in words.
    ``again`` are arms that are the same runs as those of a study before.
    """

    arms: str
    variants: Sequence[str]
    own: Sequence[str] = ()
    baseline: str | None = None
    effects: Mapping[str, Effect] = field(default_factory=dict)
    again: Sequence[str] = ()
    start: str | None = None
    reads: str | None = None

    def run(self, given: Given) -> int:
        """Run what is not done yet; returns the exit code."""
        call = ["--arms", str(ROOT / "finetune" / "arms" / f"{self.arms}.yaml")]
        call += ["--variants", *self.variants, *(["--keep_models"] if self.reads else [])]
        call += ["--variant_flags", *self.own] if self.own else []
        call += ["--baseline", self.baseline] if self.baseline else []
        missing = compare.main(call + self.words(given))
        models = self._models(given.runs) if self.reads else {}
        if models:
            start = None if self.start is None else _filled(self.start, given)
            look.look(self.name, start, models, self._rows(given), given.docs / "evidence")
        return missing

    def _models(self, runs: Path) -> Mapping[int, Mapping[str, Path]]:
        """Each arm's run by its seed, of the seeds whose models were all kept."""
        found = {
            seed: {
                arm: path.parent
                for arm in self.variants
                for path in runs.glob(f"{self.name}/*/{arm}/seed-{seed}/model.safetensors")
            }
            for seed in range(self.seeds)
        }
        return {seed: arms for seed, arms in found.items() if len(arms) == len(self.variants)}

    def _rows(self, given: Given) -> Sequence[Any]:
        """The first texts or images of the validation set."""
        if self.reads == "documents":
            return demo_lm.build()["validation"]["text"][:ROWS]
        if self.reads == "digits":
            return image_classification.digits()["validation"]["image"][:ROWS]
        return datasets.load_dataset(given.glue, self.reads, split="validation")["sentence"][:ROWS]


@dataclass(frozen=True, kw_only=True)
class Sensitivity(Study):
    """A call of sweep.py."""

    variant: str
    space: str

    def run(self, given: Given) -> int:
        """Run what is not done yet; returns the exit code."""
        space = ROOT / "finetune" / "spaces" / f"{self.space}.yaml"
        return sweep.main(["--variant", self.variant, "--space", str(space), *self.words(given)])


def studies() -> list[Comparison | Sensitivity]:
    """The rows of `evidence.yaml`, in their order."""
    return [
        (Sensitivity if "space" in row else Comparison)(name=name, **row)
        for name, row in rows_by_name().items()
    ]


def _filled(word: str, given: Given) -> str:
    """With the places of data and models in it."""
    places = {name: getattr(given, name) for name in ("glue", "ptb", "bert", "shakespeare")}
    return word.format(**places)
