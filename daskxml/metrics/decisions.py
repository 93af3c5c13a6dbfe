"""How good probabilities and decisions are: expected calibration error, and F1 of chosen labels.

The error is that of Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks"
(ICML 2017), over every ranked label of every row instead of the first one alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskxml.core.arrays import Array, Csr

BINS = 15


def find_hits(ids: Array, labels: Csr) -> Array:
    """Return whether each ranked label is true, ``(rows, k)`` bool.

    Parameters
    ----------
    ids
        ``(rows, k)``; -1 is no label.
    labels
        ``(rows, labels)``: the true ones.

    Examples
    --------
    >>> truth = Csr(np.array([0, 1, 1]), np.array([2], np.int32), None, columns=3)
    >>> find_hits(np.array([[1, 2], [2, -1]]), truth).tolist()
    [[False, True], [False, False]]
    """
    rows = np.repeat(np.arange(labels.rows), np.diff(labels.indptr))
    truth = rows * labels.columns + labels.indices
    keys = np.arange(len(ids))[:, None] * labels.columns + ids
    return (ids >= 0) & np.isin(keys, truth)


def calibration_error(probabilities: Any, hits: Any, bins: int = BINS) -> float:
    """Return how far probabilities are from the share that is true, on average over bins.

    Parameters
    ----------
    probabilities, hits
        Of the same shape: numbers in [0, 1], and whether each came true.
    bins
        Of equal width; each counts by the number of its probabilities.

    Examples
    --------
    >>> calibration_error([0.9, 0.9, 0.1, 0.1], [True, False, False, False]).round(3).item()
    0.25
    """
    found = np.asarray(probabilities, np.float64).ravel()
    places = np.minimum((found * bins).astype(np.int64), bins - 1)
    excess = np.bincount(places, found - np.asarray(hits).ravel(), minlength=bins)
    return np.abs(excess).sum() / np.float64(max(1, found.size))


def f1_scores(chosen: Array, labels: Csr) -> dict[str, float]:
    """Return macro F1 and micro F1 of chosen labels.

    Macro F1 is the mean of the F1 of every label that some row has; a label that no row has counts
    in micro F1 alone, where it is chosen.

    Parameters
    ----------
    chosen
        ``(rows, k)`` ids; -1 is no label.
    labels
        ``(rows, labels)``: the true ones.

    Examples
    --------
    >>> truth = Csr(np.array([0, 1, 2]), np.array([0, 1], np.int32), None, columns=3)
    >>> f1_scores(np.array([[0], [0]]), truth)
    {'macro-F1': 0.3333333333333333, 'micro-F1': 0.5}
    """
    is_there, count = chosen >= 0, labels.columns
    hits = np.bincount(chosen[find_hits(chosen, labels)], minlength=count)
    both = np.bincount(chosen[is_there], minlength=count) + np.bincount(
        labels.indices, minlength=count
    )
    occurs = np.isin(np.arange(count), labels.indices)
    each = 2.0 * hits[occurs] / both[occurs]
    return {
        "macro-F1": float(each.mean()) if each.size else 0.0,
        "micro-F1": float(2.0 * hits.sum() / max(1, both.sum())),
    }
