"""A Python whose imports are done: for tests that need another process, not a fresh interpreter.

Importing torch and transformers takes seconds of a core, and many tests start several programs
that need both. One process imports them once, and forks itself for every program. `python("torch")`
is the path of an executable that is used as `sys.executable` is, with a script, `-m` or `-c`:

    torch          torch, and whatever needs no setting of the environment, is imported
    transformers   and transformers, for one environment of huggingface_hub
    finetune       and what the training scripts import

Our own modules are never imported beforehand. A program that says what it imported, that an import
fails, or how its own process was started needs the real interpreter. Where the system cannot fork
so, all three are the real interpreter, and the tests are slower, and the same.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

FOLDER = "HF_GRAPHATTN_TESTS_WARM"  # the variable that tells every process of a test run
STARTS = ("torch", "transformers", "finetune")


def python(start: str = "transformers") -> str:
    """The path of a Python with the imports of `start` done."""
    assert start in STARTS
    folder = os.environ.get(FOLDER)
    return sys.executable if folder is None else str(Path(folder) / start)


@contextlib.contextmanager
def serving() -> Iterator[None]:
    """Write the executables. What they start ends with the folder, or with this process."""
    if FOLDER in os.environ or not (sys.platform == "linux" and hasattr(os, "pidfd_open")):
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix=f"warm-{os.getpid()}-"))  # a socket's path must be short
    for start in STARTS:
        words = [sys.executable, "-IS", Path(__file__).with_name("client.py"), folder / start]
        line = " ".join(shlex.quote(str(word)) for word in words)
        (folder / start).write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        (folder / start).chmod(0o755)
    os.environ[FOLDER] = str(folder)
    try:
        yield
    finally:
        del os.environ[FOLDER]
        shutil.rmtree(folder)
