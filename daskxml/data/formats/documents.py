"""Documents in files: a column of texts in a table, or the lines of a text.

A table has the texts in one column, and perhaps labels in the column ``labels``: lists of names or
of ids, or a text of them with commas between. All labels of documents are names here: the id 3 is
the name ``"3"``. Files of text hold a document on each line, and no labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from daskxml.core.arrays import Csr, Partition
from daskxml.core.errors import InputError
from daskxml.data.blocks import Block, count_lines_before, read_texts
from daskxml.data.formats.tables import (
    LABELS,
    BadRowError,
    Column,
    Lists,
    Table,
    no_labels,
    pack_labels,
    parse_table,
)
from daskxml.data.parse import Dialect, ParsedRows
from daskxml.data.rows import from_scipy
from daskxml.data.scan import PADDING

Documents = tuple[list[str], list[list[str]]]  # texts, and the labels of each


def parse_documents(table: Table, rows: int, dialect: Dialect) -> Documents:
    """Return the texts of a table, and the names of each one's labels.

    Raises
    ------
    BadRowError
        At the first row that holds no text, or a label that is no name.

    Examples
    --------
    >>> parse_documents({"text": ["red"], "labels": ["a, b"]}, 1, Dialect(text_column="text"))
    (['red'], [['a', 'b']])
    """
    return texts_of(table, dialect.text_column), label_lists(table.get(LABELS), rows)


def texts_of(table: Table, column: str) -> list[str]:
    """Return a column of texts.

    Raises
    ------
    BadRowError
        If it holds something else.
    """
    texts: Any = table[column]
    if isinstance(texts, Lists | np.ndarray):
        if isinstance(texts, np.ndarray) and not len(texts):
            return []
        raise BadRowError(0, f"{column!r} holds no texts: name the column of texts")
    if len(texts) and not isinstance(texts[0], str):  # objects of JSON
        raise BadRowError(0, f"{column!r} is {texts[0]!r:.40}: give texts")
    return list(texts)


def label_lists(column: Column | None, rows: int) -> list[list[str]]:
    """Return the names of each row's labels.

    Raises
    ------
    BadRowError
        At the first row with an empty name.

    Examples
    --------
    >>> label_lists(Lists(np.array([0, 2, 2]), np.array([3, 1])), 2)
    [['3', '1'], []]
    """
    if column is None:
        return [[] for _ in range(rows)]
    if isinstance(column, Lists):
        items = [str(item) for item in np.asarray(column.items, object).tolist()]
        found = [items[first:last] for first, last in pairwise(column.indptr.tolist())]
    elif isinstance(column, np.ndarray):
        found = [[str(item)] for item in column.tolist()]
    else:
        found = [[it for it in map(str.strip, text.split(",")) if it] for text in column]
    for row, names in enumerate(found):
        if "" in names:
            raise BadRowError(row, "an empty label: give it a name, or leave it out")
    return found


def read_lines(block: Block, line_bytes: int) -> Iterator[list[str]]:
    """Yield the lines of a block of a text, each a document.

    Raises
    ------
    InputError
        If the file cannot be read, or is no UTF-8.
    """
    for text, lines_before in read_texts(block, line_bytes):
        data = text[:-PADDING].tobytes()
        try:
            lines = data.decode().split("\n")
        except UnicodeDecodeError as error:
            line = data[: error.start].count(b"\n") + lines_before + count_lines_before(block) + 1
            problem = f"is no UTF-8 text ({error.reason}); save it as UTF-8"
            raise InputError(problem, block.path, line) from None
        yield [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


def parse_vectorized(table: Table, rows: int, dialect: Dialect) -> ParsedRows:
    """Parse a table by the vectorizer of a dialect, where it has a column of texts.

    Raises
    ------
    BadRowError
        At the first row that is wrong.
    """
    if dialect.text_column not in table or not rows:
        return parse_table(table, rows, dialect)
    texts, labels = parse_documents(table, rows, dialect)
    indptr = np.append(0, np.cumsum(list(map(len, labels)))).astype(np.int64)
    names = Lists(indptr, [name for row in labels for name in row])
    has_labels = bool(indptr[-1])
    packed = pack_labels(names, dialect) if has_labels else (no_labels(rows, dialect), 0)
    return _parsed(texts, packed, dialect)


def read_line_rows(block: Block, dialect: Dialect) -> Iterator[ParsedRows]:
    """Yield the rows of a text's lines, by the vectorizer of a dialect.

    Raises
    ------
    InputError
        If labels are needed: lines have none.
    """
    if dialect.needs_labels:
        problem = "lines of text have no labels: give JSON lines, Parquet or CSV with 'labels'"
        raise InputError(problem, block.path)
    for lines in read_lines(block, dialect.line_bytes):
        yield _parsed(lines, (no_labels(len(lines), dialect), 0), dialect)


def _parsed(texts: list[str], labels: tuple[Csr, int], dialect: Dialect) -> ParsedRows:
    assert dialect.vectorizer is not None
    features, (packed, merged) = from_scipy(dialect.vectorizer.transform(texts)), labels
    return ParsedRows(
        partition=Partition(features, packed),
        unsorted_rows=0,
        merged_features=0,
        merged_labels=merged,
    )


def read_documents(block: Block, dialect: Dialect, read: Any) -> Documents:
    """Return the documents of a block of a file; ``read`` is that of its format, of tables.

    Raises
    ------
    InputError
        If it cannot be read, or at its first wrong row.
    """
    texts: list[str] = []
    labels: list[list[str]] = []
    if read is None:
        for lines in read_lines(block, dialect.line_bytes):
            texts += lines
        return texts, [[] for _ in texts]
    for some, names in read(block, dialect, parse_documents):
        texts += some
        labels += names
    return texts, labels


def label_csr_of(names: Sequence[Sequence[str]], columns: dict[str, int]) -> Csr:
    """Return labels by name as a matrix; those that have no column are left out.

    Examples
    --------
    >>> label_csr_of([["b", "new"], ["a", "b", "a"]], {"a": 0, "b": 1}).indices
    array([1, 0, 1], dtype=int32)
    """
    rows = [sorted({columns[name] for name in row if name in columns}) for row in names]
    indptr = np.append(0, np.cumsum([len(row) for row in rows])).astype(np.int64)
    ids = np.fromiter((column for row in rows for column in row), np.int32, int(indptr[-1]))
    return Csr(indptr, ids, None, len(columns))
