"""One run in its own folder: what was asked, whether it is done, who works on it, how it starts."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune import checkpoints
from finetune.fingerprint import differences
from finetune.outputs import RESULTS, write_json
from finetune.train_arguments import LAST

try:
    import fcntl
except ImportError as error:  # Windows
    raise ImportError("Running many runs needs a POSIX system (fcntl): use WSL.") from error

RECORD, LOG, LOCK = "run.json", "log.txt", ".lock"
CLOSED = "wall_seconds"  # in the record, once the run has ended and its weights are dealt with
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "step_*")
TAIL = 12  # lines of a failed run's log that are shown


@dataclass(frozen=True)
class Run:
    """One call of a script.

    Attributes:
        name: tells it from the others: ``cola/gfsa/seed-3``.
        script: path of the script.
        folder: its ``output_dir``.
        flags: words of its command line, without ``output_dir``.
        settings: what decides its numbers, by name (`scripts.deciding`).
    """

    name: str
    script: Path
    folder: Path
    flags: tuple[str, ...]
    settings: Mapping[str, Any]

    def command(self, launcher: Sequence[str] = ()) -> list[str]:
        """The words that start it, or continue it from its last checkpoint if it has one."""
        words = [*(launcher or (sys.executable,)), str(self.script), *self.flags]
        words += ["--output_dir", str(self.folder)]
        return [*words, "--resume_from_checkpoint", LAST] if self.can_resume() else words

    def is_done(self) -> bool:
        """Whether its results are there; a script writes them last, and whole."""
        return (self.folder / RESULTS).is_file()

    def can_resume(self) -> bool:
        """Whether it was killed with a checkpoint."""
        return not self.is_done() and bool(checkpoints.listed(self.folder))

    def results(self) -> dict[str, Any]:
        """What the script wrote."""
        return json.loads((self.folder / RESULTS).read_text("utf-8"))

    def record(self) -> dict[str, Any] | None:
        """What was written down when it was started from here; None if it was not."""
        with suppress(FileNotFoundError):
            return json.loads((self.folder / RECORD).read_text("utf-8"))
        return None

    def faults(self) -> list[str]:
        """How what is in its folder differs from what is asked, a line each, (then -> now).

        Settings that only one of the two knows are left out: they came with another version.
        """
        if self.is_done():
            found = self.results().get("settings", {})
        elif self.can_resume():
            found = (self.record() or {}).get("settings", {})
        else:
            return []
        names = [name for name in self.settings if name in found]
        return differences({n: found[n] for n in names}, {n: self.settings[n] for n in names})

    def log_tail(self) -> str:
        """The last lines of its log; of lines that a progress bar rewrote, the last state."""
        text = (self.folder / LOG).read_bytes().decode("utf-8", "replace")
        lines = [line.rpartition("\r")[2].rstrip() for line in re.split(r"\r?\n", text)]
        return "\n".join([line for line in lines if line][-TAIL:])

    def has_weights(self) -> bool:
        """Whether a model is in its folder."""
        return any(self.folder.glob("*.safetensors"))

    def remove_weights(self) -> None:
        """Delete a finished run's weights and checkpoints, if it was started without keeping.

        Once: what is there later, somebody else has put there.
        """
        record = self.record()
        if not self.is_done() or record is None or record["keep_models"] or CLOSED in record:
            return
        for path in [p for pattern in WEIGHTS for p in self.folder.glob(pattern)]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)  # another process may be at it, too
            else:
                path.unlink(missing_ok=True)


class Process:
    """A started run. It holds the folder's lock for as long as it lives, even as an orphan."""

    def __init__(
        self, run: Run, lock: int, launcher: Sequence[str], env: Mapping[str, str], keep: bool
    ) -> None:
        self.run, self._lock, self.started = run, lock, time.monotonic()
        command = run.command(launcher)
        self._note = {"command": command, "settings": run.settings, "keep_models": keep}
        write_json(run.folder / RECORD, self._note)
        with (run.folder / LOG).open("a", encoding="utf-8") as log:
            log.write(f"# {time.strftime('%Y-%m-%d %H:%M:%S')} {shlex.join(command)}\n")
            log.flush()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"TQDM_MININTERVAL": "30"} | dict(env),
                start_new_session=True,  # Ctrl-C reaches us alone, and its helpers end with it
                pass_fds=(lock,),
            )
        _write_holder(lock, self._process.pid)

    @property
    def seconds(self) -> float:
        """Since its start."""
        return time.monotonic() - self.started

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def close(self) -> bool:
        """After its end: note the time, delete weights, release; whether it has results."""
        done = self.run.is_done()
        if done:
            self.run.remove_weights()
            write_json(self.run.folder / RECORD, self._note | {CLOSED: self.seconds})
        os.close(self._lock)
        return done

    def end(self, patience: float = 10.0) -> None:
        """Stop it and what it started: ask first, then kill."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
                break
        os.close(self._lock)


def lock(folder: Path) -> int | None:
    """A descriptor that keeps others off the folder until it is closed; None if another has one.

    The system releases it when its last holder dies, so a lock is never stale.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    _write_holder(descriptor, os.getpid())
    return descriptor


def holder(folder: Path) -> str:
    """Who took the folder's lock last, in words."""
    with suppress(OSError):
        return (folder / LOCK).read_text("utf-8") or "another process"
    return "another process"


def _write_holder(descriptor: int, pid: int) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {pid} on {platform.node()}".encode(), 0)
