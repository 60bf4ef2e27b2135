"""A run's output folder holds one run, and one at a time works in it.

Into a folder that has results or checkpoints may go, without being told to,

- the run that left the checkpoints, continued from one of them;
- where there are none, the run that left the results, done again: one whose settings decide the
  same numbers, and that trains if that one did.

Every other run is refused. So is an evaluation in the folder of a training, whose results it would
replace. With ``--overwrite_output_dir`` a run replaces what is there: what the former one left is
removed once the new one has read all that it needs, and nothing can be refused any more. What no
run writes stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

import tasks
from finetune.engine import checkpoints, locks, storage
from finetune.engine.fingerprint import faults
from finetune.engine.predictions import EVALUATED, evaluated
from finetune.engine.progress import LOG
from finetune.engine.results import RESULTS, read_json
from finetune.errors import Refused, refusal
from finetune.settings.schema import Settings
from finetune.settings.training import LAST
from hf_graphattn.sharing.card import EXAMPLE_FILES

LOCK = ".run.lock"  # beside that of whoever starts a run and waits for it
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "step_[0-9]*")
# They would be read with the new run's weights, where one of the two is an adapter.
CONFIGS = ("config.json", "generation_config.json", "adapter_config.json")
CARD = ("README.md", *EXAMPLE_FILES.values())
UNFINISHED = (".*.part", ".*.former")
TENSORBOARD = ("events.out.tfevents*", "hparams.yml")  # in a folder with the family's name


@contextmanager
def claimed(settings: Settings[Any, Any], accelerator: Accelerator) -> Iterator[None]:
    """Work in the run's folder alone; its main process has the lock, and gives it back at the end.

    Raises ``Refused`` on all of its processes if another run is at work there, if what is there is
    another run's, or if the folder cannot be written to.
    """
    with ExitStack() as stack:
        reason = None
        if accelerator.is_main_process:
            try:
                _claim(settings, stack)
            except Refused as error:
                reason = str(error)
        (reason,) = broadcast_object_list([reason])
        if reason is not None:
            raise Refused(reason)
        yield


def former(settings: Settings[Any, Any], family: str) -> list[Path]:
    """What an earlier run left that must not be taken for this one's: to `remove` before it writes.

    Of the same run or its beginning that is only how it ended. The model is there until the new one
    is written over it.
    """
    folder = Path(settings.train.output_dir)
    if settings.train.overwrite_output_dir:
        shown = (path for name in TENSORBOARD for path in (folder / family).rglob(name))
        return [*_left(folder), *shown]
    return [folder / RESULTS, *evaluated(folder).values()]


def remove(paths: Iterable[Path]) -> None:
    """Delete files and folders. Raises ``SaveError`` if one cannot be."""
    for path in paths:
        with storage.clear_errors(path, "what is not removed yet is as it was"):
            storage.remove(path)


def _claim(settings: Settings[Any, Any], stack: ExitStack) -> None:
    folder = Path(settings.train.output_dir)
    try:
        lock = stack.enter_context(locks.held(folder, LOCK))
    except OSError as error:
        allowed = f"a folder that can be made and written to; here: {error.strerror}"
        remedy = "Check the path and your rights, or choose another."
        raise refusal("output_dir", str(folder), allowed, remedy) from error
    if lock is None:
        allowed = "a folder in which no other run is at work"
        remedy = f"Wait for the end of {locks.holder(folder, LOCK)}, or choose another output_dir."
        raise refusal("output_dir", str(folder), allowed, remedy)
    if settings.train.overwrite_output_dir:
        _check_reads(settings, folder)
    elif not _is_continued(settings, folder):
        _check_former(settings, folder)


def _is_continued(settings: Settings[Any, Any], folder: Path) -> bool:
    """Whether the run goes on from a checkpoint of the folder, which tells if it is the same."""
    asked = settings.train.resume_from_checkpoint
    if asked is None or settings.train.do_eval_only:
        return False
    return asked == LAST or Path(asked).resolve().parent == folder.resolve()


def _check_former(settings: Settings[Any, Any], folder: Path) -> None:
    """Refuse a folder with the results of another run, or with checkpoints."""
    train = settings.train
    remedy = "Choose another output_dir, or give --overwrite_output_dir to replace that run."
    if (folder / RESULTS).is_file():
        asked = settings.deciding() | {"do_eval_only": train.do_eval_only}
        if train.do_eval_only:
            asked["resume_from_checkpoint"] = train.resume_from_checkpoint
        found = faults(read_json(folder / RESULTS), asked, settings.defaults())
        if found:
            allowed = f"one without the results of another run (then -> now): {'; '.join(found)}"
            raise refusal("output_dir", str(folder), allowed, remedy)
    there = ", ".join(path.name for path in checkpoints.listed(folder))
    if there:
        allowed = f"one without checkpoints, and it has {there}"
        remedy = f"Continue that run with resume_from_checkpoint {LAST}. {remedy}"
        raise refusal("output_dir", str(folder), allowed, remedy)


def _check_reads(settings: Settings[Any, Any], folder: Path) -> None:
    """Refuse to remove what the run is to read."""
    flags, removed = settings.flat(), {path.resolve() for path in _left(folder)}
    for name in (*settings.paths(), "resume_from_checkpoint"):
        values = flags[name] if isinstance(flags[name], list) else [flags[name]]
        for value in filter(None, values):
            path = (folder if value == LAST else Path(value)).resolve()
            if path == folder.resolve() or not removed.isdisjoint((path, *path.parents)):
                allowed = "what overwrite_output_dir does not remove"
                raise refusal(name, value, allowed, "Choose another output_dir.")


def _left(folder: Path) -> list[Path]:
    """What runs leave in their folder, but for TensorBoard's files."""
    splits = [split for task in tasks.registered().values() for split in task.test_splits]
    answers = {split.prediction_file for split in splits} - {""}
    logs = (RESULTS, LOG, EVALUATED.format("*"))
    patterns = (*logs, *answers, *WEIGHTS, *CONFIGS, *CARD, *UNFINISHED)
    return [path for pattern in patterns for path in folder.glob(pattern)]
