"""What a forked process does to be a program: as a new interpreter, but for what is imported."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import random
import runpy
import sys
import threading
import traceback
import types
from typing import Any, NoReturn


def run(request: dict[str, Any], files: list[int]) -> NoReturn:
    """Be the program that was asked for, with these standard streams, to its end."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    inherit(request["environment"])
    os.chdir(request["folder"])
    begin(request["executable"])
    code = 1
    try:
        execute(request["words"])
        code = 0
    except SystemExit as end:
        code = exit_code(end)
    except BaseException:
        traceback.print_exc()
    end_with(code)


def inherit(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def begin(executable: str) -> None:
    """Open, read and draw what a new interpreter would."""
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    random.seed()
    sys.modules["numpy"].random.seed()
    threads = os.environ.get("OMP_NUM_THREADS") or os.cpu_count()
    sys.modules["torch"].set_num_threads(int(threads or 1))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in (*filter(None, paths), *sys.path) if path != own]
    sys.executable = executable
    importlib.invalidate_caches()


def execute(words: list[str]) -> None:
    """A script, `-m module` or `-c code`, with its arguments."""
    first, *rest = words
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif first == "-m":
        sys.argv = rest
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, os.path.dirname(os.path.abspath(first)))
        runpy.run_path(first, run_name="__main__")


def exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return int(end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)
    return 1


def end_with(code: int) -> NoReturn:
    """Threads are waited for, what was registered is called, everything is written."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)
