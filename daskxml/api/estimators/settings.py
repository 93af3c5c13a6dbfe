"""An estimator's parameters as the settings of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from daskxml.api.estimators.labels import LabelSet
from daskxml.api.estimators.scorers import metric_rank
from daskxml.config import RunConfig, load_run_config
from daskxml.core.errors import ConfigError

RUN_FILE = "network"
_SETTINGS = {
    "loss": "model.loss",
    "dropout": "model.dropout",
    "optimizer": "optimizer.name",
    "learning_rate": "strategy.lr",
    "batch_size": "strategy.batch_max",
    "epochs": "training.epochs",
    "validation_fraction": "data.validation",
    "early_stopping_rounds": "training.patience",
    "eval_metric": "training.target_metric",
    "n_workers": "cluster.workers",
    "device": "cluster.device",
}
_BATCHES = ("lr", "batch_max", "megabatch_batches")  # settings of every strategy
_ONE_EPOCH = {
    "training.epochs": 1,
    "training.megabatches": 0,
    "training.minutes": 0,
    "training.target": 0,
    "training.patience": 0,
    "training.keep_best": False,
    "schedule.name": "constant",
    "data.validation": 0,
}


def resolve_settings(estimator: Any, rows: int, *, has_tests: bool) -> RunConfig:
    """Return the run of an `XMLClassifier` with ``rows`` training rows.

    Parameters
    ----------
    has_tests
        Whether there are rows that are scored, instead of held-out ones.

    Raises
    ------
    ConfigError
        If a value is out of range, or values contradict each other.

    Examples
    --------
    >>> from daskxml.api.estimators.classifier import XMLClassifier
    >>> config = resolve_settings(XMLClassifier("adaptive-sgd", epochs=3), 9, has_tests=False)
    >>> config.training.epochs, config.strategy_name
    (3.0, 'adaptive-sgd')
    """
    source = estimator.run_file if estimator.run_file is not None else RUN_FILE
    tables = load_run_config(source).as_dict()
    if estimator.strategy is not None:
        tables["strategy"] = _strategy(estimator.strategy, tables["strategy"])
    given = {key: _plain(getattr(estimator, name)) for name, key in _SETTINGS.items()}
    given["model.hidden"] = _layers(estimator.hidden)
    given["run.seed"] = _seed(estimator.random_state)
    if has_tests:
        given |= {"data.validation": 0.0, "training.keep_best": True}
    given = {key: value for key, value in given.items() if value is not None}
    given |= dict(estimator.settings or {})
    metric = given.get("training.target_metric", tables["training"]["target_metric"])
    ranks = given.setdefault("evaluation.k", tables["evaluation"]["k"])
    given["evaluation.k"] = sorted({*ranks, metric_rank(metric)})
    config = load_run_config(tables, given)
    is_scored = has_tests or config.data.validation > 0.0
    if not is_scored or "evaluation.every" in given or not config.has_strategy:
        return config
    once_an_epoch = max(1, round(rows / config.strategy.megabatch_rows))
    return load_run_config(config, {"evaluation.every": once_an_epoch})


def with_class_weight(config: RunConfig, class_weight: Any, labels: LabelSet) -> RunConfig:
    """Return a run with the weights of an estimator's labels; None leaves it as it is.

    Raises
    ------
    ConfigError
        If one is of no label, or is no number of at least 0.
    """
    if class_weight is None:
        return config
    given = class_weight
    if isinstance(given, Mapping):
        for label in given:
            if label not in labels.columns:
                raise ConfigError(f"class_weight: {label!r} is no label of y: remove it")
        base = config.data.label_base
        given = {str(labels.columns[label] + base): float(each) for label, each in given.items()}
    elif not isinstance(given, str):
        given = np.asarray(given, np.float64).tolist()
    return load_run_config(config, {"training.class_weight": given})


def one_epoch(config: RunConfig, calls: int) -> RunConfig:
    """Return the run of one epoch, with rows in another order in every call."""
    seed = (config.run.seed + calls) % 2**63
    return load_run_config(config, {**_ONE_EPOCH, "run.seed": seed})


def _plain(value: Any) -> Any:
    """Return a Python number instead of NumPy's, which searches draw."""
    return value.item() if isinstance(value, np.generic) else value


def _strategy(given: Any, before: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return dict(given)
    if given == before["name"]:
        return dict(before)
    return {"name": given} | {key: before[key] for key in _BATCHES}


def _layers(hidden: Any) -> list[int] | None:
    if hidden is None:
        return None
    layers = [hidden] if isinstance(hidden, int | np.integer) else hidden
    return [_plain(units) for units in layers]


def _seed(random_state: Any) -> int | None:
    if random_state is None or isinstance(random_state, int | np.integer):
        return None if random_state is None else int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
