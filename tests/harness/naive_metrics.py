"""The metrics and the k best labels by definition: what the fast kernels are tested against."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from daskxml.core.arrays import Csr
from daskxml.core.errors import ConfigError


def naive_metrics(
    ids: npt.NDArray[np.int32],
    labels: Csr,
    inverse_propensity: npt.NDArray[np.float64],
    ks: Sequence[int],
) -> dict[str, float]:
    """Compute what ``metric_sums(...).result()`` gives, row counts left out.

    Parameters, rules for rows without labels and definitions are those of
    ``daskxml.metrics.ranking``.

    Examples
    --------
    >>> labels = Csr(np.array([0, 1]), np.array([2], dtype=np.int32), None, columns=3)
    >>> naive_metrics(np.array([[2]]), labels, np.ones(3), [1])["P@1"]
    1.0
    """
    bounds = zip(labels.indptr[:-1], labels.indptr[1:], strict=True)
    truths = [set(labels.indices[start:stop].tolist()) for start, stop in bounds]
    ranked = [row.tolist() for row in ids]
    ideals = [sorted(t, key=lambda label: -inverse_propensity[label]) for t in truths]
    ones = np.ones_like(inverse_propensity)
    result: dict[str, float] = {}
    for k in sorted(ks):
        hits = [len(t.intersection(r[:k])) for t, r in zip(truths, ranked, strict=True)]
        result[f"P@{k}"] = _mean([hit / k for hit in hits])
        sizes = zip(hits, truths, strict=True)
        result[f"recall@{k}"] = _mean([hit / len(t) if t else 0.0 for hit, t in sizes])
        result[f"nDCG@{k}"] = _mean(_gains(ranked, truths, ones, k, discounted=True))
        for name, discounted in (("PSP", False), ("PSnDCG", True)):
            got = sum(_gains(ranked, truths, inverse_propensity, k, discounted=discounted))
            most = sum(_gains(ideals, truths, inverse_propensity, k, discounted=discounted))
            result[f"{name}@{k}"] = got / most if most else 0.0
    return result


def _gains(
    ranked: list[list[int]],
    truths: list[set[int]],
    weights: npt.NDArray[np.float64],
    k: int,
    *,
    discounted: bool,
) -> list[float]:
    """Weighted gain of each row's first ``k``; if discounted, over that of ``min(k, |y|)`` hits."""
    discounts = [1 / math.log2(j + 2) if discounted else 1.0 for j in range(k)]
    gains = []
    for row, truth in zip(ranked, truths, strict=True):
        hits = [(d, label) for d, label in zip(discounts, row, strict=False) if label in truth]
        gain = sum(d * weights[label] for d, label in hits)
        ideal = sum(discounts[: len(truth)]) if discounted else 1.0
        gains.append(gain / ideal if truth else 0.0)
    return gains


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def top_k_dense(
    scores: npt.NDArray[np.floating], k: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Select the ``k`` highest scores of each row, best first, the lowest id first among equals.

    Parameters
    ----------
    scores
        ``(rows, labels)``, without NaN.
    k
        How many, at least 1.

    Returns
    -------
    ids
        ``(rows, k)`` int32; -1 where ``k`` exceeds the number of labels.
    best
        ``(rows, k)`` float32; minus infinity where the id is -1.

    Raises
    ------
    ConfigError
        If ``k`` is below 1.

    Examples
    --------
    >>> ids, best = top_k_dense(np.array([[0.1, 0.7, 0.7]]), k=4)
    >>> ids
    array([[ 1,  2,  0, -1]], dtype=int32)
    """
    if k < 1:
        raise ConfigError(f"k = {k}: must be at least 1")
    rows, labels = scores.shape
    found = min(k, labels)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :found]
    ids = np.full((rows, k), -1, dtype=np.int32)
    best = np.full((rows, k), -np.inf, dtype=np.float32)
    ids[:, :found] = order
    best[:, :found] = np.take_along_axis(scores, order, axis=1)
    return ids, best
