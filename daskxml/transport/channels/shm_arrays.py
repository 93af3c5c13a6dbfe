"""Arrays that other processes of this machine read in place, and a cache of theirs.

Their memory has no name (`daskxml.worker.shared_model`): a process can open it as long as another
one that has it open lives, and keeps it as long as it maps it. A worker's global and scratch models
are such arrays: what is sent from one need not be copied. The replica that is trained is not: Linux
gives shared memory no large pages, and training reads rows of weights at random.
"""

from __future__ import annotations

import os
import threading
import weakref
from bisect import bisect_right, insort
from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np

from daskxml.core.arrays import Array
from daskxml.core.errors import ClusterError
from daskxml.worker.shared_model import SharedHandle, SharedModel

_FLOAT_BYTES = 4
_lock = threading.Lock()
_starts: list[int] = []  # first addresses, ascending
_handles: dict[int, SharedHandle] = {}


def shared_zeros(size: int) -> Array:
    """Return ``(size,)`` float32 zeros that `locate` finds; plain ones where none can be shared.

    Raises
    ------
    ClusterError
        If there is not enough memory.

    Examples
    --------
    >>> array = shared_zeros(100)
    >>> handle, offset_bytes = locate(memoryview(array[25:50]).cast("B"))
    >>> handle.size, offset_bytes
    (100, 100)
    """
    model = SharedModel.create(size, "array")
    flat = model.flat
    try:
        handle = model.handle
    except ClusterError:  # no such memory on this system
        return flat
    handle = replace(handle, fd=os.dup(handle.fd))  # the model closes its own when it is deleted
    start = int(flat.ctypes.data)
    with _lock:
        insort(_starts, start)
        _handles[start] = handle
    weakref.finalize(flat, _forget, start)
    return flat


@cache
def _probe() -> SharedModel:
    return SharedModel.create(1, "probe")


def own_memory() -> SharedHandle | None:
    """Return memory by which another process finds out whether it can read this one's.

    None if this system has no memory without a name.
    """
    with suppress(ClusterError):
        return _probe().handle
    return None


def can_read(handle: SharedHandle) -> bool:
    """Whether this process can map that memory.

    Not on another machine, in another container, or as another user.
    """
    try:
        SharedModel.open(handle).close()
    except ClusterError:
        return False
    return True


def _forget(start: int) -> None:
    with _lock:
        _starts.remove(start)
        handle = _handles.pop(start)
    os.close(handle.fd)


def locate(data: memoryview) -> tuple[SharedHandle, int] | None:
    """Return the shared array that these bytes are in, and their offset in bytes, or None."""
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


class MappingCache:
    """Arrays of other processes by their handles, kept mapped from one collective to the next.

    To map and unmap a model costs about as much as to read it once: the kernel enters every page
    when it is first read, and removes it in the end. What is mapped takes no memory of its own as
    long as its owner has it; `purge` unmaps what the owner has closed, or left behind by dying.
    Methods may be called from any thread.

    Examples
    --------
    >>> owner, mappings = SharedModel.create(3), MappingCache()
    >>> mappings.find(owner.handle) is mappings.find(owner.handle)
    True
    >>> owner.close()
    >>> mappings.purge()
    >>> len(mappings)
    0
    """

    def __init__(self) -> None:
        self._models: dict[SharedHandle, SharedModel] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._models)

    def find(self, handle: SharedHandle) -> SharedModel:
        """Return another process's array, mapped now if it was not before.

        Raises
        ------
        ClusterError
            If it is gone, or cannot be reached from here.
        """
        with self._lock:
            model = self._models.get(handle)
            if model is None or not model.is_found_by(handle):
                model = self._models[handle] = SharedModel.open(handle)
            return model

    def purge(self) -> None:
        """Unmap what its owner does not have any more."""
        with self._lock:
            gone = [key for key, model in self._models.items() if not model.is_found_by(key)]
            for handle in gone:
                self._models.pop(handle).close()

    def clear(self) -> None:
        """Unmap everything."""
        with self._lock:
            for model in self._models.values():
                model.close()
            self._models.clear()
