"""A script whose runs can be lost at any step, and end as if they had not been."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from finetune import glue
from finetune.experiments import execute, executors
from finetune.experiments.arms import PLAIN, Arm
from finetune.experiments.execute import Job, Options

# A run whose result depends on every step, and whose checkpoints hold all that the next step needs.
# Where it is told to wait it does so once, after its second checkpoint.
SCRIPT = """
import hashlib, json, sys, time
from pathlib import Path

import yaml

words = sys.argv[1:]
given = yaml.safe_load(Path(words[words.index("--recipe") + 1]).read_text())
out, first, state = Path(given["output_dir"]), 0, str(given["seed"])
if words[2:] == ["--resume_from_checkpoint", "last"]:
    first, state = json.loads(max(out.glob("step_*/state.json")).read_text())
print("begins at", first, flush=True)
for step in range(first, 5):
    state = hashlib.sha256(f"{state} {step}".encode()).hexdigest()
    aside = out / "aside"
    aside.mkdir()
    (aside / "state.json").write_text(json.dumps([step + 1, state]))
    (aside / "manifest.json").write_text("{}")
    aside.rename(out / f"step_{step + 1}")
    if step == 1 and given["model_name_or_path"] == "waits":
        time.sleep(600)
results = {"settings": {"seed": given["seed"]}, "state": state}
(out / "all_results.json").write_text(json.dumps(results))
"""


def run_all(
    jobs: list[Job], options: Options | None = None, executor=None, **how
) -> dict[str, str]:
    """Have them done, without an executor one after another in this process."""
    how = {"log": str, **how}
    if executor is not None:
        return execute.execute(jobs, options or Options(), executor, **how)
    with executors.local() as own:
        return execute.execute(jobs, options or Options(), own, **how)


def made_job(script: Path, folder: Path, model: str, seed: int, **flags: Any) -> Job:
    """A job of a stand-in for glue.py, which reads what to do as the name of its model."""
    variant = flags.get("variant", "none")
    arm = PLAIN if variant == "none" else Arm(variant, {"variant": variant})
    values = {"model_name_or_path": model, "output_dir": str(folder), "seed": seed, **flags}
    return Job(folder.name, script, glue.SCHEMA.run(values), arm)


def job_of(folder: Path, seed: int, *, waits: bool = False) -> Job:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    return made_job(script, folder / "out" / f"seed-{seed}", "waits" if waits else "m", seed)


def undisturbed(folder: Path, seed: int) -> dict:
    """The results of the same run in this process."""
    folder.mkdir(exist_ok=True)
    job = job_of(folder, seed)
    assert run_all([job]) == {}
    return job.results()


def wait_for(condition: Callable[[], object], seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


def has_two_checkpoints(job: Job) -> bool:
    return (job.folder / "step_2").exists()
