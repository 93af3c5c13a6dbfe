"""Bytes and words at addresses, for compiled code, and the bytes that mean something to the parser.

Positions in text are addresses, because compiled code would count references to an array for every
token. Nothing here checks bounds.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

PADDING = 16
"""Newlines that must follow the text, the one that ends its last row included."""

LARGEST_ID = 2**31 - 2
"""The largest id: ids and counts of columns fit int32."""

SPACE, TAB, NEWLINE, RETURN, HASH, COLON, COMMA, POINT = 32, 9, 10, 13, 35, 58, 44, 46
PLUS, MINUS, ZERO, LOWER_E, UPPER_E = 43, 45, 48, 101, 69


@intrinsic
def load_word(_: Any, at: Any) -> Any:
    """Eight bytes from any address, as uint64."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load(place, align=1)

    return types.uint64(types.int64), generate


@intrinsic
def byte_at(_: Any, at: Any) -> Any:
    """One byte from an address, as int64."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(place), ir.IntType(64))

    return types.int64(types.int64), generate


@intrinsic
def trailing_zeros(_: Any, word: Any) -> Any:
    """Zero bits below the lowest set bit of a uint64 (64 if there is none), as int64."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(0))

    return types.int64(types.uint64), generate
