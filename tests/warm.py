"""A Python whose imports are done: for tests that need another process, not a fresh interpreter.

Importing torch and transformers takes seconds of a core, and many tests start several programs
that need both. One process imports them once and forks itself for every program. `python("torch")`
is the path of an executable that is used as `sys.executable` is, with a script, `-m` or `-c`:

    torch          torch, and whatever needs no setting of the environment, is imported
    transformers   and transformers, for one environment of huggingface_hub
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
import time
import traceback
import types
import zlib
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
    ended, lasts = os.pipe()
    command = [sys.executable, "-I", __file__, str(folder), str(ended)]
    subprocess.run(command, check=True, env=os.environ | single, pass_fds=(ended,))
    for start in MODULES:
        known = [str(folder), str(ended), start, json.dumps(read_at_import())]
        line = shlex.join([sys.executable, "-IS", __file__, *known])
        (folder / start).write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        (folder / start).chmod(0o755)
    before, os.environ[FOLDER] = os.environ.get(FOLDER), str(folder)
    try:
        yield
    finally:
        del os.environ[FOLDER]
        if before is not None:
            os.environ[FOLDER] = before
        os.close(lasts)  # which ends what forks
        os.close(ended)
        shutil.rmtree(folder, ignore_errors=True)


def read_at_import() -> dict[str, str]:
    """What huggingface_hub and transformers read of the environment when they are imported."""
    return {name: x for name, x in os.environ.items() if name.startswith(READ_AT_IMPORT)}


def ask(folder: str, ended: str, start: str, environment: str, words: list[str]) -> int:
    """Have a program run by what forks, which lasts as long as this process; its exit code.

    Another environment of huggingface_hub has processes of its own, forked from that of torch.
    """
    here, executable = read_at_import(), str(Path(folder) / start)
    if start != "torch" and json.loads(environment) != here:
        outer, folder = folder, f"{folder}/{zlib.crc32(json.dumps(sorted(here.items())).encode())}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            send(outer, "torch", executable, [__file__, folder, ended])
    return send(folder, start, executable, words)


def send(folder: str, start: str, executable: str, words: list[str]) -> int:
    connection, address = seqpacket(), f"{folder}/{start}.socket"
    for _ in range(1000):  # the first that needs the process has started it
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            connection.connect(address)
            break
        time.sleep(0.02)
    request = {"folder": os.getcwd(), "environment": dict(os.environ)}
    request |= {"executable": executable, "words": words}
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
    return int(connection.recv(64) or b"1")


def seqpacket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def serve(listening: dict[str, socket.socket], ended: int) -> NoReturn:
    """Fork for each program of the first start, and a process that serves the others."""
    if ended in select.select([ended, *listening.values()], [], [])[0]:
        os._exit(0)  # nothing is imported before it is needed
    (start, source), *others = listening.items()
    for name in MODULES[start]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    if others and os.fork() == 0:
        source.close()
        serve(dict(others), ended)
    for _, other in others:
        other.close()
    while ended not in select.select([ended, source], [], [])[0]:
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


def main(folder: str, ended: str, *asked: str) -> None:
    if not asked:
        listening = {name: seqpacket() for name in MODULES}
        for name, source in listening.items():
            source.bind(f"{folder}/{name}.socket")
            source.listen(128)
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a program's parent ends
            with open(os.devnull, "r+b") as nothing:
                for standard in (0, 1, 2):
                    os.dup2(nothing.fileno(), standard)
            serve(listening, int(ended))
        return
    start, environment, *words = asked
    while words[:1] == ["-u"]:
        del words[0]
    # A flag that changes the interpreter itself, or no program at all, is the real one's affair.
    if not words or (words[0].startswith("-") and words[0] not in ("-c", "-m")):
        os.execv(sys.executable, [sys.executable, *words])
    code = ask(folder, ended, start, environment, words)
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
