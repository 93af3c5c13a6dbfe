"""How arrays leave and arrive: as bytes of host memory, or as the device arrays that they are.

A device array is known by CUDA's array interface. Over UCX it travels from device to device; any
other way goes through host memory, here and nowhere else.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from daskxml.types import Array

Payload: TypeAlias = "memoryview | Array"  # bytes, on the host or on a device; sliced alike


def host_bytes(array: Array) -> memoryview:
    """View an array in host memory as bytes.

    Examples
    --------
    >>> host_bytes(np.zeros(2, "f4")).nbytes
    8
    """
    return memoryview(array).cast("B")


def is_on_device(array: Any) -> bool:
    """Whether an array lies in the memory of a GPU."""
    return hasattr(array, "__cuda_array_interface__")


def departing(array: Array, is_direct: bool) -> Payload:
    """Return an array's bytes as they are to leave.

    Parameters
    ----------
    is_direct
        Whether the way takes device memory; else this waits, and copies to the host.
    """
    if not is_on_device(array):
        return host_bytes(array)
    array.device.synchronize()  # what computes it may run on any stream
    if not is_direct:
        return host_bytes(array.get())
    return array.reshape(-1).view("uint8")


def duplicate(payload: Payload) -> Any:
    """Copy a payload where it lies: to ``bytes``, or to a new array on its device.

    Examples
    --------
    >>> duplicate(memoryview(b"abc")[1:])
    b'bc'
    """
    if not is_on_device(payload):
        return bytes(payload)
    copied: Any = payload.copy()  # type: ignore[union-attr]
    copied.device.synchronize()
    return copied


def land(arrived: Any, into: Array) -> None:
    """Put bytes that have arrived, on the host or on a device, into an array of either.

    Examples
    --------
    >>> array = np.empty(2, "u1")
    >>> land(b"ab", array)
    >>> array
    array([97, 98], dtype=uint8)
    """
    if is_on_device(into):
        into.device.synchronize()  # what still reads it may run on any stream
    if is_on_device(arrived) and is_on_device(into):
        into[...] = arrived.view(into.dtype).reshape(into.shape)
        into.device.synchronize()
        return
    there = np.frombuffer(arrived.get() if is_on_device(arrived) else arrived, np.uint8)
    if is_on_device(into):
        into.set(there.view(into.dtype).reshape(into.shape))
        into.device.synchronize()
    else:  # lets other threads go on, which an assignment of bytes would not
        np.copyto(np.frombuffer(host_bytes(into), np.uint8), there)
