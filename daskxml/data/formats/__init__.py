"""Kinds of files that rows are read from: text, Parquet, Arrow, JSON lines, CSV and SciPy npz.

A format says how a file is cut into blocks, what it declares, and how a block is parsed. A new kind
of table is a function that opens it (`daskxml.data.formats.batches`), and its line in `FORMATS`.
All give the same `Partition` for the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from daskxml.core.arrays import Partition
from daskxml.core.errors import InputError
from daskxml.data.blocks import Block, Header, cut_file, expand, read_header
from daskxml.data.formats import npz
from daskxml.data.formats.batches import (
    OpenLines,
    OpenParts,
    cut_line_table,
    cut_parts,
    lines_header,
    open_arrow,
    open_csv,
    open_json,
    open_parquet,
    parts_header,
    read_line_rows,
    read_line_table,
    read_lines,
    read_parts,
)
from daskxml.data.formats.tables import Documents, parse_documents, parse_vectorized
from daskxml.data.parse import Dialect, ParsedRows, parse_bytes, parse_pieces
from daskxml.data.rows import concatenate


@dataclass(frozen=True, kw_only=True)
class Format:
    """A kind of files.

    Attributes
    ----------
    title
        As `daskxml inspect` calls it.
    suffixes
        Of the names of its files; text and tables of text may have ``.gz`` behind them.
    header
        What a file declares; None: nothing, and ids may count from 0 or 1.
    cut
        A file's blocks of about so many bytes, in the order of its rows.
    read
        The rows of a block, in pieces; of tables also what another function than
        `tables.parse_table` makes of each piece.
    is_table
        Whether rows have named columns.
    """

    title: str
    suffixes: tuple[str, ...]
    header: Callable[[str], Header | None]
    cut: Callable[[str, int], list[Block]]
    read: Callable[..., Iterator[Any]]
    is_table: bool = True


def table_of_parts(format: str, title: str, suffixes: tuple[str, ...], opens: OpenParts) -> Format:
    """Return the format of tables with parts that can be read alone."""
    cut, read = partial(cut_parts, opens, format), partial(read_parts, opens)
    header = partial(parts_header, opens)
    return Format(title=title, suffixes=suffixes, header=header, cut=cut, read=read)


def table_of_lines(format: str, title: str, suffixes: tuple[str, ...], opens: OpenLines) -> Format:
    """Return the format of tables in which each line is a row."""
    cut, read = partial(cut_line_table, format), partial(read_line_table, opens)
    header = partial(lines_header, opens)
    return Format(title=title, suffixes=suffixes, header=header, cut=cut, read=read)


_TEXT = Format(
    title="text", suffixes=(), header=read_header, cut=cut_file, read=parse_pieces, is_table=False
)
_NPZ = Format(
    title="SciPy npz", suffixes=(".npz",), header=npz.read_header, cut=npz.cut, read=npz.read,
    is_table=False,
)  # fmt: skip
FORMATS: Mapping[str, Format] = {
    "text": _TEXT,
    "parquet": table_of_parts("parquet", "Parquet", (".parquet", ".pq"), open_parquet),
    "arrow": table_of_parts("arrow", "Arrow", (".arrow", ".feather", ".ipc"), open_arrow),
    "jsonl": table_of_lines("jsonl", "JSON lines", (".jsonl", ".ndjson"), open_json),
    "csv": table_of_lines("csv", "CSV", (".csv", ".tsv"), open_csv),
    "npz": _NPZ,
}


def format_of(path: str, format: str = "auto") -> str:
    """Return the key in `FORMATS` of a file, by the suffix of its name where it is ``"auto"``.

    Examples
    --------
    >>> format_of("s3://rows/train.jsonl.gz"), format_of("train.dat"), format_of("x", "libsvm")
    ('jsonl', 'text', 'text')
    """
    if format != "auto":
        return format if format in FORMATS else "text"
    name = path.lower().removesuffix(".gz")
    return next((key for key, kind in FORMATS.items() if name.endswith(kind.suffixes)), "text")


def plan_files(paths: Sequence[str], block_bytes: int, format: str = "auto") -> list[Block]:
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
    files = [file for path in paths for file in expand(path)]
    return [
        block for file in files for block in FORMATS[format_of(file, format)].cut(file, block_bytes)
    ]


def declared(path: str, format: str = "auto") -> Header | None:
    """Return what a file declares of its contents; see `Header`."""
    return FORMATS[format_of(path, format)].header(path)


def read_pieces(block: Block, dialect: Dialect) -> Iterator[ParsedRows]:
    """Parse a block of a file of any format piece by piece.

    Raises
    ------
    InputError
        The block cannot be read, or at its first malformed row.
    """
    kind = FORMATS[block.format]
    if dialect.vectorizer is None:
        return kind.read(block, dialect)
    if holds_lines(block):
        return read_line_rows(block, dialect)
    more = (parse_vectorized,) if kind.is_table else ()
    return kind.read(block, dialect, *more)


def holds_lines(block: Block) -> bool:
    """Whether a text holds documents, as it has no header of rows of features."""
    return block.format == "text" and not block.has_header


def read_texts(block: Block, dialect: Dialect) -> Documents:
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
    >>> read_texts(block, Dialect(text_column="text"))
    (['red car'], [['3']])
    """
    kind = FORMATS[block.format]
    if not (kind.is_table or holds_lines(block)):
        raise InputError("holds rows of features, not documents: train on it as it is", block.path)
    if kind.is_table:
        pieces = list(kind.read(block, dialect, parse_documents))
    else:
        pieces = [(lines, [[] for _ in lines]) for lines in read_lines(block, dialect.line_bytes)]
    texts, labels = zip(*pieces, strict=True) if pieces else ((), ())
    return list(chain.from_iterable(texts)), list(chain.from_iterable(labels))


def read_block(block: Block, dialect: Dialect) -> Partition:
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
