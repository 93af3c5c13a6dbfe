"""Sampled losses on a CPU, where each row has labels of its own: choice, loss and gradient.

One thread takes a row from its logits to its gradient, so the weights that it gathers for the
logits are still in the cache for the gradient; but for a row of whose labels others have some.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.core.jit import njit
from daskxml.kernels.cpu.dense import sum64
from daskxml.kernels.cpu.numba_math import dot, exp32, exponentials, hash64, sum32
from daskxml.kernels.cpu.sampling import choose_random
from daskxml.kernels.cpu.thread_team import ThreadTeam
from daskxml.kernels.operands import Lookup, RowSamples

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_SHARED_LOG = 512  # factors of at most 2 for each logarithm
_PAIR_GRAIN = 1 << 13  # labels chosen, a tenth of a millisecond: fewer wake no other thread
_FLOAT_GRAIN = 1 << 19  # floats multiplied in the same time


@njit(nogil=True)
def _draw_row_samples(
    starts: Any, ids: Any, sample_rows: Any, own: Any, indptr: Any, indices: Any,
    rows: Any, first_row: int, keys: Any, bucket_starts: Any, members: Any, random: float,
    key: Any, marks: Any, start: int, stop: int,
) -> None:  # fmt: skip
    """Labels of ``rows[start:stop]``. A mark is -1 for a chosen label, else its votes."""
    mark, candidates = marks[0], marks[1]
    levels = np.zeros(keys.shape[0] + 1, np.int64)
    for i in range(start, stop):
        row = first_row + i
        chosen = ids[starts[row] : starts[row + 1]]
        sample_rows[starts[row] : starts[row + 1]] = row
        count = 0
        for j in range(indptr[rows[i]], indptr[rows[i] + 1]):
            chosen[count] = indices[j]
            mark[indices[j]] = -1
            count += 1
        own[row] = count
        most = chosen.shape[0] - int(random * (chosen.shape[0] - count) + 0.5)
        if keys.shape[0] > 0 and count < most:
            found = _count_votes(mark, candidates, keys[:, row], bucket_starts, members)
            ties = hash64(key, 2 * row)
            count = _add_popular(chosen, count, most, mark, candidates[:found], levels, ties)
        choose_random(chosen, count, mark, 0, hash64(key, 2 * row + 1))
        for label in chosen:
            mark[label] = 0


@njit(nogil=True)
def _count_votes(mark: Any, candidates: Any, keys: Any, starts: Any, members: Any) -> int:
    """Count in how many buckets of a row each label is; returns the number of ``candidates``."""
    count = 0
    for t in range(keys.shape[0]):
        for j in range(starts[t, keys[t]], starts[t, keys[t] + 1]):
            label = members[t, j]
            if mark[label] == 0:
                candidates[count] = label
                count += 1
            if mark[label] >= 0:
                mark[label] += 1
    return count


@njit(nogil=True)
def _add_popular(
    chosen: Any, count: int, most: int, mark: Any, candidates: Any, levels: Any, key: Any
) -> int:
    """Append candidates with the most votes to ``chosen``, until there are ``most``.

    Finds the number of votes of the last one; takes all above it, and some of those at it. A mark
    is the votes of a candidate; then -1 where it was chosen, else 0. ``levels`` is scratch, one
    for each possible number of votes.
    """
    levels[:] = 0
    for label in candidates:
        levels[mark[label]] += 1
    cut, wanted = levels.shape[0] - 1, most - count
    while cut > 1 and levels[cut] <= wanted:
        wanted -= levels[cut]
        cut -= 1
    left, wanted = levels[cut], min(wanted, levels[cut])
    for label in candidates:
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


@njit(nogil=True, error_model="numpy")
def _sampled_losses(
    slopes: Any, gradient: Any, loss: Any, samples: Any, hidden: Any, weight: Any, bias: Any,
    is_softmax: bool, start: int, stop: int,
) -> None:  # fmt: skip
    """Rows ``start`` to ``stop``."""
    starts, all_ids, own = samples
    rows = np.float64(hidden.shape[0])
    factor = 1.0 / hidden.shape[0]
    for i in range(start, stop):
        z, ids = slopes[starts[i] : starts[i + 1]], all_ids[starts[i] : starts[i + 1]]
        if is_softmax and own[i] == 0:
            z[:] = _ZERO
            gradient[i] = _ZERO
            loss[i] = 0.0
            continue
        _logits(z, ids, hidden[i], weight, bias)
        target = sum64(z[: own[i]])
        if is_softmax:
            peak, total = _softmax_sums(z)
            loss[i] = peak + np.log(total) - target / own[i]
            z *= np.float32(1.0 / (rows * total))
            z[: own[i]] -= np.float32(1.0 / (rows * own[i]))
        else:
            loss[i] = _sigmoids(z, np.float32(factor)) - target
            z[: own[i]] -= np.float32(factor)
        _gradient(gradient[i], z, ids, weight)


@njit(nogil=True)
def _softmax_sums(z: Any) -> Any:
    """Replace logits by exponentials; returns their peak, and the sum."""
    if z.shape[0] == 0:
        return np.float32(-np.inf), 0.0
    peak = z[0]
    for logit in z:
        peak = peak if logit <= peak else logit  # NaN stays
    exponentials(z, peak)
    return peak, np.float64(sum32(z))


@njit(nogil=True)
def _logits(z: Any, ids: Any, hidden: Any, weight: Any, bias: Any) -> None:
    for e in range(ids.shape[0]):
        z[e] = dot(hidden, weight[ids[e]]) + bias[ids[e]]


@njit(nogil=True, fastmath={"contract"}, error_model="numpy")
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


@njit(nogil=True, fastmath={"contract"})
def _gradient(out: Any, slopes: Any, ids: Any, weight: Any) -> None:
    """``out = slopes @ weight[ids]``, in order."""
    out[:] = _ZERO
    for e in range(ids.shape[0]):
        slope, source = slopes[e], weight[ids[e]]
        for c in range(out.shape[0]):
            out[c] += slope * source[c]


def size_row_samples(starts: Array, y: Csr, rows: Array, active: int) -> None:
    """``starts[i + 1] = starts[i] + max(active, labels of rows[i])``."""
    lengths = y.indptr[rows + 1] - y.indptr[rows]
    starts[1:] = starts[0] + np.cumsum(np.maximum(active, lengths))


def draw_row_samples(
    team: ThreadTeam, samples: RowSamples, y: Csr, rows: Array, first_row: int, found: Lookup,
    random: float, key: int, marks: Array,
) -> None:  # fmt: skip
    """Fill the samples of rows ``first_row`` and following of a batch: ``rows`` of ``y``.

    A row's targets come first. Labels in the row's buckets follow, those in most buckets first
    (ties are broken at random), as long as at least the share ``random`` of what the targets
    left free is still to be drawn; they keep the order in which the tables list them. The rest
    is drawn uniformly from all other labels. Random numbers are SplitMix64's, of the stream
    with number ``2 * row`` (ties) or ``2 * row + 1`` (draws) of the stream ``key``. ``marks``
    is ``(threads, 2, labels)`` int32, its first planes zero before and after.
    """
    operands = (
        samples.starts, samples.ids, samples.rows, samples.own, y.indptr,
        y.indices, rows, first_row, found.keys, found.starts, found.members, float(random),
        np.uint64(key),
    )  # fmt: skip
    team.run(
        rows.shape[0], _rows_worth(samples, _PAIR_GRAIN),
        lambda thread, *span: _draw_row_samples(*operands, marks[thread], *span),
    )  # fmt: skip


def sampled_losses(
    team: ThreadTeam, slopes: Array, gradient: Array, loss: Array, samples: RowSamples,
    hidden: Array, weight: Array, bias: Array, is_softmax: bool,
) -> None:  # fmt: skip
    """Softmax, or the sigmoid loss, of each row over its labels, and gradients of the batch's mean.

    ``slopes (pairs,)`` is the gradient by the logits, ``gradient (rows, units)`` that by
    ``hidden``, ``loss (rows,)`` float64. In softmax targets have equal shares, and rows without
    any have no loss; the sigmoid loss is a sum over a row's labels.
    """
    own = samples.starts, samples.ids, samples.own
    operands = slopes, gradient, loss, own, hidden, weight, bias, is_softmax
    rows, units = hidden.shape
    grain = _rows_worth(samples, _FLOAT_GRAIN // max(1, units))
    team.run(rows, grain, lambda _, *span: _sampled_losses(*operands, *span))


def _rows_worth(samples: RowSamples, pairs: int) -> int:
    """How many rows have ``pairs`` labels together."""
    return max(1, pairs * samples.own.shape[0] // max(1, samples.ids.shape[0]))
