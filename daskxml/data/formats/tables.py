"""Rows of tables to CSR arrays: what Parquet, Arrow, JSON lines and CSV have in common.

A table has named columns. ``labels`` holds a list of ids or of names, a text ``0,3``, or one id.
The features are one of three:

- ``indices``, a list of ids or of names, and ``values``, a list as long (without it, all are 1);
- ``features``, a text ``1:0.5 4:2`` as in libSVM's format, or with names in the place of ids;
- every other column, of numbers: a dense table, whose columns count from 0 in their order.

``sample_weight``, a number, is what a row counts in the loss.

Texts of ids go through the parser of text files, so that they mean the same here and there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from daskxml.core.arrays import Array, Csr, Partition
from daskxml.core.errors import InputError
from daskxml.data.blocks import Header
from daskxml.data.names import Names, ids_by_name
from daskxml.data.parse import (
    Dialect,
    ParsedRows,
    count_columns,
    count_ids,
    explain_range,
    finish_rows,
    parse_bytes,
)

LABELS, FEATURES, INDICES, VALUES = "labels", "features", "indices", "values"
WEIGHTS = "sample_weight"
_NO_FEATURES = {LABELS, WEIGHTS}
_PAIR = re.compile(r"(.*):([^:]*)", re.DOTALL)


class BadRowError(Exception):
    """A row that is wrong: its number in the piece, counted from 0, and the problem."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(row, problem)
        self.row, self.problem = row, problem


@dataclass(frozen=True)
class Lists:
    """A column of lists: row ``i`` is ``items[indptr[i]:indptr[i + 1]]``.

    Attributes
    ----------
    indptr
        ``(rows + 1,)`` int64.
    items
        Numbers as an array, or texts as a list.
    """

    indptr: Array
    items: Any

    @staticmethod
    def of(rows: Sequence[Any], name: str) -> Lists:
        """Make a column of lists of Python objects, all of them numbers or all of them texts.

        Raises
        ------
        BadRowError
            At the first row that is no list, or holds something else.

        Examples
        --------
        >>> Lists.of([[3, 1], []], "labels").items
        array([3, 1])
        """
        for number, row in enumerate(rows):
            if not isinstance(row, list):
                raise BadRowError(number, f"{name!r} is {_quote(row)}, but must be a list")
        indptr = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=indptr[1:])
        items = list(chain.from_iterable(rows))
        kinds = set(map(type, items))
        if kinds == {str}:
            return Lists(indptr, items)
        if kinds <= {int, float}:
            return Lists(indptr, as_numbers(items, kinds))
        is_text = isinstance(items[0], str)
        wanted, said = ({str}, "a text") if is_text else ({int, float}, "a number")
        place = next(place for place, item in enumerate(items) if type(item) not in wanted)
        row = Lists(indptr, items).row_of(place)
        raise BadRowError(row, f"{name!r} holds {_quote(items[place])}, which is not {said}")

    def row_of(self, place: int) -> int:
        """Return the row of an item."""
        return int(np.searchsorted(self.indptr, place, side="right")) - 1


Column = Lists | Sequence[str] | Array  # lists, texts, or a number for each row
Table = Mapping[str, Column]
Parse = Callable[[Table, int, Dialect], Any]  # what a piece of a table becomes


def as_numbers(items: list[Any], kinds: set[type]) -> Array:
    """Return Python numbers of such types as int64 or float64.

    Examples
    --------
    >>> as_numbers([1, 2.5], {int, float})
    array([1. , 2.5])
    """
    try:
        return np.array(items, np.float64 if float in kinds else np.int64)
    except OverflowError:  # far beyond any id: as a float, so that it is told
        return np.array([_as_float(item) for item in items], np.float64)


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def is_dense(columns: Sequence[str]) -> bool:
    """Whether a table with such columns holds a feature in each of them.

    Examples
    --------
    >>> is_dense(["labels", "height", "width"]), is_dense(["labels", "indices"])
    (True, False)
    """
    return not {FEATURES, INDICES} & set(columns) and set(columns) - _NO_FEATURES != set()


def dense_header(columns: Sequence[str]) -> Header | None:
    """Return the number of columns that a dense table declares; None for any other.

    Examples
    --------
    >>> dense_header(["labels", "height", "width"])
    Header(rows=None, features=2, labels=None)
    """
    return Header(None, len(set(columns) - _NO_FEATURES), None) if is_dense(columns) else None


def columns_to_read(columns: Sequence[str], dialect: Dialect) -> list[str]:
    """Return all columns of a dense table, else those that mean something.

    Raises
    ------
    InputError
        With what is wrong with their names.

    Examples
    --------
    >>> columns_to_read(["title", "labels", "indices"], Dialect())
    ['labels', 'indices']
    """
    if problem := column_problem(columns, dialect):
        raise InputError(problem)
    if dialect.text_column in columns:
        return [name for name in (LABELS, dialect.text_column) if name in columns]
    if is_dense(columns):
        return list(columns)
    return [name for name in (LABELS, WEIGHTS, FEATURES, INDICES, VALUES) if name in columns]


def column_problem(columns: Sequence[str], dialect: Dialect) -> str:
    """Return what is wrong with the names of a table's columns; an empty text if nothing is.

    Examples
    --------
    >>> column_problem(["tags", "indices"], Dialect())
    "no column 'labels'; it has 'tags', 'indices'; rename or add it"
    """
    has = f"; it has {', '.join(map(repr, columns[:8]))}{', ...' if len(columns) > 8 else ''}"
    if len(set(columns)) < len(columns):
        return f"two columns have the same name{has}; rename one"
    if dialect.needs_labels and LABELS not in columns:
        return f"no column 'labels'{has}; rename or add it"
    text = dialect.text_column
    if text and not {FEATURES, INDICES, text} & set(columns):
        return f"no column {text!r}{has}; rename or add it"
    if text in columns:
        return ""
    if {FEATURES, INDICES} <= set(columns):
        return "it has both 'features' and 'indices'; leave one out"
    if not set(columns) - _NO_FEATURES:
        return f"no column 'indices' or 'features'{has}; rename or add one"
    return ""


def parse_table(table: Table, rows: int, dialect: Dialect) -> ParsedRows:
    """Parse the columns of a table.

    Parameters
    ----------
    table
        Columns by name; those that mean nothing are left out by the caller.
    rows
        Their number.

    Raises
    ------
    BadRowError
        At the first row that is wrong, of the labels, the weights and then of the features.

    Examples
    --------
    >>> lists = Lists(np.array([0, 2, 3]), np.array([4, 1, 2]))
    >>> parsed = parse_table({"labels": np.array([0, 1]), "indices": lists}, 2, Dialect())
    >>> parsed.partition.features.indices, parsed.unsorted_rows
    (array([1, 4, 2], dtype=int32), 1)
    """
    if not rows:
        return parse_bytes(b"", dialect)
    labels, merged_labels = _parse_labels(table.get(LABELS), rows, dialect)
    weights = None if WEIGHTS not in table else _parse_weights(table[WEIGHTS])
    if is_dense(list(table)):
        dense = {name: column for name, column in table.items() if name not in _NO_FEATURES}
        return ParsedRows(
            partition=Partition(_parse_dense(dense, rows, dialect), labels, weights),
            unsorted_rows=0,
            merged_features=0,
            merged_labels=merged_labels,
        )
    features, unsorted, merged = _parse_features(table, rows, dialect)
    return ParsedRows(
        partition=Partition(features, labels, weights),
        unsorted_rows=unsorted,
        merged_features=merged,
        merged_labels=merged_labels,
    )


def _parse_labels(column: Column | None, rows: int, dialect: Dialect) -> tuple[Csr, int]:
    if column is None:
        return no_labels(rows, dialect), 0
    if isinstance(column, np.ndarray):
        column = Lists(np.arange(rows + 1), column)
    elif not isinstance(column, Lists):
        if not dialect.label_names:
            parsed = _parse_text([f"{text}\n" for text in column], dialect)
            row = int(np.argmax(np.diff(parsed.partition.features.indptr)))
            if parsed.partition.features.nonzeros:
                raise BadRowError(row, f"'labels' is {_quote(column[row])}: expected label,label")
            return parsed.partition.labels, parsed.merged_labels
        names = [[name for name in map(str.strip, text.split(",")) if name] for text in column]
        column = Lists.of(names, LABELS)
    return pack_labels(column, dialect)


def _parse_weights(column: Column) -> Array:
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "biuf":
        raise BadRowError(0, f"{WEIGHTS!r} holds no numbers; give one for each row")
    weights = column.astype(np.float32)
    if not (is_good := (weights >= 0.0) & np.isfinite(weights)).all():
        row = int(np.argmin(is_good))
        raise BadRowError(row, f"{WEIGHTS!r} is {column[row]}: must be a finite number, at least 0")
    return weights


def _parse_features(table: Table, rows: int, dialect: Dialect) -> tuple[Csr, int, int]:
    """Return the features, how many rows were not sorted, and how many entries were merged."""
    if FEATURES in table:
        column = table[FEATURES]
        if isinstance(column, Lists | np.ndarray):
            raise BadRowError(0, "'features' must hold texts; name lists of ids 'indices'")
        if not dialect.feature_names:
            parsed = _parse_text([f" {text}\n" for text in column], dialect)
            return parsed.partition.features, parsed.unsorted_rows, parsed.merged_features
        indices, values = _split_pairs(column)
    else:
        indices, values = _checked_lists(table)
    return pack_features(indices, values, dialect)


def no_labels(rows: int, dialect: Dialect) -> Csr:
    """Return the labels of rows that have none."""
    return Csr(np.zeros(rows + 1, np.int64), np.empty(0, np.int32), None, dialect.labels or 0)


def pack_labels(lists: Lists, dialect: Dialect) -> tuple[Csr, int]:
    """Return labels by id or by name as a matrix, and how many entries were merged.

    Raises
    ------
    BadRowError
        At the first id that is out of range, or name that is unknown.
    """
    ids = _ids(lists, dialect.label_names, dialect.labels, dialect.label_base, "label")
    indptr = np.array(lists.indptr, np.int64)  # copies: both are put in order in place
    columns = count_columns(dialect.labels, int(ids.max(initial=-1)))
    return finish_rows(indptr, ids, None, columns, _count_unsorted(indptr, ids))


def pack_features(indices: Lists, values: Lists, dialect: Dialect) -> tuple[Csr, int, int]:
    """Return features as a matrix, how many rows were unsorted, and entries that were merged.

    Raises
    ------
    BadRowError
        At the first id or value that is wrong.
    """
    ids = _ids(indices, dialect.feature_names, dialect.features, dialect.feature_base, "feature")
    indptr = np.array(indices.indptr, np.int64)
    unsorted = _count_unsorted(indptr, ids)
    columns = count_columns(dialect.features, int(ids.max(initial=-1)))
    csr, merged = finish_rows(indptr, ids, _floats(values), columns, unsorted)
    return csr, unsorted, merged


def _parse_dense(columns: Table, rows: int, dialect: Dialect) -> Csr:
    arrays: list[Array] = []
    for name, column in columns.items():
        if not isinstance(column, np.ndarray) or column.dtype.kind not in "biuf":
            need = "expected 'indices' or 'features', or numbers in every column but 'labels'"
            raise BadRowError(0, f"column {name!r} holds no numbers; {need}")
        arrays.append(column)
    if dialect.features is not None and len(columns) > dialect.features:
        problem = f"{len(columns)} columns of features, but there are {dialect.features}"
        raise BadRowError(0, f"{problem}; give rows of the same data set")
    lists = Lists(np.arange(rows + 1) * len(columns), np.column_stack(arrays).ravel())
    matrix = _floats(lists).reshape(rows, len(columns))
    row, ids = np.nonzero(matrix)
    indptr = np.append(0, np.cumsum(np.bincount(row, minlength=rows))).astype(np.int64)
    features = dialect.features or len(columns)
    return Csr(indptr, ids.astype(np.int32), matrix[row, ids], features)


def _parse_text(lines: list[str], dialect: Dialect) -> ParsedRows:
    """Parse lines of labels or of features, one for each row."""
    text = "".join(lines)
    if "#" in text or text.count("\n") != len(lines):
        row = next(i for i, line in enumerate(lines) if "#" in line or "\n" in line[:-1])
        raise BadRowError(row, f"a '#' or a line break in {_quote(lines[row].strip())}; remove it")
    try:
        return parse_bytes(text.encode(), dialect, blank_rows=True)
    except InputError as error:
        raise BadRowError((error.line or 1) - 1, error.problem) from None


def _split_pairs(texts: Sequence[str]) -> tuple[Lists, Lists]:
    """Split texts of ``name:value`` into names and values."""
    pairs, sizes = [], []
    for row, text in enumerate(texts):
        tokens = text.split()
        sizes.append(len(tokens))
        for token in tokens:
            match = _PAIR.fullmatch(token)
            try:
                pairs.append((match[1], float(match[2])) if match else (token, float("x")))
            except ValueError:
                problem = f"malformed token {_quote(token)}; expected name:number"
                raise BadRowError(row, problem) from None
    indptr = np.append(0, np.cumsum(sizes)).astype(np.int64)
    values = np.array([value for _, value in pairs], np.float64)
    return Lists(indptr, [name for name, _ in pairs]), Lists(indptr, values)


def _checked_lists(table: Table) -> tuple[Lists, Lists]:
    """Return the lists of ids and of values, which are equally long in every row."""
    for name in (INDICES, VALUES):
        if name in table and not isinstance(table[name], Lists):
            raise BadRowError(0, f"{name!r} must hold a list in every row")
    indices: Any = table[INDICES]
    if VALUES not in table:
        return indices, Lists(indices.indptr, np.ones(int(indices.indptr[-1]), np.float32))
    values: Any = table[VALUES]
    sizes, others = np.diff(indices.indptr), np.diff(values.indptr)
    if (sizes != others).any():
        row = int(np.argmax(sizes != others))
        problem = f"{sizes[row]} 'indices' but {others[row]} 'values'"
        raise BadRowError(row, f"{problem}; give one value for each")
    return indices, values


def _ids(lists: Lists, names: Names, count: int | None, base: int, kind: str) -> Array:
    """Return ids from 0 as int32, from names or from ids that count from ``base``."""
    if not isinstance(lists.items, np.ndarray):
        return _named_ids(lists, names, kind)
    ids = lists.items
    if ids.dtype.kind not in "iu" and ids.size:
        is_wrong = np.ones(len(ids), bool)
        if ids.dtype.kind == "f":
            is_wrong = ~np.isfinite(ids) | (ids != np.floor(ids))
        if is_wrong.any():
            place = int(np.argmax(is_wrong))
            problem = f"{kind} {_quote(ids[place].item())} is not an integer; give ids or names"
            raise BadRowError(lists.row_of(place), problem)
    wrong = (ids < base) | (ids >= base + count_ids(count, base))
    if wrong.any():
        place = int(np.argmax(wrong))
        number = int(ids[place])
        problem = explain_range(number, count, base, kind, str(number).encode())
        if number < 0:
            problem = f"{kind} id {number} is negative; renumber the {kind}s from 0 or 1"
        raise BadRowError(lists.row_of(place), problem)
    return (ids - base).astype(np.int32)


def _named_ids(lists: Lists, names: Names, kind: str) -> Array:
    if not names:
        told = f"{kind} {_quote(lists.items[0])} is a name: give data.{kind}_names"
        raise BadRowError(lists.row_of(0), f"{told}, a file with a name on each line")
    known = ids_by_name(names)
    ids = np.fromiter((known.get(name, -1) for name in lists.items), np.int32, len(lists.items))
    if (ids < 0).any():
        place = int(np.argmin(ids))
        told = f"{kind} {_quote(lists.items[place])} is none of the {len(known)} names"
        raise BadRowError(lists.row_of(place), f"{told}; add it to data.{kind}_names or remove it")
    return ids


def _floats(lists: Lists) -> Array:
    """Return values as float32, which are finite."""
    if not isinstance(lists.items, np.ndarray):
        problem = f"value {_quote(lists.items[0])} is no number; give numbers"
        raise BadRowError(lists.row_of(0), problem)
    with np.errstate(over="ignore"):
        values = lists.items.astype(np.float32)
    if not (finite := np.isfinite(values)).all():
        place = int(np.argmin(finite))
        problem = f"value {lists.items[place].item()} is NaN, infinite or does not fit float32"
        raise BadRowError(lists.row_of(place), f"{problem}; remove or replace it")
    return values


def _count_unsorted(indptr: Array, ids: Array) -> int:
    """Return how many rows have ids that do not strictly ascend."""
    falls = np.flatnonzero(np.diff(ids) <= 0) + 1  # an id that is not above the one before it
    rows = np.searchsorted(indptr, falls, side="right") - 1
    return len(np.unique(rows[falls > indptr[rows]]))


def _quote(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
