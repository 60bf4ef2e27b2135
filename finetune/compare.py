"""Did graph attention help? The same runs with and without it, seed by seed, and what they show.

    python finetune/compare.py --script finetune/glue.py --task_name cola \\
        --model_name_or_path bert-base-uncased --arms finetune/arms/fine-tuning.yaml --seeds 8 \\
        --output_dir runs/compare-cola
    python finetune/compare.py --examples runs/a runs/b

Flags that are not listed here go to every run of the script. Started again, it goes on where it was
stopped; with more seeds, arms or tasks, only what is new is run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from finetune.experiments import command_line


def main(argv: Sequence[str] | None = None) -> int:
    """Do what ``argv`` asks (None: the process's); returns the exit code, 1 if runs are missing.

    Raises ``ValueError`` before anything is started if it cannot be run as asked.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    given, words = command_line.of_comparison(__doc__).parse_known_args(argv)
    if given.examples:
        return compare_examples(given)
    # Imported once the flags are right: these take seconds.
    from finetune.experiments import arms, conduct, experiment

    script = experiment.script_of(given)
    chosen = arms.chosen(given.variants, given.arms, given.variant_flags, given.baseline, script)
    return conduct.carry_out(experiment.planned(given, words, script, chosen), argv)


def compare_examples(given: argparse.Namespace) -> int:
    """Test one pair of runs by example; also into ``output_dir``/examples.json if it is given."""
    from finetune.engine.results import write_json
    from finetune.experiments import examples

    first, second = given.examples
    tests = examples.compare(first, second)
    print(examples.shown(first, second, tests))
    if given.output_dir is not None:
        given.output_dir.mkdir(parents=True, exist_ok=True)
        write_json(given.output_dir / "examples.json", examples.as_json(first, second, tests))
    return 0


if __name__ == "__main__":
    command_line.exit_with(main)
