# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""Kernels on blocks of labels on a CPU: softmax, sigmoid, targets and the best k.

A block is label-major, ``(labels, rows)``, so all loops run along the batch, where maximum, sum and
exponential are elementwise and vectorize without any reduction. Where something is divided,
``error_model="numpy"`` keeps Numba from testing for zero each time, which would stop the
vectorizer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from daskxml.core.arrays import Array, Csr
from daskxml.kernels.cpu.gemm import dot
from daskxml.kernels.cpu.numba_math import exp32, prefetch
from daskxml.kernels.cpu.quantised import candidates_of
from daskxml.kernels.cpu.quantised import rank_labels as rank_quantised
from daskxml.kernels.cpu.thread_team import ThreadTeam, row_grain
from daskxml.kernels.labels import LabelWork
from daskxml.kernels.quantised import Quantised

_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
_BLOCK_FLOATS = 1 << 17  # half a megabyte of logits: a block stays in a core's L2 cache
_ROW_LOGITS = 512  # of one row at a time: 2 KiB
_AHEAD = 4096  # bytes of weights that are asked for early: the processor stops where a page ends


@njit(nogil=True, cache=True, fastmath={"contract"})
def softmax_block(logits: Any, bias: Any, peak: Any, total: Any, part: Any) -> None:
    """Add the bias, raise ``peak``, ``logits = exp(logits - peak)``, rescale and add to ``total``.

    ``part`` is scratch of one float32 a row: the block's own sum, in float32; the sum over all
    blocks is kept in float64.
    """
    for r in range(part.shape[0]):
        part[r] = peak[r]
    for label in range(logits.shape[0]):
        for r in range(logits.shape[1]):
            value = logits[label, r] + bias[label]
            logits[label, r] = value
            part[r] = part[r] if value <= part[r] else value  # NaN stays
    for r in range(part.shape[0]):
        total[r] *= exp32(peak[r] - part[r])
        peak[r] = part[r]
        part[r] = _ZERO
    for label in range(logits.shape[0]):
        for r in range(logits.shape[1]):
            value = exp32(logits[label, r] - peak[r])
            logits[label, r] = value
            part[r] += value
    for r in range(part.shape[0]):
        total[r] += part[r]


@njit(nogil=True, cache=True)
def merge_softmax(peaks: Any, totals: Any, peak: Any, total: Any) -> None:
    """Merge ``(peak, total)`` of several parts, in order."""
    peak[:] = peaks[0]
    total[:] = totals[0]
    for part in range(1, peaks.shape[0]):
        for r in range(peak.shape[0]):
            top = peak[r] if peaks[part, r] <= peak[r] else peaks[part, r]
            total[r] = total[r] * exp32(peak[r] - top) + totals[part, r] * exp32(
                peaks[part, r] - top
            )
            peak[r] = top


@njit(nogil=True, cache=True, error_model="numpy")
def softmax_factors(out: Any, reference: Any, peak: Any, total: Any, weight: Any) -> None:
    """``out = weight * exp(reference - peak) / total``."""
    for r in range(out.shape[0]):
        out[r] = weight[r] * exp32(reference[r] - peak[r]) / total[r]


@njit(nogil=True, cache=True, fastmath={"reassoc"})
def scale_columns(delta: Any, factors: Any, row_sums: Any) -> None:
    """``delta *= factors`` and ``row_sums[l] = delta[l].sum()``."""
    for label in range(delta.shape[0]):
        total = _ZERO
        for r in range(delta.shape[1]):
            value = delta[label, r] * factors[r]
            delta[label, r] = value
            total += value
        row_sums[label] = total


@njit(nogil=True, cache=True, fastmath={"reassoc"})
def _row_sum(row: Any) -> Any:
    """Separate from its caller: reassociation would break the rounding trick inside ``exp32``."""
    total = _ZERO
    for value in row:
        total += value
    return total


@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def sigmoid_block(logits: Any, bias: Any, weight: Any, row_sums: Any, loss: Any, part: Any) -> None:
    """``z = logits + bias; logits = weight * sigmoid(z); loss += log(1 + exp(z))`` by column.

    One exponential ``e = exp(-|z|)`` serves both. Sixteen labels share one logarithm: their
    ``1 + e`` are in 1..2, so the product stays below 2**16. ``part (2, rows)`` is scratch.
    """
    rows = logits.shape[1]
    product, positive = part[0], part[1]
    for first in range(0, logits.shape[0], 16):
        product[:] = _ONE
        positive[:] = _ZERO
        for label in range(first, min(first + 16, logits.shape[0])):
            row, shift = logits[label], bias[label]
            for r in range(rows):
                z = row[r] + shift
                above = max(z, _ZERO)
                e = exp32(z - above - above)
                product[r] *= _ONE + e
                positive[r] += above
                row[r] = (e if z <= _ZERO else _ONE) * (weight / (_ONE + e))
            row_sums[label] = _row_sum(row)
        for r in range(rows):
            loss[r] += np.log(np.float64(product[r])) + positive[r]


@njit(nogil=True, cache=True)
def top_k_block(logits: Any, bias: Any, first_label: int, scores: Any, ids: Any) -> None:
    """Insert a block into each row's best k; an equal score never displaces a lower label."""
    k = scores.shape[1]
    rows = logits.shape[1]
    lowest = scores[:, k - 1].copy()
    for label in range(logits.shape[0]):
        found = 0
        for r in range(rows):  # vectorizes; the slow loop below runs for few labels
            found |= logits[label, r] + bias[label] > lowest[r]
        if not found:
            continue
        for r in range(rows):
            value = logits[label, r] + bias[label]
            if value > lowest[r]:
                _insert(scores[r], ids[r], value, first_label + label)
                lowest[r] = scores[r, k - 1]


@njit(nogil=True, cache=True)
def _insert(scores: Any, ids: Any, value: Any, label: Any) -> None:
    place = scores.shape[0] - 1
    while place > 0 and value > scores[place - 1]:
        scores[place] = scores[place - 1]
        ids[place] = ids[place - 1]
        place -= 1
    scores[place] = value
    ids[place] = label


@njit(nogil=True, cache=True)
def merge_top_k(partial_scores: Any, partial_ids: Any, scores: Any, ids: Any) -> None:
    """Parts hold ascending labels: inserting them in order keeps the lowest label on ties."""
    for r in range(scores.shape[0]):
        scores[r, :] = -np.inf
        ids[r, :] = -1
        for part in range(partial_scores.shape[0]):
            for place in range(scores.shape[1]):
                if partial_scores[part, r, place] > scores[r, scores.shape[1] - 1]:
                    _insert(scores[r], ids[r], partial_scores[part, r, place],
                            partial_ids[part, r, place])  # fmt: skip


@njit(nogil=True, cache=True)
def _add_products(out: Any, x: Any, matrix: Any) -> None:
    """``out += matrix @ x``; rows are asked for before they are multiplied."""
    row_bytes, ahead = 4 * matrix.shape[1], matrix.ctypes.data + _AHEAD
    for i in range(matrix.shape[0]):
        prefetch(ahead + i * row_bytes, row_bytes)
        out[i] += dot(x, matrix[i])


@njit(nogil=True, cache=True)
def rank_labels(
    hidden: Any, weight: Any, bias: Any, first: Any, last: Any, scores: Any, ids: Any, total: Any
) -> None:  # fmt: skip
    """Rank the labels ``first`` to ``last`` of a row; ``total`` may be empty."""
    k = scores.shape[0]
    scores[:] = -np.inf
    ids[:] = -1
    logits = np.empty(_ROW_LOGITS, np.float32)
    peak, exponentials = np.float32(-np.inf), 0.0
    for start in range(first, last, _ROW_LOGITS):
        stop = min(start + _ROW_LOGITS, last)
        block = logits[: stop - start]
        block[:] = bias[start:stop]
        _add_products(block, hidden, weight[start:stop])
        top = block[0]
        for value in block:
            top = top if value <= top else value  # NaN stays
        if not top <= scores[k - 1]:
            for i in range(block.shape[0]):
                if block[i] > scores[k - 1]:
                    _insert(scores, ids, block[i], start + i)
        if total.shape[0]:
            if not top <= peak:
                exponentials *= exp32(peak - top)
                peak = top
            exponentials += _exponential_sum(block, peak)
    if total.shape[0]:
        total[0], total[1] = peak, exponentials


@njit(nogil=True, cache=True, fastmath={"contract"})
def _exponential_sum(block: Any, peak: Any) -> Any:
    for i in range(block.shape[0]):
        block[i] = exp32(block[i] - peak)
    return _row_sum(block)


@njit(nogil=True, cache=True, error_model="numpy")
def target_weights(
    row_weight: Any, label_weight: Any, lengths: Any, factor: Any, each_row: bool
) -> None:
    """``row_weight`` and ``label_weight`` of softmax (``each_row``) or sigmoid."""
    for r in range(lengths.shape[0]):
        empty = each_row and lengths[r] == _ZERO
        row_weight[r] = _ZERO if empty else factor
        label_weight[r] = row_weight[r] / max(lengths[r], _ONE) if each_row else factor


@njit(nogil=True, cache=True, error_model="numpy")
def softmax_losses(out: Any, peak: Any, total: Any, partial_targets: Any, lengths: Any) -> None:
    """``out = peak + log(total) - target / length``; 0 for a row without labels."""
    for r in range(out.shape[0]):
        target = 0.0
        for part in range(partial_targets.shape[0]):
            target += partial_targets[part, r]
        if lengths[r] > _ZERO:
            out[r] = peak[r] + np.log(total[r]) - target / lengths[r]
        else:
            out[r] = 0.0


@njit(nogil=True, cache=True, error_model="numpy")
def softmax_scores(scores: Any, ids: Any, peak: Any, total: Any) -> None:
    """Logits to probabilities, then `_separate`."""
    for r in range(scores.shape[0]):
        for place in range(scores.shape[1]):
            if ids[r, place] >= 0:
                shifted = np.float64(scores[r, place]) - peak[r]
                scores[r, place] = np.exp(shifted) / total[r]
        _separate(scores[r], ids[r])


@njit(nogil=True, cache=True, error_model="numpy")
def sigmoid_scores(scores: Any, ids: Any) -> None:
    """Logits to probabilities, then `_separate`."""
    for r in range(scores.shape[0]):
        for place in range(scores.shape[1]):
            if ids[r, place] >= 0:
                scores[r, place] = 1.0 / (1.0 + np.exp(-np.float64(scores[r, place])))
        _separate(scores[r], ids[r])


@njit(nogil=True, cache=True)
def _separate(scores: Any, ids: Any) -> None:
    """Nudge scores that rounding made equal, where ordering by label would reverse the ranking."""
    last = 0
    while last < ids.shape[0] and ids[last] >= 0:
        last += 1
    for place in range(1, last):
        before = scores[place - 1]
        if _reversed(scores, ids, place) and before > _ZERO:
            scores[place] = np.nextafter(before, _ZERO)
    for place in range(last - 1, 0, -1):  # zeros cannot go lower: lift what is above them
        if _reversed(scores, ids, place):
            scores[place - 1] = np.nextafter(scores[place], np.float32(np.inf))


@njit(inline="always", cache=True)
def _reversed(scores: Any, ids: Any, place: Any) -> Any:
    above, below = scores[place - 1], scores[place]
    return below > above or (below == above and ids[place] < ids[place - 1])


@njit(inline="always", cache=True)
def first_at_least(indices: Any, start: Any, stop: Any, wanted: Any) -> Any:
    """Return the first place of ascending indices that holds at least ``wanted``."""
    low, high = start, stop
    while low < high:
        middle = (low + high) >> 1
        if indices[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def target_logits(
    out: Any, logits: Any, bias: Any, indptr: Any, indices: Any, rows: Any,
    first_row: int, first_label: int,
) -> None:  # fmt: skip
    """``out[r] += sum of logits[l, r] + bias[l]`` over row ``r``'s labels in the block."""
    last = first_label + logits.shape[0]
    for i in range(rows.shape[0]):
        stop = indptr[rows[i] + 1]
        j = first_at_least(indices, indptr[rows[i]], stop, first_label)
        while j < stop and indices[j] < last:
            label = indices[j] - first_label
            out[first_row + i] += logits[label, first_row + i] + bias[label]
            j += 1


@njit(nogil=True, cache=True)
def subtract_targets(
    delta: Any, bias_gradient: Any, weights: Any, indptr: Any, indices: Any, rows: Any,
    first_row: int, first_label: int,
) -> None:  # fmt: skip
    """Subtract ``weights[r]`` at row ``r``'s labels in the block, from the row sums too."""
    last = first_label + delta.shape[0]
    for i in range(rows.shape[0]):
        stop = indptr[rows[i] + 1]
        j = first_at_least(indices, indptr[rows[i]], stop, first_label)
        while j < stop and indices[j] < last:
            label = indices[j] - first_label
            delta[label, first_row + i] -= weights[first_row + i]
            bias_gradient[label] -= weights[first_row + i]
            j += 1


def rank_row(
    team: ThreadTeam, hidden: Array, weight: Array, bias: Array, scores: Array, ids: Array,
    total: Array | None,
) -> None:  # fmt: skip
    """Fill ``scores`` and ``ids`` ``(1, k)`` with the best logits of one row, best first.

    The logits are ``weight (labels, units) @ hidden (units,) + bias``; none is stored, and the
    weights are read once. ``total (2,)`` float64, if given, becomes the largest logit and the
    sum of all exponentials relative to it. Empty places are -1 and minus infinity.

    ``weight`` may be `Quantised`: then a few labels for each of the k are found by its first
    digits, and those are ranked by all it has; ``total`` counts the others as they were found.
    """
    threads = team.count
    best = np.empty((threads, *scores.shape), np.float32)
    labels = np.empty((threads, *ids.shape), np.int32)
    totals = np.empty((threads, 0 if total is None else 2))

    def visit(thread: int, first: int, last: int) -> None:
        lane = best[thread, 0], labels[thread, 0], totals[thread]
        if isinstance(weight, Quantised):
            parts = weight.first, weight.second, weight.scale
            most = candidates_of(ids.shape[1])
            rank_quantised(hidden, *parts, bias, first, last, *lane, most)
        else:
            rank_labels(hidden, weight, bias, first, last, *lane)

    used = team.run(weight.shape[0], row_grain(weight.shape[1]), visit)
    if used == 1:
        scores[:], ids[:] = best[0], labels[0]
    else:
        merge_top_k(best[:used], labels[:used], scores, ids)
    if total is not None and used == 1:
        total[:] = totals[0]
    elif total is not None:
        total[0] = totals[:used, 0].max()
        with np.errstate(invalid="ignore"):  # logits that are not finite
            total[1] = np.exp(totals[:used, 0] - total[0]) @ totals[:used, 1]


class CpuLabels:
    """Implements :class:`daskxml.kernels.labels.LabelKernels` for host memory."""

    _team: ThreadTeam
    # These take their operands as they are.
    softmax_block = staticmethod(softmax_block)
    merge_softmax = staticmethod(merge_softmax)
    softmax_factors = staticmethod(softmax_factors)
    softmax_losses = staticmethod(softmax_losses)
    scale_columns = staticmethod(scale_columns)
    top_k_block = staticmethod(top_k_block)
    merge_top_k = staticmethod(merge_top_k)
    softmax_scores = staticmethod(softmax_scores)
    sigmoid_scores = staticmethod(sigmoid_scores)

    def block_labels(self, rows: int, labels: int) -> int:
        return max(1, min(labels, max(64, min(2048, _BLOCK_FLOATS // max(1, rows)))))

    def for_label_blocks(self, labels: int, block: int, work: LabelWork) -> int:
        def visit(thread: int, first: int, last: int) -> None:
            for start in range(first, last, block):
                work(thread, start, min(start + block, last))

        return self._team.run(labels, 2 * block, visit)  # less is done before a thread wakes

    def target_weights(
        self, row_weight: Array, label_weight: Array, lengths: Array, factor: float,
        each_row: bool,
    ) -> None:  # fmt: skip
        target_weights(row_weight, label_weight, lengths, np.float32(factor), each_row)

    def target_logits(
        self, out: Array, logits: Array, bias: Array, y: Csr, rows: Array,
        first_row: int, first_label: int,
    ) -> None:  # fmt: skip
        target_logits(out, logits, bias, y.indptr, y.indices, rows, first_row, first_label)

    def subtract_targets(
        self, delta: Array, row_sums: Array, weights: Array, y: Csr, rows: Array,
        first_row: int, first_label: int,
    ) -> None:  # fmt: skip
        subtract_targets(
            delta, row_sums, weights, y.indptr, y.indices, rows, first_row, first_label
        )

    def sigmoid_block(
        self, logits: Array, bias: Array, weight: float, row_sums: Array, loss: Array, part: Array
    ) -> None:
        sigmoid_block(logits, bias, np.float32(weight), row_sums, loss, part)
