"""SciPy's npz: features in one file, labels in another, each by ``scipy.sparse.save_npz``.

The labels of ``X.npz`` are in ``Y.npz`` beside it: in the name, the word ``X`` becomes ``Y``, or
``features`` becomes ``labels`` (``X.trn.npz``, ``train-features.npz``). Rows of files that were
saved with ``compressed=False`` are read range by range; others are one block.
"""

from __future__ import annotations

import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from fsspec.core import url_to_fs

from daskxml.core.arrays import Array, Csr, Partition
from daskxml.core.errors import InputError
from daskxml.data.blocks import Block, Header, open_file
from daskxml.data.formats.tables import (
    Lists,
    find_bad_row,
    no_labels,
    pack_features,
    pack_labels,
)
from daskxml.data.parse import Dialect, ParsedRows
from daskxml.data.scan import LARGEST_ID

_FEATURES_WORD = re.compile(r"(?<![A-Za-z0-9])X(?![A-Za-z0-9])|features(?=[^/]*$)")
_LOCAL_HEADER = struct.Struct("<26xHH")  # of a zip archive's member: lengths of its name and extra
_DAMAGE = (  # RuntimeError: compressed, encrypted, or of a version that Python does not know
    zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, struct.error, RuntimeError,
    TokenError,  # of the header of an array, which is Python
)  # fmt: skip


def read_header(path: str) -> Header:
    """Return the shapes of both matrices; see `Format.header`."""
    with _open(path) as features:
        rows, columns = features.shape
    labels_path = find_labels(path)
    if labels_path is None:
        return Header(rows, columns, None)
    with _open(labels_path) as labels:
        if labels.shape[0] != rows:
            problem = f"{labels.shape[0]} rows of labels, but {path} has {rows}"
            raise InputError(f"{problem}; save both again", labels_path)
        return Header(rows, columns, labels.shape[1])


def cut(path: str, block_bytes: int) -> list[Block]:
    """Cut a file into blocks of consecutive rows; see `Format.cut`."""
    with _open(path) as matrix:
        rows, nbytes = matrix.shape[0], matrix.stored_bytes
    count = max(1, min(rows, -(-nbytes // block_bytes)))
    edges = [rows * i // count for i in range(count + 1)]
    return [Block(path, start, stop, format="npz") for start, stop in pairwise(edges)]


def read(block: Block, dialect: Dialect) -> Iterator[ParsedRows]:
    """Parse rows; see `Format.read`."""
    assert block.stop is not None
    rows, path = range(block.start, block.stop), block.path
    with _open(path) as matrix:
        ids, values = matrix.read_rows(block.start, block.stop)

    def features_of(some: range) -> tuple[Csr, int, int]:
        return pack_features(ids.first(len(some)), values.first(len(some)), dialect)

    features, unsorted, merged = find_bad_row(rows, features_of, partial(_refuse, block, path))
    labels, merged_labels = _read_labels(block, rows, dialect)
    yield ParsedRows(
        partition=Partition(features, labels),
        unsorted_rows=unsorted,
        merged_features=merged,
        merged_labels=merged_labels,
    )


def _read_labels(block: Block, rows: range, dialect: Dialect) -> tuple[Csr, int]:
    """Return the labels of a block's rows, and how many entries were merged."""
    path = find_labels(block.path)
    if path is not None:
        with _open(path) as matrix:
            held = _nonzero(*matrix.read_rows(rows.start, rows.stop))

        def labels_of(some: range) -> tuple[Csr, int]:
            return pack_labels(held.first(len(some)), dialect)

        return find_bad_row(rows, labels_of, partial(_refuse, block, path))
    if dialect.needs_labels:
        other = _labels_name(block.path)
        is_named = other != block.path
        asked = f"save them as {other}" if is_named else "name both, as X.npz and Y.npz"
        raise InputError(f"no labels beside it: {asked}", block.path)
    return no_labels(len(rows), dialect), 0


def _refuse(block: Block, path: str, row: int, problem: str) -> InputError:
    return InputError(f"row {block.start + row}: {problem}", path)


def find_labels(path: str) -> str | None:
    """Return the file of labels that stands beside one of features; None if there is none.

    Examples
    --------
    >>> find_labels("memory://no/X.trn.npz") is None
    True
    """
    labels = _labels_name(path)
    filesystem, inner = url_to_fs(labels)
    return labels if labels != path and filesystem.exists(inner) else None


def _labels_name(path: str) -> str:
    """Return the name that the labels have, or the path itself where its name has no ``X``.

    Examples
    --------
    >>> _labels_name("/X/trn.X.npz"), _labels_name("train-features.npz")
    ('/X/trn.Y.npz', 'train-labels.npz')
    """
    folder, slash, name = path.rpartition("/")
    other = _FEATURES_WORD.sub(lambda word: "Y" if word[0] == "X" else "labels", name)
    return folder + slash + other


@dataclass(frozen=True)
class _Matrix:
    """A sparse matrix in a file that is open."""

    file: IO[bytes]
    archive: zipfile.ZipFile
    shape: tuple[int, int]

    @property
    def stored_bytes(self) -> int:
        """Bytes that may be read in parts: 0 if anything is compressed."""
        members = self.archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            return 0
        return sum(member.file_size for member in members)

    def read_rows(self, start: int, stop: int) -> tuple[Lists, Lists]:
        """Return the ids and the values of rows ``start`` to ``stop``."""
        indptr = self._read("indptr", start, stop + 1).astype(np.int64)
        falls = (indptr[1:] < indptr[:-1]).any()  # a difference could overflow
        if len(indptr) != stop + 1 - start or indptr[0] < 0 or falls:
            raise ValueError("its indptr is not ascending")
        first, last = int(indptr[0]), int(indptr[-1])
        indices, data = (self._read(name, first, last) for name in ("indices", "data"))
        if not len(indices) == len(data) == last - first:
            raise ValueError("its arrays end early")
        return Lists(indptr - first, indices), Lists(indptr - first, data)

    def _read(self, name: str, start: int, stop: int) -> Array:
        """Read a range of an array, without what stands before it where it is not compressed."""
        member = self.archive.getinfo(f"{name}.npy")
        if member.compress_type != zipfile.ZIP_STORED:
            with self.archive.open(member) as array:
                return np.lib.format.read_array(array, allow_pickle=False)[start:stop]
        self.file.seek(member.header_offset)
        name_bytes, extra_bytes = _LOCAL_HEADER.unpack(self.file.read(_LOCAL_HEADER.size))
        self.file.seek(name_bytes + extra_bytes, 1)
        version = np.lib.format.read_magic(self.file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else None
        _, _, dtype = (read or np.lib.format.read_array_header_2_0)(self.file)
        first = self.file.tell() + start * dtype.itemsize
        wanted_bytes = (stop - start) * dtype.itemsize
        if first + wanted_bytes > self.file.seek(0, os.SEEK_END):  # by a number that is damaged
            raise ValueError("its arrays end early")
        self.file.seek(first)
        return np.frombuffer(self.file.read(wanted_bytes), dtype)


@contextmanager
def _open(path: str) -> Iterator[_Matrix]:
    """Open a matrix.

    Raises
    ------
    InputError
        If it is none, not in CSR form, too wide, or damaged.
    """
    with open_file(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                kind, shape = (_small(archive, name) for name in ("format", "shape"))
                if kind.item().decode() != "csr":
                    problem = f"a matrix in {kind.item().decode()} form; save X.tocsr()"
                    raise InputError(problem, path)
                if shape[1] > LARGEST_ID + 1:
                    raise InputError(f"more than {LARGEST_ID + 1} columns; renumber them", path)
                yield _Matrix(file, archive, (int(shape[0]), int(shape[1])))
        except MemoryError:
            problem = "a matrix larger than the memory, or damaged"
            raise InputError(f"{problem}: save it with compressed=False", path) from None
        except _DAMAGE as error:
            told = " ".join(str(error).split())[:120]
            problem = f"not a whole file of a sparse matrix ({told})"
            raise InputError(f"{problem}; write it with scipy.sparse.save_npz", path) from None


def _small(archive: zipfile.ZipFile, name: str) -> Any:
    with archive.open(f"{name}.npy") as array:
        return np.lib.format.read_array(array, allow_pickle=False)


def _nonzero(ids: Lists, values: Lists) -> Lists:
    """Leave out the zeros that a matrix of labels may hold."""
    kept = values.items != 0
    indptr = np.append(0, np.cumsum(kept))[ids.indptr]
    return Lists(indptr, ids.items[kept])
