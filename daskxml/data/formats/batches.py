"""Tables as Arrow batches: Parquet, Arrow, JSON lines and CSV files, and data frames.

A table is opened by one function. One kind has parts that can be read alone (`Parts`): row groups
of a Parquet file, record batches of an Arrow file; a stream of batches cannot be entered in the
middle, and is one part. In the other each line is a row (`Lines`), and a block may begin at any
line: no quoted text of a CSV holds a line break. What the columns mean is said in `tables`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import IO, Any

import numpy as np

from daskxml.core.errors import InputError
from daskxml.core.text import parse_json
from daskxml.data.blocks import (
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
    Parse,
    columns_to_read,
    dense_header,
    find_bad_row,
    no_labels,
    parse_batch,
    parse_table,
    vectorized_rows,
)
from daskxml.data.parse import Dialect, ParsedRows
from daskxml.data.scan import PADDING

_BATCH_ROWS = 1 << 16  # of a Parquet file that are made rows at a time


# ---------------------------------------------------------------------- tables with parts


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
    """

    names: list[str]
    nbytes: Sequence[float]
    batches: Callable[[int, int, list[str]], Iterator[Any]]


OpenParts = Callable[[IO[bytes]], Parts]


def open_parquet(file: IO[bytes]) -> Parts:
    """Open a Parquet file, whose parts are its row groups."""
    import pyarrow.parquet

    table = pyarrow.parquet.ParquetFile(file)
    groups = range(table.metadata.num_row_groups)

    def batches(start: int, stop: int, names: list[str]) -> Iterator[Any]:
        chosen = list(groups[start:stop])
        return table.iter_batches(_BATCH_ROWS, row_groups=chosen, columns=names)

    nbytes = [table.metadata.row_group(group).total_byte_size for group in groups]
    return Parts(table.schema_arrow.names, nbytes, batches)


def open_arrow(file: IO[bytes]) -> Parts:
    """Open an Arrow file, whose parts are its record batches, or a stream, which is one part."""
    import pyarrow.ipc

    is_file = file.read(6) == b"ARROW1"
    nbytes = file.seek(0, 2)
    file.seek(0)
    table = pyarrow.ipc.open_file(file) if is_file else pyarrow.ipc.open_stream(file)
    count = table.num_record_batches if is_file else 1

    def batches(start: int, stop: int, names: list[str]) -> Iterator[Any]:
        for batch in map(table.get_batch, range(start, stop)) if is_file else table:
            yield batch.select(names)

    return Parts(table.schema.names, [nbytes / max(1, count)] * count, batches)


@contextmanager
def _opened(open_parts: OpenParts, path: str) -> Iterator[Parts]:
    """Open a table with parts.

    Raises
    ------
    InputError
        If it is damaged.
    """
    import pyarrow

    with open_file(path) as file:
        try:
            yield open_parts(file)
        except (MemoryError, OverflowError):
            problem = "a part of it is larger than the memory, or damaged"
            raise InputError(f"{problem}: write it in smaller parts", path) from None
        except (pyarrow.ArrowException, OSError) as error:
            told = " ".join(str(error).split())[:120]
            problem = f"not a whole table ({told}); fetch or write it again"
            raise InputError(problem, path) from None
        except InputError as error:
            raise InputError(error.problem, path, error.line) from None


def parts_header(open_parts: OpenParts, path: str) -> Header | None:
    """Return the number of columns of a dense table; see `Format.header`."""
    with _opened(open_parts, path) as table:
        return dense_header(table.names)


def cut_parts(open_parts: OpenParts, format: str, path: str, block_bytes: int) -> list[Block]:
    """Cut a table into blocks of consecutive parts; see `Format.cut`."""
    with _opened(open_parts, path) as table:
        starts = np.append(0, np.cumsum(table.nbytes))[:-1] // block_bytes
    blocks = []
    for _, members in groupby(range(len(starts)), key=lambda part: starts[part]):
        first, *rest = members
        blocks.append(Block(path, first, [first, *rest][-1] + 1, format=format))
    return blocks or [Block(path, 0, 0, format=format)]


def read_parts(
    open_parts: OpenParts, block: Block, dialect: Dialect, parse: Parse = parse_table
) -> Iterator[Any]:
    """Yield what is made of each batch of a block; see `Format.read`."""
    assert block.stop is not None
    with _opened(open_parts, block.path) as table:
        names, before = columns_to_read(table.names, dialect), 0

        def refuse(row: int, problem: str) -> InputError:
            skipped = sum(batch.num_rows for batch in table.batches(0, block.start, []))
            return InputError(f"row {skipped + before + row}: {problem}", block.path)

        for batch in table.batches(block.start, block.stop, names):
            batch.validate(full=True)  # damaged offsets would be followed out of the memory
            yield find_bad_row(batch, partial(parse_batch, dialect=dialect, parse=parse), refuse)
            before += batch.num_rows


# ------------------------------------------------------------------ tables of lines


@dataclass(frozen=True)
class Lines:
    """A table in which each line is a row.

    Attributes
    ----------
    names
        Of its columns.
    has_head
        Whether its first line holds only the names.
    batch
        Makes an Arrow batch of lines, with the columns that are named.
    """

    names: list[str]
    has_head: bool
    batch: Callable[[list[bytes], list[str]], Any]


OpenLines = Callable[[str], Lines]


def open_csv(path: str) -> Lines:
    """Open a CSV with a line of column names, separated by tabs if its name ends in ``.tsv``."""
    delimiter = "\t" if path.lower().removesuffix(".gz").endswith(".tsv") else ","
    try:
        line = _first_line(path).decode()
        names: list[str] = next(csv.reader([line], delimiter=delimiter), [])
    except UnicodeDecodeError as error:
        raise InputError(f"is no UTF-8 text ({error.reason}); save it as UTF-8", path) from None
    except csv.Error as error:
        raise InputError(f"malformed column names ({error}); fix the line", path, 1) from None
    names = [name.strip() for name in names]
    return Lines(names, True, partial(_csv_batch, names, delimiter))


def _csv_batch(names: list[str], delimiter: str, lines: list[bytes], wanted: list[str]) -> Any:
    """Make texts of the fields of lines."""
    import pyarrow.csv

    data = b"\n".join(lines) + b"\n"
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"is no UTF-8 text ({error.reason}); save it as UTF-8") from None
    wrong: list[Any] = []

    def note(row: Any) -> str:
        wrong.append(row)
        return "error"

    read = pyarrow.csv.ReadOptions(
        column_names=names, use_threads=False, block_size=max(len(data) + 1, 1 << 10)
    )
    parse = pyarrow.csv.ParseOptions(delimiter=delimiter, invalid_row_handler=note)
    convert = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pyarrow.string()), include_columns=wanted,
        strings_can_be_null=False, check_utf8=False,
    )  # fmt: skip
    if not lines:
        return pyarrow.table({name: pyarrow.array([], pyarrow.string()) for name in wanted})
    try:
        table = pyarrow.csv.read_csv(pyarrow.BufferReader(data), read, parse, convert)
    except pyarrow.ArrowException as error:
        if wrong:
            problem = f"{wrong[0].actual_columns} fields, but there are {len(names)} columns"
            raise InputError(f"{problem}; fix the row or its quotes") from None
        told = " ".join(str(error).split())[:120]
        raise InputError(f"malformed CSV ({told}); fix the quotes") from None
    is_open = any("\n" in table[name][-1].as_py() for name in wanted if table.num_rows)
    if is_open or table.num_rows != len(lines):
        raise InputError("a quoted text does not end on its line; fix it")
    return table


def open_json(path: str) -> Lines:
    """Open JSON lines: an object on each line, whose keys are those of the first.

    ``features`` may also be an object of values by id or by name: ``{"4": 0.5}``, ``{"red": 1}``.
    Python parses the lines: to Arrow, each key of such objects would be a column.
    """
    try:
        names = list(_json_row(_first_line(path)))
    except InputError as error:
        raise InputError(error.problem, path, 1) from None
    return Lines(names, False, _json_batch)


def _json_batch(lines: list[bytes], names: list[str]) -> Any:
    import pyarrow

    rows = list(map(_json_row, lines))
    if INDICES in names:  # without values all are 1, in all rows or in some
        has_values = any(VALUES in row for row in rows)
        names = [*(n for n in names if n != VALUES), *[VALUES] * has_values]
        for row in rows:
            if has_values and isinstance(row.get(INDICES), list):
                row.setdefault(VALUES, [1.0] * len(row[INDICES]))
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if None in values:
            is_null = any(name in row and row[name] is None for row in rows)
            problem = f"{name!r} is {'null' if is_null else 'missing'}, but other rows have it"
            raise InputError(problem + ("" if name == WEIGHTS else "; [] is none"))
        columns[name] = arrow_array(values, name)
    return pyarrow.table(columns)


def _json_row(line: bytes) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as error:  # of the JSON, or of its UTF-8
        problem = f"malformed JSON ({error}); the line may be cut: write the file again"
        raise InputError(problem) from None
    if not isinstance(row, dict):
        raise InputError('not an object; expected {"labels": ..., "indices": ...}')
    if isinstance(features := row.get(FEATURES), dict):
        del row[FEATURES]
        row |= {INDICES: list(features), VALUES: list(features.values())}
    return row


def arrow_array(values: Sequence[Any], name: str) -> Any:
    """Make an Arrow array of Python values.

    Raises
    ------
    InputError
        If one is of another kind than the others.

    Examples
    --------
    >>> str(arrow_array([[1, 2], []], "labels").type)
    'list<item: int64>'
    """
    import pyarrow

    try:
        return pyarrow.array(values)
    except OverflowError:
        raise InputError(f"{name!r} is {values[-1]!r:.40}: a number is too large") from None
    except (pyarrow.ArrowException, ValueError) as error:
        told = " ".join(str(error.args[0]).split())
        shown = f"{values[-1]!r:.40}"
        raise InputError(f"{name!r} is {shown} ({told}); write all rows alike") from None


def _first_line(path: str) -> bytes:
    """Return the first line of a file that is not blank, without a byte order mark."""
    head = read_head(path).removeprefix(b"\xef\xbb\xbf").lstrip()
    if b"\n" in head:
        return head.split(b"\n", 1)[0]
    with closing(read_texts(Block(path, 0, None))) as texts:
        for text, _ in texts:
            if line := text[:-PADDING].tobytes().lstrip().split(b"\n", 1)[0]:
                return line
    return b""


def lines_header(open_lines: OpenLines, path: str) -> Header | None:
    """Return the number of columns of a dense table; see `Format.header`."""
    return dense_header(open_lines(path).names)


def cut_line_table(format: str, path: str, block_bytes: int) -> list[Block]:
    """Cut a file into blocks of whole lines; see `Format.cut`."""
    read_head(path)
    return cut_lines(Block(path, 0, None, format=format), block_bytes)


def read_line_table(
    open_lines: OpenLines, block: Block, dialect: Dialect, parse: Parse = parse_table
) -> Iterator[Any]:
    """Yield what is made of each piece of a block; see `Format.read`."""
    path = block.path
    table = open_lines(path)
    try:
        names = columns_to_read(table.names, dialect)
    except InputError as error:
        raise InputError(error.problem, path, 1) from None

    def make(rows: list[bytes]) -> Any:
        return parse_batch(table.batch(rows, names), dialect, parse)

    for text, before in read_texts(block, dialect.line_bytes):
        lines = text[:-PADDING].tobytes().split(b"\n")
        numbers = [number for number, line in enumerate(lines, 1) if line.strip()]
        if table.has_head and not (block.start or before):
            numbers = numbers[1:]
        if numbers:
            rows = [lines[number - 1] for number in numbers]
            yield find_bad_row(rows, make, partial(_refuse_line, block, before, numbers))


def _refuse_line(
    block: Block, before: int, numbers: Sequence[int], row: int, problem: str
) -> InputError:
    return InputError(problem, block.path, numbers[row] + before + count_lines_before(block))


# ----------------------------------------------------------------------------- data frames


def read_frame(
    frame: Any, columns: Sequence[str], dialect: Dialect, parse: Parse = parse_table
) -> Any:
    """Return what is made of the rows of a data frame: of pandas, polars, or Arrow itself.

    Raises
    ------
    InputError
        At the first row that is wrong, counted from 0.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"labels": [[0], [1]], "red": [0.0, 2.0]})
    >>> read_frame(frame, ["labels", "red"], Dialect()).partition.features.nonzeros
    1
    """

    def make(rows: Any) -> Any:
        return parse_batch(_frame_batch(rows, columns), dialect, parse)

    def refuse(row: int, problem: str) -> InputError:
        return InputError(f"row {row}: {problem}")

    return find_bad_row(frame, make, refuse)


def _frame_batch(frame: Any, columns: Sequence[str]) -> Any:
    import pyarrow

    try:
        table = pyarrow.table(frame[list(columns)] if hasattr(frame, "iloc") else frame)
    except (pyarrow.ArrowException, OverflowError, ValueError) as error:
        told = " ".join(str(error.args[0]).split())
        raise InputError(f"values of several kinds ({told}); give all rows alike") from None
    table = table.select(list(columns))
    for name in columns:
        is_list = name in (LABELS, INDICES, VALUES)
        texts = table[name].drop_null().to_pylist() if is_list else []
        if any(isinstance(text, str) and text.startswith("[") for text in texts):
            problem = f"{name!r} holds a list that Dask has made a text"
            hint = "set dask.config 'dataframe.convert-string' to False before"
            raise InputError(f"{problem}: {hint}, or give Arrow's lists")
    return table


# ------------------------------------------------------------ documents without a table


def read_lines(block: Block, line_bytes: int) -> Iterator[list[str]]:
    """Yield the lines of a block of a text, each a document.

    Raises
    ------
    InputError
        If the file cannot be read, or is no UTF-8.
    """
    for text, before in read_texts(block, line_bytes):
        data = text[:-PADDING].tobytes()
        try:
            lines = data.decode().split("\n")
        except UnicodeDecodeError as error:
            line = data[: error.start].count(b"\n") + before + count_lines_before(block) + 1
            problem = f"is no UTF-8 text ({error.reason}); save it as UTF-8"
            raise InputError(problem, block.path, line) from None
        yield [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


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
        yield vectorized_rows(lines, (no_labels(len(lines), dialect), 0), dialect)
