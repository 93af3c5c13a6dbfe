"""Optuna's part in a search: its storage, its samplers and pruners, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import Trial

from daskxml.config import RunConfig, load_run_config
from daskxml.config.space import Choices, Dimension, Space
from daskxml.config.toml import Tables
from daskxml.core.errors import ModelError
from daskxml.observe.run_view import spent_s

JOURNAL = "journal.log"


@dataclass(frozen=True)
class Plan:
    """What a search does: the space, the sections of the run file, and the folder."""

    space: Space
    tables: Tables
    out: Path | None

    @property
    def base(self) -> RunConfig:
        """The run file that trials begin with."""
        return load_run_config(self.tables)

    def config(self, settings: Mapping[str, Any]) -> RunConfig:
        """Return the run file with a trial's settings.

        Raises
        ------
        ConfigError
            If they do not go together.
        """
        return load_run_config(self.tables, settings)


def distribution(dimension: Dimension) -> BaseDistribution:
    """Return Optuna's description of a dimension: choices are texts there."""
    if isinstance(dimension, Choices):
        return CategoricalDistribution(list(dimension.names))
    low, high, log = dimension.low, dimension.high, dimension.log
    if dimension.is_integer:
        step = 1 if dimension.step is None else dimension.step
        return IntDistribution(int(low), int(high), log=log, step=int(step))
    return FloatDistribution(low, high, log=log, step=dimension.step)


def settings_of(space: Space, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial's values, where Optuna has texts for choices."""
    dimensions = space.dimensions
    return {
        key: it.names[chosen[key]] if isinstance(it, Choices) else chosen[key]
        for key, it in dimensions.items()
        if key in chosen
    }


def open_study(plan: Plan) -> optuna.Study:
    """Open the study, whose storage lies in the folder.

    Raises
    ------
    ModelError
        If the storage is damaged.
    """
    search = plan.space.search
    storage: Any = optuna.storages.InMemoryStorage()
    if plan.out is not None:
        journal = optuna.storages.journal.JournalFileBackend(str(plan.out / JOURNAL))
        try:
            storage = optuna.storages.JournalStorage(journal)
        except (ValueError, KeyError) as error:
            problem = f"the storage of the search is damaged ({error}); start anew"
            raise ModelError(f"{plan.out / JOURNAL}: {problem}") from error
    study = optuna.create_study(
        storage=storage,
        study_name="daskxml",
        direction="maximize",
        pruner=_pruner(plan),
        load_if_exists=True,
    )
    seed = _seed(search.seed, len(study.trials))
    if search.sampler == "random":
        study.sampler = optuna.samplers.RandomSampler(seed=seed)
    else:  # trials that are under way count as bad ones, so that others are tried beside them
        study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    return study


def _seed(seed: int, trials: int) -> int:
    """Return a seed that is another one for a search that goes on, or it would choose the same."""
    return int(np.random.SeedSequence([seed, trials]).generate_state(1)[0])


def _pruner(plan: Plan) -> Any:
    search, base = plan.space.search, plan.base
    if search.pruner == "none":
        return optuna.pruners.NopPruner()
    if search.pruner == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(
            min_resource=search.min_evaluations, reduction_factor=search.reduction_factor
        )
    most = base.training.megabatches // base.evaluation.every
    return optuna.pruners.HyperbandPruner(
        min_resource=search.min_evaluations,
        max_resource=max(most, search.min_evaluations) if most else "auto",
        reduction_factor=search.reduction_factor,
    )


class EvaluationReport:
    """Tells Optuna of each evaluation of a trial, and ends the trial if it is to be pruned."""

    def __init__(self, trial: Trial, metric: str, every: int) -> None:
        self.trial, self.metric, self.every = trial, metric, every
        known = trial.study.get_trials(deepcopy=False)[trial.number]
        self._reported = set(known.intermediate_values)
        self._seconds = float(known.user_attrs.get("seconds", 0.0))

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Report a row of the history, if the metric was measured in it."""
        self._seconds += spent_s(row)
        step = -(-row["megabatch"] // self.every)
        if self.metric not in row["metrics"] or step in self._reported:
            return
        self._reported.add(step)  # a run that goes back to a checkpoint measures again
        self.trial.set_user_attr("seconds", self._seconds)
        self.trial.set_user_attr("epochs", row["epoch"])
        self.trial.report(row["metrics"][self.metric], step)
        if self.trial.should_prune():
            raise optuna.TrialPruned
