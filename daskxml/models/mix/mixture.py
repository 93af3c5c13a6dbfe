"""Mixtures: trained models as one, their probabilities added up with weights.

Models of different kinds err on different rows: label trees follow single features, a network what
they have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np

from daskxml.core.arrays import Array, Csr, Segment
from daskxml.kernels import Kernels
from daskxml.metrics import metric_sums
from daskxml.models.protocol import Ranker
from daskxml.models.rankings import candidates

_MOVED = (0.4, 0.2, 0.1, 0.05, 0.02)  # what a step of the search takes from one weight for another
_ROUNDS = 20

Rankings = tuple[Array, Array]  # ids and probabilities, ``(parts, rows, candidates)`` each


class Mixture:
    """Models that rank labels together, on the CPU.

    Parameters
    ----------
    rankers
        The parts.
    weights
        Of each part's probabilities.
    labels
        How many there are.
    kernels
        Of the CPU.
    """

    def __init__(
        self, rankers: Sequence[Ranker], weights: Sequence[float], labels: int, kernels: Kernels
    ) -> None:
        self._rankers, self._labels, self._kernels = rankers, labels, kernels
        self._weights = np.array(weights, np.float32)

    def top_k(self, segments: Sequence[Segment], k: int) -> tuple[Array, Array]:
        """Rank labels of rows; see `Ranker.top_k`."""
        count = candidates(k, self._labels)
        rankings = stacked([ranker.top_k(segments, count) for ranker in self._rankers])
        return self._kernels.average_rankings(*rankings, self._weights, min(k, self._labels))


def stacked(found: Sequence[tuple[Array, Array]]) -> Rankings:
    """Return the parts' ids and probabilities; a part that ranks fewer labels adds nothing."""
    ids, scores = (np.stack(arrays) for arrays in zip(*found, strict=True))
    return ids, np.where(ids >= 0, scores, np.float32(0))


def choose_weights(
    rankings: Rankings, labels: Csr, kernels: Kernels, ks: Sequence[int] = (1, 3, 5)
) -> tuple[float, ...]:
    """Return the weights that rank best on rows which no part was trained on.

    From equal weights on, some of one weight is given to another as long as the mean of P@k over
    ``ks`` grows.

    Parameters
    ----------
    rankings
        The candidates of each part for each row, see `stacked`.
    labels
        The rows' true labels.

    Examples
    --------
    >>> from daskxml.kernels import get_kernels
    >>> right, wrong = [[[7, 3]]], [[[5, 2]]]
    >>> ids, scores = np.array(right + wrong, np.int32), np.array([[[.4, 0]], [[.5, .1]]], "f")
    >>> truth = Csr(np.array([0, 1]), np.array([7], np.int32), None, 9)
    >>> first, second = choose_weights((ids, scores), truth, get_kernels("cpu", 1), ks=(1,))
    >>> first > second
    True
    """

    def quality(weights: Array) -> float:
        ids, _ = kernels.average_rankings(*rankings, weights.astype(np.float32), max(ks))
        result = metric_sums(ids, labels, np.ones(labels.columns), ks).result()
        return sum(result[f"P@{k}"] for k in ks) / len(ks)

    parts = rankings[0].shape[0]
    weights = np.full(parts, 1.0 / parts)
    best = quality(weights)
    for _ in range(_ROUNDS):
        before = best
        for giver, taker in permutations(range(parts), 2):
            for moved in _MOVED:
                tried = weights.copy()
                tried[giver] -= min(moved, weights[giver])
                tried[taker] += weights[giver] - tried[giver]
                if (reached := quality(tried)) > best:
                    weights, best = tried, reached
        if best == before:
            break
    return tuple(float(weight) for weight in weights)
