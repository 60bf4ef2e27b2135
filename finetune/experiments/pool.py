"""Runs, several at once where there is room, that can be stopped and started again at any time."""

from __future__ import annotations

import textwrap
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, Future, as_completed
from contextlib import closing
from statistics import fmean

from tqdm import tqdm

from finetune.errors import Refused, refusal
from finetune.experiments import work
from finetune.experiments.executors import Local
from finetune.experiments.runs import TAIL, Run
from finetune.experiments.work import DONE, FAILED, Options, Outcome
from finetune.settings.variants import NO_VARIANT

TASK = "task_name"
ARRIVAL = 90.0  # seconds that results need at most to be seen here; NFS looks after 60


def check(wanted: Sequence[Run]) -> None:
    """Raise ``ValueError`` if a folder holds a run with other settings; nothing is started then."""
    for run in wanted:
        faults = run.faults()
        if faults:
            raise refusal(
                f"what is in {run.folder}",
                "a run with other settings",
                f"a run with those asked for (then -> now): {'; '.join(faults)}",
                "Give those of the run, choose another output_dir, or remove that folder.",
            )


def said(line: str) -> None:
    """Print a line at once, into a file too."""
    print(line, flush=True)


def execute(
    wanted: Sequence[Run],
    options: Options = work.DEFAULT,
    executor: Executor | None = None,
    *,
    say: Callable[[str], None] = said,
    shown: Callable[[Run], str] = lambda run: "done",
) -> dict[str, str]:
    """Run what is not done yet, in this order; returns the names of runs without results, and why.

    A run that was killed goes on from its last checkpoint, or begins again. One that another
    process works on is left to it (``elsewhere``). After one that fails (``failed``) the others go
    on. An interrupt cancels those that wait; closing the executor ends those that run.

    Args:
        wanted: each with a folder of its own.
        options: how they are started.
        executor: where they run; None is one after another in this process.
        say: takes a line for each run that ends, and the log's end of one that failed.
        shown: what that line says of a finished run.

    Raises ``ValueError`` before anything starts if a folder holds a run with other settings, and
    ``Refused`` once it is clear that every run is refused.
    """
    if executor is None:
        with Local() as own:
            return execute(wanted, options, own, say=say, shown=shown)
    check(wanted)
    _tidy(wanted, options.keep_models, say)
    waiting, missing = [run for run in wanted if not run.is_done()], {}
    before, refused = len(wanted) - len(waiting), defaultdict[str, list[Run]](list)
    seconds: list[float] = []  # of each run that was done here
    if before:
        say(f"{before} of {len(wanted)} runs were done before")
    with closing(_outcomes(waiting, options, executor)) as outcomes:
        for ended, (run, outcome) in enumerate(outcomes, before + 1):
            if outcome.status != DONE:
                missing[run.name] = outcome.status
            text = shown(run) if outcome.status == DONE else outcome.reason
            if outcome.seconds is not None:
                seconds.append(outcome.seconds)
                text += f"; {tqdm.format_interval(outcome.seconds)}"
                text += _left(len(wanted) - ended, seconds, getattr(executor, "at_once", None))
            say(f"[{ended}/{len(wanted)}] {run.name}: {text}")
            if outcome.refusal and not seconds:
                refused[outcome.refusal].append(run)
                if _is_met_by_all(refused[outcome.refusal], wanted):
                    raise Refused(f"{run.name}, and every other run: {outcome.refusal}")
    check([run for run in wanted if run.is_done()])  # other processes may have been at work
    still = [run.name for run in waiting if not run.is_done()]
    return {name: missing[name] for name in still if name in missing}


def _tidy(wanted: Sequence[Run], keep_models: bool, say: Callable[[str], None]) -> None:
    """Remove weights of runs whose parent was killed before it could, or say that some are gone."""
    if not keep_models:
        for run in wanted:
            run.remove_weights()
        return
    gone = sum(run.is_done() and not run.has_weights() for run in wanted)
    if gone:
        say(f"Of {gone} finished runs the weights are gone: to have them, remove their folders")


def _is_met_by_all(refused: Sequence[Run], wanted: Sequence[Run]) -> bool:
    """Whether what these runs are refused for is in the flags that all have.

    They are of every task, and one is plain, without flags of its own; or they are of two arms.
    """
    own = [{n: v for n, v in run.flags.items() if n not in (TASK, "seed")} for run in refused]
    if {run.flags.get(TASK) for run in refused} != {run.flags.get(TASK) for run in wanted}:
        return False
    return any(x.get("variant", NO_VARIANT) == NO_VARIANT or x != own[0] for x in own)


def _left(left: int, seconds: Sequence[float], at_once: int | None) -> str:
    """How long the runs that are left will take, in words; nothing where nobody knows."""
    if not left or at_once is None:
        return ""
    left_here = left - min(left, at_once - 1) / 2  # those that run are half done
    return f", about {tqdm.format_interval(fmean(seconds) * left_here / at_once)} left"


def _outcomes(
    waiting: Sequence[Run], options: Options, executor: Executor
) -> Generator[tuple[Run, Outcome]]:
    """Each run as it ends, begun in this order; stopped early, those that wait are cancelled."""
    futures = {executor.submit(work.do, run, options): run for run in waiting}
    try:
        for future in as_completed(futures):
            yield futures[future], _outcome(futures[future], future)
    finally:
        for future in futures:
            future.cancel()


def _outcome(run: Run, future: Future[Outcome]) -> Outcome:
    """What the future says, if it can be seen here."""
    try:
        outcome = future.result()
    except Refused:
        raise
    except Exception as error:
        # Whatever an executor raises that has lost a run: KilledWorker, UncompletedJobError ...
        lines = (str(error) or "given up by the executor, which may be gone").splitlines()
        text = textwrap.indent("\n".join(lines[-TAIL:]), "    ").lstrip()
        return Outcome(FAILED, f"failed: {type(error).__name__}: {text}")
    end = time.monotonic() + ARRIVAL
    while outcome.status == DONE and not run.is_done():
        if time.monotonic() > end:
            reason = f"failed: done elsewhere, and {run.folder} has no results. {work.BLIND}"
            return Outcome(FAILED, reason)
        time.sleep(0.5)
    return outcome
