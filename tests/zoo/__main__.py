"""Builds every model type, runs it, prints the counts and writes runs/zoo.json.

PYTHONPATH=tests python -m zoo [model types]
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}

from transformers import CONFIG_MAPPING

from zoo.models import run
from zoo.runs import each


def main() -> None:
    began, outcomes = time.perf_counter(), {}
    for model_type, outcome in each(run, sys.argv[1:] or CONFIG_MAPPING.keys()):
        outcomes[model_type] = outcome
        if outcome != "ok":
            print(f"{model_type}: {outcome}", flush=True)
    Path("runs").mkdir(exist_ok=True)
    Path("runs/zoo.json").write_text(json.dumps(outcomes, indent=1) + "\n")
    reasons = Counter(outcome.split(":")[0] for outcome in outcomes.values())
    for reason, count in reasons.most_common():
        print(f"{count:4} {reason}")
    print(f"{len(outcomes)} model types, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
