"""Rows of tables: what the columns of an Arrow batch mean, whatever it was read from.

A table has named columns. ``labels`` holds a list of ids or of names, a text ``0,3``, or one id.
The features are one of three:

- ``indices``, a list of ids or of names, and ``values``, a list as long (without it, all are 1);
- ``features``, a text ``1:0.5 4:2`` as in libSVM's format, or with names instead of ids;
- every other column, of numbers: a dense table, whose columns count from 0 in their order in the
  training rows, and are known by their names from there on.

``sample_weight``, a number, is what a row counts in the loss. A table of documents has a column of
texts instead of features; there all labels are names: the id 3 is the name ``"3"``.

Lists and numbers may be texts, as they are in CSV: lists with a space between two items. Texts of
ids go through the parser of text files, so that they mean the same here and there.

A function here that refuses a row says only what is wrong with it: `find_bad_row` finds where it
is, by asking again for fewer rows.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import IO, Any

import numpy as np

from daskxml.core.arrays import Array, Csr, Partition, starts_of
from daskxml.core.errors import InputError
from daskxml.core.text import number_of, quoted
from daskxml.data.blocks import Header, pad_text
from daskxml.data.parse import (
    UNKNOWN,
    Dialect,
    ParsedRows,
    count_ids,
    explain_range,
    parse_bytes,
    parse_padded,
    tidied,
)
from daskxml.data.rows import from_scipy
from daskxml.data.scan import LARGEST_ID
from daskxml.data.side_files import Names, ids_by_name

LABELS, FEATURES, INDICES, VALUES = "labels", "features", "indices", "values"
WEIGHTS = "sample_weight"
NO_DOCUMENTS = "holds rows of features, not documents: train on it as it is"
_NO_FEATURES = {LABELS, WEIGHTS}
_PAIR = re.compile(r"(.*):([^:]*)", re.DOTALL)


@dataclass(frozen=True)
class Parts:
    """A table that is open, in parts that can be read alone.

    Attributes
    ----------
    names
        Of its columns.
    nbytes
        About the size of each part.
    batches
        Yields the Arrow batches of parts ``start`` to ``stop``, with the columns that are named.
    header
        What it declares, where that is not the number of its columns.
    no_labels
        What is wrong where it has no column of labels; "" as for any table.
    paths
        Of its files, for messages; "" is the one that was opened.
    """

    names: list[str]
    nbytes: Sequence[float] | Array
    batches: Callable[[int, int, list[str]], Iterator[Any]]
    header: Header | None = None
    no_labels: str = ""
    paths: str = ""


@dataclass(frozen=True)
class Lines:
    """A table in which each line is a row.

    Attributes
    ----------
    names
        Of its columns.
    batch
        Makes an Arrow batch of lines, with the columns that are named, which may be all that lines
        have.
    has_head
        Whether its first line holds only the names.
    has_blanks
        Whether a blank line is a row.
    no_labels
        What is wrong where it has no column of labels; "" as for any table.
    """

    names: list[str]
    batch: Callable[[list[bytes], list[str], bool], Any]
    has_head: bool = False
    has_blanks: bool = False
    no_labels: str = ""


OpenParts = Callable[[IO[bytes], str], Parts]  # of a file, and its path
OpenLines = Callable[[str], Lines]


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
    def of(rows: Sequence[Sequence[Any]]) -> Lists:
        """Make a column of lists, of texts for example.

        Examples
        --------
        >>> Lists.of([["red", "blue"], []]).indptr
        array([0, 2, 2])
        """
        indptr = starts_of([len(row) for row in rows])
        return Lists(indptr, list(chain.from_iterable(rows)))


Column = Lists | Sequence[str] | Array  # lists, texts, or a number for each row
Table = Mapping[str, Column]
Parse = Callable[[Table, int, Dialect], Any]  # what a piece of a table becomes


# ----------------------------------------------------------------------------- which columns


def is_dense(columns: Sequence[str]) -> bool:
    """Whether a table with such columns holds a feature in each of them.

    Examples
    --------
    >>> is_dense(["labels", "height", "width"]), is_dense(["labels", "indices"])
    (True, False)
    """
    return not {FEATURES, INDICES} & set(columns) and set(columns) - _NO_FEATURES != set()


def dense_header(columns: Sequence[str], text_column: str = "") -> Header | None:
    """Return the columns that a dense table declares; None for any other.

    Examples
    --------
    >>> dense_header(["labels", "height", "width"])
    Header(rows=None, features=2, labels=None)
    """
    if text_column or not is_dense(columns):
        return None
    names = tuple(name for name in columns if name not in _NO_FEATURES)
    return Header(None, len(names), None, names)


def columns_to_read(columns: Sequence[str], dialect: Dialect) -> list[str]:
    """Return all columns of a dense table, in the order of known names, else those with a meaning.

    Raises
    ------
    InputError
        With what is wrong with their names.

    Examples
    --------
    >>> columns_to_read(["title", "labels", "indices"], Dialect())
    ['labels', 'indices']
    >>> columns_to_read(["tags", "indices"], Dialect())
    Traceback (most recent call last):
    daskxml.core.errors.InputError: no column 'labels'; it has 'tags', 'indices'; rename or add it
    """
    if problem := _column_problem(columns, dialect):
        raise InputError(problem)
    if dialect.text_column in columns:
        return [name for name in (LABELS, dialect.text_column) if name in columns]
    if is_dense(columns):
        known = ids_by_name(dialect.feature_names) if dialect.feature_names else columns
        return [*(_NO_FEATURES & {*columns}), *(name for name in known if name not in _NO_FEATURES)]
    return [name for name in (LABELS, WEIGHTS, FEATURES, INDICES, VALUES) if name in columns]


def _column_problem(columns: Sequence[str], dialect: Dialect) -> str:
    has = f"; it has {', '.join(map(repr, columns[:8]))}{', ...' if len(columns) > 8 else ''}"
    if len(set(columns)) < len(columns):
        return f"two columns have the same name{has}; rename one"
    if dialect.needs_labels and LABELS not in columns:
        return f"no column 'labels'{has}; rename or add it"
    text = dialect.text_column
    if text and not {FEATURES, INDICES, text} & set(columns):
        return f"no column {text!r}{has}; rename or add it"
    if text and text in columns:
        return ""
    if {FEATURES, INDICES} <= set(columns):
        return "it has both 'features' and 'indices'; leave one out"
    if not (features := set(columns) - _NO_FEATURES):
        return f"no column 'indices' or 'features'{has}; rename or add one"
    if not is_dense(columns):
        return ""
    if "" in features:
        return f"a column without a name{has}; name it or leave it out, as pandas' index=False does"
    if dialect.feature_names:
        known = ids_by_name(dialect.feature_names).keys()
        if missing := [name for name in known if name not in features]:
            return f"no column {quoted(missing[0])}, which is a feature{has}; rename or add it"
        if others := [name for name in columns if name in features - known]:
            return f"column {quoted(others[0])} is none of the {len(known)} features; leave it out"
    return ""


def in_order(X: Any, names: Sequence[str]) -> Any:
    """Return the columns of a data frame in the order of features' names, and other rows as given.

    Raises
    ------
    InputError
        If one is missing, or is no feature.

    Examples
    --------
    >>> import pandas as pd
    >>> in_order(pd.DataFrame({"b": [1], "a": [2]}), ("a", "b")).to_numpy()
    array([[2, 1]])
    """
    columns = getattr(X, "columns", 0)  # of rows of ours, their number
    if not names or isinstance(columns, int) or not all(isinstance(each, str) for each in columns):
        return X
    if differing := sorted({*names} ^ {*columns}):
        what = "lacks" if differing[0] in names else "has, beside the model's features,"
        raise InputError(f"X {what} the column {quoted(differing[0])}: give exactly the features")
    return X[list(names)]


def parse_batch(batch: Any, dialect: Dialect, parse: Parse) -> Any:
    """Return what is made of an Arrow batch or table with the columns of `columns_to_read`.

    Raises
    ------
    InputError
        If a row is wrong; see the head of this module.
    """
    names = batch.schema.names
    return parse({n: _column(batch.column(n), n) for n in names}, batch.num_rows, dialect)


def _column(array: Any, name: str) -> Column:
    """Return an Arrow array without nulls as a column."""
    import pyarrow
    from pyarrow import types

    if isinstance(array, pyarrow.ChunkedArray):
        array = array.combine_chunks()
    if types.is_fixed_size_list(array.type) or str(array.type).startswith("list_view"):
        array = array.cast(pyarrow.list_(array.type.value_type))
    if not (types.is_list(array.type) or types.is_large_list(array.type)):
        return _items(array, name, f"{name!r} is null")
    if array.null_count:
        raise InputError(f"{name!r} is null; fill it, or drop the row")
    offsets = array.offsets.to_numpy().astype(np.int64)
    return Lists(offsets - offsets[0], _items(array.flatten(), name, f"{name!r} holds a null"))


def _items(array: Any, name: str, is_null: str) -> Any:
    """Return numbers as an array, or texts as a list."""
    from pyarrow import types

    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        raise InputError(f"{is_null}; fill it, or drop the row")
    kind = array.type
    if str(kind) in ("string", "large_string", "string_view"):
        return array.to_pylist()
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return array.to_numpy(zero_copy_only=False)
    if len(array):
        raise InputError(f"column {name!r} is of type {kind}: give numbers, texts, or lists")
    return np.empty(0, np.int64)


# --------------------------------------------------------------------------- rows of features


def parse_table(table: Table, rows: int, dialect: Dialect) -> ParsedRows:
    """Make rows of the columns of a table, by the dialect's vectorizer where they hold documents.

    Parameters
    ----------
    table
        Columns by name; those that mean nothing are left out by the caller.
    rows
        Their number.

    Raises
    ------
    InputError
        If a row is wrong.

    Examples
    --------
    >>> lists = Lists(np.array([0, 2, 3]), np.array([4, 1, 2]))
    >>> parsed = parse_table({"labels": np.array([0, 1]), "indices": lists}, 2, Dialect())
    >>> parsed.partition.features.indices, parsed.unsorted_rows
    (array([1, 4, 2], dtype=int32), 1)
    """
    if not rows:
        return parse_bytes(b"", dialect)
    if not dialect.needs_labels:
        table = {name: column for name, column in table.items() if name != LABELS}
    if dialect.vectorizer is not None and dialect.text_column in table:
        texts, names = parse_documents(table, rows, dialect)
        labels = _pack_labels(Lists.of(names), dialect)
        return tidied(Partition(from_scipy(dialect.vectorizer.transform(texts)), labels))
    features = _parse_features(table, rows, dialect)  # first, as the hint for texts is there
    labels = _parse_labels(table.get(LABELS), rows, dialect)
    return tidied(Partition(features, labels, _parse_weights(table.get(WEIGHTS))))


def _parse_labels(column: Column | None, rows: int, dialect: Dialect) -> Csr:
    if column is None:
        return Csr(np.zeros(rows + 1, np.int64), np.empty(0, np.int32), None, dialect.labels or 0)
    if isinstance(column, Lists | np.ndarray) or dialect.label_names:
        return _pack_labels(_listed(column, _split_names), dialect)
    parsed = _parse_lines([f"{text}\n" for text in column], dialect)
    if parsed.features.indptr[-1]:
        row = int(np.argmax(np.diff(parsed.features.indptr)))
        raise InputError(f"'labels' is {quoted(column[row])}: expected label,label")
    return parsed.labels


def _listed(column: Column, split: Callable[[str], list[str]]) -> Lists:
    """Return a column as lists: of one number each, or of what a text is split into."""
    if isinstance(column, np.ndarray):
        return Lists(np.arange(len(column) + 1), column)
    return column if isinstance(column, Lists) else Lists.of([split(text) for text in column])


def _split_names(text: str) -> list[str]:
    return [name for name in map(str.strip, text.split(",")) if name]


def _parse_weights(column: Column | None) -> Array | None:
    if column is None:
        return None
    numbers = _numbers(column, WEIGHTS)
    with np.errstate(over="ignore"):
        weights = numbers.astype(np.float32)
    if not (is_good := (weights >= 0.0) & np.isfinite(weights)).all():
        found = f"{WEIGHTS!r} is {numbers[int(np.argmin(is_good))]}"
        raise InputError(f"{found}: must be a finite number, at least 0")
    return weights


def _parse_features(table: Table, rows: int, dialect: Dialect) -> Csr:
    if is_dense(list(table)):
        dense = {name: column for name, column in table.items() if name not in _NO_FEATURES}
        return _parse_dense(dense, rows, dialect)
    if FEATURES not in table:
        return _pack_features(*_checked_lists(table), dialect)
    column = table[FEATURES]
    if isinstance(column, Lists | np.ndarray):
        raise InputError("'features' must hold texts; name lists of ids 'indices'")
    if dialect.feature_names:
        return _pack_features(*_split_pairs(column), dialect)
    return _parse_lines([f" {text}\n" for text in column], dialect).features


def _parse_dense(columns: Table, rows: int, dialect: Dialect) -> Csr:
    need = (
        "; expected 'indices' or 'features', or numbers in every column but 'labels'; "
        "documents are in a column 'text', or give text.column"
    )
    arrays = [_numbers(column, name, need) for name, column in columns.items()]
    if dialect.features is not None and len(columns) > dialect.features:
        problem = f"{len(columns)} columns of features, but there are {dialect.features}"
        raise InputError(f"{problem}; give rows of the same data set")
    matrix = _floats(np.column_stack(arrays))
    row, ids = np.nonzero(matrix)
    indptr = starts_of(np.bincount(row, minlength=rows))
    features = dialect.features or len(columns)
    return Csr(indptr, ids.astype(np.int32), matrix[row, ids], features)


def _parse_lines(lines: list[str], dialect: Dialect) -> Partition:
    """Parse lines of labels or of features, one for each row."""
    text = "".join(lines)
    if "#" in text or text.count("\n") != len(lines):
        line = next(line for line in lines if "#" in line or "\n" in line[:-1])
        raise InputError(f"a '#' or a line break in {quoted(line.strip())}; remove it")
    return parse_padded(pad_text(text.encode()), dialect, blank_rows=True, path=None)


def _split_pairs(texts: Sequence[str]) -> tuple[Lists, Lists]:
    """Split texts of ``name:value`` into names and values."""
    rows = [text.split() for text in texts]
    pairs = []
    for token in chain.from_iterable(rows):
        match = _PAIR.fullmatch(token)
        if match is None:
            raise InputError(f"malformed token {quoted(token)}; expected name:number")
        pairs.append((match[1], match[2]))
    indptr = Lists.of(rows).indptr
    values = _numbers([value for _, value in pairs], FEATURES, "; expected name:number")
    return Lists(indptr, [name for name, _ in pairs]), Lists(indptr, values)


def _checked_lists(table: Table) -> tuple[Lists, Lists]:
    """Return the lists of ids and of values, which are equally long in every row."""
    indices = _lists(table[INDICES], INDICES)
    if VALUES not in table:
        return indices, Lists(indices.indptr, np.ones(int(indices.indptr[-1]), np.float32))
    values = _lists(table[VALUES], VALUES)
    sizes, others = np.diff(indices.indptr), np.diff(values.indptr)
    if (sizes != others).any():
        row = int(np.argmax(sizes != others))
        problem = f"{sizes[row]} 'indices' but {others[row]} 'values'"
        raise InputError(f"{problem}; give one value for each")
    return indices, values


def _lists(column: Column, name: str) -> Lists:
    if isinstance(column, np.ndarray):
        raise InputError(f"{name!r} must hold a list in every row")
    return _listed(column, str.split)


# ------------------------------------------------------------------------------- documents

Documents = tuple[list[str], list[list[str]]]  # texts, and the labels of each


def parse_documents(table: Table, rows: int, dialect: Dialect) -> Documents:
    """Return the texts of a table, and the names of each one's labels.

    Raises
    ------
    InputError
        If a row holds no text, or an empty label.

    Examples
    --------
    >>> parse_documents({"text": ["red"], "labels": ["a, b"]}, 1, Dialect(text_column="text"))
    (['red'], [['a', 'b']])
    """
    texts, column = table[dialect.text_column], dialect.text_column
    if isinstance(texts, Lists | np.ndarray) and rows:
        raise InputError(f"{column!r} holds no texts: name the column of texts")
    return list(texts) if rows else [], label_lists(table.get(LABELS), rows)  # type: ignore[arg-type]


def has_texts(table: Table, rows: int, dialect: Dialect) -> bool:
    """Whether any text of a table of documents is more than a number.

    Examples
    --------
    >>> has_texts({"text": ["1", "red"]}, 2, Dialect(text_column="text"))
    True
    """
    texts = table[dialect.text_column]
    return isinstance(texts, list) and not all(map(_is_number, texts))


def _is_number(text: str) -> bool:
    try:
        number_of(text)
    except ValueError:
        return False
    return True


def label_lists(column: Column | None, rows: int) -> list[list[str]]:
    """Return the names of each row's labels.

    Raises
    ------
    InputError
        If a name is empty.

    Examples
    --------
    >>> label_lists(Lists(np.array([0, 2, 2]), np.array([3, 1])), 2)
    [['3', '1'], []]
    """
    if column is None:
        return [[] for _ in range(rows)]
    lists = _listed(column, _split_names)
    items = [str(item) for item in np.asarray(lists.items, object).tolist()]
    if "" in items:
        raise InputError("an empty label: give it a name, or leave it out")
    return [items[first:last] for first, last in pairwise(lists.indptr.tolist())]


def label_csr_of(names: Sequence[Sequence[str]], columns: Mapping[str, int]) -> Csr:
    """Return labels by name as a matrix; those that have no column are left out.

    Examples
    --------
    >>> label_csr_of([["b", "new"], ["a", "b", "a"]], {"a": 0, "b": 1}).indices
    array([1, 0, 1], dtype=int32)
    """
    ids = Lists.of([sorted({columns[name] for name in row if name in columns}) for row in names])
    return Csr(ids.indptr, np.array(ids.items, np.int32), None, len(columns))


# ------------------------------------------------------------------------ ids and values


def _pack_labels(lists: Lists, dialect: Dialect) -> Csr:
    """Return labels by id or by name as a matrix."""
    items, base = lists.items, dialect.label_base
    names: Any = dialect.label_names
    ids = _ids(items, names, dialect.labels, base, "label")
    columns = len(names) if isinstance(names, defaultdict) else dialect.labels or UNKNOWN
    return Csr(np.array(lists.indptr, np.int64), ids, None, columns)


def _pack_features(indices: Lists, values: Lists, dialect: Dialect) -> Csr:
    names, base = dialect.feature_names, dialect.feature_base
    ids = _ids(indices.items, names, dialect.features, base, "feature")
    numbers = _floats(_numbers(values.items, VALUES))
    indptr = np.array(indices.indptr, np.int64)  # a copy, as of ids and numbers: tidied in place
    return Csr(indptr, ids, numbers, dialect.features or UNKNOWN)


def _ids(items: Any, names: Names, count: int | None, base: int, kind: str) -> Array:
    """Return ids from 0 as int32, from names or from ids that count from ``base``."""
    if not isinstance(items, np.ndarray):
        if names:
            return _ids_of_names(items, names, kind)
        items = _ids_of_texts(items, kind)
    if items.dtype.kind not in "iu" and items.size:
        is_wrong = np.ones(len(items), bool)
        if items.dtype.kind == "f":
            is_wrong = ~np.isfinite(items) | (items != np.floor(items))
        if is_wrong.any():
            wrong = quoted(items[int(np.argmax(is_wrong))].item())
            raise InputError(f"{kind} {wrong} is not an integer; give ids or names")
    is_out = (items < base) | (items >= base + count_ids(count, base))
    if is_out.any():
        number = int(items[int(np.argmax(is_out))])
        if number < 0:
            raise InputError(f"{kind} id {number} is negative; renumber the {kind}s from 0 or 1")
        raise InputError(explain_range(number, count, base, kind, str(number).encode()))
    return (items - base).astype(np.int32)


def _ids_of_names(items: list[str], names: Names, kind: str) -> Array:
    if isinstance(names, defaultdict):  # which gives others the ids behind
        return np.fromiter(map(names.__getitem__, items), np.int32, len(items))
    known = ids_by_name(names)
    ids = np.fromiter((known.get(name, -1) for name in items), np.int32, len(items))
    if (ids < 0).any():
        found = f"{kind} {quoted(items[int(np.argmin(ids))])} is none of the {len(known)} names"
        raise InputError(f"{found}; add it to data.{kind}_names or remove it")
    return ids


def _ids_of_texts(items: list[str], kind: str) -> Array:
    """Return ids that are written as texts."""
    for text in items:
        if not (text.isascii() and text.isdecimal()):
            found = f"{kind} {quoted(text)} is a name: give data.{kind}_names"
            raise InputError(f"{found}, a file with a name on each line")
        if len(text) > 18:
            problem = f"{kind} id {quoted(text)} is larger than {LARGEST_ID}"
            raise InputError(f"{problem}; renumber the {kind}s")
    return np.array(list(map(int, items)), np.int64)


def _numbers(column: Any, name: str, hint: str = "; give numbers") -> Array:
    """Return a column of numbers, which may be written as texts."""
    if isinstance(column, np.ndarray):
        return column
    if isinstance(column, Lists):
        raise InputError(f"{name!r} holds lists, no numbers{hint}")
    numbers, text = np.empty(len(column)), ""
    try:
        for row, text in enumerate(column):
            numbers[row] = number_of(text)
    except ValueError:
        raise InputError(f"{name!r} holds {quoted(text)}, no number{hint}") from None
    return numbers


def _floats(numbers: Array) -> Array:
    """Return values as float32, which are finite."""
    with np.errstate(over="ignore"):
        values = numbers.astype(np.float32)
    if not (finite := np.isfinite(values)).all():
        wrong = numbers.ravel()[int(np.argmin(finite))].item()
        problem = f"value {wrong} is NaN, infinite or does not fit float32"
        raise InputError(f"{problem}; remove or replace it")
    return values
