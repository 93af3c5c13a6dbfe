"""Loops over quantised matrices on a CPU: the first layer, and the ranking of one row.

One row reads every label's first digits once: a quarter of the memory of float32. Their products
with the row, itself rounded to 8 bits where nothing in it is negative, find a few candidates, which
both digits and the row as it is then rank. Where the processor has AVX-512 VNNI, 32 products of 8
bits are one instruction.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from daskxml.kernels.cpu.numba_math import emit_prefetch, exp32
from daskxml.kernels.cpu.tree import insert
from daskxml.kernels.quantised import FINE

_LEAST_CANDIDATES, _CANDIDATES = 32, 4  # at all, and for each label that is asked for
_BLOCK = 512  # labels whose logits are held at a time
_CHUNK = 32  # products of 8 bits in one instruction
_AHEAD = 8192  # bytes of weights that are asked for early: the processor stops where a page ends
_MOST_CODE = np.float32(255.0)
_MOST_TOTAL = (1 << 31) // 128  # of a row's codes
_ZERO, _SECOND = np.float32(0.0), np.float32(1 / FINE)
HAS_VNNI: Final[bool] = all(
    binding.get_host_cpu_features().get(name, False) for name in ("avx512vnni", "avx512vl")
)


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
            emit_prefetch(builder, builder.add(places[1], ir.Constant(places[1].type, _AHEAD)))
            operands = map(load, places)
            builder.store(builder.call(multiply, [builder.load(total), *operands]), total)
        add = function("llvm.vector.reduce.add.v8i32", ir.IntType(32), words)
        return builder.call(add, [builder.load(total)])

    return types.int32(types.intp, types.intp, types.intp), generate


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def multiply_loop(out: Any, codes: Any, weights: Any) -> None:
    """``out = weights @ codes`` of int8 ``(labels, units)`` and uint8, in int32."""
    for i in range(out.shape[0]):
        row, total = weights[i], np.int32(0)
        for j in range(codes.shape[0]):
            total = np.int32(total + np.int32(codes[j]) * np.int32(row[j]))
        out[i] = total


multiply_bytes = multiply_vnni if HAS_VNNI else multiply_loop


@njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz"})
def dot_converted(x: Any, weights: Any) -> Any:
    """The sum of products of float32 and int8."""
    total = _ZERO
    for j in range(x.shape[0]):
        total += np.float32(weights[j]) * x[j]
    return total


@njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz"})
def dot_digits(x: Any, first: Any, second: Any) -> Any:
    """The sum of products of float32 and both digits."""
    total = _ZERO
    for j in range(x.shape[0]):
        total += (np.float32(first[j]) + np.float32(second[j]) * _SECOND) * x[j]
    return total


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True, fastmath={"reassoc", "nnan", "nsz"})
def _largest(logits: Any) -> Any:
    most = logits[0]
    for i in range(logits.shape[0]):
        most = max(most, logits[i])
    return most


@njit(nogil=True, cache=True, fastmath={"contract"})
def _exponentials(out: Any, logits: Any, peak: Any) -> None:
    for i in range(logits.shape[0]):
        out[i] = exp32(logits[i] - peak)


@njit(nogil=True, cache=True, fastmath={"reassoc"})
def _sum(x: Any) -> Any:
    total = _ZERO
    for i in range(x.shape[0]):
        total += x[i]
    return total


@njit(nogil=True, cache=True)
def score_label(x: Any, first: Any, second: Any, scale: Any, bias: Any, label: Any) -> Any:
    """The logit of a label by all its digits."""
    if second.shape[0]:
        product = dot_digits(x, first[label], second[label])
    else:
        product = dot_converted(x, first[label])
    return product * scale[label] + bias[label]


@njit(nogil=True, cache=True)
def rank_labels(
    hidden: Any, first: Any, second: Any, scale: Any, bias: Any, start: int, stop: int,
    scores: Any, ids: Any, total: Any, candidates: int,
) -> None:  # fmt: skip
    """Rank the labels ``start`` to ``stop`` of a row; ``total`` may be empty."""
    codes = np.empty(hidden.shape[0], np.uint8)
    step = encode(codes, hidden)
    all_logits, all_parts = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.float32)
    products = np.empty(_BLOCK, np.int32)
    rough, labels = np.empty(candidates, np.float32), np.empty(candidates, np.int32)
    held, peak, exponentials = 0, np.float32(-np.inf), 0.0
    for begin in range(start, stop, _BLOCK):
        end = min(begin + _BLOCK, stop)
        logits, parts = all_logits[: end - begin], all_parts[: end - begin]
        block = slice(begin, end)
        row = products[: end - begin], codes, step, hidden
        score_block(logits, *row, first[block], scale[block], bias[block])
        most = _largest(logits)
        if held < candidates or most > rough[held - 1]:
            for i in range(end - begin):
                if held < candidates or logits[i] > rough[held - 1]:
                    held = insert(rough, labels, held, logits[i], begin + i)
        if total.shape[0]:
            if most > peak:
                exponentials *= exp32(peak - most)
                peak = most
            _exponentials(parts, logits, peak)
            exponentials += _sum(parts)
    found, known = 0, 0.0
    for i in range(held):
        label = labels[i]
        fine = score_label(hidden, first, second, scale, bias, label)
        if fine > peak:
            shrunk = np.exp(np.float64(peak) - fine)
            exponentials, known, peak = exponentials * shrunk, known * shrunk, fine
        added = np.exp(np.float64(fine) - peak)
        known += added
        exponentials += added - np.exp(np.float64(rough[i]) - peak)
        found = insert(scores, ids, found, fine, label)
    scores[found:] = -np.inf
    ids[found:] = -1
    if total.shape[0]:
        total[0], total[1] = peak, max(exponentials, known)  # no probability exceeds 1


def candidates_of(k: int) -> int:
    """Return how many labels both digits rank for the best k."""
    return max(_LEAST_CANDIDATES, _CANDIDATES * k)


@njit(nogil=True, cache=True, fastmath={"contract"})
def forward(
    out: Any, indptr: Any, indices: Any, data: Any, rows: Any, first: Any, second: Any, scale: Any,
    bias: Any, start: int, stop: int,
) -> None:  # fmt: skip
    """``out[i] = bias + x[rows[i]] @ weight`` for ``start <= i < stop``."""
    for i in range(start, stop):
        target = out[i]
        target[:] = bias
        for j in range(indptr[rows[i]], indptr[rows[i] + 1]):
            value, digits = data[j] * scale[indices[j]], first[indices[j]]
            for c in range(target.shape[0]):
                target[c] += value * np.float32(digits[c])
            if second.shape[0]:
                value, digits = value * _SECOND, second[indices[j]]
                for c in range(target.shape[0]):
                    target[c] += value * np.float32(digits[c])
