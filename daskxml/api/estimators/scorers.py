"""Ranking metrics of an estimator's predictions, and scorers of them for scikit-learn."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from daskxml.config.sections import METRICS
from daskxml.core.errors import ConfigError, InputError
from daskxml.data.rows import label_csr
from daskxml.metrics import metric_sums, propensities

DEFAULT_METRIC = "P@1"


def metric_rank(metric: str) -> int:
    """Return the k of a metric's name.

    Raises
    ------
    ConfigError
        If it is none.

    Examples
    --------
    >>> metric_rank("nDCG@5")
    5
    """
    found = re.fullmatch(rf"({'|'.join(METRICS)})@([1-9]\d*)", str(metric))
    if found is None:
        known = ", ".join(METRICS)
        raise ConfigError(f"metric {metric!r}: must be one of {known} followed by @k, like P@5")
    return int(found[2])


@dataclass(frozen=True)
class RankingScorer:
    """Scores an estimator, or a pipeline that ends in one, by a ranking metric."""

    metric: str

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        """Return the metric on rows."""
        return measure(estimator, X, y, self.metric)


def make_scorer(metric: str) -> RankingScorer:
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
    >>> make_scorer("P@5")
    RankingScorer(metric='P@5')
    """
    metric_rank(metric)
    return RankingScorer(metric)


def measure(estimator: Any, X: Any, y: Any, metric: str) -> float:
    """Return a ranking metric of an `XMLClassifier`, or of a pipeline that ends in one."""
    k, last = metric_rank(metric), _last_step(estimator)
    scores = estimator.predict_proba(X, top_k=k)
    truth = last.labels_.encode(y)
    if truth.shape[0] != scores.shape[0]:
        raise InputError(f"X has {scores.shape[0]:,} rows, y has {truth.shape[0]:,}")
    header, counts = last.model_.header, np.zeros(truth.shape[1], np.int64)
    counts[: last.model_.label_counts.size] = last.model_.label_counts
    weights = propensities(counts, header.training_rows, header.propensity_a, header.propensity_b)
    sums = metric_sums(ranked(scores, k), label_csr(truth, *truth.shape), weights, (k,))
    return float(sums.result()[metric])


def ranked(scores: scipy.sparse.csr_matrix, k: int) -> Any:
    """Return the labels of each row of `daskxml.Model.predict`, best first; -1 beyond the last.

    Examples
    --------
    >>> ranked(scipy.sparse.csr_matrix(np.array([[0.1, 0.7, 0.2]])), 4)
    array([[ 1,  2,  0, -1]], dtype=int32)
    """
    rows, found = scores.shape[0], scores.nnz // max(1, scores.shape[0])
    ids = scores.indices.reshape(rows, found)
    order = np.argsort(-scores.data.reshape(rows, found), axis=1, kind="stable")
    out = np.full((rows, k), -1, np.int32)
    out[:, :found] = np.take_along_axis(ids, order, axis=1)
    return out


def _last_step(estimator: Any) -> Any:
    while True:
        if hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif hasattr(estimator, "steps"):
            estimator = estimator.steps[-1][1]
        else:
            return estimator
