"""Checkpoints that continue a run exactly: saved whole, checked before use, the newest kept.

A checkpoint is the folder ``step_<updates>`` in the output folder: what accelerate saves (weights,
optimizer, schedule, gradient scaler, random states of each process) and ``state.json``.
Accelerate's own limit deletes the oldest checkpoint before it writes the next, so that a full disk
or a kill loses it, and knows no best one: here the next is whole before another is deleted.
"""

from __future__ import annotations

import json
import logging
import random
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import RNG_STATE_NAME
from accelerate.utils import load as load_states

from finetune.engine import storage
from finetune.engine.fingerprint import differences
from finetune.engine.results import cpu_name, versions
from finetune.errors import Refused
from finetune.settings.training import LAST

logger = logging.getLogger(__name__)
STATE = "state.json"
FORMAT = 2
REMEDY = "Continue from another checkpoint, or start anew."


class CheckpointError(Refused):
    """A checkpoint that cannot be continued from."""


def name_of(step: int) -> str:
    """The folder of the checkpoint after so many updates."""
    return f"step_{step}"


def listed(folder: Path) -> list[Path]:
    """The checkpoints in an output folder, the oldest first: the folders that have a manifest."""
    steps = [path for path in folder.glob("step_*") if re.fullmatch(r"step_\d+", path.name)]
    return sorted((path for path in steps if (path / storage.MANIFEST).is_file()), key=_step)


def save(
    accelerator: Accelerator, path: Path, progress: Mapping[str, Any], fingerprint: Mapping
) -> None:
    """Save the whole run as the folder ``path``.

    Raises:
        SaveError: it cannot be written; the earlier checkpoints stay.
    """
    with storage.clear_errors(path, "the earlier checkpoints are whole"):
        aside = storage.aside_of(path)
        if accelerator.is_main_process:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
        accelerator.wait_for_everyone()
        accelerator.save_state(str(aside))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            state = {
                "format": FORMAT,
                "fingerprint": fingerprint,
                "conditions": conditions(),
                "progress": progress,
            }
            (aside / STATE).write_text(json.dumps(state, indent=1) + "\n", "utf-8")
            storage.commit_folder(path)
        accelerator.wait_for_everyone()


def rotate(folder: Path, limit: int | None, current: Path) -> None:
    """Delete all but the newest ``limit`` checkpoints, and the best one of each that is kept.

    Checkpoints after ``current`` are of a run that this one has replaced: they count as older.
    """
    ordered = sorted(listed(folder), key=lambda path: (_step(path) <= _step(current), _step(path)))
    kept = set(ordered if limit is None else ordered[-limit:])
    for path in tuple(kept):
        with suppress(OSError, ValueError, KeyError):  # a damaged one keeps no other
            kept.add(folder / str(_state(path)["progress"]["best_name"]))
    for path in ordered:
        if path not in kept:
            path.rename(storage.former_of(path))  # so that a kill leaves no half of it
    for left in folder.glob(".step_*"):
        shutil.rmtree(left)


def find(name: str, folder: Path) -> Path:
    """The checkpoint that ``resume_from_checkpoint`` names, checked to be whole.

    Raises:
        CheckpointError: there is none or it is damaged.
    """
    known = listed(folder)
    path = known[-1] if name == LAST and known else Path(name)
    fault = storage.fault(path) if path.is_dir() else "it is not there"
    if fault:
        others = (other for other in listed(path.parent) if other.name != path.name)
        whole = [str(other) for other in others if not storage.fault(other)]
        allowed = f"allowed: a whole checkpoint, {', '.join(whole) or 'and there is none'}"
        raise _refusal(path, f"{fault}; {allowed}. {REMEDY}")
    return path


def load(
    accelerator: Accelerator,
    path: Path,
    fingerprint: Mapping[str, Any],
    defaults: Mapping[str, Any],
) -> dict[str, Any]:
    """Restore model, optimizer, schedule, scaler and random states; returns the progress.

    Args:
        accelerator: what has prepared the model and the others.
        path: the checkpoint.
        fingerprint: of this run.
        defaults: of the flags, since an earlier version may have lacked some of them.

    Raises:
        CheckpointError: the checkpoint is of a run with other settings, model or data.
    """
    state = _state(path)
    changed = differences(state["fingerprint"], fingerprint, defaults)
    if state["format"] != FORMAT:
        changed = [f"format: {state['format']} -> {FORMAT}"]
    if changed:
        remedy = "Give the settings of the checkpoint, or start anew in another output_dir."
        fault = f"of another run (then -> now): {'; '.join(changed)}"
        raise _refusal(path, f"{fault}. Allowed: the same model, data and settings. {remedy}")
    restore(accelerator, path)
    _check_random_states(path / f"{RNG_STATE_NAME}_{accelerator.process_index}.pkl")
    others = differences(state["conditions"], conditions())
    if others:
        logger.warning(
            f"The run goes on under other conditions (then -> now): {'; '.join(others)}. Its "
            "weights may differ in their last digits from those of a run that never stopped."
        )
    return state["progress"]


def restore(accelerator: Accelerator, path: Path) -> None:
    """Load what accelerate saved there.

    Raises:
        CheckpointError: a file holds other data.
    """
    try:
        accelerator.load_state(str(path))
    except Exception as error:  # UnpicklingError, KeyError, RuntimeError ...
        name = type(error).__name__
        raise _refusal(path, f"cannot be loaded ({name}; --debug shows where). {REMEDY}") from error


def conditions() -> dict[str, Any]:
    """What may differ between a run and its resumption, and may change the last digits."""
    on_gpu = torch.cuda.is_available()
    return {
        "threads": torch.get_num_threads(),
        "machine": torch.cuda.get_device_name() if on_gpu else cpu_name(),
    } | versions()


def _check_random_states(file: Path) -> None:
    """Refuse random states that accelerate could not restore: it only logs that."""
    try:
        states = load_states(file)
        is_restored = random.getstate() == states["random_state"] and torch.equal(
            torch.get_rng_state(), states["torch_manual_seed"]
        )
    except Exception:  # of a damaged file: KeyError, UnpicklingError, RuntimeError ...
        is_restored = False
    if not is_restored:
        raise _refusal(file.parent, f"its random states in {file.name} are unusable. {REMEDY}")


def _refusal(path: Path, fault: str) -> CheckpointError:
    return CheckpointError(f"resume_from_checkpoint is {str(path)!r}; {fault}")


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step_"))


def _state(path: Path) -> dict[str, Any]:
    return json.loads((path / STATE).read_text("utf-8"))
