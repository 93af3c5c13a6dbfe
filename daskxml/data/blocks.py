"""Text files cut into blocks of whole lines: planned once, read where the work is done.

A plain file is cut at multiples of a size, and each cut is moved behind the next newline, as
`fsspec.utils.read_block` does, so that every line is in exactly one block. A gzip stream cannot
be entered in the middle: it is one block, decompressed one chunk ahead of the parser.
"""

from __future__ import annotations

import gzip
import re
import sys
import zlib
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import IO

import fsspec
import numpy as np
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import get_protocol

from daskxml.core.arrays import Array
from daskxml.core.errors import InputError
from daskxml.data.scan import LARGEST_ID, NEWLINE, PADDING

_HEAD_BYTES = 4096  # read of a file to find its header, and what kind of file it is
_RAW_BYTES = 1 << 16  # what follows a member of a gzip stream is copied: little, for tiny ones
LINE_BYTES = 1 << 26  # the longest line, unless the run file says another
TEXT_BYTES = 1 << 22  # of a stream that are parsed at a time
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_HEADER = re.compile(rb"[ \t]*(\d+)[ \t]+(\d+)[ \t]+(\d+)[ \t\r]*")
_MAGIC = {
    b"\x1f\x8b": "gzip data in a file whose name does not end in .gz; rename it",
    b"BZh": "bzip2 data; decompress it, or compress it with gzip",
    b"\xfd7zXZ": "xz data; decompress it, or compress it with gzip",
    b"\x28\xb5\x2f\xfd": "zstandard data; decompress it, or compress it with gzip",
    b"PK\x03\x04": "a zip archive; unpack it",
    b"PAR1": "a Parquet file; name it .parquet, or set data.format = 'parquet'",
    b"\x93NUMPY": "a NumPy file; save the rows with scipy.sparse.save_npz, as X.npz and Y.npz",
    b"ARROW1": "an Arrow file; name it .arrow, or set data.format = 'arrow'",
    b"\x89HDF": "an HDF5 file; write it as Parquet, or as libSVM text",
}


@dataclass(frozen=True)
class Header:
    """The counts that a file declares, None where it does not; its ids count from 0.

    The first line of a file in the XML repository's format declares all three; a dense table names
    its ``columns`` of features.
    """

    rows: int | None
    features: int | None
    labels: int | None
    columns: tuple[str, ...] = field(default=(), repr=False)


def join_headers(headers: Collection[Header]) -> Header:
    """Return one header for all files: rows added, the most columns; None where unknown."""
    rows = [header.rows or 0 for header in headers]
    are_known = headers and all(header.rows is not None for header in headers)
    return Header(
        sum(rows) if are_known else None,
        max((header.features or 0 for header in headers), default=0) or None,
        max((header.labels or 0 for header in headers), default=0) or None,
    )


@dataclass(frozen=True)
class Block:
    """A part of a file that one task reads.

    Attributes
    ----------
    path
        Path or fsspec URL; text is gzipped if it ends in ``.gz``.
    start, stop
        Bytes of text, both moved behind the next newline; what other formats count is theirs to
        say. `stop` None: the whole file, as a stream.
    has_header
        Whether the file, of which this may be a later block, begins with a header.
    format
        The key in `daskxml.data.formats.FORMATS`.
    """

    path: str
    start: int
    stop: int | None
    has_header: bool = False
    format: str = "text"


def read_header(path: str) -> Header | None:
    """Read the counts in the first line of a file, or return None if it is no header.

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
    head = read_head(path)
    match = _HEADER.fullmatch(head.removeprefix(_BYTE_ORDER_MARK).split(b"\n", 1)[0])
    if match is None:
        return None
    rows, features, labels = map(int, match.groups())
    if max(features, labels) > LARGEST_ID + 1:
        problem = f"the header declares more than {LARGEST_ID + 1} columns; correct it"
        raise InputError(problem, path, 1)
    return Header(rows, features, labels)


def read_texts(
    block: Block, line_bytes: int = LINE_BYTES
) -> Generator[tuple[Array, int], None, None]:
    """Yield a block in pieces of whole lines, each with the number of the block's lines before it.

    A piece is a uint8 array that ends in `PADDING` newlines which are not part of the text. A
    header and a byte order mark are left out. A plain block is one piece.

    Raises
    ------
    InputError
        The file cannot be read, its gzip stream is truncated or damaged, or a line has more than
        ``line_bytes`` bytes, of which no more are read.
    """
    if block.stop is not None:
        yield _cut_preamble(_read_range(block, line_bytes), block)
        return
    lines = [0]
    with open_text(block.path, lines) as file, closing(prefetch(read_chunks(file))) as chunks:
        for piece in join_lines(chunks, line_bytes):
            text = pad_text(piece)
            yield (text, lines[0]) if lines[0] else _cut_preamble(text, block)
            lines[0] += piece.count(b"\n")


def pad_text(data: bytes | memoryview) -> Array:
    """Copy text into a uint8 array with the newlines behind it that the parser needs."""
    padded = np.empty(len(data) + PADDING, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    padded[len(data) :] = NEWLINE
    return padded


def decoded(data: bytes, path: str | None = None) -> str:
    """Return text in UTF-8.

    Raises
    ------
    InputError
        If it is none.

    Examples
    --------
    >>> decoded(b"a, \\xff")
    Traceback (most recent call last):
    daskxml.core.errors.InputError: is no UTF-8 text (invalid start byte); save it as UTF-8
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"is no UTF-8 text ({error.reason}); save it as UTF-8", path) from None


def count_lines_before(block: Block) -> int:
    """The lines of a file before a block, counted by reading it again (for errors)."""
    if not block.start:
        return 0
    with open_file(block.path) as file:
        left, lines = _line_start(file, block.start), 0
        file.seek(0)
        while left > 0 and (chunk := file.read(min(left, 1 << 20))):
            lines += chunk.count(b"\n")
            left -= len(chunk)
    return lines


def read_chunks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield a stream in chunks, the last one up to where it is damaged.

    Examples
    --------
    >>> import io
    >>> list(read_chunks(io.BytesIO(b"1 2:3")))
    [b'1 2:3']
    """
    read, chunk = getattr(file, "read1", file.read), bytearray(1)
    while chunk:
        chunk = bytearray()
        try:
            while len(chunk) < TEXT_BYTES and (part := read(TEXT_BYTES - len(chunk))):
                chunk += part
        finally:  # an error comes after what was read
            if chunk:
                yield bytes(chunk)


def prefetch(chunks: Iterator[bytes]) -> Generator[bytes, None, None]:
    """Yield the chunks while another thread computes the next one.

    Examples
    --------
    >>> list(prefetch(iter([b"1 2:3", b"4 5:6"])))
    [b'1 2:3', b'4 5:6']
    """
    with ThreadPoolExecutor(1, thread_name_prefix="daskxml-read") as pool:
        following = pool.submit(next, chunks, None)
        while (chunk := following.result()) is not None:
            following = pool.submit(next, chunks, None)
            yield chunk


def join_lines(chunks: Iterator[bytes], line_bytes: int = LINE_BYTES) -> Iterator[bytes]:
    """Regroup chunks into pieces of whole lines; the last may lack its newline.

    Raises
    ------
    InputError
        If a line, or a chunk without a newline, has more than ``line_bytes``.

    Examples
    --------
    >>> list(join_lines(iter([b"1 2", b":3\\n4 ", b"5:6"])))
    [b'1 2:3\\n', b'4 5:6']
    """
    rest: list[bytes] = []
    for chunk in chunks:
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield b"".join([*rest, chunk[:cut]])
            rest = [chunk[cut:]]
        else:
            rest.append(chunk)
            if sum(map(len, rest)) > line_bytes:
                raise InputError(_too_long(line_bytes))
    if last := b"".join(rest):
        yield last


def _too_long(line_bytes: int) -> str:
    return (
        f"a line of more than {line_bytes:,} bytes; correct the file, or set data.line_bytes to "
        "what it has"
    )


@contextmanager
def errors_explained(path: str) -> Iterator[None]:
    """Turn errors of opening or reading a path into an `InputError`."""
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
def open_file(path: str) -> Iterator[IO[bytes]]:
    """Open a path with fsspec for reading bytes as they are stored."""
    with errors_explained(path), fsspec.open(path, "rb") as file:
        yield file


def file_name(path: str) -> str:
    """Return what says how a file is written: its path, or the link of it in a chain of URLs.

    Examples
    --------
    >>> file_name("train.txt.gz"), file_name("simplecache::zip://train.csv::s3://rows/all.zip")
    ('train.txt.gz', 'zip://train.csv')
    """
    first, _, rest = path.partition("::")
    return file_name(rest) if rest and re.fullmatch("[a-z]+", first) else first


def is_gzipped(path: str) -> bool:
    """Whether a file's name says that its text is gzipped."""
    return file_name(path).endswith(".gz")


def expand(path: str) -> list[str]:
    """The files that a path or glob names: local ones absolute, others as URLs."""
    with errors_explained(path):
        filesystem, inner = url_to_fs(path)
        local = isinstance(filesystem, LocalFileSystem)
        if re.search(r"[*?\[]", inner) and not filesystem.exists(inner):
            found = [name for name in sorted(filesystem.glob(inner)) if filesystem.isfile(name)]
            if not found:
                raise InputError("no file matches; check the pattern", path)
            link, url = file_name(path), filesystem.unstrip_protocol
            return found if local else [path.replace(link, url(name), 1) for name in found]
        if filesystem.isdir(inner):
            raise IsADirectoryError
        if local:
            filesystem.open(inner).close()  # where it can be, it is there
        return [inner] if local else [path]


def check_files(paths: Iterable[str]) -> None:
    """Refuse paths and globs of this machine that name no readable file; URLs are left alone.

    Raises
    ------
    InputError
        If one is missing, a directory, or not readable.

    Examples
    --------
    >>> check_files(["memory://no/such/file"])
    >>> check_files(["/no/such/file"])
    Traceback (most recent call last):
    daskxml.core.errors.InputError: /no/such/file: no such file; check the path
    """
    for path in paths:
        if get_protocol(path) in LocalFileSystem.protocol:
            expand(path)


def stamp_files(paths: Sequence[str]) -> list[str] | None:
    """Return a text for each path that changes with its files; None where that is not known.

    It contains what the file system reports of each file: a size, and a time or a tag.

    Examples
    --------
    >>> import fsspec
    >>> fsspec.filesystem("memory").pipe("/stamp.txt", b"1 2:3\\n")
    >>> [before] = stamp_files(["memory://stamp.txt"])
    >>> fsspec.filesystem("memory").pipe("/stamp.txt", b"1 2:4\\n")
    >>> [before] == stamp_files(["memory://stamp.txt"]), stamp_files(["/no/such/file"])
    (False, None)
    """
    stamps = []
    for path in paths:
        try:
            for file in expand(path):
                filesystem, inner = url_to_fs(file)
                stamps.append(f"{file} {filesystem.info(inner)}")
        except (InputError, OSError):
            return None
    return stamps


def cut_lines(whole: Block, block_bytes: int) -> list[Block]:
    """Cut a file of lines, which ``whole`` describes, into blocks of at most so many bytes.

    A compressed file stays a single block.

    Examples
    --------
    >>> import fsspec
    >>> fsspec.filesystem("memory").pipe("/cut.txt", b"1 2:3\\n" * 4)
    >>> [(one.start, one.stop) for one in cut_lines(Block("memory://cut.txt", 0, None), 12)]
    [(0, 12), (12, 24)]
    """
    with errors_explained(whole.path):
        filesystem, inner = url_to_fs(whole.path)
        size = None if is_gzipped(whole.path) else filesystem.info(inner).get("size")
    if size is None:
        return [whole]
    count = -(-size // block_bytes)
    edges = [size * i // count for i in range(count + 1)]
    return [replace(whole, start=start, stop=stop) for start, stop in pairwise(edges)]


def read_head(path: str) -> bytes:
    """The first bytes of a file's text, checked to be text."""
    with open_text(path) as file:
        head = file.read(_HEAD_BYTES)
    if not head:
        raise InputError("the file is empty; give one with rows", path)
    for magic, problem in _MAGIC.items():
        if head.startswith(magic):
            raise InputError(f"not text but {problem}", path)
    if b"\0" in head:
        raise InputError("not text: it holds NUL bytes; give plain or gzipped (.gz) text", path)
    return head


@contextmanager
def open_text(path: str, lines: Sequence[int] = (0,)) -> Iterator[IO[bytes]]:
    """Open a file's text, unzipped; errors name a line by the number of ``lines`` that are read."""
    with open_file(path) as file:
        try:
            yield gzip.GzipFile(fileobj=file) if is_gzipped(path) else file  # type: ignore[misc]
        except EOFError:
            problem = "the gzip stream ends early; the file is truncated: fetch or write it again"
            raise InputError(problem, path, lines[0] + 1) from None
        except (zlib.error, gzip.BadGzipFile) as error:
            problem = f"the gzip stream is damaged ({error}); fetch or write the file again"
            raise InputError(problem, path, lines[0] + 1) from None
        except InputError as error:
            raise InputError(error.problem, path, error.line or lines[0] + 1) from None


def _cut_preamble(text: Array, block: Block) -> tuple[Array, int]:
    """Cut a byte order mark and a header off a file's first text; return the lines cut as well."""
    if block.start:
        return text, 0
    if not block.has_header:
        return text[3 if text[:3].tobytes() == _BYTE_ORDER_MARK else 0 :], 0
    length = text.size - PADDING
    newline = int(np.argmax(text[: _HEAD_BYTES + 1] == NEWLINE))
    return text[min(newline + 1, length) :], 1


def _read_range(block: Block, line_bytes: int) -> Array:
    """Read the lines that begin in a block of a plain file into an array, padded as for parsing."""
    assert block.stop is not None
    with open_text(block.path) as file:
        start = _line_start(file, block.start, line_bytes)
        stop = _line_start(file, block.stop, line_bytes)
        file.seek(start)
        padded = np.empty(stop - start + PADDING, np.uint8)
        padded[stop - start :] = NEWLINE
        if file.readinto(padded[: stop - start]) != stop - start:  # type: ignore[attr-defined]
            raise InputError("shrank while it was read; wait until it is complete", block.path)
    return padded


def _line_start(file: IO[bytes], offset: int, line_bytes: int = sys.maxsize) -> int:
    """The byte behind the first newline at or after an offset; 0 for 0."""
    if not offset:
        return 0
    file.seek(offset)
    start = offset  # readline() of remote files takes no limit
    while chunk := file.read(_RAW_BYTES):
        if newline := chunk.find(b"\n") + 1:
            return start + newline
        start += len(chunk)
        if start - offset > line_bytes:
            raise InputError(_too_long(line_bytes))
    return start
