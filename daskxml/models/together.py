"""Choose k labels for each of many rows together, so that a measure over all rows is highest.

The best k labels of each row alone have the highest precision, and leave out rare labels. Here what
a label is worth in a row depends on the other rows for which it is chosen: block coordinate ascent
chooses for one row after the other, the others unchanged, until nothing improves (Schultheis,
Wydmuch, Kotłowski, Babbar and Dembczyński, "Generalized test utilities for long-tail performance in
extreme multi-label classification", NeurIPS 2023). Symbols, of one label: *p* its calibrated
probability in a row, *c* the rows for which it is chosen, *h* the expected hits, which are the sum
of *p* over these rows, *n* how many rows are expected to have it. What is expected of a measure is
the mean over labels of

- macro-F1: 2 h / (c + n), and macro-recall: h / n;
- coverage, the share of labels with a hit: 1 - exp(-h), where *h* adds up -log(1 - p) instead;
- PSP: q h, with the inverse propensity *q*: each row's own best labels by q p.

Deviations: *n* is the label's share of the training rows, with one row added, times the rows, and
not the sum of its probabilities, most of which are not among the candidates; rows are visited in
their order. New rows that come alone are chosen for as one more of many rows like them, and not by
a mixture of rules found by Frank and Wolfe's method, which reached less in nine of ten comparisons
(the same authors, "Consistent algorithms for multi-label classification with macro-at-k metrics",
ICLR 2024).
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from daskxml.core.arrays import Array
from daskxml.core.jit import njit

Measure = Literal["macro-F1", "macro-recall", "PSP", "coverage"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
_RISE, _SWEEPS = 1e-6, 50  # of the measure, at least, in a sweep over all rows; at most so many
_F1, _LINEAR, _COVERAGE = range(3)


class Together:
    """Choices for some rows.

    Parameters
    ----------
    measure
        That is to be highest.
    constants
        ``(labels,)``: of each label, *q* for PSP and *n* otherwise.
    k
        Labels of a row, or all candidates where it has fewer.

    Examples
    --------
    >>> ids, probabilities = np.array([[0, 1], [0, 1]]), np.array([[0.9, 0.4], [0.8, 0.5]])
    >>> Together("macro-F1", np.array([2.0, 1.0]), 1).choose(ids, probabilities)
    array([[ True, False],
           [False,  True]])
    """

    def __init__(self, measure: Measure, constants: Array, k: int) -> None:
        self._kind = {"macro-F1": _F1, "coverage": _COVERAGE}.get(measure, _LINEAR)
        self._constants = np.asarray(constants, np.float64)
        if measure == "macro-recall":
            self._constants = 1.0 / self._constants
        self._k = k
        self._hits, self._chosen = np.zeros((2, self._constants.size))

    def choose(self, ids: Array, probabilities: Array) -> Array:
        """Return which candidates are chosen, so that the measure over these rows is highest.

        Parameters
        ----------
        ids, probabilities
            ``(rows, candidates)``, of different labels in a row, best first; an id of -1 is none.
        """
        is_chosen, least = np.zeros(ids.shape, bool), _RISE * self._constants.size
        self._hits[:], self._chosen[:] = 0.0, 0.0
        for _ in range(_SWEEPS):
            if self._sweep(is_chosen, ids, probabilities, False) <= least:
                break
        return is_chosen

    def choose_alone(self, ids: Array, probabilities: Array) -> Array:
        """Return the same for each row as if it was one more of those of `choose`."""
        is_chosen = np.zeros(ids.shape, bool)
        self._sweep(is_chosen, ids, probabilities, True)
        return is_chosen

    def _sweep(self, is_chosen: Array, ids: Array, probabilities: Array, alone: bool) -> float:
        adds = np.where(ids < 0, 0.0, probabilities)
        if self._kind == _COVERAGE:
            adds = -np.log1p(-adds.clip(max=1.0 - 1e-6))
        totals = self._hits, self._chosen, self._constants
        return _sweep(is_chosen, ids, adds, *totals, self._k, self._kind, alone)


@njit(nogil=True)
def _value(kind: int, hits: float, chosen: float, constant: float) -> Any:
    if kind == _F1:
        return 2.0 * hits / (chosen + constant)
    return hits * constant if kind == _LINEAR else 1.0 - np.exp(-hits)


@njit(nogil=True)
def _sweep(
    is_chosen: Any, ids: Any, adds: Any, hits: Any, chosen: Any, constants: Any, k: int, kind: int,
    alone: bool,
) -> float:  # fmt: skip
    """Choose anew for each row in turn; return by how much the sum over labels has risen.

    ``is_chosen`` is updated in place, and unless rows are ``alone``, so are ``hits`` and
    ``chosen``.
    """
    rise, gains = 0.0, np.empty(ids.shape[1])
    for row in range(ids.shape[0]):
        for place, label in enumerate(ids[row]):
            if is_chosen[row, place]:
                hits[label] -= adds[row, place]
                chosen[label] -= 1.0
            gains[place] = -np.inf
            if label >= 0:
                h, c, constant = hits[label], chosen[label], constants[label]
                more = _value(kind, h + adds[row, place], c + 1.0, constant)
                gains[place] = more - _value(kind, h, c, constant)
            if is_chosen[row, place]:
                rise -= gains[place]
        is_chosen[row] = False
        for _ in range(k):
            best = np.argmax(gains)
            if gains[best] == -np.inf:
                break
            is_chosen[row, best] = True
            rise += gains[best]
            gains[best] = -np.inf
            if not alone:
                hits[ids[row, best]] += adds[row, best]
                chosen[ids[row, best]] += 1.0
    return rise
