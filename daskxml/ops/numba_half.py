"""Numba kernels between float32 and float16, whose bits they hold as uint16.

Numba has no float16 on a CPU, but LLVM has, and vectorises the processor's own conversions: thirty
times the speed of NumPy's. Where a processor has none, LLVM would call a function that need not be
there; `IS_NATIVE` says so.
"""

from __future__ import annotations

import platform
from typing import Any, Final

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import njit, types
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
