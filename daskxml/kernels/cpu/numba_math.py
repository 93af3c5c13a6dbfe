"""What the kernels share: ``exp``, a hash, 16-bit floats, reading ahead, sums, the best.

Numba has no float16 on a CPU, but LLVM has, and vectorizes the processor's own conversions: thirty
times the speed of NumPy's. On a processor without them LLVM would call a function that need not
exist: see `HAS_FLOAT16`.
"""

from __future__ import annotations

import platform
from typing import Any, Final

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from daskxml.core.jit import njit
from daskxml.data.order import GOLDEN, mix_bits

# exp(x) = 2**n * exp(r), n = round(x / ln 2), |r| <= ln(2) / 2; coefficients of Cephes' expf.
_LOG2E = np.float32(1.44269504088896341)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_C0 = np.float32(1.9875691500e-4)
_C1 = np.float32(1.3981999507e-3)
_C2 = np.float32(8.3334519073e-3)
_C3 = np.float32(4.1665795894e-2)
_C4 = np.float32(1.6666665459e-1)
_C5 = np.float32(5.0000001201e-1)
_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
_LOWEST = np.float32(-87.3)  # below, exp is zero (the subnormal numbers are left out)
_HIGHEST = np.float32(88.3)
# Adding 1.5 * 2**23 rounds to an integer, which then is in the low bits of the sum.
_ROUND = np.float32(12582912.0)

HAS_FLOAT16: Final[bool] = platform.machine() in ("aarch64", "arm64") or bool(
    binding.get_host_cpu_features().get("f16c", False)
)

CACHE_LINE = 64  # bytes

_GOLDEN = np.uint64(GOLDEN)


@intrinsic
def float16_bits(typing_context: Any, value: Any) -> Any:
    """The 16 bits of the nearest float16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        half = builder.fptrunc(arguments[0], ir.HalfType())
        return builder.bitcast(half, ir.IntType(16))

    return types.uint16(types.float32), generate


@intrinsic
def float16_value(typing_context: Any, bits: Any) -> Any:
    """The float32 that equals a float16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        half = builder.bitcast(arguments[0], ir.HalfType())
        return builder.fpext(half, ir.FloatType())

    return types.float32(types.uint16), generate


def emit_prefetch(builder: Any, address: Any) -> None:
    """Write the instruction that brings the cache line at an address into the caches."""
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
    hint = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    for_reading_into_all_caches = [ir.Constant(word, number) for number in (0, 3, 1)]
    builder.call(hint, [builder.inttoptr(address, byte), *for_reading_into_all_caches])


@intrinsic
def _prefetch_line(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at an address, which need not be the process's own."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit_prefetch(builder, arguments[0])
        return context.get_dummy_value()

    return types.void(types.intp), generate


@njit(inline="always")
def prefetch(address: Any, size: Any) -> None:
    """Ask for so many bytes from an address on, before they are read."""
    for place in range(0, size, CACHE_LINE):
        _prefetch_line(address + place)


@njit(inline="always", fastmath={"contract"})
def exp32(x: Any) -> Any:
    """``exp(x)`` in float32 to 2 units in the last place; 0 below -87.3, exp(88.3) above 88.3.

    Branch-free, so that LLVM vectorizes the loop around it (Numba's own ``exp`` is a call).
    """
    raised = _LOWEST if x < _LOWEST else x  # comparisons that let NaN through
    bounded = _HIGHEST if raised > _HIGHEST else raised
    shifted = bounded * _LOG2E + _ROUND
    n = shifted - _ROUND
    r = bounded - n * _LN2_HIGH - n * _LN2_LOW
    p = ((((_C0 * r + _C1) * r + _C2) * r + _C3) * r + _C4) * r + _C5
    n_bits = np.float32(shifted).view(np.uint32)  # modulo 2**8, with the exponent's bias:
    power = np.uint32((n_bits + np.uint32(127)) << np.uint32(23))
    result = (p * (r * r) + r + _ONE) * np.uint32(power).view(np.float32)
    return _ZERO if x <= _LOWEST else result


@njit(inline="always")
def hash64(key: Any, index: Any) -> Any:
    """Number ``index`` of the stream ``key``: SplitMix64 (Steele, Lea and Flood 2014)."""
    return mix_bits(np.uint64(key) + (np.uint64(index) + np.uint64(1)) * _GOLDEN)


@njit(inline="always")
def drop_or_scale(value: Any, key: Any, counter: Any, limit: Any, scale: Any) -> Any:
    """``value * scale``, or zero where the hash of ``counter`` falls below ``limit``."""
    return value * scale if (hash64(key, counter) >> np.uint64(32)) >= limit else _ZERO


@njit(nogil=True, fastmath={"contract", "reassoc", "nsz"})
def dot(x: Any, y: Any) -> Any:
    """The sum of products of two vectors of equal length."""
    total = _ZERO
    for j in range(x.shape[0]):
        total += x[j] * y[j]
    return total


@njit(nogil=True, fastmath={"reassoc"})
def sum32(x: Any) -> Any:
    """The sum of a few numbers, in an order on which the bits of trained models depend.

    Separate from its callers: reassociation would break the rounding trick inside `exp32`.
    """
    total = _ZERO
    for value in x:
        total += value
    return total


@njit(nogil=True, fastmath={"reassoc"})
def fast_sum(x: Any) -> Any:
    """As `sum32`, in another order, which Numba's loop over numbers lets vectorize."""
    total = _ZERO
    for j in range(x.shape[0]):
        total += x[j]
    return total


@njit(nogil=True, fastmath={"contract"})
def exponentials(logits: Any, peak: Any) -> None:
    """``logits = exp(logits - peak)``."""
    for i in range(logits.shape[0]):
        logits[i] = exp32(logits[i] - peak)


@njit(nogil=True)
def insert(scores: Any, ids: Any, count: int, score: Any, item: Any) -> int:
    """Insert into the best so far, descending, ties by the lowest id; returns their number."""
    place = count
    while place > 0 and (
        scores[place - 1] < score or (scores[place - 1] == score and ids[place - 1] > item)
    ):
        place -= 1
    if place == scores.shape[0]:
        return count
    for i in range(min(count, scores.shape[0] - 1), place, -1):
        scores[i], ids[i] = scores[i - 1], ids[i - 1]
    scores[place], ids[place] = score, item
    return min(count + 1, scores.shape[0])
