"""Arrays in a safetensors file: replaced atomically, checked when read, mapped and not copied."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from daskxml.core.errors import ModelError
from daskxml.core.files import replacing
from daskxml.core.text import parse_json

Arrays = dict[str, npt.NDArray[Any]]

_DIGEST: Final = "daskxml.sha256"  # metadata key: digest of the other metadata and the arrays
_DTYPES: Final = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
    "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip


def write_tensors(
    path: str | Path, arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]
) -> None:
    """Write named arrays and metadata to one safetensors file, atomically.

    Parameters
    ----------
    path
        The file; one that is there already is replaced.
    arrays
        Of any shape; integers, floats or booleans. They are not copied if C-contiguous.
    metadata
        Text by name, for the file's header. A digest of it and of the arrays is added.

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
    """Write the file of ``write_tensors`` in place: ``replacing`` makes it atomic.

    Raises
    ------
    ModelError
        If an array's dtype has no place in the format.
    OSError
        If the file cannot be written: ``replacing`` explains it.
    """
    held = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    known = {np.dtype(dtype) for dtype in _DTYPES.values()}
    for name, array in held.items():
        if array.dtype not in known:
            raise ModelError(f"{path}: array {name!r} of dtype {array.dtype} cannot be stored")
    path.touch()
    mode = path.stat().st_mode  # as the user's files have it; the writer's are the owner's alone
    try:
        save_file(held, path, metadata=dict(metadata) | {_DIGEST: digest(held, metadata)})
    except SafetensorError as error:
        raise OSError(str(error)) from error
    _order_metadata(path)
    path.chmod(mode)


def _order_metadata(path: Path) -> None:
    """Sort the metadata in a file's header, so that the same arrays give the same bytes.

    safetensors writes it in random order. The header keeps its length: blanks may follow it.
    """
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = parse_json(file.read(size))
        metadata = dict(sorted(header.pop("__metadata__").items()))
        text = {"__metadata__": metadata, **header}
        ordered = json.dumps(text, separators=(",", ":"), ensure_ascii=False).encode()
        if len(ordered) <= size:
            file.seek(8)
            file.write(ordered.ljust(size))


def read_tensors(
    path: str | Path, *, verify: bool = True, writable: bool = True
) -> tuple[Arrays, dict[str, str]]:
    """Map a safetensors file into memory: pages are read on access.

    Parameters
    ----------
    path
        A file of ``write_tensors``, or of another writer of the format.
    verify
        Read everything once to compare the digest, which must be there; False also reads files of
        other writers.
    writable
        Whether arrays can be written to, which counts them as memory of this process.

    Returns
    -------
    arrays
        By name, views of the file; what is written to them stays in this process.
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
        access = mmap.ACCESS_COPY if writable else mmap.ACCESS_READ
        with path.open("rb") as file:
            arrays = views(mmap.mmap(file.fileno(), 0, access=access))
    except OSError as error:
        reason = error.strerror or "no such file"
        problem = f"{path}: cannot be read ({reason}); is it the right directory?"
        raise ModelError(problem) from error
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        problem = f"{path}: damaged or cut off ({error}); restore or write it again"
        raise ModelError(problem) from error
    expected = metadata.pop(_DIGEST, None)
    if verify and expected is None:
        raise ModelError(f"{path}: damaged (it has no checksum); restore it or write it again")
    if verify and expected != digest(arrays, metadata):
        raise ModelError(f"{path}: damaged (its checksum differs); restore it or write it again")
    return arrays, metadata


def views(data: Any) -> Arrays:
    """Return the arrays in a file's bytes; the header is an 8-byte length and that much JSON."""
    header_bytes = int.from_bytes(data[:8], "little")
    header = parse_json(bytes(data[8 : 8 + header_bytes]))
    header.pop("__metadata__", None)
    return {name: _view(data, 8 + header_bytes, entry) for name, entry in header.items()}


def _view(data: Any, base: int, entry: Mapping[str, Any]) -> npt.NDArray[Any]:
    dtype = np.dtype(_DTYPES[entry["dtype"]])
    start, stop = entry["data_offsets"]
    count = (stop - start) // dtype.itemsize
    if not count:  # an empty view may not start at the end of the file
        return np.empty(entry["shape"], dtype)
    return np.frombuffer(data, dtype, count, base + start).reshape(entry["shape"])


def digest(arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> str:
    """Return the SHA-256 of metadata and arrays, independent of the header's order."""
    found = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, array in sorted(arrays.items()):
        found.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()
