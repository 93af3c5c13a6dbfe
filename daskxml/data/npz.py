"""SciPy's npz as tables: features in one file, labels in another, each by `scipy.sparse.save_npz`.

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
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from fsspec.core import url_to_fs

from daskxml.core.arrays import Array, starts_of
from daskxml.core.errors import InputError
from daskxml.core.text import quoted
from daskxml.data.blocks import Header, file_name, open_file
from daskxml.data.rows import check_targets
from daskxml.data.scan import LARGEST_ID
from daskxml.data.tables import INDICES, LABELS, VALUES, Parts

_FEATURES_WORD = re.compile(r"(?<![A-Za-z0-9])X(?![A-Za-z0-9])|features(?=[^/]*$)")
_LOCAL_HEADER = struct.Struct("<26xHH")  # of a zip archive's member: lengths of its name and extra
_ANY_BYTES, _MOST_INFLATED = 1 << 26, 100  # that few bytes become, and how many times the file's
_DAMAGE = (  # RuntimeError: compressed, encrypted, or of a version that Python does not know
    zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, struct.error, RuntimeError,
    TokenError, TypeError, SyntaxError,  # of the header of an array, which is Python
)  # fmt: skip


def open_npz(file: IO[bytes], path: str) -> Parts:
    """Open the features and the labels; each row is a part.

    Raises
    ------
    InputError
        If a matrix is none, not in CSR form, too wide, or damaged, or they differ in their rows.
    """
    with _opened(path) as matrix:
        (rows, columns), nbytes = matrix.read_shape(path), matrix.stored_bytes
    labels_path, labels = find_labels(path), None
    if labels_path is not None:
        with _opened(labels_path) as matrix:
            found, labels = matrix.read_shape(labels_path)
        if found != rows:
            problem = f"{found} rows of labels, but {path} has {rows}"
            raise InputError(f"{problem}; save both again", labels_path)

    def batches(start: int, stop: int, names: list[str]) -> Iterator[Any]:
        import pyarrow

        table = {"row": pyarrow.nulls(stop - start)}
        if INDICES in names:
            with _opened(path) as matrix:
                indptr, ids, values = matrix.read_rows(start, stop)
            table = {INDICES: _lists(indptr, ids), VALUES: _lists(indptr, values)}
        if LABELS in names and labels_path:
            with _opened(labels_path) as matrix:
                table[LABELS] = _nonzero(*matrix.read_rows(start, stop))
        yield pyarrow.table(table)

    name = _labels_name(path)
    asked = "name both, as X.npz and Y.npz" if name == path else f"save them as {name}"
    return Parts(
        [INDICES, VALUES] if labels_path is None else [INDICES, VALUES, LABELS],
        np.full(rows, nbytes / max(1, rows)),
        batches,
        header=Header(rows, columns, labels),
        no_labels=f"no labels beside it: {asked}",
        paths=path if labels_path is None else f"{path} and {labels_path}",
    )


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
    >>> _labels_name("/X/trn.X.npz"), _labels_name("zip://features.npz::X.zip")
    ('/X/trn.Y.npz', 'zip://labels.npz::X.zip')
    """
    link = file_name(path)
    folder, slash, name = link.rpartition("/")
    other = _FEATURES_WORD.sub(lambda word: "Y" if word[0] == "X" else "labels", name)
    return path.replace(link, folder + slash + other, 1)


@dataclass(frozen=True)
class _Matrix:
    """A sparse matrix in a file that is open."""

    file: IO[bytes]
    archive: zipfile.ZipFile

    def read_shape(self, path: str) -> tuple[int, int]:
        """Return the rows and columns of a matrix in CSR form."""
        with self.archive.open("format.npy") as array:
            form = np.lib.format.read_array(array, allow_pickle=False).item()
        form, shape = form.decode() if isinstance(form, bytes) else form, self._read("shape")
        if form != "csr":
            raise InputError(f"a matrix in {quoted(form)} form; save X.tocsr()", path)
        rows, columns = map(int, shape)
        if columns > LARGEST_ID + 1:
            raise InputError(f"more than {LARGEST_ID + 1} columns; renumber them", path)
        return rows, columns

    @property
    def stored_bytes(self) -> int:
        """Bytes that may be read in parts: 0 if anything is compressed."""
        members = self.archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            return 0
        return sum(member.file_size for member in members)

    def read_rows(self, start: int, stop: int) -> tuple[Array, Array, Array]:
        """Return where rows ``start`` to ``stop`` begin and end, their ids, and their values."""
        indptr = self._read("indptr", start, stop + 1).astype(np.int64)
        falls = (indptr[1:] < indptr[:-1]).any()  # a difference could overflow
        if len(indptr) != stop + 1 - start or indptr[0] < 0 or falls:
            raise ValueError("its indptr is not ascending")
        first, last = int(indptr[0]), int(indptr[-1])
        indices, data = (self._read(name, first, last) for name in ("indices", "data"))
        if not len(indices) == len(data) == last - first:
            raise ValueError("its arrays end early")
        return indptr - first, indices, data

    def _read(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        """Read a range of an array, without what stands before it where it is not compressed."""
        member = self.archive.getinfo(f"{name}.npy")
        is_plain = member.compress_type == zipfile.ZIP_STORED
        array: IO[bytes] = self.file if is_plain else self.archive.open(member)
        if is_plain:
            array.seek(member.header_offset)
            name_bytes, extra_bytes = _LOCAL_HEADER.unpack(array.read(_LOCAL_HEADER.size))
            end = array.seek(name_bytes + extra_bytes, 1) + member.file_size
        version = np.lib.format.read_magic(array)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else None
        shape, _, dtype = (read or np.lib.format.read_array_header_2_0)(array)
        if len(shape) != 1 or dtype.kind not in ("biuf" if name == "data" else "iu"):
            raise ValueError(f"its {name} has the shape {shape} and the type {dtype}")
        stop = shape[0] if stop is None else stop
        if is_plain:
            first = array.tell() + start * dtype.itemsize
            if first + (stop - start) * dtype.itemsize > end:  # by a number that is damaged
                raise ValueError("its arrays end early")
            array.seek(first)
            start, stop = 0, stop - start
        data = np.frombuffer(array.read(stop * dtype.itemsize), dtype)[start:]
        return data.astype(dtype.newbyteorder("="), copy=False)


@contextmanager
def _opened(path: str) -> Iterator[_Matrix]:
    """Open a matrix, and explain where it is damaged."""
    with open_file(path) as file:
        try:
            archive, stored = zipfile.ZipFile(file), file.seek(0, os.SEEK_END)
            whole = sum(member.file_size for member in archive.infolist())
            if whole > max(_ANY_BYTES, _MOST_INFLATED * stored):
                problem = f"{stored:,} bytes would become {whole:,}; save it with compressed=False"
                raise InputError(problem, path)
            yield _Matrix(file, archive)
        except MemoryError:
            problem = "a matrix larger than the memory, or damaged"
            raise InputError(f"{problem}: save it with compressed=False", path) from None
        except _DAMAGE as error:
            problem = f"not a whole file of a sparse matrix ({error})"
            raise InputError(f"{problem}; write it with scipy.sparse.save_npz", path) from None


def _nonzero(indptr: Array, ids: Array, values: Array) -> Any:
    """Leave out the zeros that a matrix of labels may hold."""
    check_targets(values)
    kept = values != 0
    return _lists(starts_of(kept)[indptr], ids[kept])


def _lists(indptr: Array, items: Array) -> Any:
    import pyarrow

    return pyarrow.LargeListArray.from_arrays(indptr, items)
