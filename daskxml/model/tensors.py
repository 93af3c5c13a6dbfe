"""Arrays in a safetensors file: replaced atomically, checked when read, mapped and not copied.

A file is written under another name beside its place, flushed to the disk, and renamed. Whatever
happens before the rename, a full disk or a killed process, leaves the old file as it was; the
unfinished one ends in ``.partial``, is read by nobody and overwritten by the next attempt.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from daskxml.errors import ModelError

Arrays = dict[str, npt.NDArray[Any]]

_DIGEST: Final = "daskxml.sha256"  # metadata key: digest of the other metadata and the arrays
_DTYPES: Final = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
    "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name to write to, which takes the place of ``path`` when the block ends well.

    Parameters
    ----------
    path
        The file to write; its directory must exist.

    Raises
    ------
    ModelError
        If the disk is full or the directory cannot be written to; ``path`` is as it was.

    Examples
    --------
    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "greeting"
    >>> with replacing(target) as partial:
    ...     _ = partial.write_text("hello")
    >>> target.read_text()
    'hello'
    """
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        rename(partial, path)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(
            f"{path}: cannot be written ({reason}); what was there is unchanged: "
            "free space, or choose another directory"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def write_tensors(
    path: str | Path, arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]
) -> None:
    """Write named arrays and a few words about them to one safetensors file, atomically.

    Parameters
    ----------
    path
        The file; one that is there already is replaced.
    arrays
        Of any shape; integers, floats or booleans. They are not copied if C-contiguous.
    metadata
        Text by name, kept in the file's header. A digest of it and of the arrays is added.

    Raises
    ------
    ModelError
        If the file cannot be written, or an array's dtype has no place in the format.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "state.safetensors"
    >>> write_tensors(path, {"global": np.zeros(3, np.float32)}, {"megabatch": "5"})
    >>> arrays, metadata = read_tensors(path)
    >>> metadata, arrays["global"].shape
    ({'megabatch': '5'}, (3,))
    """
    with replacing(Path(path)) as partial:
        save_tensors(partial, arrays, metadata)


def save_tensors(
    path: Path, arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]
) -> None:
    """Do the work of ``write_tensors`` in a file that ``replacing`` will put into its place.

    Raises
    ------
    ModelError
        If an array's dtype has no place in the format.
    OSError, SafetensorError
        If the file cannot be written: ``replacing`` explains it.
    """
    held = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    known = {np.dtype(dtype) for dtype in _DTYPES.values()}
    for name, array in held.items():
        if array.dtype not in known:
            raise ModelError(f"{path}: array {name!r} of dtype {array.dtype} cannot be stored")
    path.touch()
    mode = path.stat().st_mode  # as the user's files have it; the writer's are the owner's alone
    save_file(held, path, metadata=dict(metadata) | {_DIGEST: _digest(held, metadata)})
    _order_metadata(path)
    path.chmod(mode)


def _order_metadata(path: Path) -> None:
    """Sort the words in a file's header, which safetensors writes in a random order.

    So the same arrays give the same bytes. The header keeps its length: blanks may follow it.
    """
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        words = dict(sorted(header.pop("__metadata__").items()))
        text = {"__metadata__": words, **header}
        ordered = json.dumps(text, separators=(",", ":"), ensure_ascii=False).encode()
        if len(ordered) <= size:
            file.seek(8)
            file.write(ordered.ljust(size))


def read_tensors(path: str | Path, *, verify: bool = True) -> tuple[Arrays, dict[str, str]]:
    """Map a safetensors file into memory: nothing is read before it is looked at.

    Parameters
    ----------
    path
        A file of ``write_tensors``, or of any other writer of the format.
    verify
        Read everything once to compare the digest, where the file has one.

    Returns
    -------
    arrays
        By name, read-only, valid for as long as they are held.
    metadata
        As it was given to ``write_tensors``.

    Raises
    ------
    ModelError
        If the file is missing, cut off, or not what was written.
    """
    path = Path(path)
    try:
        with safe_open(path, framework="np") as checked:  # refuses bad offsets and sizes
            metadata = dict(checked.metadata() or {})
        arrays = _mapped(path)
    except OSError as error:
        reason = error.strerror or "no such file"
        raise ModelError(
            f"{path}: cannot be read ({reason}); is it the right directory?"
        ) from error
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{path}: damaged or cut off ({error}); restore or write it anew"
        ) from error
    digest = metadata.pop(_DIGEST, None)
    if verify and digest is not None and digest != _digest(arrays, metadata):
        raise ModelError(f"{path}: damaged (its checksum differs); restore it or write it anew")
    return arrays, metadata


def _mapped(path: Path) -> Arrays:
    """Views of the file's pages; the header is an 8-byte length and then that much JSON."""
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    header.pop("__metadata__", None)
    return {name: _view(pages, 8 + header_bytes, entry) for name, entry in header.items()}


def _view(pages: mmap.mmap, base: int, entry: Mapping[str, Any]) -> npt.NDArray[Any]:
    dtype = np.dtype(_DTYPES[entry["dtype"]])
    start, stop = entry["data_offsets"]
    count = (stop - start) // dtype.itemsize
    if not count:  # an empty view may not start at the end of the file
        return np.empty(entry["shape"], dtype)
    return np.frombuffer(pages, dtype, count, base + start).reshape(entry["shape"])


def _digest(arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> str:
    """SHA-256 of everything that the file says, whatever the order and spelling of its header."""
    digest = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, array in sorted(arrays.items()):
        digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def rename(source: Path, target: Path) -> None:
    """Put a file in the place of another so that not even a power cut leaves half of it."""
    _flush(source)
    source.replace(target)
    _flush(target.parent)


def _flush(path: Path) -> None:
    """Wait until a file's bytes, or a directory's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
