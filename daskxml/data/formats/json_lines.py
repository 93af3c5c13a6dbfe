"""JSON lines: an object with the columns of `tables` on each line, plain or gzipped.

``features`` may also be an object of values by id or by name: ``{"4": 0.5}``, ``{"red": 1}``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from daskxml.core.errors import InputError
from daskxml.core.text import parse_json
from daskxml.data.blocks import Block, Header, count_lines_before, cut_lines, read_head, read_texts
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
    column_problem,
    parse_table,
)
from daskxml.data.parse import Dialect
from daskxml.data.scan import PADDING


def read_header(path: str) -> Header | None:
    """Return None: lines declare nothing of the others; see `Format.header`."""
    read_head(path)
    return None


def cut(path: str, block_bytes: int) -> list[Block]:
    """Cut a file into blocks of whole lines; see `Format.cut`."""
    read_head(path)
    return cut_lines(Block(path, 0, None, format="jsonl"), block_bytes)


def read(block: Block, dialect: Dialect, parse: Parse = parse_table) -> Iterator[Any]:
    """Parse a block; see `Format.read`."""
    for text, lines_before in read_texts(block, dialect.line_bytes):
        lines = text[:-PADDING].tobytes().split(b"\n")
        numbers = [number for number, line in enumerate(lines, 1) if line.strip()]
        try:
            rows = [_decode(lines[number - 1], i) for i, number in enumerate(numbers)]
            parsed = parse(_columns(rows, dialect), len(rows), dialect) if rows else None
        except BadRowError as error:
            line = numbers[error.row] + lines_before + count_lines_before(block)
            raise InputError(error.problem, block.path, line) from None
        if parsed is not None:
            yield parsed


def _decode(line: bytes, number: int) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as error:  # of the JSON, or of its UTF-8
        problem = f"malformed JSON ({error}); the line may be cut: write the file again"
        raise BadRowError(number, problem) from None
    if not isinstance(row, dict):
        raise BadRowError(number, 'not an object; expected {"labels": ..., "indices": ...}')
    return row


def _columns(rows: list[dict[str, Any]], dialect: Dialect) -> dict[str, Column]:
    """Return the columns that the first row has; a row without values has ones."""
    text = (dialect.text_column,) if dialect.text_column in rows[0] else ()
    wanted = (LABELS, *(text or (WEIGHTS, FEATURES, INDICES)))
    names = [name for name in wanted if name in rows[0]]
    if INDICES in names and any(VALUES in row for row in rows):
        names.append(VALUES)
    if problem := column_problem(list(rows[0]) if dialect.text_column else names, dialect):
        raise BadRowError(0, problem)
    for number, row in enumerate(rows):
        if isinstance(row.get(INDICES), list) and VALUES in names:
            row.setdefault(VALUES, [1.0] * len(row[INDICES]))
        for name in names:
            if row.get(name) is None:
                problem = f"{name!r} is {'null' if name in row else 'missing'}, but other rows"
                none = "" if name == WEIGHTS else "; [] is none"
                raise BadRowError(number, f"{problem} have it{none}")
    columns = {name: _column([row[name] for row in rows], name) for name in names}
    if FEATURES in names and isinstance(rows[0][FEATURES], dict):
        del columns[FEATURES]
        columns |= _from_objects([row[FEATURES] for row in rows], dialect)
    return columns


def _column(values: list[Any], name: str) -> Column:
    if name == WEIGHTS:
        return Lists.of([[value] for value in values], name).items
    kind = type(values[0])
    for number, value in enumerate(values):
        if type(value) is not kind:
            problem = f"{name!r} is {json.dumps(value)[:40]}, of another kind than in other rows"
            raise BadRowError(number, f"{problem}; write all alike")
    if kind in (str, dict):
        return values
    return Lists.of([[value] for value in values] if kind is int else values, name)


def _from_objects(objects: list[dict[str, Any]], dialect: Dialect) -> dict[str, Column]:
    ids: list[Any] = [list(row) for row in objects]
    if not dialect.feature_names:
        for number, row in enumerate(ids):
            if wrong := [key for key in row if not key.isdecimal()]:
                told = f"feature {wrong[0]!r} is a name: give data.feature_names"
                raise BadRowError(number, f"{told}, a file with a name on each line")
            ids[number] = [int(key) for key in row]
    values = [list(row.values()) for row in objects]
    return {INDICES: Lists.of(ids, FEATURES), VALUES: Lists.of(values, FEATURES)}
