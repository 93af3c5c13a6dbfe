"""Ranking labels on a CPU: the best k of blocks of logits, and all of one row.

One row of a network whose weights are quantised reads every label's first digits once: a quarter of
the memory of float32. Their products with the row, itself rounded to 8 bits where nothing in it is
negative, find a few candidates, which both digits and the row as it is then rank. Where the
processor has AVX-512 VNNI, 32 products of 8 bits are one instruction.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from daskxml.core.arrays import Array
from daskxml.core.jit import njit
from daskxml.kernels.cpu.numba_math import (
    dot,
    emit_prefetch,
    exp32,
    exponentials,
    fast_sum,
    insert,
    prefetch,
    sum32,
)
from daskxml.kernels.cpu.thread_team import ThreadTeam, row_grain
from daskxml.kernels.operands import FINE, Quantised

_LEAST_CANDIDATES, _CANDIDATES = 32, 4  # at all, and for each label that is asked for
_BLOCK = 512  # labels of one row whose logits are held at a time: 2 KiB
_CHUNK = 32  # products of 8 bits in one instruction
# Bytes of weights that are asked for early: the processor stops where a page ends.
_AHEAD, _BYTES_AHEAD = 4096, 8192
_MOST_CODE = np.float32(255.0)
_MOST_TOTAL = (1 << 31) // 128  # of a row's codes
_ZERO, _SECOND = np.float32(0.0), np.float32(1 / FINE)
HAS_VNNI: Final[bool] = all(
    binding.get_host_cpu_features().get(name, False) for name in ("avx512vnni", "avx512vl")
)


@njit(nogil=True)
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
                _displace(scores[r], ids[r], value, first_label + label)
                lowest[r] = scores[r, k - 1]


@njit(nogil=True)
def _displace(scores: Any, ids: Any, value: Any, label: Any) -> None:
    """Insert a score above the last of k; twice as fast as `insert`, which breaks ties as well."""
    place = scores.shape[0] - 1
    while place > 0 and value > scores[place - 1]:
        scores[place] = scores[place - 1]
        ids[place] = ids[place - 1]
        place -= 1
    scores[place] = value
    ids[place] = label


@njit(nogil=True)
def merge_top_k(partial_scores: Any, partial_ids: Any, scores: Any, ids: Any) -> None:
    """Parts hold ascending labels: inserting them in order keeps the lowest label on ties."""
    k = scores.shape[1]
    for r in range(scores.shape[0]):
        scores[r, :] = -np.inf
        ids[r, :] = -1
        for part in range(partial_scores.shape[0]):
            for place in range(k):
                value = partial_scores[part, r, place]
                if value > scores[r, k - 1]:
                    _displace(scores[r], ids[r], value, partial_ids[part, r, place])


@njit(nogil=True, error_model="numpy")
def softmax_scores(scores: Any, ids: Any, peak: Any, total: Any) -> None:
    """Logits to probabilities, then `_separate`."""
    for r in range(scores.shape[0]):
        for place in range(scores.shape[1]):
            if ids[r, place] >= 0:
                shifted = np.float64(scores[r, place]) - peak[r]
                scores[r, place] = np.exp(shifted) / total[r]
        _separate(scores[r], ids[r])


@njit(nogil=True, error_model="numpy")
def sigmoid_scores(scores: Any, ids: Any) -> None:
    """Logits to probabilities, then `_separate`."""
    for r in range(scores.shape[0]):
        for place in range(scores.shape[1]):
            if ids[r, place] >= 0:
                scores[r, place] = 1.0 / (1.0 + np.exp(-np.float64(scores[r, place])))
        _separate(scores[r], ids[r])


@njit(nogil=True)
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


@njit(inline="always")
def _reversed(scores: Any, ids: Any, place: Any) -> Any:
    above, below = scores[place - 1], scores[place]
    return below > above or (below == above and ids[place] < ids[place - 1])


# -- one row ----------------------------------------------------------------------------------


@njit(nogil=True)
def _add_products(out: Any, x: Any, matrix: Any) -> None:
    """``out += matrix @ x``; rows are asked for before they are multiplied."""
    row_bytes, ahead = 4 * matrix.shape[1], matrix.ctypes.data + _AHEAD
    for i in range(matrix.shape[0]):
        prefetch(ahead + i * row_bytes, row_bytes)
        out[i] += dot(x, matrix[i])


@njit(nogil=True)
def rank_labels(
    hidden: Any, weight: Any, bias: Any, first: Any, last: Any, scores: Any, ids: Any, total: Any
) -> None:  # fmt: skip
    """Rank the labels ``first`` to ``last`` of a row; ``total`` may be empty."""
    k = scores.shape[0]
    scores[:] = -np.inf
    ids[:] = -1
    logits = np.empty(_BLOCK, np.float32)
    peak, mass = np.float32(-np.inf), 0.0
    for start in range(first, last, _BLOCK):
        stop = min(start + _BLOCK, last)
        block = logits[: stop - start]
        block[:] = bias[start:stop]
        _add_products(block, hidden, weight[start:stop])
        top = block[0]
        for value in block:
            top = top if value <= top else value  # NaN stays
        if not top <= scores[k - 1]:
            for i in range(block.shape[0]):
                if block[i] > scores[k - 1]:
                    _displace(scores, ids, block[i], start + i)
        if total.shape[0]:
            if not top <= peak:
                mass *= exp32(peak - top)
                peak = top
            exponentials(block, peak)
            mass += sum32(block)
    if total.shape[0]:
        total[0], total[1] = peak, mass


@intrinsic
def _chunk_products(typing_context: Any, codes: Any, weights: Any, chunks: Any) -> Any:
    """The sum of the products of unsigned and of signed bytes at two addresses, as int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words = ir.VectorType(ir.IntType(32), _CHUNK // 4)

        def function(name: str, result: Any, *operands: Any) -> Any:
            kind = ir.FunctionType(result, operands)
            return cgutils.get_or_insert_function(builder.module, kind, name)

        def address(base: Any, number: Any) -> Any:
            return builder.add(base, builder.mul(number, ir.Constant(number.type, _CHUNK)))

        def load(place: Any) -> Any:
            value = builder.load(builder.inttoptr(place, words.as_pointer()))
            value.align = 1
            return value

        multiply = function("llvm.x86.avx512.vpdpbusd.256", words, words, words, words)
        total = cgutils.alloca_once_value(builder, ir.Constant(words, [0] * (_CHUNK // 4)))
        with cgutils.for_range(builder, arguments[2]) as loop:
            places = [address(base, loop.index) for base in arguments[:2]]
            ahead = ir.Constant(places[1].type, _BYTES_AHEAD)
            emit_prefetch(builder, builder.add(places[1], ahead))
            operands = map(load, places)
            builder.store(builder.call(multiply, [builder.load(total), *operands]), total)
        add = function("llvm.vector.reduce.add.v8i32", ir.IntType(32), words)
        return builder.call(add, [builder.load(total)])

    return types.int32(types.intp, types.intp, types.intp), generate


@njit(nogil=True)
def multiply_vnni(out: Any, codes: Any, weights: Any) -> None:
    """As `multiply_loop`, 32 products in an instruction."""
    units = codes.shape[0]
    whole = units // _CHUNK
    codes_at, weights_at = codes.ctypes.data, weights.ctypes.data
    for i in range(out.shape[0]):
        total = np.int32(_chunk_products(codes_at, weights_at + i * units, whole))
        for j in range(whole * _CHUNK, units):
            total = np.int32(total + np.int32(codes[j]) * np.int32(weights[i, j]))
        out[i] = total


@njit(nogil=True)
def multiply_loop(out: Any, codes: Any, weights: Any) -> None:
    """``out = weights @ codes`` of int8 ``(labels, units)`` and uint8, in int32."""
    for i in range(out.shape[0]):
        row, total = weights[i], np.int32(0)
        for j in range(codes.shape[0]):
            total = np.int32(total + np.int32(codes[j]) * np.int32(row[j]))
        out[i] = total


multiply_bytes = multiply_vnni if HAS_VNNI else multiply_loop


@njit(nogil=True, fastmath={"contract", "reassoc", "nsz"})
def dot_converted(x: Any, weights: Any) -> Any:
    """The sum of products of float32 and int8."""
    total = _ZERO
    for j in range(x.shape[0]):
        total += np.float32(weights[j]) * x[j]
    return total


@njit(nogil=True, fastmath={"contract", "reassoc", "nsz"})
def dot_digits(x: Any, first: Any, second: Any) -> Any:
    """The sum of products of float32 and both digits."""
    total = _ZERO
    for j in range(x.shape[0]):
        total += (np.float32(first[j]) + np.float32(second[j]) * _SECOND) * x[j]
    return total


@njit(nogil=True)
def encode(codes: Any, x: Any) -> Any:
    """Round numbers to 8 bits; returns what 1 stands for.

    That is 0 where it cannot be done: one is negative or not finite, all are 0, or a product with
    bytes might not fit 32 bits.
    """
    least, most = _ZERO, _ZERO
    for j in range(x.shape[0]):
        least, most = min(least, x[j]), max(most, x[j])
    if not (least >= _ZERO and _ZERO < most < np.inf):
        return _ZERO
    total, step = np.int64(0), most / _MOST_CODE
    for j in range(x.shape[0]):
        codes[j] = np.uint8(min(np.rint(x[j] / step), _MOST_CODE)) if step > _ZERO else np.uint8(0)
        total += np.int64(codes[j])
    return step if total <= _MOST_TOTAL else _ZERO


@njit(nogil=True)
def score_block(
    logits: Any, products: Any, codes: Any, step: Any, x: Any, first: Any, scale: Any, bias: Any
) -> None:
    """The logits of a block of labels by their first digits, and by the row in 8 bits if it can.

    ``codes`` and ``step`` are those of `encode`, ``products`` scratch of as many int32 as logits.
    """
    if step > _ZERO:
        multiply_bytes(products, codes, first)
        for i in range(logits.shape[0]):
            logits[i] = np.float32(products[i]) * (step * scale[i]) + bias[i]
    else:
        for i in range(logits.shape[0]):
            logits[i] = dot_converted(x, first[i]) * scale[i] + bias[i]


@njit(nogil=True, fastmath={"reassoc", "nnan", "nsz"})
def _largest(logits: Any) -> Any:
    most = logits[0]
    for i in range(logits.shape[0]):
        most = max(most, logits[i])
    return most


@njit(nogil=True)
def score_label(x: Any, first: Any, second: Any, scale: Any, bias: Any, label: Any) -> Any:
    """The logit of a label by all its digits."""
    if second.shape[0]:
        product = dot_digits(x, first[label], second[label])
    else:
        product = dot_converted(x, first[label])
    return product * scale[label] + bias[label]


@njit(nogil=True)
def rank_quantised(
    hidden: Any, first: Any, second: Any, scale: Any, bias: Any, start: int, stop: int,
    scores: Any, ids: Any, total: Any, candidates: int,
) -> None:  # fmt: skip
    """Rank the labels ``start`` to ``stop`` of a row; ``total`` may be empty."""
    codes = np.empty(hidden.shape[0], np.uint8)
    step = encode(codes, hidden)
    all_logits, products = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.int32)
    rough, labels = np.empty(candidates, np.float32), np.empty(candidates, np.int32)
    held, peak, mass = 0, np.float32(-np.inf), 0.0
    for begin in range(start, stop, _BLOCK):
        end = min(begin + _BLOCK, stop)
        logits, block = all_logits[: end - begin], slice(begin, end)
        row = products[: end - begin], codes, step, hidden
        score_block(logits, *row, first[block], scale[block], bias[block])
        most = _largest(logits)
        if held < candidates or most > rough[held - 1]:
            for i in range(end - begin):
                if held < candidates or logits[i] > rough[held - 1]:
                    held = insert(rough, labels, held, logits[i], begin + i)
        if total.shape[0]:
            if most > peak:
                mass *= exp32(peak - most)
                peak = most
            exponentials(logits, peak)
            mass += fast_sum(logits)
    found, known = 0, 0.0
    for i in range(held):
        label = labels[i]
        fine = score_label(hidden, first, second, scale, bias, label)
        if fine > peak:
            shrunk = np.exp(np.float64(peak) - fine)
            mass, known, peak = mass * shrunk, known * shrunk, fine
        added = np.exp(np.float64(fine) - peak)
        known += added
        mass += added - np.exp(np.float64(rough[i]) - peak)
        found = insert(scores, ids, found, fine, label)
    scores[found:] = -np.inf
    ids[found:] = -1
    if total.shape[0]:
        total[0], total[1] = peak, max(mass, known)  # no probability exceeds 1


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
            most = max(_LEAST_CANDIDATES, _CANDIDATES * ids.shape[1])
            rank_quantised(hidden, *parts, bias, first, last, *lane, most)
        else:
            rank_labels(hidden, weight, bias, first, last, *lane)

    used = team.run(weight.shape[0], row_grain(weight.shape[1]), visit)
    merge_top_k(best[:used], labels[:used], scores, ids)
    if total is not None:
        total[0] = totals[:used, 0].max()
        with np.errstate(invalid="ignore"):  # logits that are not finite
            total[1] = np.exp(totals[:used, 0] - total[0]) @ totals[:used, 1]
