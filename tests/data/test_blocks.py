"""Blocks cover every line once; what cannot be read is refused with its path."""

import gzip
import threading
import zipfile
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractBufferedFile
from fsspec.utils import read_block
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.errors import InputError
from daskxml.data import formats
from daskxml.data.blocks import (
    PADDING,
    Block,
    Header,
    count_lines_before,
    prefetch,
    read_header,
    read_texts,
)
from daskxml.data.formats import plan_files
from daskxml.data.parse import Dialect

# Packed at no time: these bytes name tests, and parallel test processes must agree on the names.
EMPTY_GZIP = gzip.compress(b"", mtime=0)
ONE_ROW_GZIP = gzip.compress(b"0 1:1\n", mtime=0)
LINES = st.lists(st.binary(max_size=9).map(lambda b: b.translate(None, b"\n\0")), max_size=12)


def text_of(block: Block) -> bytes:
    return b"".join(text[:-PADDING].tobytes() for text, _ in read_texts(block))


@settings(max_examples=150, deadline=None)
@given(LINES, st.integers(1, 40), st.booleans())
def test_blocks_cut_as_fsspec_does(lines: list[bytes], block_bytes: int, ended: bool) -> None:
    body = b"0 1:1\n" + b"\n".join(lines) + b"\n" * ended
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe("/cut.txt", body)
    blocks = plan_files(["memory://cut.txt"], block_bytes)
    assert b"".join(map(text_of, blocks)) == body
    lines_before = 0
    with filesystem.open("/cut.txt") as file:
        for block in blocks:
            assert block.stop is not None
            assert block.stop - block.start <= block_bytes
            theirs = read_block(file, block.start, block.stop - block.start, b"\n")
            assert text_of(block) == theirs
            assert not theirs or count_lines_before(block) == lines_before
            lines_before += theirs.count(b"\n")


@pytest.mark.parametrize("cache", ["", "simplecache::"])
def test_files_in_archives_are_read_by_their_own_names(tmp_path, cache: str) -> None:
    rows, table = b"0 1:1\n1 2:1\n", b'labels,features\n"0,1",2:0.5\n'
    with zipfile.ZipFile(tmp_path / "rows.gz", "w") as archive:  # not the name that counts
        for name in ("in/a.txt", "in/b.txt", "c.txt.gz", "d.csv.gz", "d.csv"):
            body = table if "csv" in name else rows
            archive.writestr(name, gzip.compress(body) if name.endswith(".gz") else body)
    whole = f"::{tmp_path / 'rows.gz'}"
    blocks = plan_files([f"{cache}zip://in/*.txt{whole}"], 6)
    assert [block.path for block in blocks[::2]] == [
        f"{cache}zip://in/{name}.txt{whole}" for name in "ab"
    ]
    assert b"".join(map(text_of, blocks)) == rows * 2
    (packed,) = plan_files([f"{cache}zip://c.txt.gz{whole}"], 6)
    assert (packed.stop, text_of(packed)) == (None, rows)
    tables = plan_files([f"{cache}zip://*.csv*{whole}"], 99)
    assert [block.format for block in tables] == ["csv", "csv"]
    dialect = Dialect(features=3, labels=2)
    assert [formats.read_block(block, dialect).labels.nonzeros for block in tables] == [2, 2]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_header_and_byte_order_mark_are_left_out(tmp_path, name: str, mark: bytes) -> None:
    content = mark + b"2 5 3\r\n0 1:1\n1 4:1\n"
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read_header(str(path)) == Header(rows=2, features=5, labels=3)
    blocks = plan_files([str(path)], 3)
    assert all(block.has_header for block in blocks)
    assert b"".join(map(text_of, blocks)) == b"0 1:1\n1 4:1\n"


@pytest.mark.parametrize(
    "line", [b"2 5", b"2 5 3 4", b"1 5:2 3", b"-2 5 3", b"1,2 3 4", b"", b"2.0 5 3", b" 1:2"]
)
def test_other_lines_are_no_header(tmp_path, line: bytes) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(line + b"\n0 1:1\n")
    assert read_header(str(path)) is None
    assert text_of(plan_files([str(path)], 99)[0]) == line + b"\n0 1:1\n"


def test_a_header_with_too_many_columns_is_refused(tmp_path) -> None:
    (tmp_path / "a.txt").write_bytes(b"1 99999999999 3\n")
    with pytest.raises(InputError, match=r"a\.txt:1: the header declares more than"):
        read_header(str(tmp_path / "a.txt"))


def test_globs_expand_in_order_and_paths_become_absolute(tmp_path, monkeypatch) -> None:
    for name in ("b.txt", "a.txt", "c.dat", "d[1].txt"):
        (tmp_path / name).write_bytes(b"0 1:1\n")
    (tmp_path / "e.txt").mkdir()
    monkeypatch.chdir(tmp_path)
    names = [Path(block.path).name for block in plan_files(["*.txt"], 99)]
    assert names == ["a.txt", "b.txt", "d[1].txt"]
    assert [block.path for block in plan_files(["d[1].txt"], 99)] == [str(tmp_path / "d[1].txt")]
    fsspec.filesystem("memory").pipe("/glob/x.txt", b"0 1:1\n")
    assert [b.path for b in plan_files(["memory://glob/*.txt"], 99)] == ["memory:///glob/x.txt"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.txt", b"", "the file is empty"),
        ("empty.txt.gz", EMPTY_GZIP, "the file is empty"),
        ("zero.txt.gz", b"", "the file is empty"),
        ("nul.txt", b"0 1:1\n\0\0", "holds NUL bytes"),
        ("a.npy", b"\x93NUMPY", "a NumPy file"),
        ("a.txt", ONE_ROW_GZIP, "does not end in .gz"),
        ("a.bz2", b"BZh9", "bzip2 data"),
        ("plain.gz", b"0 1:1\n", "the gzip stream is damaged"),
        ("cut.gz", ONE_ROW_GZIP[:10], "the gzip stream ends early"),
    ],
)
def test_files_that_are_not_text_are_refused(tmp_path, name, content, words) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        plan_files([str(path)], 99)
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent.txt", "no such file"),
        ("absent-*.txt", "no file matches"),
        ("", "is a directory"),
        ("nosuch://x.txt", "cannot be read .*nosuch"),
        ("memory://absent.txt", "no such file"),
    ],
)
def test_paths_that_cannot_be_opened_are_refused(tmp_path, name: str, words: str) -> None:
    path = name if "://" in name else str(tmp_path / name)
    with pytest.raises(InputError, match=words):
        plan_files([path], 99)


class LockedFileSystem(MemoryFileSystem):
    """A file system that shows its files but lets nobody read them."""

    protocol = "locked"

    def _open(self, path, *_args, **_options):
        raise PermissionError(path)


def test_a_file_that_may_not_be_read_is_refused() -> None:
    fsspec.register_implementation("locked", LockedFileSystem, clobber=True)
    fsspec.filesystem("memory").pipe("/secret.txt", b"0 1:1\n")
    with pytest.raises(InputError, match=r"locked://secret\.txt: may not be read"):
        plan_files(["locked://secret.txt"], 99)


@pytest.mark.parametrize("harm", ["cut", "flip"])
def test_a_harmed_gzip_stream_names_the_line_reached(tmp_path, harm: str) -> None:
    path = tmp_path / "a.gz"
    lines = b"".join(b"%d %d:1\n" % (i % 7, i * 7919 % 1000) for i in range(4000))
    whole = gzip.compress(b"0 1:1\n") + gzip.compress(lines)
    path.write_bytes(whole)
    [block] = plan_files([str(path)], 99)
    path.write_bytes(whole[:-9] if harm == "cut" else whole[:-6] + b"\0\0" + whole[-4:])
    words = "ends early" if harm == "cut" else "is damaged"
    with pytest.raises(InputError, match=words) as caught:
        text_of(block)
    assert caught.value.path == str(path)
    assert 2 <= (caught.value.line or 0) <= 4002


def test_a_file_that_shrank_is_refused(tmp_path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"0 1:1\n" * 9)
    blocks = plan_files([str(path)], 20)
    path.write_bytes(b"0 1:1\n")
    with pytest.raises(InputError, match="shrank while it was read"):
        text_of(blocks[-1])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=8), st.integers(1, 30))
def test_streams_keep_every_byte(pieces: list[bytes], text_bytes: int) -> None:
    text = b"".join(pieces)
    stored = b"".join(gzip.compress(piece) for piece in pieces) + b"\0" * 5
    with fsspec.filesystem("memory").open("/stream.gz", "wb") as file:
        file.write(stored)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("daskxml.data.blocks.TEXT_BYTES", text_bytes)
        found = list(read_texts(Block("memory://stream.gz", 0, None)))
    joined = [piece[:-PADDING].tobytes() for piece, _ in found]
    assert b"".join(joined) == text.removeprefix(b"\xef\xbb\xbf")
    assert all(piece.endswith(b"\n") for piece in joined[:-1])
    assert [before for _, before in found] == [
        b"".join(joined[:place]).count(b"\n") for place in range(len(joined))
    ]


def test_prefetch_ends_its_thread_when_it_is_left() -> None:
    chunks = prefetch(iter([b"a", b"b", b"c"]))
    assert next(chunks) == b"a"
    chunks.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("daskxml-read")]


def test_a_line_that_is_too_long_is_refused_before_it_is_read(tmp_path):
    for name, write in (("long.txt", bytes), ("long.txt.gz", gzip.compress)):
        path = tmp_path / name
        path.write_bytes(write(b"1 2:3\n" + b"4" * 10_000_000 + b"\n5 6:7\n"))
        first = plan_files([str(path)], 1 << 20)[0]
        with pytest.raises(InputError, match=r"more than 100,000 bytes; .* data.line_bytes"):
            list(read_texts(first, line_bytes=100_000))


class RemoteFile(AbstractBufferedFile):
    """A file as those of object stores and web servers are, whose readline takes no limit."""

    def _fetch_range(self, start, end):
        return self.fs.cat_file(self.path, start, end)


class RemoteFileSystem(MemoryFileSystem):
    """The files in memory, opened as remote ones."""

    protocol = "remote"

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix("remote://").lstrip("/")

    def _open(self, path, mode="rb", **options):
        return RemoteFile(self, path, mode, size=self.info(path)["size"])


def test_remote_files_are_read_in_blocks():
    fsspec.register_implementation("remote", RemoteFileSystem, clobber=True)
    lines = "".join(f"{i % 3} {i}:1\n" for i in range(50_000)).encode()
    fsspec.filesystem("memory").pipe("/remote.txt", lines)
    blocks = plan_files(["remote://remote.txt"], 100_000)
    assert len(blocks) > 3
    assert b"".join(map(text_of, blocks)) == lines


def test_many_empty_members_of_a_gzip_stream_take_no_time(tmp_path):
    path = tmp_path / "members.txt.gz"
    path.write_bytes(gzip.compress(b"", mtime=0) * 20_000 + gzip.compress(b"1 2:3\n", mtime=0))
    [block] = plan_files([str(path)], 1 << 20)
    assert text_of(block) == b"1 2:3\n"
