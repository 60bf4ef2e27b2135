"""What people see of a run: bars on a terminal alone, and lines above them."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accelerate import utils

# What other packages say of every such run, which asks for nothing: tied weights are in a
# checkpoint once, and the loss of a model whose class names none is that of its task.
IDLE = ("Removed shared tensor", "`loss_type=None` was set")
_RANK = re.compile(r"^\[RANK \d+\] ")  # accelerate begins with it what a process says


def is_watched() -> bool:
    """Whether bars are shown: on a terminal, unless ``TQDM_DISABLE`` is set."""
    is_off = os.environ.get("TQDM_DISABLE", "").lower() not in ("", "0", "false")
    return sys.stderr.isatty() and not is_off


def tqdm(*values: Any, **how: Any) -> Any:
    """accelerate's bar, the main process's; where none is shown, what it would go over."""
    return utils.tqdm(*values, **how, disable=not is_watched())


@contextmanager
def log_shown(is_main_process: bool) -> Iterator[None]:
    """Show the main process's log and the others' errors, above the bars."""
    # Imported here: the flags are read without them.
    import datasets
    import transformers
    from tqdm.contrib.logging import logging_redirect_tqdm

    shown = logging.StreamHandler()
    shown.setFormatter(Lines("%(asctime)s %(message)s", "%H:%M:%S"))
    shown.addFilter(lambda record: not _spoken(record).startswith(IDLE))
    logging.basicConfig(level=logging.INFO if is_main_process else logging.ERROR, handlers=[shown])
    for name in ("accelerate", "httpx", "httpx2"):  # they tell of each file and each request
        logging.getLogger(name).setLevel(logging.WARNING)
    # Its bars are of weights that are read and written, which takes a moment.
    transformers.utils.logging.disable_progress_bar()
    if not (is_main_process and is_watched()):
        datasets.disable_progress_bars()
    for name in ("transformers", "datasets"):  # ours has what they say: once, and as our own
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
    with logging_redirect_tqdm():
        yield


def _spoken(record: logging.LogRecord) -> str:
    return _RANK.sub("", record.getMessage())


class Lines(logging.Formatter):
    """The time and what is said; who says it where that is another package, and how loudly."""

    def format(self, record: logging.LogRecord) -> str:
        said = logging.makeLogRecord(record.__dict__)
        text = _spoken(record)
        package = record.name.partition(".")[0]
        level = "" if record.levelno == logging.INFO else f"{record.levelname}: "
        whose = "" if package in ("finetune", "hf_graphattn") else f"{package}: "
        said.msg, said.args = f"{level}{whose}{text}", ()
        return super().format(said)
