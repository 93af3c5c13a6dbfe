"""Text files cut into blocks of whole lines: planned once, read where the work is done.

A plain file is cut at multiples of a size, and each cut is moved behind the next newline, as
`fsspec.utils.read_block` does, so that every line lies in exactly one block. A gzip stream cannot
be entered in the middle: it is one block, read as a stream.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import IO, Any

import fsspec
import numpy as np
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from daskxml.data.streams import inflate, join_lines, prefetch, read_chunks
from daskxml.data.words import LARGEST_ID, NEWLINE, PADDING
from daskxml.errors import InputError
from daskxml.types import Array

HEAD_BYTES = 4096
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
HEADER = re.compile(rb"[ \t]*(\d+)[ \t]+(\d+)[ \t]+(\d+)[ \t\r]*")
MAGIC = {
    b"\x1f\x8b": "gzip data in a file whose name does not end in .gz; rename it",
    b"BZh": "bzip2 data; decompress it, or compress it with gzip",
    b"\xfd7zXZ": "xz data; decompress it, or compress it with gzip",
    b"\x28\xb5\x2f\xfd": "zstandard data; decompress it, or compress it with gzip",
    b"PK\x03\x04": "a zip archive; unpack it",
    b"PAR1": "a parquet file; write it as libSVM text",
    b"\x93NUMPY": "a NumPy file; write it as libSVM text",
    b"\x89HDF": "an HDF5 file; write it as libSVM text",
}


@dataclass(frozen=True)
class Header:
    """The counts that the first line of a file in the XML repository's format declares."""

    rows: int
    features: int
    labels: int


@dataclass(frozen=True)
class Block:
    """A part of a file that one task reads.

    Attributes
    ----------
    path
        Path or fsspec URL; gzipped if it ends in ``.gz``.
    start, stop
        Bytes; both are moved behind the next newline. `stop` None: the whole file, as a stream.
    has_header
        Whether the file (not only this block of it) is in the format with a header.
    storage_options
        Passed to fsspec.
    """

    path: str
    start: int
    stop: int | None
    has_header: bool
    storage_options: Mapping[str, Any] | None = field(default=None, hash=False)


@contextmanager
def readable(path: str) -> Iterator[None]:
    """Turn what goes wrong while a path is opened or read into an `InputError`."""
    try:
        yield
    except FileNotFoundError:
        raise InputError("no such file; check the path", path) from None
    except IsADirectoryError:
        raise InputError("is a directory; name its files, as in DIR/*.txt", path) from None
    except PermissionError:
        raise InputError("may not be read; change its permissions", path) from None
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"cannot be read ({error}); check the path", path) from error


@contextmanager
def open_file(path: str, options: Mapping[str, Any] | None) -> Iterator[IO[bytes]]:
    """Open a path for reading bytes as they are stored, with fsspec."""
    with readable(path), fsspec.open(path, "rb", **(options or {})) as file:
        yield file


def plan_blocks(
    paths: Sequence[str], block_bytes: int, storage_options: Mapping[str, Any] | None = None
) -> list[Block]:
    """Cut files into blocks of about equal size.

    Parameters
    ----------
    paths
        Files, fsspec URLs, or globs of them; the order of blocks follows theirs.
    block_bytes
        The largest size of a block of plain text, before it is moved to a newline.
    storage_options
        Passed to fsspec.

    Raises
    ------
    InputError
        A path is missing, a directory, empty, not text or not readable.

    Examples
    --------
    >>> import fsspec
    >>> fsspec.filesystem("memory").pipe("/plan.txt", b"1 2:3\\n" * 4)
    >>> [(block.start, block.stop) for block in plan_blocks(["memory://plan.txt"], 12)]
    [(0, 12), (12, 24)]
    """
    if block_bytes < 1:
        raise ValueError(f"block_bytes must be positive, not {block_bytes}")
    files = [file for path in paths for file in expand_path(path, storage_options)]
    return [block for file in files for block in cut_file(file, block_bytes, storage_options)]


def expand_path(path: str, storage_options: Mapping[str, Any] | None) -> list[str]:
    """The files that a path or glob names: local ones absolute, others as URLs."""
    with readable(path):
        filesystem, inner = url_to_fs(path, **(storage_options or {}))
        local = isinstance(filesystem, LocalFileSystem)
        if re.search(r"[*?\[]", inner) and not filesystem.exists(inner):
            found = [name for name in sorted(filesystem.glob(inner)) if filesystem.isfile(name)]
            if not found:
                raise InputError("no file matches; check the pattern", path)
            return found if local else [filesystem.unstrip_protocol(name) for name in found]
        if filesystem.isdir(inner):
            raise IsADirectoryError
        return [inner] if local else [path]


def cut_file(path: str, block_bytes: int, options: Mapping[str, Any] | None) -> list[Block]:
    """The blocks of one file."""
    has_header = read_header(path, options) is not None
    with readable(path):
        filesystem, inner = url_to_fs(path, **(options or {}))
        size = None if path.endswith(".gz") else filesystem.info(inner).get("size")
    if size is None:
        return [Block(path, 0, None, has_header, options)]
    count = -(-size // block_bytes)
    edges = [size * i // count for i in range(count + 1)]
    return [Block(path, start, stop, has_header, options) for start, stop in pairwise(edges)]


def read_header(path: str, storage_options: Mapping[str, Any] | None = None) -> Header | None:
    """Read the counts in the first line of a file, or None if it is no header.

    A header is a line of exactly three non-negative integers.

    Raises
    ------
    InputError
        The file is missing, empty, not readable, not text, or its counts are too large.

    Examples
    --------
    >>> import fsspec
    >>> fsspec.filesystem("memory").pipe("/head.txt", b"1 20 30\\n4 5:6\\n")
    >>> read_header("memory://head.txt")
    Header(rows=1, features=20, labels=30)
    """
    head = read_head(path, storage_options)
    match = HEADER.fullmatch(head.removeprefix(BYTE_ORDER_MARK).split(b"\n", 1)[0])
    if match is None:
        return None
    header = Header(*(int(number) for number in match.groups()))
    if max(header.features, header.labels) > LARGEST_ID + 1:
        problem = f"the header declares more than {LARGEST_ID + 1} columns; correct it"
        raise InputError(problem, path, 1)
    return header


def read_head(path: str, options: Mapping[str, Any] | None) -> bytes:
    """The first bytes of a file's text, checked to be text."""
    with open_file(path, options) as file, describe_damage(path, [0]):
        zipped = path.endswith(".gz")
        pieces = inflate(file, HEAD_BYTES) if zipped else iter([file.read(HEAD_BYTES)])
        head = next((piece for piece in pieces if piece), b"")[:HEAD_BYTES]
    if not head:
        raise InputError("the file is empty; give one with rows", path)
    for magic, problem in MAGIC.items():
        if head.startswith(magic):
            raise InputError(f"not text but {problem}", path)
    if b"\0" in head:
        raise InputError("not text: it holds NUL bytes; give plain or gzipped (.gz) text", path)
    return head


@contextmanager
def describe_damage(path: str, lines: list[int]) -> Iterator[None]:
    """Turn the errors of `inflate` into an `InputError` after the `lines` (one number) read."""
    try:
        yield
    except EOFError:
        problem = "the gzip stream ends early; the file is truncated: fetch or write it again"
        raise InputError(problem, path, lines[0] + 1) from None
    except zlib.error as error:
        problem = f"the gzip stream is damaged ({error}); fetch or write the file again"
        raise InputError(problem, path, lines[0] + 1) from None


def read_texts(block: Block) -> Iterator[tuple[Array, int]]:
    """Read a block: pieces of whole lines, each with the number of the block's lines before it.

    A piece is a uint8 array that ends in `PADDING` newlines which are not part of the text. A
    header and a byte order mark are left out. A plain block is one piece.

    Raises
    ------
    InputError
        The file cannot be read, or its gzip stream is truncated or damaged.
    """
    if block.stop is not None:
        yield cut_preamble(read_range(block), block)
        return
    lines = [0]
    with open_file(block.path, block.storage_options) as file, describe_damage(block.path, lines):
        raw = inflate(file) if block.path.endswith(".gz") else read_chunks(file)
        with closing(prefetch(raw)) as chunks:
            for piece in join_lines(chunks):
                yield (
                    (pad_text(piece), lines[0])
                    if lines[0]
                    else cut_preamble(pad_text(piece), block)
                )
                lines[0] += piece.count(b"\n")


def cut_preamble(text: Array, block: Block) -> tuple[Array, int]:
    """The text behind a byte order mark and a header at a file's beginning, and the lines cut."""
    if block.start:
        return text, 0
    mark = text[:3].tobytes() == BYTE_ORDER_MARK
    begin = 3 if mark else 0
    if not block.has_header:
        return text[begin:], 0
    length = text.size - PADDING
    newline = int(np.argmax(text[: HEAD_BYTES + 1] == NEWLINE))
    return text[min(newline + 1, length) :], 1


def pad_text(data: bytes | memoryview) -> Array:
    """Copy text into a uint8 array with the newlines behind it that the parser needs."""
    padded = np.empty(len(data) + PADDING, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    padded[len(data) :] = NEWLINE
    return padded


def read_range(block: Block) -> Array:
    """Read the lines that begin in a block of a plain file into an array, padded as for parsing."""
    assert block.stop is not None
    with open_file(block.path, block.storage_options) as file:
        stop = line_start(file, block.stop)
        start = line_start(file, block.start)
        padded = np.empty(stop - start + PADDING, np.uint8)
        padded[stop - start :] = NEWLINE
        if file.readinto(padded[: stop - start]) != stop - start:  # type: ignore[attr-defined]
            raise InputError("shrank while it was read; wait until it is complete", block.path)
    return padded


def line_start(file: IO[bytes], offset: int) -> int:
    """The byte behind the first newline at or after an offset; 0 for 0. The file is moved there."""
    file.seek(offset)
    if offset:
        file.readline()
    return file.tell()


def count_lines_before(block: Block) -> int:
    """The lines of a file before a block, counted by reading it again (for errors)."""
    if not block.start:
        return 0
    with open_file(block.path, block.storage_options) as file:
        left, lines = line_start(file, block.start), 0
        file.seek(0)
        while left > 0 and (chunk := file.read(min(left, 1 << 20))):
            lines += chunk.count(b"\n")
            left -= len(chunk)
    return lines
