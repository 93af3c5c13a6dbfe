"""The slow, obvious twin of `parse`: plain Python on bytes, for tests and for reading."""

import re

import numpy as np
import pytest

from daskxml.core.arrays import Array, Csr, Partition
from daskxml.core.errors import InputError
from daskxml.data.parse import VALUE, Dialect, explain_token, parse_bytes
from daskxml.data.scan import LARGEST_ID

FEATURE = re.compile(rb"(\d+):([^ \t\r#]+)")
LABELS = re.compile(rb"\d+(,\d+)*")
SPACES = b" \t\r"


def parse_bytes_naive(
    data: bytes, dialect: Dialect, *, blank_rows: bool = False, path: str | None = None
) -> Partition:
    r"""Parse whole lines of text, as `daskxml.data.parse.parse_bytes` does, slowly.

    Raises
    ------
    InputError
        At the first token that is wrong.

    Examples
    --------
    >>> parse_bytes_naive(b"0,3 4:2 1:0.5\n", Dialect()).features.indices
    array([1, 4], dtype=int32)
    """
    features: list[dict[int, np.float32]] = []
    labels: list[set[int]] = []
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1] if not lines[-1] else lines, start=1):
        text, hash_sign, _ = line.partition(b"#")
        if text.strip(SPACES) or (blank_rows and not hash_sign):
            try:
                row_labels, row_features = parse_row(text, dialect)
            except ValueError as error:
                raise InputError(str(error), path, number) from None
            labels.append(row_labels)
            features.append(row_features)
    return Partition(pack_features(features, dialect.features), pack_labels(labels, dialect.labels))


def parse_row(text: bytes, dialect: Dialect) -> tuple[set[int], dict[int, np.float32]]:
    """The labels and features of one line, without its comment and newline."""
    tokens = re.findall(rb"[^ \t\r]+", text)
    labels: set[int] = set()
    features: dict[int, np.float32] = {}
    for place, token in enumerate(tokens):
        is_label = place == 0 and text[:1] not in (b" ", b"\t", b"\r")
        if is_label and re.match(rb"\d+:", token) is None:
            labels = parse_labels(token, dialect)
            continue
        column, value = parse_feature(token, dialect, is_label=is_label)
        features[column] = features[column] + value if column in features else value
    return labels, features


def parse_labels(token: bytes, dialect: Dialect) -> set[int]:
    """Labels as columns; ValueError where the token is wrong."""
    if LABELS.fullmatch(token):
        columns = [int(piece) - dialect.label_base for piece in token.split(b",")]
        if all(in_range(column, dialect.labels, dialect.label_base) for column in columns):
            return set(columns)
    raise ValueError(explain_token(token, dialect, is_label=True))


def parse_feature(token: bytes, dialect: Dialect, *, is_label: bool) -> tuple[int, np.float32]:
    """A feature's column and value; ValueError where the token is wrong."""
    match = FEATURE.fullmatch(token)
    if match and VALUE.fullmatch(match[2]):
        column = int(match[1]) - dialect.feature_base
        with np.errstate(over="ignore"):
            value = np.float32(float(match[2]))
        if in_range(column, dialect.features, dialect.feature_base) and np.isfinite(value):
            return column, value
    raise ValueError(explain_token(token, dialect, is_label=is_label))


def in_range(column: int, count: int | None, base: int) -> bool:
    """Whether an id, its base subtracted, may be a column."""
    return 0 <= column <= LARGEST_ID - base and (count is None or column < count)


def pack_features(rows: list[dict[int, np.float32]], columns: int | None) -> Csr:
    """Rows of ``{column: value}`` as a matrix."""
    entries = [entry for row in rows for entry in sorted(row.items())]
    indices = np.array([column for column, _ in entries], np.int32)
    data = np.array([value for _, value in entries], np.float32)
    return Csr(row_ends(rows), indices, data, width(indices, columns))


def pack_labels(rows: list[set[int]], columns: int | None) -> Csr:
    """Sets of columns as a matrix of ones."""
    indices = np.array([column for row in rows for column in sorted(row)], np.int32)
    return Csr(row_ends(rows), indices, None, width(indices, columns))


def row_ends(rows: list[dict[int, np.float32]] | list[set[int]]) -> Array:
    """Where rows of these sizes begin and end."""
    return np.array([0, *np.cumsum([len(row) for row in rows])], np.int64)


def width(indices: Array, columns: int | None) -> int:
    """The declared number of columns, or the largest id plus one."""
    return columns if columns is not None else int(indices.max(initial=-1)) + 1


def assert_same(found: Partition, expected: Partition) -> None:
    """Both hold the same rows."""
    for ours, theirs in (
        (found.features, expected.features),
        (found.labels, expected.labels),
    ):
        np.testing.assert_array_equal(ours.indptr, theirs.indptr)
        np.testing.assert_array_equal(ours.indices, theirs.indices)
        assert ours.columns == theirs.columns
        assert ours.indptr.dtype == np.int64
        assert ours.indices.dtype == np.int32
    assert found.features.data.dtype == np.float32
    np.testing.assert_array_equal(found.features.data, expected.features.data)


def assert_agree(text: bytes, dialect: Dialect, blank_rows: bool) -> None:
    """Both accept the text with one result, or refuse the same line with the same words."""
    try:
        expected = parse_bytes_naive(text, dialect, blank_rows=blank_rows)
    except InputError as error:
        refusal = error
    else:
        assert_same(parse_bytes(text, dialect, blank_rows=blank_rows).partition, expected)
        return
    with pytest.raises(InputError) as caught:
        parse_bytes(text, dialect, blank_rows=blank_rows)
    assert (caught.value.line, caught.value.problem) == (refusal.line, refusal.problem)
