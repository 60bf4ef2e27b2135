"""The process that forks: see `warm/__init__.py`.

It ends when it has had nothing to do for a while, with the folder of the executables, or with the
process of the test run.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import NoReturn

sys.path.append(os.path.dirname(os.path.abspath(__file__)))

import program

MODULES = {
    "torch": ("torch", "torch._dynamo", "jinja2", "numpy", "PIL.Image", "scipy.optimize", "yaml"),
    "transformers": (
        *("transformers.core_model_loading", "transformers.integrations.hub_kernels"),
        *("transformers.models.auto.modeling_auto", "transformers.models.bert.modeling_bert"),
    ),
    "finetune": ("accelerate", "datasets", "evaluate", "peft", "scipy.stats", "sklearn.metrics"),
}
LARGEST = 2**18  # of a request, in bytes
IDLE = 30  # seconds; a process with an environment of its own has some 100 MB of its own


def serve(path: str, start: str) -> None:
    """Fork a program for each connection."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(path)
    listening.listen(128)
    print("listening", flush=True)
    for each in list(MODULES)[: list(MODULES).index(start) + 1]:
        for name in MODULES[each]:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the garbage collector never looks at it again
    listening.settimeout(1)
    folder, last = os.path.dirname(path), time.monotonic()
    owner = f"/proc/{os.path.basename(folder).split('-')[1]}"
    while os.path.exists(path) and os.path.exists(owner):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                last = time.monotonic()
        try:
            connection, _ = listening.accept()
        except TimeoutError:
            if start != "torch" and time.monotonic() - last > IDLE:
                stop(listening, path)
            continue
        last = time.monotonic()
        if os.fork() == 0:
            listening.close()
            wait_for_program(connection)
        connection.close()


def stop(listening: socket.socket, path: str) -> None:
    """Be no more, unless somebody has just connected, which needs the lock."""
    with contextlib.suppress(OSError), open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not select.select([listening], [], [], 0)[0]:
            os.unlink(path)


def wait_for_program(connection: socket.socket) -> NoReturn:
    """Fork the program and say how it ended; if whoever waits for it ends first, it ends too."""
    data, files, _, _ = socket.recv_fds(connection, LARGEST, 3)
    process = os.fork()
    if process == 0:
        connection.close()
        program.run(json.loads(data), files)
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


if __name__ == "__main__":
    serve(*sys.argv[1:])
    os._exit(0)  # what was imported needs no taking down
