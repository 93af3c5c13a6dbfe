"""Calibrated probabilities and the choice of a row's labels, learned on held-out rows.

**Calibration.** A label of score *s* among the best of a row is true in some share of the cases;
isotonic regression of hits upon scores finds this share as a rising function of *s* (Zadrozny and
Elkan, "Transforming classifier scores into accurate multiclass probability estimates", KDD 2002).
One function serves all labels and ranks, most of which have too few rows for one of their own. Each
of its steps becomes one point, with a line between them, and one from (0, 0) on (centered isotonic
regression: Oron and Flournoy, Statistics in Biopharmaceutical Research, 2017): so that labels with
different scores keep their order.

**Thresholds.** The global threshold is the score with the best micro F1. A label's own one has the
best F1 of this label where its counts are joined by those of ``prior`` rows with a label that
behaves like all labels together: so labels with few rows stay near the global threshold, and those
with none have it. (A threshold from few rows alone costs more than it brings: Yang, "A study on
thresholding strategies for text categorization", SIGIR 2001.) Thresholds are compared with scores
before calibration, which has the same order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.core.errors import ConfigError, InputError, ModelError
from daskxml.data.rows import label_counts, take_csr
from daskxml.metrics.decisions import calibration_error, f1_scores, find_hits

FOLDS = 5
PRIORS = (1.0, 3.0, 10.0, 30.0, math.inf)  # rows of a label like all others; the best is taken
Average = Literal["macro", "micro"]


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """What is learned on held-out rows; see the head of this module.

    Attributes
    ----------
    k
        Labels of a row that are looked at.
    scores, probabilities
        Points of the calibration, both ascending, from 0 to 1.
    threshold
        A label is chosen if its score is above: the global one.
    labels, thresholds
        Ids of the labels with thresholds of their own, ascending, and these.
    measured
        On rows that were left out in turn: calibration error and F1, before and after.

    Raises
    ------
    ConfigError
        If values are out of range, or do not belong together.

    Examples
    --------
    >>> made = Decisions(k=2, scores=(0.0, 0.5), probabilities=(0.0, 0.9), threshold=0.3,
    ...                  labels=(7,), thresholds=(0.1,))
    >>> made.calibrated(np.array([[3, 7]]), np.float32([[0.5, 0.25]]))
    array([[0.9 , 0.45]], dtype=float32)
    >>> made.bounds(np.array([[3, 7]]))
    array([[0.3, 0.1]])
    """

    k: int
    scores: tuple[float, ...]
    probabilities: tuple[float, ...]
    threshold: float
    labels: tuple[int, ...] = ()
    thresholds: tuple[float, ...] = ()
    measured: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.k < 1 or not np.isfinite(self.threshold):
            raise ConfigError(f"decisions on k = {self.k} labels above {self.threshold}: calibrate")
        for pair in (("scores", "probabilities"), ("labels", "thresholds")):
            ordered, other = (np.array(getattr(self, name), np.float64) for name in pair)
            is_line = ordered.ndim == other.ndim == 1 and ordered.shape == other.shape
            if not (is_line and np.isfinite([ordered, other]).all()):
                raise ConfigError(f"{pair[0]} and {pair[1]} of a calibration do not match")
            if (np.diff(ordered) <= 0).any() or (ordered < 0).any():
                raise ConfigError(f"{pair[0]} of a calibration do not ascend from 0")
        shares = np.array(self.probabilities)
        if not shares.size or (np.diff(shares) < 0).any() or shares[0] < 0 or shares[-1] > 1:
            raise ConfigError("probabilities of a calibration do not ascend in [0, 1]")

    @cached_property
    def _curve(self) -> tuple[Array, Array]:
        return np.array(self.scores), np.array(self.probabilities)

    @cached_property
    def _own(self) -> tuple[Array, Array]:
        return np.array(self.labels, np.int64), np.array(self.thresholds)

    def probability(self, scores: Any) -> Array:
        """Return the calibrated probabilities of scores, float64 of the same shape."""
        return np.interp(scores, *self._curve)

    def calibrated(self, ids: Array, scores: Array) -> Array:
        """Return probabilities of ranked labels, ``(rows, k)`` float32, in the same order.

        Where labels of different scores have equal probabilities, one is moved by one unit in the
        last place if sorting by probability and id would give another order.
        """
        found = self.probability(scores).astype(np.float32)
        for rank in range(1, found.shape[1]):
            before, here = found[:, rank - 1], found[:, rank]
            is_wrong = (here > before) | ((here == before) & (ids[:, rank] < ids[:, rank - 1]))
            here[is_wrong] = np.nextafter(before[is_wrong], np.float32(-1))
        below = found.min(axis=1, keepdims=True, initial=0.0)  # of those that are at 0
        return np.where(found > 0.0, found, found - below)

    def bounds(self, ids: Array) -> Array:
        """Return the scores above which labels are chosen, of the shape of ``ids``."""
        labels, thresholds = self._own
        if not labels.size:
            return np.full(ids.shape, self.threshold)
        places = np.searchsorted(labels, ids).clip(max=labels.size - 1)
        return np.where(labels[places] == ids, thresholds[places], self.threshold)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as in ``model.json``."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return values | {"measured": dict(self.measured)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Decisions:
        """The inverse of :meth:`as_dict`.

        Raises
        ------
        ConfigError, TypeError, ValueError
            If a value is missing or invalid.
        """
        tuples = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**{**values, **tuples})


def learn_decisions(ids: Array, scores: Array, truth: Csr, bounds: Any, f1: Average) -> Decisions:
    """Learn calibration and thresholds of ranked labels, and measure them by cross-validation.

    Parameters
    ----------
    ids, scores
        ``(rows, k)``, as a model ranks labels that is not calibrated.
    truth
        The rows' true labels.
    bounds
        The scores above which labels are chosen without decisions.
    f1
        See `daskxml.Model.calibrate`.

    Raises
    ------
    InputError, ModelError
        If nothing can be learned from the rows.
    """
    rows = _Ranked(ids, scores, find_hits(ids, truth), truth)
    _check(rows)
    before = {
        "calibration_error": calibration_error(*rows.ranked[1:]),
        **f1_scores(np.where(scores > bounds, ids, -1), truth),
    }
    prior, after = _cross_validated(rows, PRIORS if f1 == "macro" else (math.inf,))
    measured: dict[str, float] = {"rows": truth.rows, "folds": FOLDS}
    for name, value in before.items():
        measured |= {f"{name}_before": float(value), name: float(after[name])}
    return replace(_with_thresholds(_learn(rows), rows, prior), measured=measured)


@dataclass(frozen=True)
class _Ranked:
    """Ids, scores and hits of ranked labels, ``(rows, k)``, and the rows' true labels."""

    ids: Array
    scores: Array
    hits: Array
    truth: Csr

    @cached_property
    def ranked(self) -> tuple[Array, Array, Array]:
        """Ids, scores and hits of all rows in a line, without the missing ones."""
        is_there = self.ids >= 0
        return self.ids[is_there], self.scores[is_there].astype(np.float64), self.hits[is_there]

    def rows(self, numbers: Array) -> _Ranked:
        """Return some of the rows."""
        ids, scores, hits = (array[numbers] for array in (self.ids, self.scores, self.hits))
        return _Ranked(ids, scores, hits, take_csr(self.truth, numbers))


def _check(rows: _Ranked) -> None:
    """Refuse rows from which nothing can be learned."""
    if rows.truth.rows < FOLDS:
        raise InputError(f"{rows.truth.rows} held-out rows: give {FOLDS} or more, better thousands")
    if not rows.truth.nonzeros:
        raise InputError("no held-out row has a label: give rows with their true labels")
    _, scores, _ = rows.ranked
    if not (scores.size and np.isfinite(scores).all()):
        raise ModelError("the model's scores are not finite: train it again, at a lower rate")
    if not rows.hits.any():
        raise InputError(
            f"no true label of the held-out rows is among the best {rows.ids.shape[1]} of its row: "
            "give rows of the data set that the model was trained on"
        )


def _learn(rows: _Ranked) -> Decisions:
    """Learn the calibration and the global threshold."""
    _, scores, hits = rows.ranked
    points, shares = fit_calibration(scores, hits)
    return Decisions(
        k=rows.ids.shape[1],
        scores=tuple(points.tolist()),
        probabilities=tuple(shares.tolist()),
        threshold=fit_threshold(scores, hits, rows.truth.nonzeros),
    )


def _with_thresholds(learned: Decisions, rows: _Ranked, prior: float) -> Decisions:
    """Add thresholds of labels; see `fit_label_thresholds`."""
    given = *rows.ranked, label_counts(rows.truth), learned.threshold, prior
    found = fit_label_thresholds(*given)
    labels, thresholds = (tuple(array.tolist()) for array in found)
    return replace(learned, labels=labels, thresholds=thresholds)


def _cross_validated(rows: _Ranked, priors: tuple[float, ...]) -> tuple[float, dict[str, float]]:
    """Return the prior with the best macro F1, and what is measured with it on left-out rows."""
    folds = np.arange(rows.truth.rows) % FOLDS
    probabilities = np.empty(rows.ids.shape, np.float32)
    chosen = {prior: np.full_like(rows.ids, -1) for prior in priors}
    for fold in range(FOLDS):
        kept, out = rows.rows(np.flatnonzero(folds != fold)), folds == fold
        learned, ids, scores = _learn(kept), rows.ids[out], rows.scores[out]
        probabilities[out] = learned.calibrated(ids, scores)
        for prior in priors:
            bounds = _with_thresholds(learned, kept, prior).bounds(ids)
            chosen[prior][out] = np.where(scores > bounds, ids, -1)
    found = {prior: f1_scores(chosen[prior], rows.truth) for prior in priors}
    best = max(priors, key=lambda prior: found[prior]["macro-F1"])
    error = calibration_error(probabilities[rows.ids >= 0], rows.ranked[2])
    return best, {"calibration_error": error, **found[best]}


def fit_calibration(scores: Array, hits: Array) -> tuple[Array, Array]:
    """Return the points of the calibration of scores.

    Parameters
    ----------
    scores, hits
        ``(pairs,)``: of ranked labels, and whether each is true.

    Examples
    --------
    >>> fit_calibration(np.array([0.2, 0.4, 0.6, 0.8]), np.array([False, True, False, True]))
    (array([0. , 0.2, 0.5, 0.8]), array([0. , 0. , 0.5, 1. ]))
    """
    from scipy.optimize import isotonic_regression

    levels, places, counts = np.unique(
        np.asarray(scores, np.float64), return_inverse=True, return_counts=True
    )
    shares = np.bincount(places, hits, minlength=levels.size) / np.maximum(counts, 1)
    if not levels.size:
        return np.zeros(1), np.zeros(1)
    found = isotonic_regression(shares, weights=counts)
    starts = found.blocks[:-1]
    rows = np.add.reduceat(counts, starts)
    centers = np.add.reduceat(levels * counts, starts) / rows
    points, shares = centers, np.add.reduceat(found.x * counts, starts) / rows
    if points[0] > 0.0:
        points, shares = np.append(0.0, points), np.append(0.0, shares)
    keeps = np.append(True, np.diff(points) > 0.0)  # centers may round to one number
    return points[keeps], np.maximum.accumulate(shares[keeps]).clip(0.0, 1.0)


def fit_threshold(scores: Array, hits: Array, positives: int) -> float:
    """Return the threshold with the best micro F1.

    Parameters
    ----------
    scores, hits
        As for `fit_calibration`.
    positives
        True labels of all rows, ranked or not.

    Examples
    --------
    >>> fit_threshold(np.array([0.2, 0.4, 0.6, 0.8]), np.array([False, True, False, True]), 2)
    0.30000000000000004
    """
    _, cuts, right, chosen = _cuts(np.zeros(len(scores), np.int64), scores, hits)
    f1 = 2.0 * right / np.maximum(chosen + positives, 1)
    return float(cuts[np.argmax(f1)]) if cuts.size else 1.0


def fit_label_thresholds(
    ids: Array, scores: Array, hits: Array, positives: Array, threshold: float, prior: float
) -> tuple[Array, Array]:
    """Return the labels with thresholds of their own, and these.

    Parameters
    ----------
    ids, scores, hits
        ``(pairs,)``: ranked labels, their scores, and whether each is true.
    positives
        ``(labels,)``: rows with each label.
    threshold
        The global one.
    prior
        How many rows of a label like all others count beside a label's own; infinity: no label has
        a threshold of its own.

    Examples
    --------
    >>> ids, scores = np.array([0, 0, 0, 1]), np.array([0.2, 0.4, 0.6, 0.3])
    >>> hits = np.array([False, True, True, False])
    >>> fit_label_thresholds(ids, scores, hits, np.array([2, 0]), 0.5, prior=0.0)
    (array([0]), array([0.3]))
    """
    nobody = np.empty(0, np.int64), np.empty(0)
    if not (len(scores) and positives.any() and np.isfinite(prior)):
        return nobody
    pooled = _Pooled(scores, hits, int(positives.sum()))
    labels, cuts, right, chosen = _cuts(ids, scores, hits)
    own = pooled.f1(cuts, right, chosen, positives[labels], prior)
    starts = np.flatnonzero(np.append(True, np.diff(labels) > 0))
    best = np.maximum.reduceat(own, starts)
    is_best = own == np.repeat(best, np.diff(np.append(starts, own.size)))
    places = np.flatnonzero(is_best)
    found, first = np.unique(labels[places], return_index=True)  # the highest of equal ones
    is_chosen = scores > threshold
    chosen = np.bincount(ids[is_chosen], minlength=positives.size)[found]
    right = np.bincount(ids[is_chosen & hits], minlength=positives.size)[found]
    common = pooled.f1(threshold, right, chosen, positives[found], prior)
    is_own = (positives[found] > 0) & (best > common)
    return found[is_own], cuts[places[first]][is_own]


class _Pooled:
    """How many of all labels together are chosen, and right, for each true one."""

    def __init__(self, scores: Array, hits: Array, positives: int) -> None:
        order = np.argsort(scores, kind="stable")
        self._scores = np.asarray(scores, np.float64)[order]
        right = np.concatenate([np.cumsum(hits[order][::-1])[::-1], [0]])
        self._right, self._positives = right, positives

    def f1(self, cut: Any, right: Array, chosen: Array, positives: Array, prior: float) -> Array:
        """Return the F1 of labels joined by ``prior`` rows of all labels, cut at the same score."""
        place = np.searchsorted(self._scores, cut, side="right")
        share = prior / self._positives
        right = right + share * self._right[place]
        both = chosen + share * (self._scores.size - place) + positives + prior
        return 2.0 * right / np.maximum(both, 1e-300)


def _cuts(ids: Array, scores: Array, hits: Array) -> tuple[Array, Array, Array, Array]:
    """Return where each label's pairs can be cut, and what each cut chooses.

    Returns
    -------
    labels, cuts
        ``(cuts,)``: sorted by label, then from the highest threshold to the lowest, each halfway
        between two of the label's scores; the last is just below its lowest.
    right, chosen
        ``(cuts,)``: how many of the label's pairs are above the cut and true, and above it.
    """
    order = np.lexsort((-scores, ids))
    labels, levels = np.asarray(ids, np.int64)[order], np.asarray(scores, np.float64)[order]
    is_new = np.append(True, np.diff(labels) > 0)[: labels.size]
    starts = np.flatnonzero(is_new)
    lengths = np.diff(np.append(starts, labels.size))
    sums = np.append(0, np.cumsum(hits[order]))
    right = sums[1:] - np.repeat(sums[starts], lengths)
    chosen = np.arange(labels.size) - np.repeat(starts, lengths) + 1
    is_last = np.append(is_new[1:], True)[: labels.size]
    below = np.append(levels[1:], 0.0)[: labels.size]
    cuts = np.where(is_last, np.nextafter(levels, -1.0), (levels + below) / 2.0)
    keeps = is_last | (below < levels)
    return labels[keeps], cuts[keeps], right[keeps], chosen[keeps]
