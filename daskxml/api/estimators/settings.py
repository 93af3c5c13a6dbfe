"""An estimator's parameters as the settings of a run, and the metrics by which it is scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from functools import partial
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from daskxml.api.estimators.labels import LabelSet, check_lengths
from daskxml.config import DEFAULT_RUN_FILE, RunConfig, load_run_config
from daskxml.config.sections import metric_rank
from daskxml.core.errors import ConfigError
from daskxml.data.rows import label_csr
from daskxml.metrics import MetricSums, metric_sums
from daskxml.models.kinds import TRAINED

DEFAULT_METRIC = "P@1"
_BATCHES = ("lr", "batch_max", "megabatch_batches")  # settings of every strategy
_LIMITS = ("training.megabatches", "training.minutes", "training.target", "training.patience")
_ONE_EPOCH = dict.fromkeys((*_LIMITS, "data.validation"), 0) | {
    "training.keep_best": False,
    "schedule.name": "constant",
}


def sets(place: str, kind: str = "", hint: str = "give run_file='network'") -> Any:
    """A parameter of an estimator: None, or the value of this setting of a run file.

    If only this kind of model has it, `hint` says what to do where another is trained.
    """
    return field(default=None, metadata={"place": place, "kind": kind, "hint": hint})


def make_scorer(metric: str) -> partial[float]:
    """Return a scorer for ``scoring=`` of ``cross_val_score``, ``GridSearchCV`` and the like.

    Parameters
    ----------
    metric
        ``P@k``, ``nDCG@k``, ``PSP@k``, ``PSnDCG@k`` or ``recall@k``; see `daskxml.metrics.ranking`.
        Labels that the estimator has never seen count as missed.

    Raises
    ------
    ConfigError
        If there is no such metric.

    Examples
    --------
    >>> make_scorer("P@5").keywords
    {'metric': 'P@5'}
    """
    metric_rank(metric)
    return partial(measure, metric=metric)


def measure(estimator: Any, X: Any, y: Any, metric: str = "") -> float:
    """Return a ranking metric of an `XMLClassifier`, or of what ends in one; by default its own."""
    while not hasattr(estimator, "labels_"):
        if hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        else:
            X, estimator = estimator[:-1].transform(X), estimator[-1]
    metric = metric or estimator.eval_metric or DEFAULT_METRIC
    return float(ranked_sums(estimator, X, y, metric).result()[metric])


def ranked_sums(estimator: Any, X: Any, y: Any, metric: str) -> MetricSums:
    """Return the sums of a metric over some rows."""
    k = metric_rank(metric)
    model, truth = estimator.model_, estimator.labels_.encode(y)
    ids, _ = model.predict_top_k(estimator.check_rows(X), min(k, model.spec.labels))
    check_lengths(len(ids), truth.shape[0])
    weights = model.weights_of(truth.shape[1])
    return metric_sums(ids, label_csr(truth, *truth.shape), weights, (k,))


def resolve_settings(estimator: Any, rows: int, labels: LabelSet, *, has_tests: bool) -> RunConfig:
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
    >>> labels, classifier = LabelSet("lists", np.array(["a"])), XMLClassifier("elastic", epochs=3)
    >>> config = resolve_settings(classifier, 9, labels, has_tests=False)
    >>> config.training.epochs, config.strategy_name
    (3.0, 'elastic')
    """
    base = load_run_config(DEFAULT_RUN_FILE if estimator.run_file is None else estimator.run_file)
    chosen = {}
    for name, own in ((each.name, each.metadata) for each in fields(estimator) if each.metadata):
        if getattr(estimator, name) is None:
            continue
        if own["kind"] not in ("", base.model.kind):
            found = f"{name} is for {TRAINED[own['kind']].title}, and the run file trains "
            raise ConfigError(f"{found}{base.kind.title}: {own['hint']}, or leave {name} out")
        chosen[name] = own["place"]
    if estimator.n_workers is not None and estimator.n_workers < 1:
        raise ConfigError(f"n_workers = {estimator.n_workers}: must be at least 1, or None")
    tables = base.as_dict()
    if estimator.strategy is not None:
        tables["strategy"] = _strategy(estimator.strategy, tables["strategy"])
    given = {key: _setting(estimator, name) for name, key in chosen.items() if key}
    if has_tests:
        given |= {"data.validation": 0.0, "training.keep_best": True}
    if estimator.class_weight is not None:
        given["training.class_weight"] = _class_weight(base, estimator.class_weight, labels)
    given |= dict(estimator.settings or {})
    metric = given.get("training.target_metric", tables["training"]["target_metric"])
    ranks = given.setdefault("evaluation.k", tables["evaluation"]["k"])
    given["evaluation.k"] = sorted({*ranks, metric_rank(metric)})
    try:
        config = load_run_config(tables, given)
    except ConfigError as error:
        raise ConfigError(_by_parameters(str(error), chosen)) from error
    is_scored = has_tests or config.data.validation > 0.0
    if estimator.early_stopping_rounds and not is_scored:
        hint = "give validation_fraction=0.1, or fit an eval_set"
        raise ConfigError(f"early_stopping_rounds needs rows that are scored: {hint}")
    if is_scored and "evaluation.every" not in given and config.has_strategy:
        every = max(1, round(rows / config.strategy.megabatch_rows))
        return load_run_config(config, {"evaluation.every": every})
    return config


def _by_parameters(problem: str, chosen: Mapping[str, str]) -> str:
    """Return an error of `load_run_config` with parameters instead of keys of a run file.

    Examples
    --------
    >>> chosen = {"learning_rate": "strategy.lr"}
    >>> _by_parameters("overrides: strategy.lr: lr = -1.0: must be above 0", chosen)
    'learning_rate = -1.0: must be above 0'
    >>> _by_parameters("overrides: model.hiden: unknown key 'hiden'", chosen)
    "settings: model.hiden: unknown key 'hiden'"
    """
    for name, place in chosen.items():
        key = place.partition(".")[2]
        problem = problem.replace(f"overrides: {place}: {key} =", f"{name} =")
    return problem.replace("overrides: ", "settings: ").removeprefix("run configuration: ")


def _class_weight(config: RunConfig, given: Any, labels: LabelSet) -> Any:
    """Return the weights of an estimator's labels as a run file has them."""
    if isinstance(given, str):
        return given
    if not isinstance(given, Mapping):
        return np.asarray(given, np.float64).tolist()
    for label in given:
        if label not in labels.columns:
            raise ConfigError(f"class_weight: {label!r} is no label of y: remove it")
    base = config.data.label_base
    return {str(labels.columns[label] + base): float(each) for label, each in given.items()}


def one_epoch(config: RunConfig, calls: int) -> RunConfig:
    """Return the run of one epoch or tree, with rows in another order in every call."""
    seed = (config.run.seed + calls) % 2**63
    unit = "trees" if "training.epochs" in config.without_use() else "epochs"
    return load_run_config(config, {**_ONE_EPOCH, f"training.{unit}": 1, "run.seed": seed})


def _setting(estimator: Any, name: str) -> Any:
    """Return a parameter that is given as a run file has it."""
    value = getattr(estimator, name)
    if name == "n_jobs" and value == -1:
        return 0  # all
    if name == "random_state" and not isinstance(value, int | np.integer):
        return int(check_random_state(value).randint(2**31 - 1))
    if name == "hidden" and isinstance(value, int | np.integer):
        value = [value]
    return _plain(value)


def _plain(value: Any) -> Any:
    """Return Python numbers instead of NumPy's, which searches draw."""
    if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value


def _strategy(given: Any, before: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return dict(given)
    if given == before["name"]:
        return dict(before)
    return {"name": given} | {key: before[key] for key in _BATCHES}
