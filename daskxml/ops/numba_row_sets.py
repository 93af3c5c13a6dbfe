"""Numba kernels of an output layer where each row sees labels of its own: choice, loss, gradient.

Each row is one lane's from its logits to its gradient, so the weights that it gathers for the one
are still in the cache for the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from daskxml.ops.numba_math import exp32, hash64

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_SHARED_LOG = 512  # factors of at most 2 for each logarithm


@njit(nogil=True, cache=True)
def size_sets(starts: Any, indptr: Any, rows: Any, active: int) -> None:
    """See the Protocol."""
    for i in range(rows.shape[0]):
        own = indptr[rows[i] + 1] - indptr[rows[i]]
        starts[i + 1] = starts[i] + max(active, own)


@njit(nogil=True, cache=True)
def choose_sets(
    starts: Any, ids: Any, set_rows: Any, own: Any, certain: Any, indptr: Any, indices: Any,
    rows: Any, first_row: int, keys: Any, bucket_starts: Any, members: Any, random: float,
    key: Any, marks: Any, start: int, stop: int,
) -> None:  # fmt: skip
    """Sets of ``rows[start:stop]``. A mark is -1 where a label is chosen, else its votes."""
    mark, met = marks[0], marks[1]
    levels = np.zeros(keys.shape[0] + 1, np.int64)
    for i in range(start, stop):
        row = first_row + i
        chosen = ids[starts[row] : starts[row + 1]]
        set_rows[starts[row] : starts[row + 1]] = row
        count = 0
        for j in range(indptr[rows[i]], indptr[rows[i] + 1]):
            chosen[count] = indices[j]
            mark[indices[j]] = -1
            count += 1
        own[row] = count
        most = chosen.shape[0] - int(random * (chosen.shape[0] - count) + 0.5)
        if keys.shape[0] > 0 and count < most:
            seen = _count_votes(mark, met, keys[:, row], bucket_starts, members)
            ties = hash64(key, 2 * row)
            count = _add_popular(chosen, count, most, mark, met[:seen], levels, ties)
        certain[row] = count
        _add_random(chosen, count, mark, hash64(key, 2 * row + 1))
        for label in chosen:
            mark[label] = 0


@njit(nogil=True, cache=True)
def _count_votes(mark: Any, met: Any, keys: Any, starts: Any, members: Any) -> int:
    """Count in how many buckets of a row each label is; how many labels there are in ``met``."""
    count = 0
    for t in range(keys.shape[0]):
        for j in range(starts[t, keys[t]], starts[t, keys[t] + 1]):
            label = members[t, j]
            if mark[label] == 0:
                met[count] = label
                count += 1
            if mark[label] >= 0:
                mark[label] += 1
    return count


@njit(nogil=True, cache=True)
def _add_popular(
    chosen: Any, count: int, most: int, mark: Any, met: Any, levels: Any, key: Any
) -> int:
    """Find the number of votes at which the room ends; take all above it, and some at it."""
    levels[:] = 0
    for label in met:
        levels[mark[label]] += 1
    cut, wanted = levels.shape[0] - 1, most - count
    while cut > 1 and levels[cut] <= wanted:
        wanted -= levels[cut]
        cut -= 1
    left, wanted = levels[cut], min(wanted, levels[cut])
    for label in met:
        votes = mark[label]
        mark[label] = 0
        if votes < cut:
            continue
        if votes == cut:  # each of those left has the same chance (Knuth's algorithm S)
            taken = hash64(key, left) % np.uint64(left) < np.uint64(wanted)
            left -= 1
            if not taken:
                continue
            wanted -= 1
        mark[label] = -1
        chosen[count] = label
        count += 1
    return count


@njit(nogil=True, cache=True)
def _add_random(chosen: Any, count: int, mark: Any, key: Any) -> None:
    """Draw until the set is full; or, if it takes most of them, draw those that it leaves out."""
    labels = mark.shape[0]
    takes = chosen.shape[0] - count <= labels - chosen.shape[0]
    left = chosen.shape[0] - count if takes else labels - chosen.shape[0]
    draw = 0
    while left > 0:
        drawn = np.int64(hash64(key, draw) % np.uint64(labels))
        draw += 1
        if mark[drawn] != 0:
            continue
        left -= 1
        mark[drawn] = -1 if takes else -2
        if takes:
            chosen[count] = drawn
            count += 1
    if takes:
        return
    for label in range(labels):
        if mark[label] == 0:
            mark[label] = -1
            chosen[count] = label
            count += 1
        elif mark[label] == -2:
            mark[label] = 0


@njit(nogil=True, cache=True, error_model="numpy")
def softmax_sets(
    slopes: Any, gradient: Any, loss: Any, starts: Any, all_ids: Any, own: Any, certain: Any,
    hidden: Any, weight: Any, bias: Any, weighted: bool, start: int, stop: int,
) -> None:  # fmt: skip
    """Rows ``start`` to ``stop``."""
    rows = np.float64(hidden.shape[0])
    for i in range(start, stop):
        z, ids = slopes[starts[i] : starts[i + 1]], all_ids[starts[i] : starts[i + 1]]
        if own[i] == 0:
            z[:] = _ZERO
            gradient[i] = _ZERO
            loss[i] = 0.0
            continue
        _logits(z, ids, hidden[i], weight, bias)
        target = 0.0
        for logit in z[: own[i]]:
            target += logit
        if weighted and certain[i] < ids.shape[0]:
            z[certain[i] :] += np.float32(np.log(_stands_for(weight, ids, certain[i])))
        peak = z[0]
        for logit in z:
            peak = peak if logit <= peak else logit  # NaN stays
        _exponentials(z, peak)
        total = np.float64(_sum(z))
        loss[i] = peak + np.log(total) - target / own[i]
        z *= np.float32(1.0 / (rows * total))
        z[: own[i]] -= np.float32(1.0 / (rows * own[i]))
        _gradient(gradient[i], z, ids, weight)


@njit(nogil=True, cache=True, error_model="numpy")
def sigmoid_sets(
    slopes: Any, gradient: Any, loss: Any, starts: Any, all_ids: Any, own: Any, certain: Any,
    hidden: Any, weight: Any, bias: Any, weighted: bool, start: int, stop: int,
) -> None:  # fmt: skip
    """Rows ``start`` to ``stop``."""
    factor = 1.0 / hidden.shape[0]
    for i in range(start, stop):
        z, ids = slopes[starts[i] : starts[i + 1]], all_ids[starts[i] : starts[i + 1]]
        _logits(z, ids, hidden[i], weight, bias)
        target = 0.0
        for logit in z[: own[i]]:
            target += logit
        times = 1.0
        if weighted and certain[i] < ids.shape[0]:
            times = _stands_for(weight, ids, certain[i])
        once = _sigmoids(z[: certain[i]], np.float32(factor))
        others = _sigmoids(z[certain[i] :], np.float32(factor * times))
        loss[i] = once + times * others - target
        z[: own[i]] -= np.float32(factor)
        _gradient(gradient[i], z, ids, weight)


@njit(inline="always", cache=True)
def _stands_for(weight: Any, ids: Any, certain: int) -> float:
    """How many labels there are for each that was drawn."""
    return (weight.shape[0] - certain) / (ids.shape[0] - certain)


@njit(nogil=True, cache=True)
def _logits(z: Any, ids: Any, hidden: Any, weight: Any, bias: Any) -> None:
    for e in range(ids.shape[0]):
        z[e] = _dot(hidden, weight[ids[e]]) + bias[ids[e]]


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _dot(a: Any, b: Any) -> Any:
    total = _ZERO
    for c in range(a.shape[0]):
        total += a[c] * b[c]
    return total


@njit(nogil=True, cache=True, fastmath={"reassoc"})
def _sum(x: Any) -> Any:
    total = _ZERO
    for value in x:
        total += value
    return total


@njit(nogil=True, cache=True, fastmath={"contract"})
def _exponentials(z: Any, peak: Any) -> None:
    for e in range(z.shape[0]):
        z[e] = exp32(z[e] - peak)


@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def _sigmoids(z: Any, factor: Any) -> float:
    """``z = factor * sigmoid(z)``; the sum of ``log(1 + exp(z))``."""
    loss = 0.0
    for first in range(0, z.shape[0], _SHARED_LOG):
        product, positive = 1.0, 0.0
        for e in range(first, min(first + _SHARED_LOG, z.shape[0])):
            above = max(z[e], _ZERO)
            small = exp32(z[e] - above - above)
            product *= _ONE + small
            positive += above
            z[e] = (small if z[e] <= _ZERO else _ONE) * (factor / (_ONE + small))
        loss += np.log(product) + positive
    return loss


@njit(nogil=True, cache=True, fastmath={"contract"})
def _gradient(out: Any, slopes: Any, ids: Any, weight: Any) -> None:
    """``out = slopes @ weight[ids]``, in order."""
    out[:] = _ZERO
    for e in range(ids.shape[0]):
        slope, source = slopes[e], weight[ids[e]]
        for c in range(out.shape[0]):
            out[c] += slope * source[c]
