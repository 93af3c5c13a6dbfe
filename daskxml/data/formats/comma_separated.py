"""CSV with a line of column names, those of `tables`; lists are texts of items between spaces.

``.tsv`` is separated by tabs. A block may begin at any line, so no quoted text holds a line break.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np

from daskxml.core.arrays import Array
from daskxml.core.errors import InputError
from daskxml.data.blocks import (
    LINE_BYTES,
    Block,
    Header,
    count_lines_before,
    cut_lines,
    open_file,
    read_head,
    read_texts,
)
from daskxml.data.formats.tables import (
    FEATURES,
    INDICES,
    LABELS,
    VALUES,
    WEIGHTS,
    BadRowError,
    Column,
    Lists,
    Parse,
    as_numbers,
    column_problem,
    dense_header,
    is_dense,
    parse_table,
)
from daskxml.data.parse import Dialect
from daskxml.data.scan import PADDING


def read_header(path: str) -> Header | None:
    """Return the number of columns of a dense table; see `Format.header`."""
    return dense_header(_read_names(path))


def cut(path: str, block_bytes: int) -> list[Block]:
    """Cut a file into blocks of whole lines; see `Format.cut`."""
    read_head(path)
    return cut_lines(Block(path, 0, None, format="csv"), block_bytes)


def read(block: Block, dialect: Dialect, parse: Parse = parse_table) -> Iterator[Any]:
    """Parse a block; see `Format.read`."""
    names = _read_names(block.path)
    if problem := column_problem(names, dialect):
        raise InputError(problem, block.path, 1)
    for text, lines_before in read_texts(block, dialect.line_bytes):
        lines = _decode(text[:-PADDING].tobytes(), block.path).split("\n")
        first = 1 if not block.start and not lines_before else 0
        numbers = [
            number for number, line in enumerate(lines, 1) if number > first and line.strip()
        ]
        try:
            rows = _split([lines[number - 1] for number in numbers], len(names), block.path)
            columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=False))
            parsed = parse(_columns(columns, dialect), len(rows), dialect) if rows else None
        except BadRowError as error:
            line = numbers[error.row] + lines_before + count_lines_before(block)
            raise InputError(error.problem, block.path, line) from None
        if parsed is not None:
            yield parsed


def _decode(text: bytes, path: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"is no UTF-8 text ({error.reason}); save it as UTF-8", path) from None


def _delimiter(path: str) -> str:
    return "\t" if path.lower().removesuffix(".gz").endswith(".tsv") else ","


def _read_names(path: str) -> list[str]:
    """Return the column names in the first line of a file."""
    read_head(path)
    if path.endswith(".gz"):
        with closing(read_texts(Block(path, 0, None))) as texts:
            first = next(texts)[0][:-PADDING].tobytes().split(b"\n", 1)[0]
    else:
        with open_file(path) as file:
            first = file.readline()
    line = _decode(first, path).removeprefix("\ufeff")
    try:
        names: list[str] = next(csv.reader([line], delimiter=_delimiter(path)), [])
    except csv.Error as error:
        raise InputError(f"malformed column names ({error}); mend the line", path, 1) from None
    return [name.strip() for name in names]


def _split(lines: list[str], columns: int, path: str) -> list[list[str]]:
    """Split lines into as many fields as there are columns."""
    rows: list[list[str]] = []
    csv.field_size_limit(max(csv.field_size_limit(), LINE_BYTES))  # a text of features may be long
    reader = csv.reader(lines, delimiter=_delimiter(path), strict=True)
    try:
        for row in reader:
            if reader.line_num > len(rows) + 1:
                raise BadRowError(len(rows), "a quoted text does not end on its line; mend it")
            if len(row) != columns:
                problem = f"{len(row)} fields, but there are {columns} columns"
                raise BadRowError(len(rows), f"{problem}; mend the row or its quotes")
            rows.append(row)
    except csv.Error as error:
        raise BadRowError(len(rows), f"malformed CSV ({error}); mend the quotes") from None
    return rows


def _columns(columns: dict[str, list[str]], dialect: Dialect) -> dict[str, Column]:
    """Return texts as they are, and lists and numbers from texts."""
    if dialect.text_column in columns:
        return {n: columns[n] for n in (LABELS, dialect.text_column) if n in columns}
    if is_dense(list(columns)):
        return {
            name: _as_floats(it, name) if name != LABELS else it for name, it in columns.items()
        }
    known: dict[str, Column] = {n: columns[n] for n in (LABELS, FEATURES) if n in columns}
    known |= {n: _as_floats(columns[n], n) for n in (WEIGHTS,) if n in columns}
    return known | {n: _as_lists(columns[n], n) for n in (INDICES, VALUES) if n in columns}


def _as_floats(texts: list[str], name: str) -> Array:
    try:
        return np.array(texts, np.float64)
    except ValueError:
        row = next(row for row, text in enumerate(texts) if not _is_number(text))
        raise BadRowError(row, f"column {name!r} holds {texts[row][:40]!r}, no number") from None


def _as_lists(texts: list[str], name: str) -> Lists:
    """Return lists of numbers, or for ``indices`` also of names."""
    lists = Lists.of([text.split() for text in texts], name)
    if isinstance(lists.items, np.ndarray):  # no row has any
        return lists
    if name == VALUES:
        try:
            return Lists(lists.indptr, np.array(lists.items, np.float64))
        except ValueError:
            place = next(i for i, text in enumerate(lists.items) if not _is_number(text))
            problem = f"'values' holds {lists.items[place][:40]!r}, no number"
            raise BadRowError(lists.row_of(place), problem) from None
    if all(map(str.isdecimal, lists.items)):
        return Lists(lists.indptr, as_numbers(list(map(int, lists.items)), {int}))
    return lists


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
