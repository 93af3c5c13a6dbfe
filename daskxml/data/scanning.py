"""Compiled parser of rows of text into the arrays of `Store`, with no lock held.

Digits are read eight at a time from one 64-bit word (the "SWAR" conversion described by D. Lemire,
"Quickly parsing eight digits", 2018), which costs no branch per digit; the word order assumes a
little-endian machine. Every text ends in a newline followed by more (`PADDING` in all), so no loop
compares its position with the end, and a word may be loaded at any byte of it.

Nothing here explains what is wrong: a fault is the position of the token; `faults` reads it again.
All of it is one module, because Numba's cache notices changes in a function's own file only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from daskxml.data import words
from daskxml.data.words import byte_at, load_word, trailing_zeros
from daskxml.types import Array

FAULT = -1  # in place of the next position, from a reader whose token is wrong
TENS = np.array([float(f"1e{power}") for power in range(81)])
POWERS = np.array([10**power for power in range(9)])
OVERSIZED = 2**40  # an id that no count of columns admits
KEPT_DIGITS = 10**17  # below it, one more digit still fits; 18 are more than a float64 holds


class Limits(NamedTuple):
    """What ids are checked against: `Dialect` without None."""

    feature_base: int
    feature_count: int
    label_base: int
    label_count: int


class Store(NamedTuple):
    """The arrays that the parser fills."""

    feature_indptr: Array
    feature_ids: Array
    values: Array
    label_indptr: Array
    label_ids: Array


class Tally(NamedTuple):
    """What the parser counted; `fault` is the position of the first wrong token, or -1."""

    rows: int
    features: int
    labels: int
    least_feature: int
    most_feature: int
    least_label: int
    most_label: int
    unsorted_features: int
    unsorted_labels: int
    fault: int


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
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


@njit(nogil=True, cache=True, error_model="numpy")
def read_long_id(at):  # type: ignore[no-untyped-def]
    """An id of any number of digits: its value, at most `OVERSIZED`, and the next position."""
    value = 0
    digit = byte_at(at) - words.ZERO
    while 0 <= digit <= 9:
        value = min(value * 10 + digit, OVERSIZED)
        at += 1
        digit = byte_at(at) - words.ZERO
    return value, at


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def read_id(at):  # type: ignore[no-untyped-def]
    """An id: its value and the next position, which is `at` where no digit is."""
    value, count = read_digits(at)
    if count == 8:
        return read_long_id(at)
    return value, at + count


@njit(nogil=True, cache=True, error_model="numpy")
def read_exponent(at):  # type: ignore[no-untyped-def]
    """The exponent behind an ``e``, cut to within 9999, and the next position, or `FAULT`."""
    sign = byte_at(at)
    at += sign in (words.PLUS, words.MINUS)
    digit = byte_at(at) - words.ZERO
    if not 0 <= digit <= 9:
        return 0, FAULT
    exponent = 0
    while 0 <= digit <= 9:
        exponent = min(exponent * 10 + digit, 9999)
        at += 1
        digit = byte_at(at) - words.ZERO
    return (-exponent if sign == words.MINUS else exponent), at


@njit(nogil=True, cache=True, error_model="numpy")
def read_mantissa(at):  # type: ignore[no-untyped-def]
    """Digits with at most one point: value, power of ten it lacks, next position or `FAULT`."""
    value, power, digits, fraction = 0, 0, 0, 0
    while True:
        byte = byte_at(at)
        if words.ZERO <= byte <= words.ZERO + 9:
            digits += 1
            if value < KEPT_DIGITS:
                value = value * 10 + byte - words.ZERO
                power -= fraction
            else:
                power += 1 - fraction
        elif byte == words.POINT and fraction == 0:
            fraction = 1
        else:
            return value, power, (at if digits else FAULT)
        at += 1


@njit(nogil=True, cache=True, error_model="numpy")
def read_long_value(at):  # type: ignore[no-untyped-def]
    """A value in full float syntax, without its sign: the value and the next position or `FAULT`.

    Exact (rounded once to float64) below 2**53 and within 10**22; within two units in the last
    place of a float64 elsewhere, which moves the float32 made from it by at most one.
    """
    mantissa, power, at = read_mantissa(at)
    if at != FAULT and byte_at(at) in (words.LOWER_E, words.UPPER_E):
        exponent, at = read_exponent(at + 1)
        power += exponent
    if mantissa == 0 or power < -80:  # far below the smallest float32
        return 0.0, at
    if power > 40:  # above the largest float32
        return np.inf, at
    if power < 0:
        return mantissa / TENS[-power], at
    return mantissa * TENS[power], at


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def read_value(at):  # type: ignore[no-untyped-def]
    """A value: float64 and the next position or `FAULT`; the short spellings take no loop."""
    first = byte_at(at)
    at += (first == words.MINUS) | (first == words.PLUS)
    start = at
    value, whole = read_digits(at)
    at += whole
    places = 0
    if byte_at(at) == words.POINT:
        fraction, places = read_digits(at + 1)
        value = value * POWERS[places] + fraction
        at += 1 + places
    after = byte_at(at)
    result = value / TENS[places]
    if (
        (whole + places == 0)
        | (whole == 8)
        | (places == 8)
        | (after == words.LOWER_E)
        | (after == words.UPPER_E)
    ):
        result, at = read_long_value(start)
    return (-result if first == words.MINUS else result), at


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def is_space(byte):  # type: ignore[no-untyped-def]
    """Whether a byte is white space within a line."""
    return (byte == words.SPACE) | (byte == words.TAB) | (byte == words.RETURN)


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def ends_token(byte):  # type: ignore[no-untyped-def]
    """Whether a byte may follow a token."""
    return is_space(byte) | (byte == words.NEWLINE) | (byte == words.HASH)


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def skip_spaces(at):  # type: ignore[no-untyped-def]
    """The first position from `at` that holds no white space."""
    while is_space(byte_at(at)):
        at += 1
    return at


@njit(nogil=True, cache=True, error_model="numpy")
def read_features(at, ids, values, fill, base, count, low, high):  # type: ignore[no-untyped-def]
    """The features of a row from `at` to its newline or comment.

    Returns the next position, the new `fill`, `low`, `high`, whether the ids ascend, and whether
    the token at the position returned is at fault.
    """
    ascending, previous = True, -1
    while True:
        at = skip_spaces(at)
        byte = byte_at(at)
        if (byte == words.NEWLINE) | (byte == words.HASH):
            return at, fill, low, high, ascending, False
        feature, colon = read_id(at)
        value, after = read_value(colon + 1)
        column = feature - base
        fine = (colon > at) & (byte_at(colon) == words.COLON) & (column >= 0) & (column < count)
        number = np.float32(value)
        if not (fine & (after > 0) & np.isfinite(number)) or not ends_token(byte_at(after)):
            return at, fill, low, high, ascending, True
        ids[fill] = column
        values[fill] = number
        fill += 1
        ascending &= column > previous
        previous = column
        low, high = min(low, feature), max(high, feature)
        at = after


@njit(nogil=True, cache=True, error_model="numpy")
def read_labels(at, ids, fill, base, count, low, high):  # type: ignore[no-untyped-def]
    """The labels of a row; returns as `read_features` does, `at` where the row has none."""
    start, first = at, fill
    ascending, previous = True, -1
    while True:
        label, after = read_id(at)
        byte = byte_at(after)
        if (byte == words.COLON) & (fill == first) & (after > at):  # a row without labels
            return start, fill, low, high, True, False
        column = label - base
        fine = (after > at) & (column >= 0) & (column < count)
        if not (fine & ((byte == words.COMMA) | ends_token(byte))):
            return start, fill, low, high, ascending, True
        ids[fill] = column
        fill += 1
        ascending &= column > previous
        previous = column
        low, high = min(low, label), max(high, label)
        if byte != words.COMMA:
            return after, fill, low, high, ascending, False
        at = after + 1


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def skip_comment(at):  # type: ignore[no-untyped-def]
    """The position of the newline that ends a line whose rest may be a comment."""
    if byte_at(at) == words.HASH:
        while byte_at(at) != words.NEWLINE:
            at += 1
    return at


@njit(nogil=True, cache=True, error_model="numpy")
def parse_rows(text, length, blank_rows, limits, store):  # type: ignore[no-untyped-def]
    """Parse the first `length` bytes, which `PADDING` newlines follow, into `store`."""
    begin = np.int64(text.ctypes.data)  # it is unsigned, and uint64 + int64 would be float64
    at, stop = begin, begin + length
    rows, features, labels, fault = 0, 0, 0, -1
    low, high = words.LARGEST_ID, -1
    low_label, high_label = words.LARGEST_ID, -1
    unsorted_features, unsorted_labels = 0, 0
    store.feature_indptr[0] = store.label_indptr[0] = 0
    while at < stop:
        start, at = at, skip_spaces(at)
        first = byte_at(at)
        if (first == words.HASH) | ((first == words.NEWLINE) & (not blank_rows)):
            at = skip_comment(at) + 1
            continue
        wrong = False
        if (at == start) & (first != words.NEWLINE):
            at, labels, low_label, high_label, ascending, wrong = read_labels(
                at, store.label_ids, labels, limits.label_base, limits.label_count,
                low_label, high_label,
            )  # fmt: skip
            unsorted_labels += not ascending
        if not wrong:
            at, features, low, high, ascending, wrong = read_features(
                at, store.feature_ids, store.values, features,
                limits.feature_base, limits.feature_count, low, high,
            )  # fmt: skip
            unsorted_features += not ascending
        if wrong:
            fault = at - begin
            break
        at = skip_comment(at) + 1
        rows += 1
        store.feature_indptr[rows], store.label_indptr[rows] = features, labels
    return Tally(rows, features, labels, low, high, low_label, high_label,
                 unsorted_features, unsorted_labels, fault)  # fmt: skip
