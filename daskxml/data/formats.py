"""Kinds of files that rows are read from: text, Parquet, Arrow, JSON lines, CSV and SciPy npz.

A format says what a file declares, how it is cut into blocks, and how a block is read. Text of
features has its own parser; all others are tables, of Arrow batches, whose columns mean what
`daskxml.data.tables` says. A table is opened by one function: of one kind, by parts that can be
read alone (`Parts`), such as the row groups of a Parquet file; in the other each line is a row
(`Lines`), and a block may begin at any line: no quoted text of a CSV holds a line break. A new kind
of table is such a function, and its line in `FORMATS`. All give the same rows.
"""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import IO, Any

import numpy as np

from daskxml.core.arrays import Partition
from daskxml.core.errors import InputError
from daskxml.core.text import parse_json, quoted
from daskxml.data import blocks, tables
from daskxml.data.npz import open_npz
from daskxml.data.parse import Dialect, parse_bytes, parse_pieces
from daskxml.data.rows import concatenate, find_bad_row
from daskxml.data.scan import PADDING

_BATCH_ROWS = 1 << 16  # of a Parquet file that are made rows at a time


# --------------------------------------------------------------------------- how files are read


@dataclass(frozen=True)
class Text:
    """Text of features.

    Attributes
    ----------
    title
        As `daskxml inspect` calls it.
    suffixes
        Of the names of its files; text and tables of lines may have ``.gz`` behind them.
    """

    title: str
    suffixes: tuple[str, ...]

    def names(self, path: str) -> list[str]:
        """Return the names of its columns, which it does not have."""
        return []

    def header(self, path: str, column: str) -> blocks.Header | None:
        """Return what a file declares; None: nothing, and ids may count from 0 or 1."""
        return blocks.read_header(path)

    def cut(self, path: str, block_bytes: int) -> list[blocks.Block]:
        """Return a file's blocks of about so many bytes, in the order of its rows."""
        return blocks.cut_lines(
            blocks.Block(path, 0, None, blocks.read_header(path) is not None), block_bytes
        )

    def read(self, block: blocks.Block, dialect: Dialect, parse: tables.Parse) -> Iterator[Any]:
        """Yield the rows of a block in pieces, or what ``parse`` makes of each piece."""
        if parse is tables.parse_documents:
            raise InputError(tables.NO_DOCUMENTS, block.path)
        return parse_pieces(block, dialect)


@dataclass(frozen=True)
class PartTable:
    """Tables with parts that can be read alone; attributes and methods are those of `Text`."""

    title: str
    suffixes: tuple[str, ...]
    opens: tables.OpenParts

    def names(self, path: str) -> list[str]:
        """Return the names of its columns."""
        with self._opened(path) as table:
            return table.names

    def header(self, path: str, column: str) -> blocks.Header | None:
        """Return what it declares, or how many columns a dense table has."""
        with self._opened(path) as table:
            return table.header or tables.dense_header(table.names, column)

    def cut(self, path: str, block_bytes: int) -> list[blocks.Block]:
        """Return blocks of consecutive parts."""
        with self._opened(path) as table:
            starts = np.append(0, np.cumsum(table.nbytes))[:-1] // block_bytes
        firsts = np.flatnonzero(np.diff(starts)) + 1
        return [blocks.Block(path, *cut) for cut in pairwise([0, *firsts.tolist(), len(starts)])]

    def read(self, block: blocks.Block, dialect: Dialect, parse: tables.Parse) -> Iterator[Any]:
        """Yield what is made of each Arrow batch."""
        assert block.stop is not None
        with self._opened(block.path) as table:
            names, before = _wanted(table, dialect, parse, block.path, 0), 0

            def refuse(row: int, problem: str) -> InputError:
                skipped = sum(batch.num_rows for batch in table.batches(0, block.start, []))
                return InputError(
                    f"row {skipped + before + row}: {problem}", table.paths or block.path
                )

            for batch in table.batches(block.start, block.stop, names):
                batch.validate(full=True)  # damaged offsets would be followed out of the memory
                make = partial(tables.parse_batch, dialect=dialect, parse=parse)
                yield find_bad_row(batch, make, refuse)
                before += batch.num_rows

    @contextmanager
    def _opened(self, path: str) -> Iterator[tables.Parts]:
        """Open a table, and explain where it is damaged."""
        import pyarrow

        with blocks.open_file(path) as file:
            try:
                yield self.opens(file, path)
            except (MemoryError, OverflowError):
                problem = "a part of it is larger than the memory, or damaged"
                raise InputError(f"{problem}: write it in smaller parts", path) from None
            except (pyarrow.ArrowException, OSError) as error:
                problem = f"not a whole table ({error}); fetch or write it again"
                raise InputError(problem, path) from None
            except InputError as error:
                raise InputError(error.problem, error.path or path, error.line) from None


@dataclass(frozen=True)
class LineTable:
    """Tables in which each line is a row; attributes and methods are those of `Text`."""

    title: str
    suffixes: tuple[str, ...]
    opens: tables.OpenLines

    def names(self, path: str) -> list[str]:
        """Return the names of its columns."""
        return self.opens(path).names

    def header(self, path: str, column: str) -> blocks.Header | None:
        """Return how many columns a dense table has."""
        return tables.dense_header(self.names(path), column)

    def cut(self, path: str, block_bytes: int) -> list[blocks.Block]:
        """Return blocks of whole lines."""
        blocks.read_head(path)
        return blocks.cut_lines(blocks.Block(path, 0, None), block_bytes)

    def read(self, block: blocks.Block, dialect: Dialect, parse: tables.Parse) -> Iterator[Any]:
        """Yield what is made of each piece of lines."""
        table = self.opens(block.path)
        names = _wanted(table, dialect, parse, block.path, 1)
        are_all = tables.is_dense(names) and dialect.text_column not in names

        def make(rows: list[bytes]) -> Any:
            return tables.parse_batch(table.batch(rows, names, are_all), dialect, parse)

        for text, before in blocks.read_texts(block, dialect.line_bytes):
            data = text[:-PADDING].tobytes()
            lines = data.removesuffix(b"\n").split(b"\n") if data else []
            numbers = [n for n, line in enumerate(lines, 1) if line.strip() or table.has_blanks]
            if table.has_head and not (block.start or before):
                numbers = numbers[1:]
            if numbers:
                rows = [lines[number - 1] for number in numbers]
                yield find_bad_row(rows, make, partial(_refuse_line, block, before, numbers))


def _refuse_line(
    block: blocks.Block, before: int, numbers: Sequence[int], row: int, problem: str
) -> InputError:
    return InputError(problem, block.path, numbers[row] + before + blocks.count_lines_before(block))


def _wanted(
    table: tables.Parts | tables.Lines, dialect: Dialect, parse: tables.Parse, path: str, line: int
) -> list[str]:
    """Return the names of the columns that are read; the line is that of the names, or 0."""
    if table.no_labels and dialect.needs_labels and tables.LABELS not in table.names:
        raise InputError(table.no_labels, path)
    try:
        names = tables.columns_to_read(table.names, dialect)
    except InputError as error:
        raise InputError(error.problem, path, line or None) from None
    if parse is tables.parse_documents and dialect.text_column not in names:
        raise InputError(tables.NO_DOCUMENTS, path)
    return names


# --------------------------------------------------------------------------- how they are opened


def open_parquet(file: IO[bytes], path: str) -> tables.Parts:
    """Open a Parquet file, whose parts are its row groups."""
    import pyarrow.parquet

    table = pyarrow.parquet.ParquetFile(file)
    groups = range(table.metadata.num_row_groups)

    def batches(start: int, stop: int, names: list[str]) -> Iterator[Any]:
        chosen = list(groups[start:stop])
        return table.iter_batches(_BATCH_ROWS, row_groups=chosen, columns=names)

    nbytes = [table.metadata.row_group(group).total_byte_size for group in groups]
    return tables.Parts(table.schema_arrow.names, nbytes, batches)


def open_arrow(file: IO[bytes], path: str) -> tables.Parts:
    """Open an Arrow file, whose parts are its record batches, or a stream, which is one part.

    A stream cannot be entered in the middle.
    """
    import pyarrow.ipc

    is_file = file.read(6) == b"ARROW1"
    nbytes = file.seek(0, 2)
    file.seek(0)
    table = pyarrow.ipc.open_file(file) if is_file else pyarrow.ipc.open_stream(file)
    count = table.num_record_batches if is_file else 1

    def batches(start: int, stop: int, names: list[str]) -> Iterator[Any]:
        for batch in map(table.get_batch, range(start, stop)) if is_file else table:
            yield batch.select(names)

    return tables.Parts(table.schema.names, [nbytes / max(1, count)] * count, batches)


def open_csv(path: str) -> tables.Lines:
    """Open a CSV with a line of column names, separated by tabs if its name ends in ``.tsv``."""
    delimiter = "\t" if blocks.file_name(path).lower().removesuffix(".gz").endswith(".tsv") else ","
    try:
        line = blocks.decoded(_first_line(path, blocks.TEXT_BYTES))
        names = [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]
    except InputError as error:
        raise InputError(error.problem, path) from None
    except csv.Error as error:
        raise InputError(f"malformed column names ({error}); fix the line", path, 1) from None
    return tables.Lines(names, partial(_csv_batch, names, delimiter), has_head=True)


def _csv_batch(
    names: list[str], delimiter: str, lines: list[bytes], wanted: list[str], are_all: bool
) -> Any:
    """Make texts of the fields of lines."""
    import pyarrow.csv

    data = b"\n".join(lines) + b"\n"
    blocks.decoded(data)
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
        raise InputError(f"malformed CSV ({error}); fix the quotes") from None
    is_open = any("\n" in table[name][-1].as_py() for name in wanted if table.num_rows)
    if is_open or table.num_rows != len(lines):
        raise InputError("a quoted text does not end on its line; fix it")
    return table


def open_json(path: str) -> tables.Lines:
    """Open JSON lines: an object on each line, whose keys with a meaning are those of the first.

    ``features`` may also be an object of values by id or by name: ``{"4": 0.5}``, ``{"red": 1}``.
    Python parses the lines: to Arrow, each key of such objects would be a column.
    """
    try:
        names = list(_json_row(_first_line(path)))
    except InputError as error:
        raise InputError(error.problem, path, 1) from None
    return tables.Lines(names, _json_batch)


def _json_batch(lines: list[bytes], names: list[str], are_all: bool) -> Any:
    import pyarrow

    rows = list(map(_json_row, lines))
    known, are_ids = {*names, tables.LABELS}, {tables.FEATURES, tables.INDICES} & {*names}
    for key in chain.from_iterable(row.keys() - known for row in rows):
        if are_all or (are_ids and key == tables.WEIGHTS):
            raise InputError(f"{quoted(key)} is not in the first row: give all rows the same keys")
    if tables.INDICES in names:  # without values all are 1, in all rows or in some
        has_values = any(tables.VALUES in row for row in rows)
        names = [*(n for n in names if n != tables.VALUES), *[tables.VALUES] * has_values]
        for row in rows:
            if has_values and isinstance(row.get(tables.INDICES), list):
                row.setdefault(tables.VALUES, [1.0] * len(row[tables.INDICES]))
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if None in values:
            is_null = any(name in row and row[name] is None for row in rows)
            problem = f"{name!r} is {'null' if is_null else 'missing'}, but other rows have it"
            raise InputError(problem + ("" if name == tables.WEIGHTS else "; [] is none"))
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
    if isinstance(features := row.get(tables.FEATURES), dict):
        del row[tables.FEATURES]
        row |= {tables.INDICES: list(features), tables.VALUES: list(features.values())}
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
        raise InputError(f"{name!r} is {quoted(values[-1])}: a number is too large") from None
    except (pyarrow.ArrowException, ValueError) as error:
        problem = f"{name!r} is {quoted(values[-1])} ({error.args[0]})"
        raise InputError(f"{problem}; write all rows alike") from None


def _first_line(path: str, line_bytes: int = blocks.LINE_BYTES) -> bytes:
    """Return the first line of a file that is not blank, without a byte order mark."""
    head = blocks.read_head(path).removeprefix(b"\xef\xbb\xbf").lstrip()
    if b"\n" in head:
        return head.split(b"\n", 1)[0]
    with closing(blocks.read_texts(blocks.Block(path, 0, None), line_bytes)) as texts:
        for text, _ in texts:
            if line := text[:-PADDING].tobytes().lstrip().split(b"\n", 1)[0]:
                return line
    return b""


def open_documents(column: str, path: str) -> tables.Lines:
    """Open a text of which each line is a document."""
    no_labels = "lines of text have no labels: give JSON lines, Parquet or CSV with 'labels'"
    return tables.Lines([column], _document_batch, has_blanks=True, no_labels=no_labels)


def _document_batch(lines: list[bytes], names: list[str], are_all: bool) -> Any:
    import pyarrow

    texts = blocks.decoded(b"\n".join(lines)).split("\n") if lines else []
    return pyarrow.table({names[0]: pyarrow.array([text.removesuffix("\r") for text in texts])})


FORMATS: Mapping[str, Text | PartTable | LineTable] = {
    "text": Text("text", ()),
    "parquet": PartTable("Parquet", (".parquet", ".pq"), open_parquet),
    "arrow": PartTable("Arrow", (".arrow", ".feather", ".ipc"), open_arrow),
    "jsonl": LineTable("JSON lines", (".jsonl", ".ndjson"), open_json),
    "csv": LineTable("CSV", (".csv", ".tsv"), open_csv),
    "npz": PartTable("SciPy npz", (".npz",), open_npz),
}


# --------------------------------------------------------------------- files of any format


def format_of(path: str, format: str = "auto") -> str:
    """Return the key in `FORMATS` of a file, by the suffix of its name where it is ``"auto"``.

    Examples
    --------
    >>> format_of("s3://rows/train.jsonl.gz"), format_of("train.dat"), format_of("x", "libsvm")
    ('jsonl', 'text', 'text')
    >>> format_of("zip://train.csv::all.zip")
    'csv'
    """
    if format != "auto":
        return format if format in FORMATS else "text"
    name = blocks.file_name(path).lower().removesuffix(".gz")
    return next((key for key, kind in FORMATS.items() if name.endswith(kind.suffixes)), "text")


def plan_files(paths: Sequence[str], block_bytes: int, format: str = "auto") -> list[blocks.Block]:
    """Cut files of any format into blocks of about equal size.

    Parameters
    ----------
    paths
        Files, fsspec URLs, or globs of them; the order of blocks follows theirs.
    block_bytes
        About the size of a block, where the format can be cut.
    format
        ``"auto"``, ``"xml"``, ``"libsvm"`` or a key in `FORMATS`.

    Raises
    ------
    InputError
        A path is missing, a directory, empty or not readable.
    """
    files = [file for path in paths for file in blocks.expand(path)]
    kinds = [(file, format_of(file, format)) for file in files]
    return [
        replace(block, format=kind)
        for file, kind in kinds
        for block in FORMATS[kind].cut(file, block_bytes)
    ]


def declared(path: str, format: str = "auto", text_column: str = "") -> blocks.Header | None:
    """Return what a file declares of its contents; of tables of documents that is nothing."""
    return FORMATS[format_of(path, format)].header(path, text_column)


def holds_documents(paths: Sequence[str], format: str = "auto", column: str = "text") -> bool:
    """Whether the first file is a table of documents.

    It is if it has a column of texts and none of ids, and the texts of its first rows are not all
    numbers: a column of counts may be called ``text``, too.

    Raises
    ------
    InputError
        If it cannot be read.

    Examples
    --------
    >>> import fsspec
    >>> fsspec.filesystem("memory").pipe("/counts.csv", b'labels,text,words\\n3,1,2\\n')
    >>> holds_documents(["memory://counts.csv"])
    False
    """
    block, *_ = plan_files(paths[:1], blocks.TEXT_BYTES, format)
    names = set(FORMATS[block.format].names(block.path))
    if column not in names or names & {tables.FEATURES, tables.INDICES}:
        return False
    dialect = Dialect(text_column=column, needs_labels=False)
    return any(read_pieces(block, dialect, tables.has_texts))


def read_pieces(
    block: blocks.Block, dialect: Dialect, parse: tables.Parse = tables.parse_table
) -> Iterator[Any]:
    """Yield the rows of a block piece by piece, or what ``parse`` makes of each piece of a table.

    With a column of texts in the dialect, the lines of a text without a header are documents.

    Raises
    ------
    InputError
        The block cannot be read, or at its first malformed row.
    """
    kind = FORMATS[block.format]
    if dialect.text_column and block.format == "text" and not block.has_header:
        kind = LineTable("documents", (), partial(open_documents, dialect.text_column))
    return kind.read(block, dialect, parse)


def read_documents(block: blocks.Block, dialect: Dialect) -> tables.Documents:
    """Return the documents of a block, and the names of each one's labels.

    Raises
    ------
    InputError
        The block cannot be read, or holds rows of features.

    Examples
    --------
    >>> import fsspec
    >>> fsspec.filesystem("memory").pipe("/read.jsonl", b'{"text": "red car", "labels": [3]}\\n')
    >>> [block] = plan_files(["memory://read.jsonl"], 1 << 20)
    >>> read_documents(block, Dialect(text_column="text"))
    (['red car'], [['3']])
    """
    pieces = list(read_pieces(block, dialect, tables.parse_documents))
    texts, labels = zip(*pieces, strict=True) if pieces else ((), ())
    return list(chain.from_iterable(texts)), list(chain.from_iterable(labels))


def read_block(block: blocks.Block, dialect: Dialect) -> Partition:
    """Parse a block of a file of any format.

    Raises
    ------
    InputError
        As `read_pieces` does.

    Examples
    --------
    >>> import fsspec
    >>> fsspec.filesystem("memory").pipe("/read.csv", b'labels,features\\n"0,1",2:0.5\\n')
    >>> [block] = plan_files(["memory://read.csv"], 1 << 20)
    >>> read_block(block, Dialect()).labels.indices
    array([0, 1], dtype=int32)
    """
    pieces = [parsed.partition for parsed in read_pieces(block, dialect)]
    if not pieces:
        return parse_bytes(b"", dialect).partition
    return pieces[0] if len(pieces) == 1 else concatenate(pieces)


# ----------------------------------------------------------------------------- data frames


def read_frame(
    frame: Any, columns: Sequence[str], dialect: Dialect, parse: tables.Parse = tables.parse_table
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
        return tables.parse_batch(_frame_batch(rows, columns), dialect, parse)

    def refuse(row: int, problem: str) -> InputError:
        return InputError(f"row {row}: {problem}")

    return find_bad_row(frame, make, refuse)


def _frame_batch(frame: Any, columns: Sequence[str]) -> Any:
    import pyarrow

    try:
        table = pyarrow.table(frame[list(columns)] if hasattr(frame, "iloc") else frame)
    except (pyarrow.ArrowException, OverflowError, ValueError) as error:
        problem = f"values of several kinds ({error.args[0]}); give all rows alike"
        raise InputError(problem) from None
    table = table.select(list(columns))
    for name in columns:
        is_list = name in (tables.LABELS, tables.INDICES, tables.VALUES)
        texts = table[name].drop_null().to_pylist() if is_list else []
        if any(isinstance(text, str) and text.startswith("[") for text in texts):
            lists = pyarrow.array(lists_again(table[name].to_pylist(), name))
            table = table.set_column(table.column_names.index(name), name, lists)
    return table


def lists_again(texts: Sequence[str | None], name: str) -> list[Any]:
    """Return the lists of which Dask has made texts in a data frame.

    Raises
    ------
    InputError
        If one cannot be had again, like an array, whose text is not exact.

    Examples
    --------
    >>> lists_again(["['red', 'car']", "[]"], "labels")
    [['red', 'car'], []]
    """
    with suppress(ValueError, SyntaxError):
        lists = [None if text is None else ast.literal_eval(text) for text in texts]
        if [None if each is None else str(each) for each in lists] == list(texts):
            return lists
    hint = "set dask.config 'dataframe.convert-string' to False before, or give Arrow's lists"
    raise InputError(f"{name!r} holds a list that Dask has made a text: {hint}")
