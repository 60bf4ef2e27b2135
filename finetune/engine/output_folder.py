"""A run's output folder holds one run, and one at a time works in it.

Into a folder that has results or checkpoints may go, without ``--overwrite_output_dir``,

- the run that left the checkpoints, continued from one of them;
- where there are none, the run that left the results, done again: one whose settings decide the
  same numbers, and that trains if that one did.

Every other run is refused. So is an evaluation in the folder of a training, whose results it would
replace. With ``--overwrite_output_dir`` a run replaces what the former one left, once it has read
all that it needs, and nothing can be refused any more. Files that no run writes stay.
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
from finetune.engine.progress import LOG
from finetune.engine.results import EVALUATED, RESULTS, evaluated, read_json
from finetune.errors import Refused, refusal
from finetune.settings.schema import Run
from finetune.settings.training import LAST
from hf_graphattn.sharing import EXAMPLE_FILES

LOCK = ".run.lock"  # beside that of whoever starts a run and waits for it
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "step_[0-9]*")
# They would be read with the new run's weights, where one of the two is an adapter.
CONFIGS = ("config.json", "generation_config.json", "adapter_config.json")
OTHERS = ("README.md", *EXAMPLE_FILES.values(), ".*.part", ".*.former")
TENSORBOARD = ("events.out.tfevents*", "hparams.yml")  # in a folder with the family's name
REMEDY = "Choose another output_dir, or give --overwrite_output_dir to replace that run."


@contextmanager
def claimed(settings: Run[Any, Any], accelerator: Accelerator) -> Iterator[None]:
    """Work in the run's folder alone; its main process has the lock until the end.

    Raises:
        Refused: another run is at work there, what is there is another run's, or the folder
            cannot be written to. Every process of the run raises it.
    """
    with ExitStack() as stack:
        refused = None
        if accelerator.is_main_process:
            try:
                _claim(settings, stack)
            except Refused as error:
                refused = str(error)
        (refused,) = broadcast_object_list([refused])
        if refused is not None:
            raise Refused(refused)
        yield


def former(settings: Run[Any, Any], family: str) -> list[Path]:
    """Files of an earlier run that must not be taken for this one's: to `remove` before it writes.

    Of the same run, or its beginning, these are results alone: the model is replaced at the end.
    """
    folder = Path(settings.train.output_dir)
    if settings.train.overwrite_output_dir:
        events = (path for name in TENSORBOARD for path in (folder / family).rglob(name))
        return [*_left(folder), *events]
    return [folder / RESULTS, *evaluated(folder).values()]


def remove(paths: Iterable[Path]) -> None:
    """Delete files and folders.

    Raises:
        SaveError: one of them cannot be deleted.
    """
    for path in paths:
        with storage.clear_errors(path, "the others are unchanged"):
            storage.remove(path)


def _claim(settings: Run[Any, Any], stack: ExitStack) -> None:
    folder = Path(settings.train.output_dir)
    try:
        lock = stack.enter_context(locks.held(folder, LOCK))
    except OSError as error:
        allowed = f"a folder that can be made and written to; here: {error.strerror}"
        raise refusal("output_dir", str(folder), allowed, "Choose another.") from error
    if lock is None:
        allowed = "a folder in which no other run is at work"
        remedy = f"Wait for the end of {locks.holder(folder, LOCK)}, or choose another output_dir."
        raise refusal("output_dir", str(folder), allowed, remedy)
    if settings.train.overwrite_output_dir:
        _check_reads(settings, folder)
    else:
        _check_former(settings, folder)


def _check_former(settings: Run[Any, Any], folder: Path) -> None:
    """Refuse a folder with the results of another run, or with checkpoints of which none is used.

    A checkpoint shows by itself if it is of the same run.
    """
    train, start = settings.train, settings.train.resume_from_checkpoint
    if start is not None and not train.do_eval_only:
        in_folder = start == LAST or Path(start).resolve().parent == folder.resolve()
        if in_folder:
            return
    if (folder / RESULTS).is_file():
        now = settings.deciding() | {"do_eval_only": train.do_eval_only}
        if train.do_eval_only:
            now["resume_from_checkpoint"] = train.resume_from_checkpoint
        changed = faults(read_json(folder / RESULTS), now, settings.defaults())
        if changed:
            allowed = f"one without the results of another run (then -> now): {'; '.join(changed)}"
            raise refusal("output_dir", str(folder), allowed, REMEDY)
    if names := ", ".join(path.name for path in checkpoints.listed(folder)):
        remedy = f"Continue that run with resume_from_checkpoint {LAST}. {REMEDY}"
        allowed = f"one without checkpoints, and it has {names}"
        raise refusal("output_dir", str(folder), allowed, remedy)


def _check_reads(settings: Run[Any, Any], folder: Path) -> None:
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
    patterns = (*logs, *answers, *WEIGHTS, *CONFIGS, *OTHERS)
    return [path for pattern in patterns for path in folder.glob(pattern)]
