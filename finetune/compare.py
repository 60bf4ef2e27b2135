"""Did graph attention help? The same runs with and without it, seed by seed, and what they show.

    python finetune/compare.py --script finetune/glue.py --task_name cola \\
        --model_name_or_path bert-base-uncased --arms finetune/arms/fine-tuning.yaml --seeds 8 \\
        --output_dir runs/compare-cola
    python finetune/compare.py --examples runs/a runs/b

Flags that are not listed here go to every run of the script. Started again, it goes on where it was
stopped; with more seeds, arms or tasks, only what is new is run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from finetune.experiments import command_line


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out ``argv`` (None: the process's); returns the exit code, 1 if runs are missing.

    Raises ``Refused`` before anything is started if it cannot be run.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    options, others = command_line.of_comparison(__doc__).parse_known_args(argv)
    # Imported once the flags are right: these take seconds.
    from finetune.experiments import conduct, examples, plan

    if options.examples:
        first, second = options.examples
        print(examples.report(first, second, options.output_dir))
        return 0
    return conduct.conduct(plan.comparison(options, others), argv)


if __name__ == "__main__":
    command_line.exit_with(main)
