"""Numba kernels between float32 and float16 or bfloat16, whose bits they hold as uint16.

Numba has no float16 on a CPU, but LLVM has, and vectorises the processor's own conversions: thirty
times the speed of NumPy's. Where a processor has none, LLVM would call a function that need not be
there; `IS_NATIVE` says so.
"""

from __future__ import annotations

import platform
from typing import Any, Final

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import njit, types, uint16, uint32
from numba.extending import intrinsic

IS_NATIVE: Final[bool] = platform.machine() in ("aarch64", "arm64") or bool(
    binding.get_host_cpu_features().get("f16c", False)
)


@intrinsic
def _to_half(typing_context: Any, value: Any) -> Any:
    """The 16 bits of the float16 that is nearest to a float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        half = builder.fptrunc(arguments[0], ir.HalfType())
        return builder.bitcast(half, ir.IntType(16))

    return types.uint16(types.float32), generate


@intrinsic
def _from_half(typing_context: Any, bits: Any) -> Any:
    """The float32 that equals a float16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        half = builder.bitcast(arguments[0], ir.HalfType())
        return builder.fpext(half, ir.FloatType())

    return types.float32(types.uint16), generate


@njit(nogil=True, cache=True)
def narrow(out: Any, x: Any, factor: Any) -> None:
    """``out = factor * x``, from float32 to float16."""
    for i in range(out.shape[0]):
        out[i] = _to_half(factor * x[i])


@njit(nogil=True, cache=True)
def widen(out: Any, x: Any, factor: Any) -> None:
    """``out = factor * x``, from float16 to float32."""
    for i in range(out.shape[0]):
        out[i] = factor * _from_half(x[i])


@intrinsic
def _bits(typing_context: Any, value: Any) -> Any:
    """The 32 bits of a float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@intrinsic
def _value(typing_context: Any, bits: Any) -> Any:
    """The float32 with these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@njit(nogil=True, cache=True)
def shorten(out: Any, x: Any, factor: Any) -> None:
    """``out = factor * x``, from float32 to bfloat16: the nearest, ties to even."""
    for i in range(out.shape[0]):
        value = factor * x[i]
        bits = _bits(value)
        rounded = (bits + uint32(0x7FFF) + ((bits >> uint32(16)) & uint32(1))) >> uint32(16)
        quiet = (bits >> uint32(16)) | uint32(0x40)  # of a NaN, which rounding could end
        out[i] = uint16(rounded if value == value else quiet)


@njit(nogil=True, cache=True)
def lengthen(out: Any, x: Any, factor: Any) -> None:
    """``out = factor * x``, from bfloat16 to float32."""
    for i in range(out.shape[0]):
        out[i] = factor * _value(uint32(x[i]) << uint32(16))
