"""Arrays that other processes of this machine may read where they lie.

Their memory has no name (`daskxml.training.shared`): a process finds it as long as one that has it
open lives, and keeps it as long as it looks at it. A worker's global and scratch models are such
arrays: what is sent from one need not be copied. The replica that is trained is not: Linux gives
shared memory no large pages, and training reads rows of weights here and there.
"""

from __future__ import annotations

import os
import threading
import weakref
from bisect import bisect_right, insort
from dataclasses import replace
from functools import cache

import numpy as np

from daskxml.errors import ClusterError
from daskxml.training.shared import SharedHandle, SharedModel
from daskxml.types import Array

_FLOAT_BYTES = 4
_lock = threading.Lock()
_starts: list[int] = []  # first addresses, ascending
_handles: dict[int, SharedHandle] = {}


def shared_zeros(size: int) -> Array:
    """Return ``(size,)`` float32 zeros that `place_of` knows; plain ones where none can be shared.

    Raises
    ------
    ClusterError
        If there is not enough memory.

    Examples
    --------
    >>> array = shared_zeros(100)
    >>> handle, offset_bytes = place_of(memoryview(array[25:50]).cast("B"))
    >>> handle.size, offset_bytes
    (100, 100)
    """
    model = SharedModel.create(size, "array")
    flat = model.flat
    try:
        handle = model.handle
    except ClusterError:  # no such memory on this system
        return flat
    handle = replace(handle, fd=os.dup(handle.fd))  # the model closes its own when it goes
    start = int(flat.ctypes.data)
    with _lock:
        insort(_starts, start)
        _handles[start] = handle
    weakref.finalize(flat, _forget, start)
    return flat


@cache
def can_share() -> bool:
    """Whether this system has memory without a name."""
    return place_of(memoryview(shared_zeros(1)).cast("B")) is not None


def _forget(start: int) -> None:
    with _lock:
        _starts.remove(start)
        handle = _handles.pop(start)
    os.close(handle.fd)


def place_of(data: memoryview) -> tuple[SharedHandle, int] | None:
    """Return where other processes find these bytes: an array and an offset in bytes, or None."""
    if not data.nbytes:
        return None
    address = int(np.frombuffer(data, np.uint8).ctypes.data)
    with _lock:
        at = bisect_right(_starts, address) - 1
        start = _starts[at] if at >= 0 else 0
        handle = _handles.get(start)
    if handle is None or address + data.nbytes > start + handle.size * _FLOAT_BYTES:
        return None
    return handle, address - start
