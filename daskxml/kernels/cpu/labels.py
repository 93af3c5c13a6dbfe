# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""Kernels on blocks of labels on a CPU: softmax, sigmoid, targets and their weights.

A block is label-major, ``(labels, rows)``, so all loops run along the batch, where maximum, sum and
exponential are elementwise and vectorize without any reduction. Where something is divided,
``error_model="numpy"`` keeps Numba from testing for zero each time, which would stop the
vectorizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.core.jit import njit
from daskxml.kernels.cpu import ranking
from daskxml.kernels.cpu.numba_math import exp32, sum32
from daskxml.kernels.cpu.thread_team import ThreadTeam
from daskxml.kernels.operands import LabelWork

_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
_BLOCK_FLOATS = 1 << 17  # half a megabyte of logits: a block stays in a core's L2 cache
_NONE = np.empty(0, np.float32)  # weights where all are 1


@njit(nogil=True, fastmath={"contract"})
def softmax_block(logits: Any, bias: Any, peak: Any, total: Any, part: Any) -> None:
    """One block of an online softmax (Milakov and Gimelshein 2018), in place.

    Raises ``peak (rows,)`` to cover ``logits + bias``, leaves ``exp(logits + bias - peak)`` in
    ``logits (block, rows)``, and keeps ``total (rows,)`` float64 the sum of all exponentials so far
    relative to the new peak. ``part (rows,)`` is scratch: the block's own sum, in float32. Start
    from ``-inf`` and 0.
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


@njit(nogil=True)
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


@njit(nogil=True, error_model="numpy")
def softmax_factors(out: Any, reference: Any, peak: Any, total: Any, weight: Any) -> None:
    """``out = weight * exp(reference - peak) / total``, all ``(rows,)``.

    The factor that turns exponentials relative to the peak ``reference`` into probabilities.
    """
    for r in range(out.shape[0]):
        out[r] = weight[r] * exp32(reference[r] - peak[r]) / total[r]


@njit(nogil=True, fastmath={"reassoc"})
def scale_columns(delta: Any, factors: Any, row_sums: Any) -> None:
    """``delta (block, rows) *= factors (rows,)``; ``row_sums (block,)`` of it."""
    for label in range(delta.shape[0]):
        total = _ZERO
        for r in range(delta.shape[1]):
            value = delta[label, r] * factors[r]
            delta[label, r] = value
            total += value
        row_sums[label] = total


@njit(nogil=True, fastmath={"contract"}, error_model="numpy")
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
            row_sums[label] = sum32(row)
        for r in range(rows):
            loss[r] += np.log(np.float64(product[r])) + positive[r]


@njit(nogil=True, error_model="numpy")
def target_weights(
    row_weight: Any, label_weight: Any, lengths: Any, factor: Any, each_row: bool
) -> None:
    """``row_weight`` and ``label_weight`` of softmax (``each_row``) or sigmoid."""
    for r in range(lengths.shape[0]):
        empty = each_row and lengths[r] == _ZERO
        row_weight[r] = _ZERO if empty else factor
        label_weight[r] = row_weight[r] / max(lengths[r], _ONE) if each_row else factor


@njit(inline="always")
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


@njit(nogil=True)
def target_logits(
    out: Any, logits: Any, bias: Any, label_weights: Any, y: Any, rows: Any,
    first_row: int, first_label: int, each_row: bool,
) -> None:  # fmt: skip
    """Add to ``out[r]`` what row ``r``'s labels in the block take from its loss.

    That is the sum of ``logits[l, r] + bias[l]`` where there are no ``label_weights``.
    """
    indptr, indices = y
    last = first_label + logits.shape[0]
    for i in range(rows.shape[0]):
        stop = indptr[rows[i] + 1]
        j = first_at_least(indices, indptr[rows[i]], stop, first_label)
        while j < stop and indices[j] < last:
            label = indices[j] - first_label
            z = np.float64(logits[label, first_row + i] + bias[label])
            if label_weights.shape[0] == 0:
                out[first_row + i] += z
            elif each_row:
                out[first_row + i] += label_weights[indices[j]] * z
            else:
                softplus = max(-z, 0.0) + np.log1p(np.exp(-abs(z)))
                out[first_row + i] += z - (label_weights[indices[j]] - 1.0) * softplus
            j += 1


@njit(nogil=True)
def subtract_targets(
    delta: Any, row_sums: Any, weights: Any, label_weights: Any, y: Any, rows: Any,
    first_row: int, first_label: int, each_row: bool,
) -> None:  # fmt: skip
    """From probabilities to the gradient at a row's labels in the block, and in the row sums."""
    indptr, indices = y
    last = first_label + delta.shape[0]
    for i in range(rows.shape[0]):
        stop = indptr[rows[i] + 1]
        j = first_at_least(indices, indptr[rows[i]], stop, first_label)
        while j < stop and indices[j] < last:
            label, weight = indices[j] - first_label, weights[first_row + i]
            if label_weights.shape[0] == 0:
                delta[label, first_row + i] -= weight
                row_sums[label] -= weight
            else:
                held, factor = delta[label, first_row + i], label_weights[indices[j]]
                new = held - factor * weight if each_row else factor * (held - weight)
                delta[label, first_row + i] = new
                row_sums[label] += new - held
            j += 1


@njit(nogil=True, error_model="numpy")
def softmax_losses(
    out: Any, peak: Any, total: Any, partial_targets: Any, lengths: Any, means: Any, weights: Any
) -> None:
    """``out = weights * (means * (peak + log(total)) - target / lengths)``; 0 without labels.

    ``means`` and ``weights`` may be empty: all are 1.
    """
    for r in range(out.shape[0]):
        target = 0.0
        for part in range(partial_targets.shape[0]):
            target += partial_targets[part, r]
        out[r] = 0.0
        if lengths[r] > _ZERO:
            log_sum, mean = peak[r] + np.log(total[r]), target / lengths[r]
            if means.shape[0]:
                out[r] = weights[r] * (means[r] * log_sum - mean)
            else:
                out[r] = log_sum - mean


@njit(nogil=True, error_model="numpy")
def _batch_weights(
    out: Any, means: Any, weights: Any, label_weights: Any, indptr: Any, indices: Any, rows: Any
) -> None:
    """Gather the weights of rows, and average those of their labels."""
    for i in range(rows.shape[0]):
        out[i] = weights[rows[i]] if weights.shape[0] else _ONE
        start, stop = indptr[rows[i]], indptr[rows[i] + 1]
        total = 0.0
        for j in range(start, stop):
            total += label_weights[indices[j]]
        means[i] = total / (stop - start) if stop > start else _ONE


@dataclass(frozen=True, slots=True)
class BatchWeights:
    """Weights of a batch's rows, and of their labels.

    With weights ``w`` of rows and ``c`` of labels the loss of a row whose ``n`` labels are ``T`` is

    =======  ==========================================================================
    softmax  ``w * sum of c[l] * -log p[l] over T, / n``
    sigmoid  ``w * (sum of c[l] * -log p[l] over T + sum of -log(1 - p[l]) over the others)``
    =======  ==========================================================================

    Attributes
    ----------
    rows, means
        ``(rows,)`` float32: of each row, and the mean of its labels; see `gather`.
    labels
        ``(labels,)`` float32: of all labels.
    is_softmax
        Which loss they are for.
    """

    rows: Array
    means: Array
    labels: Array
    is_softmax: bool

    def gather(self, span: slice, weights: Array | None, y: Csr, rows: Array) -> None:
        """Fill ``rows[span]`` with ``weights[rows]``, and ``means[span]`` from their labels.

        Without ``weights`` a row counts 1; so does the mean of no labels.
        """
        held = _NONE if weights is None else weights
        place = y.indptr, y.indices, rows
        _batch_weights(self.rows[span], self.means[span], held, self.labels, *place)

    def add_target_logits(
        self, out: Array, logits: Array, bias: Array, y: Csr, rows: Array, first_row: int,
        first_label: int,
    ) -> None:  # fmt: skip
        """Add to ``out`` what a row's labels in the block take from its loss.

        With ``z = logits + bias`` and the label's weight ``c`` that is ``c * z`` in softmax. In
        sigmoid it is ``z - (c - 1) * log(1 + exp(-z))``: what remains of ``log(1 + exp(z))`` is
        ``c * log(1 + exp(-z))``.
        """
        place = (y.indptr, y.indices), rows, first_row, first_label, self.is_softmax
        target_logits(out, logits, bias, self.labels, *place)

    def subtract_targets(
        self, delta: Array, row_sums: Array, weights: Array, y: Csr, rows: Array, first_row: int,
        first_label: int,
    ) -> None:  # fmt: skip
        """Turn probabilities into the gradient at rows' labels in the block, and in ``row_sums``.

        With ``w = weights[first_row + i]`` and the label's weight ``c`` an entry ``d`` becomes
        ``d - c * w`` in softmax, ``c * (d - w)`` in sigmoid.
        """
        place = (y.indptr, y.indices), rows, first_row, first_label, self.is_softmax
        subtract_targets(delta, row_sums, weights, self.labels, *place)

    def softmax_losses(
        self, out: Array, peak: Array, total: Array, partial_targets: Array, lengths: Array
    ) -> None:
        """``out = rows * (means * (peak + log(total)) - target / lengths)``; 0 without labels.

        ``partial_targets (parts, rows)`` are sums of `add_target_logits`.
        """
        softmax_losses(out, peak, total, partial_targets, lengths, self.means, self.rows)


_EQUAL = BatchWeights(_NONE, _NONE, _NONE, True)  # which are all 1: both losses are the same


class CpuLabels:
    """A CPU's kernels on blocks of labels.

    `softmax_block`, `softmax_factors`, `scale_columns` and `subtract_targets` are its steps of
    softmax; they are not in `daskxml.kernels.Kernels`.
    """

    has_fused_softmax = False
    _team: ThreadTeam
    # These take their operands as they are.
    softmax_block = staticmethod(softmax_block)
    merge_softmax = staticmethod(merge_softmax)
    softmax_factors = staticmethod(softmax_factors)
    scale_columns = staticmethod(scale_columns)
    top_k_block = staticmethod(ranking.top_k_block)
    merge_top_k = staticmethod(ranking.merge_top_k)
    softmax_scores = staticmethod(ranking.softmax_scores)
    sigmoid_scores = staticmethod(ranking.sigmoid_scores)
    target_logits = staticmethod(_EQUAL.add_target_logits)
    subtract_targets = staticmethod(_EQUAL.subtract_targets)
    softmax_losses = staticmethod(_EQUAL.softmax_losses)

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

    def sigmoid_block(
        self, logits: Array, bias: Array, weight: float, row_sums: Array, loss: Array, part: Array
    ) -> None:
        sigmoid_block(logits, bias, np.float32(weight), row_sums, loss, part)
