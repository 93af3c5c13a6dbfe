"""Calibrating a trained model, and choosing its thresholds, on rows that it was not trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.core.errors import InputError, ModelError
from daskxml.data.rows import label_counts, take_csr
from daskxml.metrics.decisions import calibration_error, f1_scores, find_hits
from daskxml.models.decisions import (
    Decisions,
    fit_calibration,
    fit_label_thresholds,
    fit_threshold,
)

FOLDS = 5
PRIORS = (1.0, 3.0, 10.0, 30.0, math.inf)  # rows of a label like all others; the best is taken
Average = Literal["macro", "micro"]


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
        "calibration_error": calibration_error(rows.ranked_scores, rows.ranked_hits),
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
    def ranked_ids(self) -> Array:
        """Ids of all rows in a line, without the missing ones; so are the other two."""
        return self.ids[self.ids >= 0]

    @cached_property
    def ranked_scores(self) -> Array:
        """Scores."""
        return self.scores[self.ids >= 0].astype(np.float64)

    @cached_property
    def ranked_hits(self) -> Array:
        """Hits."""
        return self.hits[self.ids >= 0]

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
    if not (rows.ranked_ids.size and np.isfinite(rows.ranked_scores).all()):
        raise ModelError("the model's scores are not finite: train it again, at a lower rate")
    if not rows.hits.any():
        raise InputError(
            f"no true label of the held-out rows is among the best {rows.ids.shape[1]} of its row: "
            "give rows of the data set that the model was trained on"
        )


def _learn(rows: _Ranked) -> Decisions:
    """Learn the calibration and the global threshold."""
    scores, hits = rows.ranked_scores, rows.ranked_hits
    points, shares = fit_calibration(scores, hits)
    return Decisions(
        k=rows.ids.shape[1],
        scores=tuple(points.tolist()),
        probabilities=tuple(shares.tolist()),
        threshold=fit_threshold(scores, hits, rows.truth.nonzeros),
    )


def _with_thresholds(learned: Decisions, rows: _Ranked, prior: float) -> Decisions:
    """Add thresholds of labels; see `daskxml.models.decisions.fit_label_thresholds`."""
    pairs = rows.ranked_ids, rows.ranked_scores, rows.ranked_hits
    found = fit_label_thresholds(*pairs, label_counts(rows.truth), learned.threshold, prior)
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
    error = calibration_error(probabilities[rows.ids >= 0], rows.ranked_hits)
    return best, {"calibration_error": error, **found[best]}
