# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The kernels on a GPU: cuBLAS products and CUDA kernels in one queue, launched from one thread.

Only methods that return a number synchronize. Sums are formed in an order that depends on shapes
only, and floats are never added by atomics, so that the same inputs give the same bits on the same
GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import SupportsFloat

import numpy as np

from daskxml.core.arrays import Array
from daskxml.kernels.cuda.dense import CudaDense, dense_scratch_bytes
from daskxml.kernels.cuda.labels import CudaLabels, label_scratch_bytes
from daskxml.kernels.cuda.sparse import sparse_scratch_bytes
from daskxml.kernels.cuda.tree import CudaTree
from daskxml.kernels.operands import StepSizes


class CudaKernels(CudaDense, CudaLabels, CudaTree):
    """Implements :class:`daskxml.kernels.Kernels` for a GPU.

    Parameters
    ----------
    device
        Used by these kernels alone.
    """

    name = "cuda"
    threads = 1
    gradient_floats = 1 << 24  # 64 MiB: a few launches for the gradient of a large layer

    def close(self) -> None:
        self._device.close()

    # -- memory -----------------------------------------------------------------------------------

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
            self._zeros_of(name, size, kind)
        self._deferred.reserve()

    def release(self) -> None:
        self._device.release()

    def await_uploads(self) -> None:
        self._device.await_uploads()

    # -- captured steps ---------------------------------------------------------------------------

    def write(self, out: Array, value: Array) -> None:
        """``out = value``, a contiguous array of the host, which may be changed afterwards."""
        self._device.write(out, value)

    def capture(
        self, work: Callable[[], object], loss: Array
    ) -> Callable[[], SupportsFloat] | None:
        """Record a step as one piece of work, whose every replay returns the loss.

        None if the device refuses just now; nothing has been done then.

        Parameters
        ----------
        work
            The step: it forms one deferred sum, and neither waits nor synchronizes. Numbers of the
            host are recorded as they are; what shall change lies in arrays, or is a
            `daskxml.kernels.DeviceNumber`.
        loss
            ``(1,)`` float64, where replays form that sum.
        """
        self._deferred.recorded = loss
        captured = self._device.capture(work)
        if captured is None:
            return None

        def step() -> SupportsFloat:
            self._device.replay(captured)
            out = self._deferred.new()
            self._device.copy(out.place, loss)
            return out

        return step

    def time_range(self, name: str) -> AbstractContextManager[None]:
        return self._device.time_range(name)


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
