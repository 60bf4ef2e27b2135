"""What a person sees of a run: rows before and after it, lines of its log, bars on a terminal."""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from operator import length_hint
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

Item = TypeVar("Item")
WIDTH = 100  # at most
CONSOLE = Console(stderr=True, markup=False, highlight=False)  # of the log and the bars
BARS = Progress(
    TextColumn("{task.description}", markup=False),
    BarColumn(),
    MofNCompleteColumn(),
    TimeRemainingColumn(),
    console=CONSOLE,
    transient=True,
    disable=True,  # until a run's main process shows its log on a terminal
)
# Warnings of other packages that come with every run and ask for nothing: tied weights are in a
# checkpoint once, and a model whose class names no loss has that of its task.
IDLE = ("Removed shared tensor", "`loss_type=None` was set")


def print_rows(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Print a title and a table of names and values; rows without a value are left out."""
    width = min(shutil.get_terminal_size((WIDTH, 0)).columns, WIDTH)
    console = Console(width=width, markup=False, highlight=False)
    table = Table.grid(Column(min_width=15), Column(overflow="fold"), padding=(0, 2))
    for name, value in rows:
        if value:
            table.add_row(f"  {name}", value)
    console.print(f"\n{title}", style="bold")
    console.print(table)


def duration(seconds: float) -> str:
    """Seconds as people read them: ``0.7 s``, ``0:03:20``."""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


@contextmanager
def bar(description: str, total: int | None, done: int = 0) -> Iterator[Callable[..., None]]:
    """Show a bar; what it gives advances it by one, and may change its description."""
    task = BARS.add_task(description, total=total, completed=done)
    BARS.start()
    try:
        yield lambda text=description: BARS.update(task, advance=1, description=text)
    finally:
        BARS.remove_task(task)
        if not BARS.tasks:
            BARS.stop()


def track(items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """Iterate with a bar; ``total`` is for items without a length."""
    with bar(description, total or length_hint(items) or None) as advance:
        for item in items:
            yield item
            advance()


def show_log(*, is_main_process: bool) -> None:
    """Show the main process's log and the others' errors, and on a terminal its bars."""
    # Imported here: the flags are read without them.
    import datasets
    import transformers

    level = logging.INFO if is_main_process else logging.ERROR
    logging.basicConfig(level=level, format="%(message)s", handlers=[Lines()])
    for name in ("accelerate", "httpx", "httpx2"):  # they log each file and each request
        logging.getLogger(name).setLevel(logging.WARNING)
    BARS.disable = not (is_main_process and CONSOLE.is_terminal)
    # Its bars are of weights that are read and written, which takes a moment.
    transformers.utils.logging.disable_progress_bar()
    if BARS.disable:
        datasets.disable_progress_bars()
    for name in ("transformers", "datasets"):  # their lines come once, in our format
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True


class Lines(logging.Handler):
    """A line for each record, above the bars: the time, its level and its package if not ours."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record, unless it asks for nothing."""
        text = re.sub(r"^\[RANK \d+\] ", "", self.format(record))
        if text.startswith(IDLE):
            return
        package = record.name.partition(".")[0]
        level = "" if record.levelno == logging.INFO else f"{record.levelname}: "
        origin = "" if package in ("finetune", "hf_graphattn") else f"{package}: "
        line = f"{time.strftime('%H:%M:%S')} {level}{origin}{text}"
        CONSOLE.print(Text.from_ansi(line), soft_wrap=True)  # transformers' reports have colours
