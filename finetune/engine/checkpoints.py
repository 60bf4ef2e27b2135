"""Checkpoints that continue a run exactly: saved whole, checked before use, the newest kept.

A checkpoint is the folder ``step_<updates>`` in the output folder: what accelerate saves (weights,
optimizer, schedule, gradient scaler, random states of each process) and ``state.json``.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.logging import get_logger
from accelerate.utils import RNG_STATE_NAME
from accelerate.utils import load as load_states

from finetune.engine import storage
from finetune.engine.fingerprint import differences
from finetune.engine.results import cpu_name, versions
from finetune.errors import Refused
from finetune.settings.training import LAST

logger = get_logger(__name__)
STATE = "state.json"
FORMAT = 2
_NAME = re.compile(r"step_(\d+)")


class CheckpointError(Refused):
    """A checkpoint that cannot be continued from."""


def name_of(step: int) -> str:
    """The folder of the checkpoint after so many updates."""
    return f"step_{step}"


def listed(folder: Path) -> list[Path]:
    """The checkpoints in an output folder, the oldest first: the folders that have a manifest."""
    return [path for path in _named(folder) if (path / storage.MANIFEST).is_file()]


def save(
    accelerator: Accelerator, path: Path, progress: Mapping[str, Any], fingerprint: Mapping
) -> None:
    """Save the whole run as the folder ``path``.

    Raises `SaveError` if it cannot be written; the earlier checkpoints stay.
    """
    earlier = ", ".join(p.name for p in listed(path.parent) if p != path)
    kept = f"the earlier checkpoints are whole: {earlier}" if earlier else "none was there before"
    with storage.clear_errors(path, kept):
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
    found = listed(folder)
    after = [path for path in found if _step(path) > _step(current)]
    ordered = after + [path for path in found if path not in after]
    kept = set(ordered if limit is None else ordered[-limit:])
    kept |= {folder / name for path in kept if (name := _best(path))}
    for path in found:
        if path not in kept:
            path.rename(storage.former_of(path))  # so that a kill leaves no half of it
    for left in folder.glob(".step_*"):
        shutil.rmtree(left)


def find(asked: str, folder: Path) -> Path:
    """The checkpoint that ``resume_from_checkpoint`` names, checked to be whole.

    Raises ``CheckpointError`` if there is none or it is damaged, naming the one before.
    """
    path = Path(asked)
    if asked == LAST:
        known = listed(folder)
        for path in _named(folder):
            if path not in known:
                logger.warning(f"{path} is passed over: it is unfinished, without a manifest")
        if not known:
            raise CheckpointError(
                f"resume_from_checkpoint is {asked!r}; allowed: with a checkpoint in {folder}, "
                "which has none. Check output_dir, or drop the flag to start anew."
            )
        path = known[-1]
    if not path.is_dir() or not _NAME.fullmatch(path.name):
        there = ", ".join(map(str, listed(folder))) or f"those in {folder}, which has none"
        raise CheckpointError(
            f"resume_from_checkpoint is {asked!r}; allowed: {LAST}, or a checkpoint's folder: "
            f"{there}. Choose one."
        )
    fault = _fault(path)
    if fault is not None:
        raise CheckpointError(_damaged(asked, path, fault))
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

    Raises ``CheckpointError`` if the checkpoint is of a run with other settings, model or data.
    """
    state = _state(path)
    if state["format"] == FORMAT:
        found = differences(state["fingerprint"], fingerprint, defaults)
    else:
        found = [f"format: {state['format']} -> {FORMAT}"]
    if found:
        raise CheckpointError(
            f"resume_from_checkpoint is {str(path)!r}, of another run (then -> now): "
            f"{'; '.join(found)}. Allowed: the same model, variant, data, seed and settings. "
            "Give those of the checkpoint, or start anew in another output_dir."
        )
    restore(accelerator, path)
    _check_random_states(path, accelerator.process_index)
    others = differences(state.get("conditions", {}), conditions())
    if others:
        logger.warning(
            f"The run goes on under other conditions (then -> now): {'; '.join(others)}. Its "
            "weights may differ in their last digits from those of a run that never stopped."
        )
    return state["progress"]


def restore(accelerator: Accelerator, path: Path) -> None:
    """Load what accelerate saved there.

    Raises ``CheckpointError`` if a file holds something else.
    """
    try:
        accelerator.load_state(str(path))
    except Exception as error:
        # Whatever a file raises that is no plain data: UnpicklingError, KeyError, RuntimeError ...
        raise CheckpointError(
            f"resume_from_checkpoint is {str(path)!r}, which cannot be loaded "
            f"({type(error).__name__}; --debug shows where); allowed: what a run has saved. "
            "Continue from another checkpoint, or start anew."
        ) from error


def conditions() -> dict[str, Any]:
    """What may differ between a run and its resumption, and may change the last digits."""
    on_gpu = torch.cuda.is_available()
    return {
        "threads": torch.get_num_threads(),
        "machine": torch.cuda.get_device_name() if on_gpu else cpu_name(),
    } | versions()


def _check_random_states(path: Path, process: int) -> None:
    """Raise ``CheckpointError`` if the random states are not those of the checkpoint.

    Where accelerate cannot restore them it says so in its log alone, and the run would end with
    other weights.
    """
    file = path / f"{RNG_STATE_NAME}_{process}.pkl"
    try:
        states = load_states(file)
        is_restored = random.getstate() == states["random_state"] and torch.equal(
            torch.get_rng_state(), states["torch_manual_seed"]
        )
    except Exception as error:
        # Whatever a damaged file raises: KeyError, UnpicklingError, RuntimeError ...
        reason, is_restored = f"{type(error).__name__}", False
    else:
        reason = "they were not restored"
    if not is_restored:
        raise CheckpointError(
            f"resume_from_checkpoint is {str(path)!r}, whose random states in {file.name} cannot "
            f"be used ({reason}); allowed: those that the run was saved with, so that it goes on "
            "as if it had never stopped. Continue from another checkpoint, or start anew."
        )


def bring_best(path: Path, folder: Path, name: str | None) -> None:
    """Have the checkpoint with the best weights of the run of ``path`` in ``folder`` too.

    Raises ``CheckpointError`` if it is not beside ``path`` or damaged: it is needed at the end.
    """
    if name is None:
        return
    source, target = path.parent / name, folder / name
    fault = _fault(source) if source.is_dir() else "it is missing"
    if fault is not None:
        raise CheckpointError(
            f"resume_from_checkpoint is {str(path)!r}, whose best weights so far are in {source}: "
            f"{fault}. Allowed: with that checkpoint beside it. Bring it back, or start anew."
        )
    if target not in listed(folder):
        with storage.clear_errors(target, f"{source} is as it was"):
            shutil.copytree(source, storage.aside_of(target), dirs_exist_ok=True)
            storage.commit_folder(target)


def _damaged(asked: str, path: Path, fault: str) -> str:
    before = [p for p in listed(path.parent) if _step(p) < _step(path)]
    whole = next((p for p in reversed(before) if _fault(p) is None), None)
    remedy = "There is no whole one before it: start anew."
    if whole is not None:
        remedy = f"Continue from the one before: resume_from_checkpoint {whole}"
    return (
        f"resume_from_checkpoint is {asked!r}, and the checkpoint {path} is damaged: {fault}. "
        f"Allowed: a whole checkpoint. {remedy}"
    )


def _named(folder: Path) -> list[Path]:
    return sorted((p for p in folder.glob("step_*") if _NAME.fullmatch(p.name)), key=_step)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step_"))


def _best(path: Path) -> str | None:
    try:
        return _state(path)["progress"]["best_name"]
    except (OSError, ValueError):  # a damaged one holds on to nothing
        return None


def _fault(path: Path) -> str | None:
    """What is wrong with a checkpoint; None if it is whole."""
    fault = storage.fault(path)
    if fault is None:
        try:
            _state(path)
        except (OSError, ValueError):
            return f"{STATE} is missing or broken"
    return fault


def _state(path: Path) -> dict[str, Any]:
    match state := json.loads((path / STATE).read_text("utf-8")):
        case {"format": int(), "fingerprint": dict(), "progress": dict()}:
            return state
    raise ValueError(f"{path / STATE} is not what `save` writes")
