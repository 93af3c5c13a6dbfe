"""Numba kernels over a block of labels: softmax, sigmoid and the best k, label-major.

A block is ``(labels, rows)``: one contiguous row per label. All loops therefore run along the
batch, where maximum, sum and exponential are elementwise and vectorise without any reduction.
Where something is divided, ``error_model="numpy"`` keeps Numba from testing for zero each time,
which would stop the vectoriser.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from daskxml.ops.numba_math import exp32

_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)


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
    """Several lanes' ``(peak, total)`` into one, lane by lane."""
    peak[:] = peaks[0]
    total[:] = totals[0]
    for lane in range(1, peaks.shape[0]):
        for r in range(peak.shape[0]):
            top = peak[r] if peaks[lane, r] <= peak[r] else peaks[lane, r]
            total[r] = total[r] * exp32(peak[r] - top) + totals[lane, r] * exp32(
                peaks[lane, r] - top
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
    """A function of its own: reassociation would break the rounding trick inside ``exp32``."""
    total = _ZERO
    for value in row:
        total += value
    return total


@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def sigmoid_block(logits: Any, bias: Any, weight: Any, row_sums: Any, loss: Any, part: Any) -> None:
    """``z = logits + bias; logits = weight * sigmoid(z); loss += log(1 + exp(z))`` by column.

    One exponential ``e = exp(-|z|)`` serves both. Sixteen labels share one logarithm: their
    ``1 + e`` lie in 1..2, so the product stays below 2**16. ``part (2, rows)`` is scratch.
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
        for r in range(rows):  # vectorises; the slow loop below runs for few labels
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
def merge_top_k(lane_scores: Any, lane_ids: Any, scores: Any, ids: Any) -> None:
    """Lanes hold ascending labels: inserting them in order keeps the lowest label on ties."""
    for r in range(scores.shape[0]):
        scores[r, :] = -np.inf
        ids[r, :] = -1
        for lane in range(lane_scores.shape[0]):
            for place in range(scores.shape[1]):
                if lane_scores[lane, r, place] > scores[r, scores.shape[1] - 1]:
                    _insert(scores[r], ids[r], lane_scores[lane, r, place],
                            lane_ids[lane, r, place])  # fmt: skip


@njit(nogil=True, cache=True, error_model="numpy")
def target_weights(
    row_weight: Any, label_weight: Any, lengths: Any, factor: Any, each_row: bool
) -> None:
    """See the Protocol."""
    for r in range(lengths.shape[0]):
        empty = each_row and lengths[r] == _ZERO
        row_weight[r] = _ZERO if empty else factor
        label_weight[r] = row_weight[r] / max(lengths[r], _ONE) if each_row else factor


@njit(nogil=True, cache=True, error_model="numpy")
def softmax_losses(out: Any, peak: Any, total: Any, lane_target: Any, lengths: Any) -> None:
    """``out = peak + log(total) - target / length``; 0 for a row without labels."""
    for r in range(out.shape[0]):
        target = 0.0
        for lane in range(lane_target.shape[0]):
            target += lane_target[lane, r]
        if lengths[r] > _ZERO:
            out[r] = peak[r] + np.log(total[r]) - target / lengths[r]
        else:
            out[r] = 0.0


@njit(nogil=True, cache=True)
def sum64(x: Any) -> float:
    """The sum, in order."""
    total = 0.0
    for value in x:
        total += value
    return total


@njit(nogil=True, cache=True, error_model="numpy")
def softmax_scores(scores: Any, ids: Any, peak: Any, total: Any) -> None:
    """Logits to probabilities, then :func:`_separate`."""
    for r in range(scores.shape[0]):
        for place in range(scores.shape[1]):
            if ids[r, place] >= 0:
                shifted = np.float64(scores[r, place]) - peak[r]
                scores[r, place] = np.exp(shifted) / total[r]
        _separate(scores[r], ids[r])


@njit(nogil=True, cache=True, error_model="numpy")
def sigmoid_scores(scores: Any, ids: Any) -> None:
    """Logits to probabilities, then :func:`_separate`."""
    for r in range(scores.shape[0]):
        for place in range(scores.shape[1]):
            if ids[r, place] >= 0:
                scores[r, place] = 1.0 / (1.0 + np.exp(-np.float64(scores[r, place])))
        _separate(scores[r], ids[r])


@njit(nogil=True, cache=True)
def _separate(scores: Any, ids: Any) -> None:
    """Nudge scores that rounding made equal, where the labels' order would reverse the rank."""
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
