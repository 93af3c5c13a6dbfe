# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The kernels on a GPU: cuBLAS products and CUDA kernels in one queue, launched from one thread.

Only methods that return a number synchronize. Sums are formed in an order that depends on shapes
only, and floats are never added by atomics, so that the same inputs give the same bits on the same
GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

import numpy as np

from daskxml.core.arrays import Array
from daskxml.kernels.cuda.dense import CudaDense, dense_scratch_bytes
from daskxml.kernels.cuda.device import CudaDevice, DeferredSums, HostCopies, ZeroedScratch
from daskxml.kernels.cuda.fused import CudaFused
from daskxml.kernels.cuda.labels import CudaLabels, label_scratch_bytes
from daskxml.kernels.cuda.optim import CudaOptim
from daskxml.kernels.cuda.sparse import CudaSparse, sparse_scratch_bytes
from daskxml.kernels.cuda.tree import CudaTree
from daskxml.kernels.memory import StepSizes, relocate

T = TypeVar("T")


class CudaKernels(CudaDense, CudaSparse, CudaLabels, CudaFused, CudaOptim, CudaTree):
    """Implements :class:`daskxml.kernels.Kernels` for a GPU.

    Parameters
    ----------
    device
        Used by these kernels alone.
    """

    name = "cuda"
    threads = 1
    gradient_floats = 1 << 24  # 64 MiB: a few launches for the gradient of a large layer

    def __init__(self, device: CudaDevice) -> None:
        self._device, self._host_copies = device, HostCopies()
        self._zeroed = ZeroedScratch(self.zeros)
        self._deferred = DeferredSums(device)

    def close(self) -> None:
        self._device.close()

    # -- memory -----------------------------------------------------------------------------------

    @property
    def cache_bytes(self) -> int:
        return self._device.cache_bytes

    def free_bytes(self) -> int:
        return self._device.free_bytes()

    def scratch_bytes(self, sizes: StepSizes) -> int:
        """The temporary arrays of the kernel that needs most, and the permanent ones."""
        arrays = _zeroed_arrays(sizes).values()
        zeroed = sum(size * np.dtype(kind).itemsize for size, kind in arrays)
        return _temporary_bytes(sizes) + zeroed + self._deferred.nbytes

    def reserve(self, sizes: StepSizes) -> None:
        self._device.reserve(_temporary_bytes(sizes))
        for name, (size, kind) in _zeroed_arrays(sizes).items():
            self._zeroed.zeros(name, size, kind)
        self._deferred.reserve()

    def release(self) -> None:
        self._device.release()

    # -- arrays -----------------------------------------------------------------------------------

    def empty(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
        return self._device.empty(shape, dtype)

    def zeros(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
        out = self._device.empty(shape, dtype)
        self._device.clear(out)
        return out

    def to_device(self, value: T) -> T:
        """Host copies of int64 arrays are kept: they are row numbers and offsets."""
        return relocate(value, self._upload)

    def to_host(self, value: T) -> T:
        return relocate(value, self._download)

    def to_device_async(self, value: T) -> T:
        return relocate(value, self._upload_async)

    def await_uploads(self) -> None:
        self._device.await_uploads()

    def time_range(self, name: str) -> AbstractContextManager[None]:
        return self._device.time_range(name)

    def _upload(self, array: Array) -> Array:
        return self._moved(array, self._device.upload)

    def _upload_async(self, array: Array) -> Array:
        return self._moved(array, self._device.upload_async)

    def _moved(self, array: Array, move: Callable[[Array], Array]) -> Array:
        if self._device.holds(array):
            return array
        there = move(np.ascontiguousarray(array))
        if array.dtype == np.int64:
            self._host_copies.add(there, array.copy())
        return there

    def _download(self, array: Array) -> Array:
        return self._device.download(array) if self._device.holds(array) else np.asarray(array)


def _zeroed_arrays(sizes: StepSizes) -> dict[str, tuple[int, str]]:
    """Size and dtype of the zeroed scratch arrays of a step."""
    return {
        "counts": (max(sizes.features, sizes.labels), "int32"),
        "count": (1, "int32"),
        "deferred": (sizes.labels, "uint64"),
    }


def _temporary_bytes(sizes: StepSizes) -> int:
    """Temporary memory of the kernel of a step that needs most."""
    dense = dense_scratch_bytes(sizes.units)
    sparse = sparse_scratch_bytes(sizes.rows, sizes.nonzeros)
    return max(dense, sparse, label_scratch_bytes(sizes.rows, sizes.labels))
