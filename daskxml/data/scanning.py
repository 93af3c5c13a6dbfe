"""Compiled parser of whole rows: text into the arrays of `Store`, with no lock held."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from daskxml.data.tokens import (
    COLON,
    COMMA,
    HASH,
    LARGEST_ID,
    NEWLINE,
    byte_at,
    ends_token,
    read_id,
    read_value,
    skip_spaces,
)
from daskxml.types import Array


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
        if (byte == NEWLINE) | (byte == HASH):
            return at, fill, low, high, ascending, False
        feature, colon = read_id(at)
        value, after = read_value(colon + 1)
        column = feature - base
        fine = (colon > at) & (byte_at(colon) == COLON) & (column >= 0) & (column < count)
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
        if (byte == COLON) & (fill == first) & (after > at):  # a feature: the row has no label
            return start, fill, low, high, True, False
        column = label - base
        fine = (after > at) & (column >= 0) & (column < count)
        if not (fine & ((byte == COMMA) | ends_token(byte))):
            return start, fill, low, high, ascending, True
        ids[fill] = column
        fill += 1
        ascending &= column > previous
        previous = column
        low, high = min(low, label), max(high, label)
        if byte != COMMA:
            return after, fill, low, high, ascending, False
        at = after + 1


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def skip_comment(at):  # type: ignore[no-untyped-def]
    """The position of the newline that ends a line whose rest may be a comment."""
    if byte_at(at) == HASH:
        while byte_at(at) != NEWLINE:
            at += 1
    return at


@njit(nogil=True, cache=True, error_model="numpy")
def parse_rows(text, length, blank_rows, limits, store):  # type: ignore[no-untyped-def]
    """Parse the first `length` bytes, which `PADDING` newlines follow, into `store`."""
    begin = np.int64(text.ctypes.data)  # unsigned, and uint64 + int64 would be float64
    at, stop = begin, begin + length
    rows, features, labels, fault = 0, 0, 0, -1
    low, high = LARGEST_ID, -1
    low_label, high_label = LARGEST_ID, -1
    unsorted_features, unsorted_labels = 0, 0
    store.feature_indptr[0] = store.label_indptr[0] = 0
    while at < stop:
        start, at = at, skip_spaces(at)
        first = byte_at(at)
        if (first == HASH) | ((first == NEWLINE) & (not blank_rows)):
            at = skip_comment(at) + 1
            continue
        wrong = False
        if (at == start) & (first != NEWLINE):
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
