"""How does a metric depend on a filter's settings? Each setting with several seeds, and a figure.

    python finetune/sweep.py --script finetune/glue.py --task_name cola \\
        --model_name_or_path bert-base-uncased --variant gfsa \\
        --space finetune/spaces/gfsa-order.yaml --seeds 3 --output_dir runs/sweep-order
    python finetune/sweep.py ... --space '{order: [2, 4, 8], w_0: [-0.1, 0.0, 0.1]}'
    python finetune/sweep.py ... --method optuna --trials 30 \\
        --space '{order: {low: 2, high: 10}, w_0: {low: -0.1, high: 0.1}}'

Flags that are not listed here go to every run of the script. Started again, it goes on where it was
stopped; with more seeds, values or trials, only what is new is run.
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
    options, others = command_line.of_sweep(__doc__).parse_known_args(argv)
    # Imported once the flags are right: these take seconds.
    from finetune.experiments import conduct, plan

    return conduct.conduct(plan.sweep(options, others), argv)


if __name__ == "__main__":
    command_line.exit_with(main)
