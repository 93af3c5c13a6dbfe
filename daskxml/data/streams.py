"""Files that cannot be cut, as a stream of bytes read one chunk ahead of the parser."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO

RAW_BYTES = 1 << 20
TEXT_BYTES = 1 << 22
GZIP_WINDOW = 31  # zlib's code for: the largest window, with gzip's header and checksum


def inflate(file: IO[bytes], text_bytes: int = TEXT_BYTES) -> Iterator[bytes]:
    """Decompress all members of a gzip stream in pieces of at most `text_bytes`.

    Raises
    ------
    zlib.error
        The stream is damaged, or is no gzip stream.
    EOFError
        The stream ends before its last member does.

    Examples
    --------
    >>> import gzip, io
    >>> list(inflate(io.BytesIO(gzip.compress(b"1 2:3") + gzip.compress(b"!")), text_bytes=4))
    [b'1 2:', b'3', b'!']
    """
    machine = zlib.decompressobj(GZIP_WINDOW)
    inside = False  # whether a member has begun and not ended
    while raw := file.read(RAW_BYTES):
        while raw:
            if not inside and not (raw := raw.lstrip(b"\0")):  # zeros may pad the end
                break
            inside = True
            yield machine.decompress(raw, text_bytes)
            raw = machine.unconsumed_tail
            if machine.eof:
                raw, inside = machine.unused_data, False
                machine = zlib.decompressobj(GZIP_WINDOW)
    if inside:
        yield machine.flush()
        if not machine.eof:
            raise EOFError("the stream ends early")


def read_chunks(file: IO[bytes]) -> Iterator[bytes]:
    """Read a file to its end in pieces of `TEXT_BYTES`."""
    while chunk := file.read(TEXT_BYTES):
        yield chunk


def prefetch(chunks: Iterator[bytes]) -> Generator[bytes, None, None]:
    """Yield the chunks while another thread makes the next one.

    Examples
    --------
    >>> list(prefetch(iter([b"1 2:3", b"4 5:6"])))
    [b'1 2:3', b'4 5:6']
    """
    with ThreadPoolExecutor(1, thread_name_prefix="daskxml-read") as pool:
        coming = pool.submit(next, chunks, None)
        while (chunk := coming.result()) is not None:
            coming = pool.submit(next, chunks, None)
            yield chunk


def join_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Cut chunks anew, so that each piece is whole lines; the last may lack its newline.

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
    if last := b"".join(rest):
        yield last
