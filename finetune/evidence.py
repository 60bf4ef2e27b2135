"""docs/evidence.md: every comparison and sweep that it shows, run, and written down.

    python finetune/evidence.py --glue data/nyu-mll/glue --ptb data/ptb-text-only/ptb_text_only \\
        --bert models/all-MiniLM-L6-v2
    python finetune/evidence.py --report_only

The studies are the rows of `evidence.yaml`. Each is a call of `compare.py` or `sweep.py`, so a
stopped one goes on where it was. What the page rests on is kept beside it, in docs/evidence/; a
study without runs under --runs keeps what the page says of it.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import datasets
import yaml

from finetune import compare, sweep
from finetune.comparison import depth, evidence_page
from tasks import demo_lm

ROOT = Path(__file__).resolve().parents[1]
TEXTS = 32  # of the validation set, for the look inside


@dataclass(frozen=True, kw_only=True)
class Study:
    """A row of `evidence.yaml`, which says what each field is."""

    name: str
    title: str
    script: str
    seeds: int
    flags: str
    paper: str
    reported: Sequence[Mapping[str, str]] = ()

    def words(self, given: argparse.Namespace) -> list[str]:
        """What compare.py and sweep.py both take."""
        call = ["--script", str(ROOT / "finetune" / self.script), "--seeds", str(self.seeds)]
        call += ["--threads", str(given.threads), "--output_dir", str(given.runs / self.name)]
        call += ["--report_only"] if given.report_only else []
        return call + [word.format(**vars(given)) for word in self.flags.split()]


@dataclass(frozen=True, kw_only=True)
class Comparison(Study):
    """A call of compare.py; with ``texts``, a look inside the models of one seed."""

    arms: str
    variants: Sequence[str]
    start: str | None = None
    texts: str | None = None

    def run(self, given: argparse.Namespace) -> int:
        """Run what is not done yet; returns the exit code."""
        call = ["--arms", str(ROOT / "finetune" / "arms" / f"{self.arms}.yaml")]
        call += ["--variants", *self.variants, *(["--keep_models"] if self.texts else [])]
        missing = compare.main(call + self.words(given))
        kept = complete_seeds(self, given.runs) if self.texts else {}
        if kept:
            start = self.start and self.start.format(**vars(given))
            texts = read_texts(self, given)
            depth.look(self.name, start, kept, texts, given.docs / "evidence")
        return missing


@dataclass(frozen=True, kw_only=True)
class Sensitivity(Study):
    """A call of sweep.py."""

    variant: str
    space: str

    def run(self, given: argparse.Namespace) -> int:
        """Run what is not done yet; returns the exit code."""
        space = ROOT / "finetune" / "spaces" / f"{self.space}.yaml"
        return sweep.main(["--variant", self.variant, "--space", str(space), *self.words(given)])


def studies() -> list[Comparison | Sensitivity]:
    rows = yaml.safe_load((ROOT / "finetune" / "evidence.yaml").read_text("utf-8"))
    return [
        (Sensitivity if "space" in row else Comparison)(name=name, **row)
        for name, row in rows.items()
    ]


def read_texts(study: Comparison, given: argparse.Namespace) -> Sequence[str]:
    """The first texts of the validation set."""
    if study.texts == "documents":
        return demo_lm.build()["validation"]["text"][:TEXTS]
    return datasets.load_dataset(given.glue, study.texts, split="validation")["sentence"][:TEXTS]


def complete_seeds(study: Comparison, runs: Path) -> Mapping[int, Mapping[str, Path]]:
    """Each arm's run, of the seeds whose models were all kept."""
    found = {
        seed: {
            arm: path.parent
            for arm in study.variants
            for path in runs.glob(f"{study.name}/*/{arm}/seed-{seed}/model.safetensors")
        }
        for seed in range(study.seeds)
    }
    return {seed: arms for seed, arms in found.items() if len(arms) == len(study.variants)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the studies asked for, and write the page."""
    rows = studies()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [study.name for study in rows]
    parser.add_argument("--studies", nargs="+", choices=names, default=names)
    parser.add_argument("--glue", default="nyu-mll/glue")
    parser.add_argument("--ptb", default="ptb-text-only/ptb_text_only")
    parser.add_argument("--bert", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of a run.")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "evidence")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    parser.add_argument("--report_only", action="store_true", help="Run nothing.")
    given = parser.parse_args(argv)
    for name in ("glue", "ptb", "bert", "runs", "docs"):
        setattr(given, name, _absolute(getattr(given, name)))
    missing = 0
    for study in rows:
        if study.name in given.studies:
            with contextlib.chdir(ROOT):
                missing |= study.run(given)
    evidence_page.write(rows, given.runs, given.docs)
    return missing


def _absolute(name: str | Path) -> str | Path:
    """A hub id stays what it is; a path is one from anywhere."""
    path = Path(name)
    return (
        path.resolve() if isinstance(name, Path) else str(path.resolve() if path.exists() else name)
    )


if __name__ == "__main__":
    sys.exit(main())
