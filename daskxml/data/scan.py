"""Compiled scanner: text of sparse rows into arrays that the caller allocated, without the GIL.

Digits are read eight at a time from one 64-bit word (the "SWAR" conversion described by D. Lemire,
"Quickly parsing eight digits", 2018), which costs no branch per digit; the word order assumes a
little-endian machine. Positions in the text are addresses, because compiled code would count
references to an array for every token. Nothing here checks bounds: every text ends in a newline
followed by more (`PADDING` in all), so no loop compares its position with the end, and a word may
be loaded at any byte of it.

A malformed token is reported as its position only; `daskxml.data.parse` explains what is wrong.
All of this is one module because Numba's cache notices changes in a function's own file only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from daskxml.core.arrays import Array
from daskxml.core.jit import njit

PADDING = 16  # newlines that must follow the text, including the one that ends its last row
LARGEST_ID = 2**31 - 2  # ids and counts of columns fit int32
SPACE, TAB, NEWLINE, RETURN, HASH, COLON, COMMA, POINT = 32, 9, 10, 13, 35, 58, 44, 46
PLUS, MINUS, ZERO, LOWER_E, UPPER_E = 43, 45, 48, 101, 69
QUOTE, BACKSLASH, OPEN_LIST, OPEN_OBJECT = 34, 92, 91, 123
FAULT = -1  # returned instead of the next position where a token is malformed
TENS = np.array([float(f"1e{power}") for power in range(81)])
POWERS = np.array([10**power for power in range(9)])
OVERSIZED = 2**40  # larger than any id that is allowed
KEPT_DIGITS = 10**17  # below it, one more digit still fits; 18 are more than a float64 holds


class IdRanges(NamedTuple):
    """The ids that are allowed: ``base <= id < base + count``."""

    feature_base: int
    feature_count: int
    label_base: int
    label_count: int


class RowArrays(NamedTuple):
    """The arrays that `parse_rows` fills, large enough for all rows of the text."""

    feature_indptr: Array
    feature_ids: Array
    values: Array
    label_indptr: Array
    label_ids: Array


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


@njit(nogil=True, error_model="numpy", inline="always")
def read_digits(at):  # type: ignore[no-untyped-def]
    """Up to eight digits at `at`: their value (int64) and how many there are (0 to 8)."""
    word = load_word(at) ^ np.uint64(0x3030303030303030)
    # A byte of 10 or more gets its high bit set. A carry can only spoil bytes above such a byte.
    others = ((word + np.uint64(0x7676767676767676)) | word) & np.uint64(0x8080808080808080)
    count = trailing_zeros(others) >> 3
    word = (word << np.uint64(56 - 8 * min(count, 7))) << np.uint64(8 * (count < 8))
    word = (word * np.uint64(2561)) >> np.uint64(8)
    word = ((word & np.uint64(0x00FF00FF00FF00FF)) * np.uint64(6553601)) >> np.uint64(16)
    word = ((word & np.uint64(0x0000FFFF0000FFFF)) * np.uint64(42949672960001)) >> np.uint64(32)
    return np.int64(word), count


@njit(nogil=True, error_model="numpy")
def read_long_id(at):  # type: ignore[no-untyped-def]
    """An id of any number of digits: its value, at most `OVERSIZED`, and the next position."""
    value = 0
    digit = byte_at(at) - ZERO
    while 0 <= digit <= 9:
        value = min(value * 10 + digit, OVERSIZED)
        at += 1
        digit = byte_at(at) - ZERO
    return value, at


@njit(nogil=True, error_model="numpy", inline="always")
def read_id(at):  # type: ignore[no-untyped-def]
    """An id: its value and the next position, which is `at` where no digit is."""
    value, count = read_digits(at)
    if count == 8:
        return read_long_id(at)
    return value, at + count


@njit(nogil=True, error_model="numpy")
def read_exponent(at):  # type: ignore[no-untyped-def]
    """The exponent behind an ``e``, cut to within 9999, and the next position, or `FAULT`."""
    sign = byte_at(at)
    at += sign in (PLUS, MINUS)
    digit = byte_at(at) - ZERO
    if not 0 <= digit <= 9:
        return 0, FAULT
    exponent = 0
    while 0 <= digit <= 9:
        exponent = min(exponent * 10 + digit, 9999)
        at += 1
        digit = byte_at(at) - ZERO
    return (-exponent if sign == MINUS else exponent), at


@njit(nogil=True, error_model="numpy")
def read_mantissa(at):  # type: ignore[no-untyped-def]
    """Digits with at most one point: value, power of ten it lacks, next position or `FAULT`."""
    value, power, digits, fraction = 0, 0, 0, 0
    while True:
        byte = byte_at(at)
        if ZERO <= byte <= ZERO + 9:
            digits += 1
            if value < KEPT_DIGITS:
                value = value * 10 + byte - ZERO
                power -= fraction
            else:
                power += 1 - fraction
        elif byte == POINT and fraction == 0:
            fraction = 1
        else:
            return value, power, (at if digits else FAULT)
        at += 1


@njit(nogil=True, error_model="numpy")
def read_long_value(at):  # type: ignore[no-untyped-def]
    """A value in full float syntax, without its sign: the value and the next position or `FAULT`.

    Exact (rounded once to float64) below 2**53 and within 10**22; within two units in the last
    place of a float64 elsewhere, which moves the float32 made from it by at most one.
    """
    mantissa, power, at = read_mantissa(at)
    if at != FAULT and byte_at(at) in (LOWER_E, UPPER_E):
        exponent, at = read_exponent(at + 1)
        power += exponent
    if mantissa == 0 or power < -80:  # far below the smallest float32
        return 0.0, at
    if power > 40:  # above the largest float32
        return np.inf, at
    if power < 0:
        return mantissa / TENS[-power], at
    return mantissa * TENS[power], at


@njit(nogil=True, error_model="numpy", inline="always")
def read_value(at):  # type: ignore[no-untyped-def]
    """A value: float64 and the next position or `FAULT`; the short spellings take no loop."""
    first = byte_at(at)
    at += (first == MINUS) | (first == PLUS)
    start = at
    value, whole = read_digits(at)
    at += whole
    places = 0
    if byte_at(at) == POINT:
        fraction, places = read_digits(at + 1)
        value = value * POWERS[places] + fraction
        at += 1 + places
    after = byte_at(at)
    result = value / TENS[places]
    if (
        (whole + places == 0)
        | (whole == 8)
        | (places == 8)
        | (after == LOWER_E)
        | (after == UPPER_E)
    ):
        result, at = read_long_value(start)
    return (-result if first == MINUS else result), at


@njit(nogil=True, error_model="numpy", inline="always")
def is_space(byte):  # type: ignore[no-untyped-def]
    """Whether a byte is white space within a line."""
    return (byte == SPACE) | (byte == TAB) | (byte == RETURN)


@njit(nogil=True, error_model="numpy", inline="always")
def ends_token(byte):  # type: ignore[no-untyped-def]
    """Whether a byte may follow a token."""
    return is_space(byte) | (byte == NEWLINE) | (byte == HASH)


@njit(nogil=True, error_model="numpy", inline="always")
def skip_spaces(at):  # type: ignore[no-untyped-def]
    """The first position from `at` that holds no white space."""
    while is_space(byte_at(at)):
        at += 1
    return at


@njit(nogil=True, error_model="numpy")
def read_features(at, ids, values, fill, base, count):  # type: ignore[no-untyped-def]
    """The features of a row from `at` to its newline or comment.

    Returns the next position, the new `fill`, and whether the token at that position is malformed.
    """
    while True:
        at = skip_spaces(at)
        byte = byte_at(at)
        if (byte == NEWLINE) | (byte == HASH):
            return at, fill, False
        feature, colon = read_id(at)
        value, after = read_value(colon + 1)
        column = feature - base
        fine = (colon > at) & (byte_at(colon) == COLON) & (column >= 0) & (column < count)
        number = np.float32(value)
        if not (fine & (after > 0) & np.isfinite(number)) or not ends_token(byte_at(after)):
            return at, fill, True
        ids[fill] = column
        values[fill] = number
        fill += 1
        at = after


@njit(nogil=True, error_model="numpy")
def read_labels(at, ids, fill, base, count):  # type: ignore[no-untyped-def]
    """The labels of a row; returns what `read_features` does, `at` if the row has none."""
    start, first = at, fill
    while True:
        label, after = read_id(at)
        byte = byte_at(after)
        if (byte == COLON) & (fill == first) & (after > at):  # a row without labels
            return start, fill, False
        column = label - base
        fine = (after > at) & (column >= 0) & (column < count)
        if not (fine & ((byte == COMMA) | ends_token(byte))):
            return start, fill, True
        ids[fill] = column
        fill += 1
        if byte != COMMA:
            return after, fill, False
        at = after + 1


@njit(nogil=True, error_model="numpy", inline="always")
def skip_comment(at):  # type: ignore[no-untyped-def]
    """The position of the newline that ends a line whose rest may be a comment."""
    if byte_at(at) == HASH:
        while byte_at(at) != NEWLINE:
            at += 1
    return at


@njit(nogil=True, error_model="numpy")
def parse_rows(text, length, blank_rows, ids, arrays):  # type: ignore[no-untyped-def]
    """Parse the first `length` bytes, which `PADDING` newlines follow, into `arrays`.

    Returns the number of rows, and the position of the first malformed token or -1.
    """
    begin = np.int64(text.ctypes.data)  # it is unsigned, and uint64 + int64 would be float64
    at, stop = begin, begin + length
    rows, features, labels = 0, 0, 0
    arrays.feature_indptr[0] = arrays.label_indptr[0] = 0
    while at < stop:
        start, at = at, skip_spaces(at)
        first = byte_at(at)
        if (first == HASH) | ((first == NEWLINE) & (not blank_rows)):
            at = skip_comment(at) + 1
            continue
        wrong = False
        if (at == start) & (first != NEWLINE):
            at, labels, wrong = read_labels(
                at, arrays.label_ids, labels, ids.label_base, ids.label_count
            )
        if not wrong:
            at, features, wrong = read_features(
                at, arrays.feature_ids, arrays.values, features,
                ids.feature_base, ids.feature_count,
            )  # fmt: skip
        if wrong:
            return rows, at - begin
        at = skip_comment(at) + 1
        rows += 1
        arrays.feature_indptr[rows], arrays.label_indptr[rows] = features, labels
    return rows, -1


IN_TEXT, ESCAPED = 1, 2  # states of a scan of JSON; 0 is outside of texts


@njit(nogil=True, error_model="numpy")
def count_json(data, found):  # type: ignore[no-untyped-def]
    """Add what JSON holds outside of its texts, whatever it is worth, to counts.

    `found` is int64: the state in which the next bytes are read, objects and keys (each ``{`` and
    ``:``), and items (each ``[`` and ``,``).
    """
    for byte in data:
        if found[0] == ESCAPED:
            found[0] = IN_TEXT
        elif byte == QUOTE:
            found[0] = IN_TEXT - found[0]
        elif found[0] == IN_TEXT:
            found[0] += byte == BACKSLASH
        else:
            found[1] += (byte == OPEN_OBJECT) | (byte == COLON)
            found[2] += (byte == OPEN_LIST) | (byte == COMMA)
