"""A Python whose imports are done: for tests that need another process, not a fresh interpreter.

Importing torch and transformers takes seconds of a core, and many tests start several programs
that need both. One process imports them once and forks itself for every program. `python("torch")`
is the path of an executable that is used as `sys.executable` is, with a script, `-m` or `-c`:

    torch          torch, and whatever needs no setting of the environment, is imported
    transformers   and transformers, in the environment of huggingface_hub that the tests have
    finetune       and what the training scripts import

Our own modules are never imported beforehand. A program that says what it imported, that an import
fails, or how its own process was started needs the real interpreter. Where the system cannot fork
so, all three are the real interpreter, and the tests are slower, and the same.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import random
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

FOLDER = "GRAPHATTN_TESTS_WARM"  # the variable that holds the folder of the executables
MODULES = {
    "torch": ("torch", "torch._dynamo", "jinja2", "numpy", "PIL.Image", "scipy.optimize", "yaml"),
    "transformers": (
        *("transformers.core_model_loading", "transformers.integrations.hub_kernels"),
        *("transformers.models.auto.modeling_auto", "transformers.models.bert.modeling_bert"),
    ),
    "finetune": ("accelerate", "datasets", "evaluate", "peft", "scipy.stats", "sklearn.metrics"),
}
READ_AT_IMPORT = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "XDG_", "HOME")
LARGEST = 2**18  # of a request, in bytes


def python(start: str = "transformers") -> str:
    """The path of a Python with the imports of `start` done."""
    assert start in MODULES
    folder = os.environ.get(FOLDER)
    return sys.executable if folder is None else str(Path(folder) / start)


@contextlib.contextmanager
def serving() -> Iterator[None]:
    """Start what forks, for this process and those that it starts."""
    if not (sys.platform == "linux" and hasattr(os, "pidfd_open")):
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix="warm-"))  # a socket's path must be short
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-I", __file__, str(folder)]
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | single
    )
    assert server.stdout is not None
    server.stdout.readline()  # it listens
    for start in MODULES:
        words = [sys.executable, "-IS", __file__, str(folder), start, json.dumps(read_at_import())]
        (folder / start).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (folder / start).chmod(0o755)
    before, os.environ[FOLDER] = os.environ.get(FOLDER), str(folder)
    try:
        yield
    finally:
        del os.environ[FOLDER]
        if before is not None:
            os.environ[FOLDER] = before
        server.communicate()  # the end of its input is its end
        shutil.rmtree(folder)


def read_at_import() -> dict[str, str]:
    """What huggingface_hub and transformers read of the environment when they are imported."""
    return {name: x for name, x in os.environ.items() if name.startswith(READ_AT_IMPORT)}


def ask(folder: str, start: str, environment: str, words: list[str]) -> int:
    """Have a program run by what forks, which lasts as long as this process; its exit code.

    In another environment of huggingface_hub than the server's, a fork of torch alone runs it.
    """
    here = {"folder": os.getcwd(), "environment": dict(os.environ)}
    here |= {"executable": str(Path(folder) / start), "words": words}
    if json.loads(environment) != read_at_import():
        start = "torch"
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(f"{folder}/{start}.socket")
    socket.send_fds(connection, [json.dumps(here).encode()], [0, 1, 2])
    return int(connection.recv(64) or b"1")


def serve(listening: dict[str, socket.socket]) -> None:
    """Fork for each program of the first start, and a process that serves the others."""
    if 0 in select.select([0, *listening.values()], [], [])[0]:  # until then nothing is imported
        os._exit(0)
    (start, source), *others = listening.items()
    for name in MODULES[start]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    if others and os.fork() == 0:
        source.close()
        serve(dict(others))
    for _, other in others:
        other.close()
    while 0 not in select.select([0, source], [], [])[0]:
        connection, _ = source.accept()
        if os.fork() == 0:
            source.close()
            run(connection)
        connection.close()
    os._exit(0)  # what was imported needs no taking down


def run(connection: socket.socket) -> NoReturn:
    """Run a program to its end; if whoever waits for it ends first, it ends too."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, files, _, _ = socket.recv_fds(connection, LARGEST, 3)
    process = os.fork()
    if process == 0:
        connection.close()
        begin(json.loads(data), files)
        execute(json.loads(data)["words"])
    for file in files:
        os.close(file)
    ended = os.pidfd_open(process)
    if ended not in select.select([connection, ended], [], [])[0]:
        os.kill(process, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it had not begun yet
            os.killpg(process, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    with contextlib.suppress(OSError):  # nobody waits any more
        connection.send(str(code).encode())
    os._exit(0)


def begin(request: dict[str, Any], files: list[int]) -> None:
    """Open, read and draw what a new interpreter would."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    random.seed()
    sys.modules["numpy"].random.seed()
    threads = os.environ.get("OMP_NUM_THREADS") or os.cpu_count()
    sys.modules["torch"].set_num_threads(int(threads or 1))
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.executable = request["executable"]
    importlib.invalidate_caches()


def execute(words: list[str]) -> NoReturn:
    """Be a script, `-m module` or `-c code` with its arguments, and end as it does."""
    first, *rest = words
    code = 1
    try:
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
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code & 0xFF)


def main(folder: str, *asked: str) -> None:
    if not asked:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a program's parent ended
        listening = {name: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for name in MODULES}
        for name, source in listening.items():
            source.bind(f"{folder}/{name}.socket")
            source.listen(128)
        print("listening", flush=True)
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
        serve(listening)
    start, environment, *words = asked
    while words[:1] == ["-u"]:
        del words[0]
    # A flag that changes the interpreter itself, or no program at all, is the real one's affair.
    if not words or (words[0].startswith("-") and words[0] not in ("-c", "-m")):
        os.execv(sys.executable, [sys.executable, *words])
    code = ask(folder, start, environment, words)
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
