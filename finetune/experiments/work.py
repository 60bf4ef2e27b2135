"""Doing one run in its folder: start the script, wait for its end, and tidy up.

`do` takes plain data and returns plain data, so that any `concurrent.futures` executor can call it,
in a thread, in another process or on another machine that sees the same folders.
"""

from __future__ import annotations

import os
import platform
import shlex
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from finetune.engine import locks
from finetune.engine.progress import LOG as STEPS
from finetune.engine.results import write_json
from finetune.errors import ERROR
from finetune.experiments.runs import CLOSED, LOG, RECORD, Run

DONE, FAILED, ELSEWHERE = "done", "failed", "elsewhere"
PATIENCE = 10  # seconds that a run which is asked to end may take
LOST = 120.0  # seconds in which a lost worker's folder comes free; NFS takes 90 for a lost machine
BLIND = "Put output_dir on a file system that all machines share under the same path."
RUNNING: list[str] = []  # for whom this process does a run, a name each
STOPPED: set[str] = set()  # for whom it does none any more

# Reads a process group's number, and ends that group if its input ends without another line.
LEASH = f"""trap '' INT TERM
read -r group && ! read -r ended && kill -s TERM -- "-$group" &&
sleep {PATIENCE} && kill -s KILL -- "-$group"
"""


@dataclass(frozen=True)
class Options:
    """How runs are started.

    Attributes:
        launcher: words before the script; empty is this Python.
        keep_models: whether finished runs keep their weights.
        home: of runs on other machines the folder in which relative paths begin; they end with
            the process that does them. None is this process's, and a run that is begun outlives it.
        asker: for whom; `stop` takes it.
    """

    launcher: Sequence[str] = ()
    keep_models: bool = False
    home: Path | None = None
    asker: str = ""


DEFAULT = Options()


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        status: ``done``, ``failed``, or ``elsewhere`` where another process works on it.
        reason: in words, of one that is not done; of one that failed with the end of its log.
        seconds: from the start to the end of one that was done here; None of others.
        refusal: the error of one that was refused before it trained; empty of others.
    """

    status: str
    reason: str = ""
    seconds: float | None = None
    refusal: str = ""


def do(run: Run, options: Options, env: Mapping[str, str] | None = None) -> Outcome:
    """Do a run from its beginning or its last checkpoint, unless another process is at it.

    ``env`` are environment variables beside those of this process. On another machine the folder
    may be a lost worker's, and is waited for as long as `LOST`.
    """
    until = time.monotonic()
    if options.home is not None:
        until, home = until + LOST, options.home
        run = replace(run, script=home / run.script, folder=home / run.folder)
        if not run.folder.is_dir():
            return Outcome(FAILED, f"{platform.node()} does not see {run.folder}. {BLIND}")
    RUNNING.append(options.asker)
    try:
        outcome = _in_turn(run, options, env or {})
        while outcome.status == ELSEWHERE and time.monotonic() < until:
            time.sleep(0.5)
            outcome = _in_turn(run, options, env or {})
        return outcome
    except OSError as error:  # there is no such launcher, no room, or no right to write
        return Outcome(FAILED, f"could not be started: {error}")
    finally:
        RUNNING.remove(options.asker)


def stop(asker: str) -> int:
    """End the runs for this asker, and begin no more; returns how many there still are."""
    STOPPED.add(asker)
    return RUNNING.count(asker)


def _in_turn(run: Run, options: Options, env: Mapping[str, str]) -> Outcome:
    if options.asker in STOPPED:
        return Outcome(FAILED, "stopped")
    with locks.held(run.folder) as lock:
        if lock is None:
            return Outcome(ELSEWHERE, f"left to {locks.holder(run.folder)}, which works on it")
        # Another process may have done it since it was planned.
        return Outcome(DONE) if run.is_done() else _done(run, options, env, lock)


def _done(run: Run, options: Options, env: Mapping[str, str], lock: int) -> Outcome:
    run.write_settings()
    command, began = run.command(options.launcher), time.monotonic()
    record = {"command": command, "settings": run.settings, "keep_models": options.keep_models}
    write_json(run.folder / RECORD, record)
    with nullcontext() if options.home is None else _leash() as leash:
        child = _started(run, command, env, options.home, lock)
        if leash is not None:
            leash.write(b"%d\n" % child.pid)
        locks.write_holder(lock, child.pid)
        code = _waited(child, options.asker)
    if not run.is_done():
        log = run.log_tail()
        reason = f"failed with exit code {code}; the end of {run.folder / LOG}\n"
        reason += textwrap.indent(log, "    ")
        # A launcher has an exit code, and last words, of its own.
        told = [line for line in log.splitlines() if line.startswith(ERROR)]
        refusal = told[-1] if told and not (run.folder / STEPS).exists() else ""
        return Outcome(FAILED, reason.rstrip(), refusal=refusal)
    seconds = time.monotonic() - began
    run.remove_weights()
    write_json(run.folder / RECORD, record | {CLOSED: seconds})
    return Outcome(DONE, seconds=seconds)


def _started(
    run: Run, command: Sequence[str], env: Mapping[str, str], home: Path | None, lock: int
) -> subprocess.Popen[bytes]:
    """Start the command. It holds the folder's lock too, even as an orphan."""
    with (run.folder / LOG).open("a", encoding="utf-8") as log:
        log.write(f"# {time.strftime('%Y-%m-%d %H:%M:%S')} {shlex.join(command)}\n")
        log.flush()
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=home,
            env=os.environ | {"TQDM_MININTERVAL": "30"} | dict(env),
            start_new_session=True,  # Ctrl-C reaches us alone, and its helpers end with it
            pass_fds=(lock,),
        )


@contextmanager
def _leash() -> Iterator[IO[bytes]]:
    """Gives where a child's number is written; should this process die, the child is ended."""
    shell = subprocess.Popen(
        ["/bin/sh", "-c", LEASH],
        bufsize=0,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert shell.stdin is not None
    with shell.stdin as line:
        yield line
        shell.communicate(b"ended\n")


def _waited(child: subprocess.Popen[bytes], asker: str) -> int:
    """Its exit code; once stopped, it ends with all that it has started, at last by force."""
    while asker not in STOPPED:
        with suppress(subprocess.TimeoutExpired):
            return child.wait(timeout=0.2)
    os.killpg(child.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        return child.wait(PATIENCE)
    os.killpg(child.pid, signal.SIGKILL)
    return child.wait()
