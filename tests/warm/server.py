"""The process that forks: see `warm/__init__.py`. It ends with its standard input.

The first process forks programs that need torch alone. For the others it forks a process that
imports more and forks programs in turn: one for each start and each environment of huggingface_hub,
which reads its environment when it is imported.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

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
STARTS = tuple(MODULES)
READ_AT_IMPORT = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "XDG_", "HOME")
LARGEST = 2**18  # of a request, in bytes
KEPT = 12  # processes with environments of their own, at most; each has some 100 MB of its own


class Forker:
    """Forks a program for each request that comes by `source`, and says how it ended.

    A request comes with four files: the connection of whoever waits for the program's end, and the
    program's standard streams.
    """

    def __init__(self, source: socket.socket, start: str) -> None:
        self.source, self.start, self.prepared = source, start, False
        self.selector = selectors.DefaultSelector()
        self.watch(source, self.take)
        self.running = 0
        self.others: dict[Any, socket.socket] = {}  # (start, environment) -> its process

    def serve(self) -> None:
        """Until nobody can ask any more, and the last program has ended."""
        while self.source.fileno() >= 0 or self.running:
            event, _ = self.selector.select()[0]
            event.data()

    def watch(self, file: Any, then: Callable[[], None]) -> None:
        self.selector.register(file, selectors.EVENT_READ, then)

    def take(self) -> None:
        """Read a request and see to it."""
        data, files, _, _ = socket.recv_fds(self.source, LARGEST, 4)
        if data:
            self.handle(json.loads(data), data, files)
        else:
            self.stop()

    def stop(self) -> None:
        self.selector.unregister(self.source)
        self.source.close()
        for other in self.others.values():
            other.close()

    def handle(self, request: dict[str, Any], data: bytes, files: list[int]) -> None:
        self.prepare()
        if request["start"] == self.start:
            self.run(request, socket.socket(fileno=files.pop(0)), files)
        else:
            socket.send_fds(self.other(request, files), [data], files)
        for file in files:
            os.close(file)

    def prepare(self) -> None:
        """Import what the programs need; the garbage collector never looks at it again."""
        if not self.prepared:
            for name in MODULES[self.start]:
                importlib.import_module(name)
            gc.collect()
            gc.freeze()
            self.prepared = True

    def run(self, request: dict[str, Any], connection: socket.socket, files: list[int]) -> None:
        """Fork the program; if whoever waits for it ends first, it ends too."""
        process = os.fork()
        if process == 0:
            self.leave()
            connection.close()
            program.run(request, files)
        self.running += 1
        ended = os.pidfd_open(process)

        def end() -> None:
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            with contextlib.suppress(OSError):  # nobody waits any more
                connection.send(str(code).encode())
            self.selector.unregister(connection)
            self.selector.unregister(ended)
            connection.close()
            os.close(ended)
            self.running -= 1

        def kill() -> None:
            os.kill(process, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):  # it had not begun yet
                os.killpg(process, signal.SIGKILL)
            end()

        self.watch(connection, kill)
        self.watch(ended, end)

    def other(self, request: dict[str, Any], files: list[int]) -> socket.socket:
        """The process that forks programs of this start in this environment, without `files`."""
        variables = sorted(request["environment"].items())
        key = (
            request["start"],
            *(each for each in variables if each[0].startswith(READ_AT_IMPORT)),
        )
        if key not in self.others:
            while len(self.others) >= KEPT:
                self.others.pop(next(iter(self.others))).close()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if os.fork() == 0:
                self.leave()
                ours.close()
                for file in files:
                    os.close(file)
                program.inherit(request["environment"])
                os._exit(self.become(theirs, request["start"]))
            theirs.close()
            self.others[key] = ours
        self.others[key] = self.others.pop(key)  # the one that was used last comes last
        return self.others[key]

    def become(self, source: socket.socket, start: str) -> int:
        """Serve as the process of another start, with the imports of those before it."""
        for between in STARTS[STARTS.index(self.start) + 1 : STARTS.index(start)]:
            Forker(source, between).prepare()
        Forker(source, start).serve()
        return 0

    def leave(self) -> None:
        """In a fork: close what belongs to this process."""
        for event in list(self.selector.get_map().values()):
            os.close(event.fd) if isinstance(event.fileobj, int) else event.fileobj.close()
        self.selector.close()
        for other in self.others.values():
            other.close()


class Listener(Forker):
    """The first: each request is a new connection, and the end of the input the end of all."""

    def __init__(self, source: socket.socket) -> None:
        super().__init__(source, STARTS[0])
        self.input = os.dup(0)
        self.watch(self.input, self.stop)
        with open(os.devnull, "r+b") as nothing:
            for standard in (0, 1):
                os.dup2(nothing.fileno(), standard)

    def take(self) -> None:
        connection, _ = self.source.accept()
        data, files, _, _ = socket.recv_fds(connection, LARGEST, 3)
        if data:
            self.handle(json.loads(data), data, [connection.detach(), *files])
        else:
            connection.close()

    def stop(self) -> None:
        self.selector.unregister(self.input)
        super().stop()


def main() -> None:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(sys.argv[1])
    listening.listen(128)
    print("listening", flush=True)
    Listener(listening).serve()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()  # for the processes of other starts, so that their time is counted
    os._exit(0)  # what was imported needs no taking down


if __name__ == "__main__":
    main()
