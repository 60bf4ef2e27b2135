"""The search by Optuna: its TPE sampler, its trials in a journal file, resumed where it ended.

A trial is a setting, its value the mean over the seeds. Runs are found by their folders, so a trial
that draws a known setting costs nothing. One that was killed or failed is tried again when the
sweep is started again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from finetune.engine import locks
from finetune.errors import refusal
from finetune.experiments.arms import Arm, Range, described
from finetune.experiments.plan import (
    Cell,
    Experiment,
    greater_is_better,
    main_metric,
    metric_name,
)
from finetune.settings import variants

FOLDER, JOURNAL = "optuna", "journal.log"
DIGITS = 4  # of a number drawn from a range: enough, and its folder has a short name


class Study:
    """The trials of a sweep so far, and what asks for more.

    Args:
        sweep: with one part in its space.
        look_only: read the journal where there is one, and write nothing.

    Raises ``Refused`` where optuna is missing, the space has several parts, a setting at its ends
    would be refused, or nothing says which way the metric is better.
    """

    def __init__(self, sweep: Experiment, *, look_only: bool = False) -> None:
        if sweep.space is None or len(sweep.space.parts) != 1:
            raise refusal("space", "a list", "one space with optuna", "Sweep them one by one.")
        self._sweep, self._space, self._choices = sweep, sweep.space, sweep.space.parts[0]
        greater = _greater_is_better(sweep, sweep.cells(self._space.ends()))
        self._optuna, flags = _optuna(), sweep.script.schema.flags()
        self._kinds = {flag: variants.flag_kind(flags[flag][1])[0] for flag in self._choices}
        path, storage = sweep.folder / FOLDER / JOURNAL, None
        if path.exists() or not look_only:
            path.parent.mkdir(parents=True, exist_ok=True)
            backend = self._optuna.storages.journal.JournalFileBackend(str(path))
            storage = self._optuna.storages.JournalStorage(backend)
        # Named by what decides the trials' values, so that another search is another study.
        parts = {flag: repr(values) for flag, values in self._choices.items()}
        deciding = [sweep.script.family, sweep.common, parts, [*sweep.seeds], sweep.measure.name]
        digest = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:12]
        self._study = self._optuna.create_study(
            study_name=f"{self._space.variant}-{digest}",
            storage=storage,
            direction="maximize" if greater else "minimize",
            load_if_exists=True,
        )

    def arms(self) -> list[Arm]:
        """The settings tried so far, each once."""
        whole = [trial for trial in self._study.trials if set(trial.params) == set(self._choices)]
        return list(
            {arm.name: arm for arm in (self._arm(trial.params) for trial in whole)}.values()
        )

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

        Returns what the calls of ``execute`` returned. Raises ``Refused`` where another process
        searches in this folder, or the runs have no such metric.
        """
        folder, missing = self._sweep.folder, dict[str, str]()
        with locks.held(folder / FOLDER) as lock:
            if lock is None:
                allowed, holder = "one search at a time in a folder", locks.holder(folder / FOLDER)
                remedy = f"Left to {holder}: wait until it ends, or stop it and give this one more "
                raise refusal("output_dir", str(folder), allowed, f"{remedy}--processes.")
            self._queue_again()
            ended = len(self._complete())
            while ended < trials:
                drawn = [self._ask(i) for i in range(ended, min(ended + at_once, trials))]
                for i, (_, arm) in enumerate(drawn, ended + 1):
                    print(f"Trial {i} of {trials}: {described(arm.setting)}")
                settings = list({arm.name: arm for _, arm in drawn}.values())
                cells = self._sweep.cells(settings, beside=False)
                missing |= execute(cells)
                for number, arm in drawn:
                    self._tell(number, [cell for cell in cells if cell.arm.name == arm.name])
                ended += len(drawn)
        return missing

    def _complete(self) -> list[Any]:
        return self._study.get_trials(states=[self._optuna.trial.TrialState.COMPLETE])

    def _queue_again(self) -> None:
        """Trials that were killed or have failed, each setting once."""
        states = self._optuna.trial.TrialState
        known = [trial.params for trial in self._complete()]
        for trial in self._study.get_trials(states=[states.WAITING]):
            known.append(trial.system_attrs.get("fixed_params"))
        for trial in self._study.get_trials(states=[states.RUNNING, states.FAIL]):
            if trial.state == states.RUNNING:
                self._study.tell(trial.number, state=states.FAIL)
            if trial.params and trial.params not in known:
                self._study.enqueue_trial(trial.params)
                known.append(trial.params)

    def _ask(self, position: int) -> tuple[int, Arm]:
        # Seeded for each trial: a search that was stopped goes on as if it had not been.
        (seed,) = np.random.SeedSequence([self._sweep.seeds[0], position]).generate_state(1)
        self._study.sampler = self._optuna.samplers.TPESampler(seed=int(seed))
        drawn_from = {flag: self._distribution(flag) for flag in self._choices}
        trial = self._study.ask(fixed_distributions=drawn_from)
        return trial.number, self._arm(trial.params)

    def _distribution(self, flag: str) -> Any:
        values, kinds = self._choices[flag], self._optuna.distributions
        if not isinstance(values, Range):
            return kinds.CategoricalDistribution([json.dumps(value) for value in values])
        if self._kinds[flag] is int:
            return kinds.IntDistribution(values.low, values.high, values.log, values.step or 1)
        return kinds.FloatDistribution(values.low, values.high, values.log, values.step)

    def _tell(self, number: int, cells: Sequence[Cell]) -> None:
        name = self._sweep.measure.name
        done = [(cell, cell.job.results()) for cell in cells if cell.job.is_done()]
        found = [results.get(metric_name(name, cell, results)) for cell, results in done]
        values = [value for value in found if value is not None]  # None is not finite
        if len(values) < len(cells):
            self._study.tell(number, state=self._optuna.trial.TrialState.FAIL)
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
    if sweep.measure.greater_is_better is not None:
        return sweep.measure.greater_is_better
    results = next((cell.job.results() for cell in cells if cell.job.is_done()), None)
    name = sweep.measure.name or main_metric(cells[0])
    if name is None:
        allowed = "a name with own files and optuna, like accuracy or loss"
        raise refusal("metric", None, allowed, "Name what settings are chosen by with --metric.")
    return greater_is_better(name, cells[0], results)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        allowed = "grid, or optuna where it is installed"
        raise refusal("method", "optuna", allowed, "Run: pip install optuna") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
