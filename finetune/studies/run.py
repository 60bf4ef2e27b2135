"""The studies of `evidence.yaml`: comparisons and sweeps, some with a look inside."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets

from finetune.experiments import arms, command_line, conduct, plan
from finetune.settings.variants import checked_variant
from finetune.studies import ROOT, look, rows_by_name
from tasks import demo_lm, image_classification

Effect = str | Sequence[str | float]
ROWS = 32  # of the validation set, for the look inside
SOURCES = ("glue", "ptb", "bert", "shakespeare")  # of data and models, in the rows' braces
HOW = ("processes", "threads", "report_only")  # flags of evidence.py that its experiments have too


@dataclass(frozen=True, kw_only=True)
class Study:
    """A row of `evidence.yaml`, which explains each field: a comparison, or with a space a sweep.

    ``variant_flags`` are arms beside the file's, by name their flags; ``effects``
    the papers' own figures for an arm: before, after, and where, if that is not plain; or a text.
    ``again`` are arms that are the same runs as those of a study before. With ``reads``, there is a
    look inside the models of all complete seeds.
    """

    name: str
    title: str
    script: str
    seeds: int
    flags: Mapping[str, Any]
    paper: str
    first_seed: int = 0
    reported: Sequence[Mapping[str, str]] = ()
    variant: str | None = None
    space: str | None = None
    arms: str | None = None
    variants: Sequence[str] = ()
    variant_flags: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    baseline: str | None = None
    metric: str | None = None
    effects: Mapping[str, Effect] = field(default_factory=dict)
    again: Sequence[str] = ()
    start: str | None = None
    reads: str | None = None

    @property
    def compares(self) -> bool:
        """Whether it compares arms: no sweep, and not seeds apart that only choose settings."""
        return self.space is None and not self.first_seed

    def experiment(self, options: argparse.Namespace) -> plan.Experiment:
        """What is run; ``options`` are those of `evidence.py`."""
        folder, seeds = ROOT / "finetune", {"seeds": self.seeds, "first_seed": self.first_seed}
        parser = command_line.of_sweep() if self.space else command_line.of_comparison()
        named: dict[str, Any] = {name: getattr(options, name) for name in HOW}
        named |= {"script": folder / self.script, "output_dir": options.runs / self.name, **seeds}
        named |= {"arms": f"{folder}/arms/{self.arms}.yaml", "variants": self.variants}
        named |= {
            "baseline": self.baseline,
            "metric": self.metric,
            "keep_models": self.reads is not None,
        }
        called = parser.parse_args([], argparse.Namespace(**named))
        script, sources = plan.script_of(called), _sources(options)
        texts = {n: v.format(**sources) if isinstance(v, str) else v for n, v in self.flags.items()}
        common = script.schema.typed(texts, self.name)
        if self.space is None:
            chosen = arms.chosen(called, script, self.variant_flags)
            return plan.experiment(called, script, chosen, common)
        path = f"{folder}/spaces/{self.space}.yaml"
        space = arms.read_space(path, script, checked_variant(self.variant))
        return plan.experiment(called, script, [arms.PLAIN], common, space)

    def run(self, options: argparse.Namespace) -> int:
        """Run what is not done yet; returns the exit code."""
        missing = conduct.conduct(self.experiment(options), ["finetune/evidence.py", self.name])
        if models := self._models(options.runs) if self.reads else {}:
            start = self.start and self.start.format(**_sources(options))
            look.look(self.name, start, models, self._rows(options), options.docs / "evidence")
        return missing

    def _models(self, runs: Path) -> Mapping[int, Mapping[str, Path]]:
        """Each arm's run by its seed, of the seeds whose models were all kept."""
        models: dict[int, dict[str, Path]] = {}
        for seed, arm in itertools.product(range(self.seeds), self.variants):
            for path in runs.glob(f"{self.name}/*/{arm}/seed-{seed}/model.safetensors"):
                models.setdefault(seed, {})[arm] = path.parent
        return {seed: arms for seed, arms in models.items() if len(arms) == len(self.variants)}

    def _rows(self, options: argparse.Namespace) -> Sequence[Any]:
        """The first texts or images of the validation set."""
        if self.reads == "documents":
            return demo_lm.build()["validation"]["text"][:ROWS]
        if self.reads == "digits":
            return image_classification.digits()["validation"]["image"][:ROWS]
        rows = datasets.load_dataset(options.glue, self.reads, split="validation")
        return rows["sentence"][:ROWS]


def _sources(options: argparse.Namespace) -> dict[str, str]:
    return {name: getattr(options, name) for name in SOURCES}


def studies() -> list[Study]:
    """The rows of `evidence.yaml`, in their order."""
    return [Study(name=name, **row) for name, row in rows_by_name().items()]
