"""docs/evidence.md: every comparison that it shows, run, and written down.

    python finetune/evidence.py --glue data/nyu-mll/glue --ptb data/ptb-text-only/ptb_text_only \\
        --bert models/all-MiniLM-L6-v2
    python finetune/evidence.py --report_only

The studies are the rows of `evidence.yaml`. Each is a call of `compare.py`, so a stopped one goes
on where it was. What the page rests on is kept beside it, in docs/evidence/.
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

from finetune import compare
from finetune.comparison import depth, evidence_page
from tasks import demo_lm

ROOT = Path(__file__).resolve().parents[1]
TEXTS = 32  # of the validation set, for the look inside


@dataclass(frozen=True)
class Study:
    """A row of `evidence.yaml`, which says what each is."""

    name: str
    title: str
    script: str
    arms: str
    variants: list[str]
    seeds: int
    flags: str
    paper: str
    start: str | None = None
    texts: str | None = None


def studies() -> list[Study]:
    rows = yaml.safe_load((ROOT / "finetune" / "evidence.yaml").read_text("utf-8"))
    return [Study(name=name, **row) for name, row in rows.items()]


def words(study: Study, given: argparse.Namespace) -> list[str]:
    """The call of compare.py that makes a study."""
    call = ["--script", str(ROOT / "finetune" / study.script)]
    call += ["--arms", str(ROOT / "finetune" / "arms" / f"{study.arms}.yaml")]
    call += ["--variants", *study.variants, "--seeds", str(study.seeds)]
    call += ["--threads", str(given.threads), "--output_dir", str(given.runs / study.name)]
    call += ["--keep_models"] if study.texts else []
    call += ["--report_only"] if given.report_only else []
    return call + [word.format(**vars(given)) for word in study.flags.split()]


def read_texts(study: Study, given: argparse.Namespace) -> Sequence[str]:
    """The first texts of the validation set."""
    if study.texts == "documents":
        return demo_lm.build()["validation"]["text"][:TEXTS]
    return datasets.load_dataset(given.glue, study.texts, split="validation")["sentence"][:TEXTS]


def complete_seed(study: Study, runs: Path) -> Mapping[str, Path] | None:
    """Each arm's run of the first seed whose models were all kept."""
    for seed in range(study.seeds):
        found = {
            arm: path.parent
            for arm in study.variants
            for path in runs.glob(f"{study.name}/*/{arm}/seed-{seed}/model.safetensors")
        }
        if len(found) == len(study.variants):
            return found
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the studies asked for, and write the page from all that have been run."""
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
                missing |= compare.main(words(study, given))
            kept = complete_seed(study, given.runs) if study.texts else None
            if kept is not None:
                start = study.start and study.start.format(**vars(given))
                texts = read_texts(study, given)
                depth.look(study.name, start, kept, texts, given.docs / "evidence")
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
