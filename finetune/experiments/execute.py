"""Jobs: runs of a script, each in a folder of its own, that can be stopped and started again.

`do` takes data and returns data, so that a thread, another process or another machine that sees
the same folders can call it. `execute` has many jobs done by an executor.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import yaml
from tqdm import tqdm

from finetune.engine import checkpoints, locks
from finetune.engine.fingerprint import faults
from finetune.engine.output_folder import WEIGHTS
from finetune.engine.progress import LOG as STEPS
from finetune.engine.results import RESULTS, read_json, write_json
from finetune.errors import ERROR, Refused, refusal
from finetune.experiments.arms import Arm
from finetune.settings import recipes
from finetune.settings.schema import Run
from finetune.settings.training import LAST

SETTINGS, RECORD, LOG = "settings.yaml", "run.json", "log.txt"
CLOSED = "wall_seconds"  # in the record, once the run has ended and its weights are dealt with
METRIC = "metric"  # the flag that has a run measure more than its task's metrics
TAIL = 12  # lines of a failed run's log that are printed
DONE, FAILED = "done", "failed"
PATIENCE = 10  # seconds that a run which is asked to end may take
ARRIVAL = 90.0  # seconds that results need at most to be visible here; NFS looks after 60
BLIND = "Put output_dir on a file system that all machines share under the same path."
RUNNING: list[str] = []  # for each run of this process, whom it is done for
STOPPED: set[str] = set()  # those for whom this process does no more runs

Child = subprocess.Popen[bytes]

# Reads a process group's number, and ends that group if its input ends without another line.
LEASH = f"""trap '' INT TERM
read -r group && ! read -r ended && kill -s TERM -- "-$group" &&
sleep {PATIENCE} && kill -s KILL -- "-$group"
"""


@dataclass(frozen=True)
class Job:
    """A run of an arm, to be done by a script.

    Attributes:
        name: tells it from the others: ``cola/gfsa/seed-3``.
        script: path of the script.
        run: all of its settings; its ``output_dir`` is its own.
        arm: what it is a run of.
        task: the name of its task, or of someone's own data.
        main_metric: the key of its task's main metric; None for own data, whose run chooses it.
    """

    name: str
    script: Path
    run: Run[Any, Any]
    arm: Arm
    task: str = ""
    main_metric: str | None = None

    @property
    def folder(self) -> Path:
        """Where its results go."""
        return Path(self.run.train.output_dir)

    @property
    def seed(self) -> int:
        """Which run of its arm it is."""
        return self.run.train.seed

    def command(self, launcher: Sequence[str] = (), *, in_full: bool = False) -> list[str]:
        """The command that starts it from its file, or continues it from its last checkpoint.

        ``in_full`` names every flag, so that no file need be there.
        """
        flags = self.run.flags() if in_full else {"recipe": str(self.folder / SETTINGS)}
        resumed = {"resume_from_checkpoint": LAST} if self.can_resume() else {}
        start = launcher or (sys.executable,)
        return [*start, str(self.script), *recipes.argv({**flags, **resumed})]

    def write_settings(self) -> None:
        """Write the file that `command` names: a recipe with all of its flags."""
        text = yaml.safe_dump(self.run.flags(), sort_keys=False, allow_unicode=True)
        (self.folder / SETTINGS).write_text(text, "utf-8")

    def is_done(self) -> bool:
        """Whether its results are there; a script writes them last, and whole."""
        return (self.folder / RESULTS).is_file()

    def can_resume(self) -> bool:
        """Whether it was killed with a checkpoint."""
        return not self.is_done() and bool(checkpoints.listed(self.folder))

    def results(self) -> dict[str, Any]:
        """What the script wrote; raises ``Refused`` if the file is damaged."""
        return read_json(self.folder / RESULTS)

    def record(self) -> dict[str, Any] | None:
        """What was written when it was started from here; None if it was not.

        Raises ``Refused`` if the file is damaged.
        """
        path = self.folder / RECORD
        return read_json(path) if path.is_file() else None

    def faults(self) -> list[str]:
        """How the run in its folder differs from this one, a line each, (then -> now).

        Settings that only one of the two has are left out: they came with another version. A
        finished run may have measured more metrics.
        """
        earlier = self.results() if self.is_done() else self.can_resume() and self.record()
        if not earlier:
            return []
        settings = self.run.deciding()
        measured = earlier["settings"].get(METRIC) or ()
        if self.is_done() and set(settings[METRIC] or ()) <= set(measured):
            del settings[METRIC]
        return faults(earlier, settings, {METRIC: None})

    def log_tail(self) -> str:
        """The last lines of its log; of lines that a progress bar rewrote, the last state."""
        text = (self.folder / LOG).read_bytes().decode("utf-8", "replace")
        lines = [line.rpartition("\r")[2].rstrip() for line in re.split(r"\r?\n", text)]
        return "\n".join([line for line in lines if line][-TAIL:])

    def remove_weights(self) -> None:
        """Delete a finished run's weights and checkpoints, if it was started without keeping.

        Once: what is there later, somebody else has put there.
        """
        record = self.record()
        if not self.is_done() or record is None or record["keep_models"] or CLOSED in record:
            return
        for path in (p for pattern in WEIGHTS for p in [*self.folder.glob(pattern)]):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)  # another process may be at it, too
            else:
                path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Options:
    """How runs are started.

    Attributes:
        launcher: what stands before the script; empty is this Python.
        keep_models: whether finished runs keep their weights.
        home: the folder in which relative paths begin, on other machines as on this one.
        env: environment variables beside those of the process that does the run.
        owner: for whom; `stop` takes it.
        one_ran: whether a run of the same experiment ended before: its common flags are right.
    """

    launcher: Sequence[str] = ()
    keep_models: bool = False
    home: Path = field(default_factory=Path.cwd)
    env: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    one_ran: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        status: ``done`` or ``failed``.
        reason: of one that is not done, in a sentence, perhaps with the end of its log.
        seconds: from the start to the end of one that was done here; None of others.
        refusal: the error of one that was refused before it trained; empty of others.
    """

    status: str
    reason: str = ""
    seconds: float | None = None
    refusal: str = ""


def do(job: Job, options: Options) -> Outcome:
    """Do a run from its beginning or its last checkpoint; one that another process does is awaited.

    That process may be of another comparison, or of a lost worker.
    """
    if not job.folder.is_dir():
        return Outcome(FAILED, f"{platform.node()} does not see {job.folder}. {BLIND}")
    RUNNING.append(options.owner)
    try:
        awaited = False
        while options.owner not in STOPPED:
            with locks.held(job.folder) as lock:
                if lock is not None:  # another process may have done it since it was planned
                    return Outcome(DONE) if job.is_done() else _done(job, options, lock)
            if not awaited:
                print(f"{job.name}: {locks.holder(job.folder)} works on it and is awaited")
            awaited = True
            time.sleep(0.5)
        return Outcome(FAILED, "stopped")
    finally:
        RUNNING.remove(options.owner)


def stop(owner: str) -> int:
    """End the runs for this owner, and begin no more; returns how many there still are."""
    STOPPED.add(owner)
    return RUNNING.count(owner)


def _done(job: Job, options: Options, lock: int) -> Outcome:
    job.write_settings()
    command, settings, began = job.command(options.launcher), job.run.deciding(), time.monotonic()
    record = {"command": command, "settings": settings, "keep_models": options.keep_models}
    write_json(job.folder / RECORD, record)
    with _leash() as leash:
        child = _started(job, command, options, lock)
        leash.write(b"%d\n" % child.pid)
        locks.write_holder(lock, child.pid)
        code = _waited(child, options.owner)
    if not job.is_done():
        log = job.log_tail()
        reason = f"failed with exit code {code}; the end of {job.folder / LOG}\n"
        # A launcher has an exit code, and last lines, of its own.
        errors = [line for line in log.splitlines() if line.startswith(ERROR)]
        is_early = errors and not (job.folder / STEPS).exists()
        refused = errors[-1].removeprefix(ERROR) if is_early else ""
        return Outcome(FAILED, reason + textwrap.indent(log, "    "), refusal=refused)
    seconds = time.monotonic() - began
    job.remove_weights()
    write_json(job.folder / RECORD, record | {CLOSED: seconds})
    return Outcome(DONE, seconds=seconds)


def _started(job: Job, command: Sequence[str], options: Options, lock: int) -> Child:
    """Start the command. It holds the folder's lock too, until it ends."""
    with (job.folder / LOG).open("a", encoding="utf-8") as log:
        log.write(f"# {time.strftime('%Y-%m-%d %H:%M:%S')} {shlex.join(command)}\n")
        log.flush()
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=options.home,
            env=os.environ | dict(options.env),
            start_new_session=True,  # Ctrl-C reaches us alone, and its helpers end with it
            pass_fds=(lock,),
        )


@contextmanager
def _leash() -> Iterator[IO[bytes]]:
    """Gives where a child's number is written; should this process die, the child is ended."""
    shell = subprocess.Popen(
        ["/bin/sh", "-c", LEASH], bufsize=0, stdin=subprocess.PIPE, start_new_session=True
    )
    assert shell.stdin is not None
    with shell.stdin as line:
        yield line
        shell.communicate(b"ended\n")


def _waited(child: Child, owner: str) -> int:
    """Its exit code; once stopped, it ends with all that it has started, at last by force."""
    while owner not in STOPPED:
        with suppress(subprocess.TimeoutExpired):
            return child.wait(timeout=0.2)
    os.killpg(child.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        return child.wait(PATIENCE)
    os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def check(jobs: Sequence[Job]) -> None:
    """Raise ``Refused`` if a folder holds a run with other settings; nothing is started then."""
    for job in jobs:
        if differences := "; ".join(job.faults()):
            raise refusal(
                f"what is in {job.folder}",
                "a run with other settings",
                f"a run with these settings (then -> now): {differences}",
                "Give those of the run, choose another output_dir, or remove that folder.",
            )


def execute(
    jobs: Sequence[Job],
    options: Options,
    executor: Executor,
    *,
    log: Callable[[str], None] = print,
    summary: Callable[[Job], str] = lambda job: DONE,
) -> dict[str, str]:
    """Run what is not done yet, in this order; returns the names of runs without results, and why.

    A run that was killed goes on from its last checkpoint, or begins again. After one that fails
    the others go on. An interrupt cancels those that wait; closing the executor ends the others.

    Args:
        jobs: each with a folder of its own.
        options: how they are started.
        executor: where they run: what calls ``do(job, options)`` for ``submit(job, options)``.
        log: takes a line for each run that ends, and the log's end of one that failed.
        summary: what that line has of a finished run.

    Raises ``Refused`` before anything starts if a folder holds a run with other settings, and if a
    run is refused while none has ended: so are the others, if it is for the flags that all have.
    """
    check(jobs)
    for job in () if options.keep_models else jobs:
        job.remove_weights()  # of runs whose parent was killed before it could
    waiting = [job for job in jobs if not job.is_done()]
    for job in waiting:
        job.folder.mkdir(parents=True, exist_ok=True)  # every machine has to see it
    missing: dict[str, str] = {}
    submit: Callable[..., Future[Outcome]] = executor.submit
    if before := len(jobs) - len(waiting):
        log(f"{before} of {len(jobs)} runs were done before")
    one_ran = options.one_ran or before > 0
    futures: dict[Future[Outcome], Job] = {submit(job, options): job for job in waiting}
    try:
        for ended, future in enumerate(as_completed(futures), before + 1):
            job, outcome = futures[future], _outcome(futures[future], future)
            missing |= {} if outcome.status == DONE else {job.name: outcome.status}
            text = summary(job) if outcome.status == DONE else outcome.reason
            if outcome.seconds is not None:
                text += f"; {tqdm.format_interval(outcome.seconds)}"
            log(f"[{ended}/{len(jobs)}] {job.name}: {text}")
            one_ran = one_ran or not outcome.refusal
            if not one_ran:
                raise Refused(f"{job.name} is refused: {outcome.refusal}")
    finally:
        for future in futures:
            future.cancel()
    check([job for job in jobs if job.is_done()])  # other processes may have been at work
    done = {job.name for job in jobs if job.is_done()}
    return {name: status for name, status in missing.items() if name not in done}


def _outcome(job: Job, future: Future[Outcome]) -> Outcome:
    """The future's result, once it can be seen here."""
    try:
        outcome = future.result()
    except Exception as error:
        # No such launcher, no room, or what an executor raises that has lost a run.
        lines = (str(error) or "given up by the executor, which may be gone").splitlines()
        text = textwrap.indent("\n".join(lines[-TAIL:]), "    ").lstrip()
        return Outcome(FAILED, f"failed: {type(error).__name__}: {text}")
    end = time.monotonic() + ARRIVAL
    while outcome.status == DONE and not job.is_done():
        if time.monotonic() > end:
            reason = f"failed: done elsewhere, and {job.folder} has no results. {BLIND}"
            return Outcome(FAILED, reason)
        time.sleep(0.5)
    return outcome
