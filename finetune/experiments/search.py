"""The search by Optuna: its TPE sampler, its trials in a journal file, resumed where it ended.

A trial is a setting, its value the mean over the seeds. Runs are found by their folders, so a trial
that draws a known setting costs nothing. One that was killed, or whose runs failed, is queued again
when the sweep is started again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from finetune.engine import locks
from finetune.errors import refusal
from finetune.experiments import space
from finetune.experiments.arms import Arm
from finetune.experiments.experiment import Experiment
from finetune.experiments.grid import Cell
from finetune.experiments.metrics import greater_is_better, main_metric, metric_name
from finetune.experiments.space import Range

FOLDER, JOURNAL = "optuna", "journal.log"
AGAIN = "again"  # a trial's note: the number of the one that it repeats
DIGITS = 4  # of a number drawn from a range: enough, and its folder has a short name


class Study:
    """The trials of a sweep so far, and what asks for more.

    Args:
        sweep: with one part in its space.
        look_only: read the journal where there is one, and write nothing.

    Raises ``ValueError`` where optuna is missing, the space has several parts, a setting at its
    ends would be refused, or nobody knows which way the metric is better.
    """

    def __init__(self, sweep: Experiment, *, look_only: bool = False) -> None:
        if sweep.space is None or len(sweep.space.parts) != 1:
            raise refusal("space", "a list", "one space with optuna", "Sweep them one by one.")
        self._sweep, self._space, self._choices = sweep, sweep.space, sweep.space.parts[0]
        greater = _greater_is_better(sweep, sweep.cells(self._space.ends()))
        self._kinds, self._optuna = sweep.script.schema.kinds(), _optuna()
        self._states = self._optuna.trial.TrialState
        path, storage = sweep.folder / FOLDER / JOURNAL, None
        if path.exists() or not look_only:
            path.parent.mkdir(parents=True, exist_ok=True)
            backend = self._optuna.storages.journal.JournalFileBackend(str(path))
            storage = self._optuna.storages.JournalStorage(backend)
        self._study = self._optuna.create_study(
            study_name=self._name(),
            storage=storage,
            direction="maximize" if greater else "minimize",
            load_if_exists=True,
        )

    def arms(self) -> list[Arm]:
        """The settings tried so far, each once."""
        found = (self._arm(trial.params) for trial in self._study.trials if self._is_whole(trial))
        return list({arm.name: arm for arm in found}.values())

    def search(
        self,
        trials: int,
        execute: Callable[[Sequence[Cell]], dict[str, str]],
        at_once: int = 1,
    ) -> dict[str, str]:
        """Try settings until so many trials have ended, those of earlier calls among them.

        Args:
            trials: how many.
            execute: runs cells; returns the names of runs without results, and why.
            at_once: trials that run together.

        Returns what the calls of ``execute`` returned. Raises ``ValueError`` where another process
        searches in this folder, or the runs have no such metric.
        """
        folder = self._sweep.folder
        missing: dict[str, str] = {}
        with locks.held(folder / FOLDER) as lock:
            if lock is None:
                allowed, holder = "one search at a time in a folder", locks.holder(folder / FOLDER)
                remedy = f"Left to {holder}: wait until it ends, or stop it and give this one more "
                raise refusal("output_dir", str(folder), allowed, f"{remedy}--processes.")
            self._queue_again()
            while (ended := self._ended()) < trials:
                asked = [self._ask(i) for i in range(ended, min(ended + at_once, trials))]
                for i, (_, arm) in enumerate(asked, ended + 1):
                    print(f"Trial {i} of {trials}: {space.described(arm.setting)}")
                cells = self._sweep.cells_of(list({arm.name: arm for _, arm in asked}.values()))
                missing |= execute(cells)
                for number, arm in asked:
                    self._tell(number, [cell for cell in cells if cell.arm.name == arm.name])
        return missing

    def _name(self) -> str:
        """Of what decides the trials' values, so that another search is another study.

        Journals that are there hold studies of these names: the flags count as they were written,
        in any order.
        """
        sweep = self._sweep
        parts = {flag: repr(values) for flag, values in self._choices.items()}
        common = sorted(re.split(" (?=--)", " ".join(sweep.words)))
        told = [sweep.script.family, common, parts, list(sweep.seeds), sweep.measure.name]
        return f"{self._space.variant}-{hashlib.sha256(json.dumps(told).encode()).hexdigest()[:12]}"

    def _latest(self) -> list[Any]:
        """All trials but those that another one repeats."""
        trials = self._study.trials
        repeated = {trial.user_attrs.get(AGAIN) for trial in trials}
        return [trial for trial in trials if trial.number not in repeated]

    def _ended(self) -> int:
        return sum(trial.state.is_finished() for trial in self._latest())

    def _queue_again(self) -> None:
        """Of trials that were killed or failed, those with runs to do."""
        for trial in self._latest():
            if trial.state == self._states.RUNNING:
                self._study.tell(trial.number, state=self._states.FAIL)
            elif trial.state != self._states.FAIL or self._has_all_runs(trial):
                continue
            self._study.enqueue_trial(trial.params, user_attrs={AGAIN: trial.number})

    def _has_all_runs(self, trial: Any) -> bool:
        if not self._is_whole(trial):
            return False
        cells = self._sweep.cells_of([self._arm(trial.params)])
        return all(cell.run.is_done() for cell in cells)

    def _is_whole(self, trial: Any) -> bool:
        """Whether it has begun, and all its flags were drawn before it was killed."""
        return set(trial.params) == set(self._choices)

    def _ask(self, position: int) -> tuple[int, Arm]:
        # Seeded for each trial: a search that was stopped goes on as if it had not been.
        (seed,) = np.random.SeedSequence([self._sweep.seeds[0], position]).generate_state(1)
        self._study.sampler = self._optuna.samplers.TPESampler(seed=int(seed))
        drawn_from = {flag: self._distribution(flag) for flag in self._choices}
        trial = self._study.ask(fixed_distributions=drawn_from)
        return trial.number, self._arm(trial.params)

    def _distribution(self, flag: str) -> Any:
        choices, kinds = self._choices[flag], self._optuna.distributions
        if not isinstance(choices, Range):
            return kinds.CategoricalDistribution([json.dumps(value) for value in choices])
        if self._kinds[flag] is int:
            return kinds.IntDistribution(choices.low, choices.high, choices.log, choices.step or 1)
        return kinds.FloatDistribution(choices.low, choices.high, choices.log, choices.step)

    def _tell(self, number: int, cells: Sequence[Cell]) -> None:
        name = self._sweep.measure.name
        done = [(cell, cell.run.results()) for cell in cells if cell.run.is_done()]
        found = [results.get(metric_name(name, cell, results)) for cell, results in done]
        values = [value for value in found if value is not None]  # None is not finite
        if len(values) < len(cells):
            self._study.tell(number, state=self._states.FAIL)
        else:
            self._study.tell(number, fmean(values))

    def _arm(self, params: Mapping[str, Any]) -> Arm:
        values = {}
        for flag, choices in self._choices.items():
            value = params[flag]
            if not isinstance(choices, Range):
                value = json.loads(value)
            elif self._kinds[flag] is float:
                value = float(f"{value:.{DIGITS}g}")
            values[flag] = value
        return self._space.arm(values)


def _greater_is_better(sweep: Experiment, cells: Sequence[Cell]) -> bool:
    """As the task, the metric's module, a flag or a finished run says."""
    known = sweep.measure.greater_is_better
    if known is not None:
        return known
    results = next((cell.run.results() for cell in cells if cell.run.is_done()), None)
    name = sweep.measure.name or main_metric(cells[0])
    if name is None:
        allowed = "a name with own files and optuna, like accuracy or loss"
        raise refusal("metric", None, allowed, "Name what settings are chosen by with --metric.")
    return greater_is_better(name, cells[0], results)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise refusal(
            "method", "optuna", "grid, or optuna where it is installed", "Run: pip install optuna"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
