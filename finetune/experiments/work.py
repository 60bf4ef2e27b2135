"""Doing one run in its folder: start the script, wait for its end, and tidy up.

`do` takes plain data and returns plain data, so that any `concurrent.futures` executor can call it,
in a thread, in another process or on another machine that sees the same folders.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import textwrap
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from finetune.engine import locks
from finetune.engine.results import write_json
from finetune.experiments.runs import CLOSED, LOG, RECORD, Run

DONE, FAILED, ELSEWHERE = "done", "failed", "elsewhere"
CHILDREN: set[subprocess.Popen[bytes]] = set()  # that this process waits for


@dataclass(frozen=True)
class Options:
    """How runs are started.

    Attributes:
        launcher: words before the script; empty is this Python.
        keep_models: whether finished runs keep their weights.
    """

    launcher: Sequence[str] = ()
    keep_models: bool = False


DEFAULT = Options()


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        status: ``done``, ``failed``, or ``elsewhere`` where another process works on it.
        reason: in words, of one that is not done; of one that failed with the end of its log.
        seconds: from the start to the end of one that was done here; None of others.
    """

    status: str
    reason: str = ""
    seconds: float | None = None


def do(run: Run, options: Options, env: Mapping[str, str]) -> Outcome:
    """Do a run from its beginning or its last checkpoint, unless another process is at it.

    ``env`` are environment variables beside those of this process.
    """
    try:
        with locks.held(run.folder) as lock:
            if lock is None:
                holder = locks.holder(run.folder)
                return Outcome(ELSEWHERE, f"left to {holder}, which works on it")
            # Another process may have done it since it was planned.
            return Outcome(DONE) if run.is_done() else _done(run, options, env, lock)
    except OSError as error:  # there is no such launcher, no room, or no right to write
        return Outcome(FAILED, f"could not be started: {error}")


def ask_to_end(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a child and to all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def _done(run: Run, options: Options, env: Mapping[str, str], lock: int) -> Outcome:
    run.write_settings()
    command, began = run.command(options.launcher), time.monotonic()
    record = {"command": command, "settings": run.settings, "keep_models": options.keep_models}
    write_json(run.folder / RECORD, record)
    code = _exit_code(run, command, env, lock)
    if not run.is_done():
        log = textwrap.indent(run.log_tail(), "    ")
        reason = f"failed with exit code {code}; the end of {run.folder / LOG}\n{log}"
        return Outcome(FAILED, reason.rstrip())
    seconds = time.monotonic() - began
    run.remove_weights()
    write_json(run.folder / RECORD, record | {CLOSED: seconds})
    return Outcome(DONE, seconds=seconds)


def _exit_code(run: Run, command: Sequence[str], env: Mapping[str, str], lock: int) -> int:
    """Start the command and wait for its end. It holds the folder's lock too, even as an orphan."""
    with (run.folder / LOG).open("a", encoding="utf-8") as log:
        log.write(f"# {time.strftime('%Y-%m-%d %H:%M:%S')} {shlex.join(command)}\n")
        log.flush()
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TQDM_MININTERVAL": "30"} | dict(env),
            start_new_session=True,  # Ctrl-C reaches us alone, and its helpers end with it
            pass_fds=(lock,),
        )
    CHILDREN.add(child)
    try:
        locks.write_holder(lock, child.pid)
        return child.wait()
    finally:
        CHILDREN.discard(child)
