"""The ranking of rows by an index of their labels: a loop for each of its three stages.

Groups and clusters are scored by 8 bits a number. The best of them are found by a histogram of the
scores, in time that does not depend on how many are wanted: all above the lower bound of the bin in
which the last of them lies, hence a few more. The labels of the best clusters are scored by their
weights where these lie, each row of which is asked for ahead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from daskxml.kernels.cpu.gemm import dot
from daskxml.kernels.cpu.numba_math import exp32, prefetch
from daskxml.kernels.cpu.quantised import encode, score_block, score_label
from daskxml.kernels.cpu.tree import insert

_BINS = 1024
_AHEAD = 8  # labels whose weights are asked for before they are used
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@njit(inline="always", cache=True)
def _bin_of(score: Any, low: Any, factor: Any) -> Any:
    place = (score - low) * factor
    return min(np.int64(place), _BINS - 1) if place > _ZERO else 0  # NaN is in the lowest


@njit(nogil=True, cache=True)
def choose_best(chosen: Any, scores: Any, count: int) -> int:
    """Write where the ``count`` best scores are, ascending, and those nearly as good; how many.

    All are chosen where scores are not finite or all the same.
    """
    low = high = scores[0]
    for score in scores:
        low, high = min(low, score), max(high, score)
    least = 0
    if count < scores.shape[0] and _ZERO < high - low < np.inf:
        counts, factor = np.zeros(_BINS, np.int32), np.float32(_BINS) / (high - low)
        for score in scores:
            counts[_bin_of(score, low, factor)] += 1
        least, held = _BINS, 0
        while held < count:
            least -= 1
            held += counts[least]
    else:
        factor = _ZERO
    found = 0
    for i in range(scores.shape[0]):
        if _bin_of(scores[i], low, factor) >= least:
            chosen[found] = i
            found += 1
    return found


@njit(nogil=True, cache=True)
def _add_exponentials(total: Any, scores: Any, chosen: Any, labels: Any) -> None:
    """Add what nodes that are not looked into count for a softmax, by their scores."""
    top = scores[0]
    for score in scores:
        top = max(top, score)
    others, place = 0.0, 0
    for i in range(scores.shape[0]):
        if place < chosen.shape[0] and chosen[place] == i:
            place += 1
        else:
            others += labels[i] * exp32(scores[i] - top)
    if others > 0.0:
        _add(total, top, others)


@njit(nogil=True, cache=True)
def _add(total: Any, peak: Any, exponentials: Any) -> None:
    """Add a sum of exponentials relative to a peak to another."""
    if peak > total[0]:
        total[1] *= np.exp(total[0] - peak)
        total[0] = peak
    total[1] += exponentials * np.exp(np.float64(peak) - total[0])


@njit(nogil=True, cache=True)
def _labels_in(order: Any, starts: Any, groups: Any, chosen: Any, fan: int) -> Any:
    """The labels of the chosen clusters, which are counted over those of the groups."""
    clusters, size = np.empty(chosen.shape[0], np.int64), 0
    for j in range(chosen.shape[0]):
        clusters[j] = groups[chosen[j] // fan] * fan + chosen[j] % fan
        size += starts[clusters[j] + 1] - starts[clusters[j]]
    labels, size = np.empty(size, np.int64), 0
    for cluster in clusters:
        for place in range(starts[cluster], starts[cluster + 1]):
            labels[size] = order[place]
            size += 1
    return labels


@njit(nogil=True, cache=True)
def rank_by_index(
    start: int, stop: int, hidden: Any, groups: Any, clusters: Any, labels: Any, weight: Any,
    digits: Any, bias: Any, probed: Any, scores: Any, ids: Any, totals: Any,
) -> None:  # fmt: skip
    """Rank the labels of the rows ``start`` to ``stop``; ``totals`` may have no rows.

    ``groups`` and ``clusters`` are numbers, scale, bias and labels, ``labels`` their order and the
    starts of the clusters. The output layer is ``weight``, or, if that has no rows, ``digits``.
    """
    order, starts = labels
    fan = clusters[0].shape[0] // groups[0].shape[0]
    codes = np.empty(hidden.shape[1], np.uint8)
    group_scores = np.empty(groups[0].shape[0], np.float32)
    cluster_scores = np.empty(clusters[0].shape[0], np.float32)
    products = np.empty(groups[0].shape[0], np.int32)
    some = np.empty(fan, np.int32)
    best_groups = np.empty(groups[0].shape[0], np.int64)
    best_clusters = np.empty(clusters[0].shape[0], np.int64)
    row_bytes = 4 * hidden.shape[1]
    near_labels = np.empty(clusters[0].shape[0], np.float32)
    for i in range(start, stop):
        row, best, held = hidden[i], scores[i], 0
        step = encode(codes, row)
        score_block(group_scores, products, codes, step, row, groups[0], groups[1], groups[2])
        opened = best_groups[: choose_best(best_groups, group_scores, probed[0])]
        near = cluster_scores[: opened.shape[0] * fan]
        for j in range(opened.shape[0]):
            span = slice(opened[j] * fan, (opened[j] + 1) * fan)
            near_labels[j * fan : (j + 1) * fan] = clusters[3][span]
            nodes = clusters[0][span], clusters[1][span], clusters[2][span]
            score_block(near[j * fan : (j + 1) * fan], some, codes, step, row, *nodes)
        found = best_clusters[: choose_best(best_clusters, near, probed[1])]
        total = np.array([-np.inf, 0.0])
        if totals.shape[0]:
            _add_exponentials(total, group_scores, opened, groups[3])
            _add_exponentials(total, near, found, near_labels)
        wanted = _labels_in(order, starts, opened, found, fan)
        for j in range(wanted.shape[0]):
            if weight.shape[0]:
                ahead = wanted[min(j + _AHEAD, wanted.shape[0] - 1)]
                prefetch(weight.ctypes.data + ahead * row_bytes, row_bytes)
                value = bias[wanted[j]] + dot(row, weight[wanted[j]])
            else:
                first, second, scale = digits
                value = score_label(row, first, second, scale, bias, wanted[j])
            if value > -np.inf and (held < best.shape[0] or value >= best[held - 1]):
                held = insert(best, ids[i], held, value, wanted[j])
            if totals.shape[0]:
                _add(total, value, 1.0)
        best[held:] = -np.inf
        ids[i, held:] = -1
        if totals.shape[0]:
            totals[i] = total
