# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The kernels on a GPU: cuBLAS products and CUDA kernels in one queue, launched from one thread.

Nothing waits for the device but the methods that return a number. Sums are formed in an order
that depends on shapes only, and no float is added by an atomic, so that the same inputs give the
same bits on the same GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np

from daskxml.ops.cuda_device import Device, Kept, Mirrors, product_of
from daskxml.ops.cuda_flat import SUM_BLOCKS, CudaFlat, grid
from daskxml.ops.cuda_labels import CudaLabels, label_scratch_bytes
from daskxml.ops.cuda_late import LateSums
from daskxml.ops.cuda_optim import CudaOptim
from daskxml.ops.cuda_sampling import CudaRow, CudaRowSets, CudaSampling
from daskxml.ops.cuda_sparse import CudaSparse, sparse_scratch_bytes
from daskxml.ops.label_protocol import LabelWork
from daskxml.ops.memory_protocol import StepSizes
from daskxml.ops.placement import relocate
from daskxml.ops.protocol import Drop
from daskxml.types import Array

T = TypeVar("T")
_SUM_HEIGHT, _MOST_SUMS = 64, 64  # rows whose sum a block forms, and how many such sums at most


class CudaKernels(
    CudaFlat, CudaSparse, CudaLabels, CudaOptim, CudaRow, CudaSampling, CudaRowSets
):  # fmt: skip
    """Implements :class:`daskxml.ops.Kernels` for a GPU.

    Parameters
    ----------
    device
        What the kernels run on, for these kernels alone.
    """

    name = "cuda"
    lanes = 1
    gradient_floats = 1 << 24  # 64 MiB: a few launches for the gradient of a large layer

    def __init__(self, device: Device) -> None:
        self._device, self._mirrors, self._kept = device, Mirrors(), Kept(self.zeros)
        self._late = LateSums(device)

    def close(self) -> None:
        self._device.close()

    # -- memory -----------------------------------------------------------------------------------

    @property
    def cache_bytes(self) -> int:
        return self._device.cache_bytes

    def free_bytes(self) -> int:
        return self._device.free_bytes()

    def scratch_bytes(self, sizes: StepSizes) -> int:
        """The temporary arrays of whichever kernel needs most, and those that are kept."""
        kept = sum(size * np.dtype(kind).itemsize for size, kind in _kept_arrays(sizes).values())
        return _temporary_bytes(sizes) + kept + self._late.nbytes

    def reserve(self, sizes: StepSizes) -> None:
        self._device.reserve(_temporary_bytes(sizes))
        for name, (size, kind) in _kept_arrays(sizes).items():
            self._kept.zeros(name, size, kind)
        self._late.reserve()

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
        """Arrays of int64, which number rows and entries, are remembered on the host as well."""
        return cast(T, relocate(value, self._upload))

    def to_host(self, value: T) -> T:
        return cast(T, relocate(value, self._download))

    def send(self, value: T) -> T:
        return cast(T, relocate(value, self._send))

    def settle(self) -> None:
        self._device.settle()

    def _upload(self, array: Array) -> Array:
        return self._moved(array, self._device.upload)

    def _send(self, array: Array) -> Array:
        return self._moved(array, self._device.upload_ahead)

    def _moved(self, array: Array, move: Callable[[Array], Array]) -> Array:
        if self._device.holds(array):
            return array
        there = move(np.ascontiguousarray(array))
        if array.dtype == np.int64:
            self._mirrors.add(there, array.copy())
        return there

    def _download(self, array: Array) -> Array:
        return self._device.download(array) if self._device.holds(array) else np.asarray(array)

    # -- dense layers -----------------------------------------------------------------------------

    def gemm(self, out: Array, a: Array, b: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
        product = product_of(out, a, b)
        if product.k > 0:
            self._device.gemm(product, alpha, beta)
        elif beta == 0.0:  # what is there is not read
            self._device.clear(out)
        else:
            self.scale(out.reshape(-1), out.reshape(-1), beta)

    def fill_rows(self, out: Array, row: Array) -> None:
        size, columns = int(out.size), np.int32(out.shape[1])
        self._device.launch("fill_rows", *grid(size), out, row, columns, np.int64(size))

    def column_sums(self, out: Array, x: Array) -> None:
        """Where there are many rows, sums of parts of them first."""
        rows, columns = (int(size) for size in x.shape)
        parts = max(1, min(_MOST_SUMS, -(-rows // _SUM_HEIGHT)))
        height = max(1, -(-rows // parts))
        parts = max(1, -(-rows // height))
        sums = out if parts == 1 else self._device.scratch()((parts, columns), "float32")
        wide, many = (-(-columns // 32), parts), np.int32(columns)
        self._device.launch(
            "column_sums", wide, (32, 8), sums, x, np.int64(rows), many, np.int64(height)
        )
        if parts > 1:
            self._device.launch(
                "column_sums", (wide[0], 1), (32, 8), out, sums, np.int64(parts), many,
                np.int64(parts),
            )  # fmt: skip

    def activate(self, x: Array, activation: str) -> None:
        self._device.launch(activation, *grid(int(x.size)), x, np.int64(x.size))

    def activation_gradient(
        self, delta: Array, active: Array, activation: str, keep: float = 1.0
    ) -> None:
        size, wide = np.int64(delta.size), grid(int(delta.size))
        if activation == "relu":
            self._device.launch("relu_gradient", *wide, delta, active, size)
        else:
            self._device.launch("sigmoid_gradient", *wide, delta, active, np.float32(keep), size)

    def dropout(self, x: Array, drop: Drop) -> None:
        if drop.limit == 0:
            return
        first, size = drop.first_row * int(x.shape[1]), int(x.size)
        self._device.launch(
            "dropout", *grid(size), x, np.int64(first), np.uint64(drop.key),
            np.uint64(drop.limit), np.float32(drop.scale), np.int64(size),
        )  # fmt: skip

    # -- blocks of labels: one lane ---------------------------------------------------------------

    def block_labels(self, rows: int, labels: int) -> int:
        """All of them: the fewer launches the better; the budget for logits decides."""
        return labels

    def for_label_blocks(self, labels: int, block: int, work: LabelWork) -> int:
        for start in range(0, labels, block):
            work(0, start, min(start + block, labels))
        return 1


def _kept_arrays(sizes: StepSizes) -> dict[str, tuple[int, str]]:
    """Size and type of the arrays of `Kept` that a step uses."""
    return {
        "tally": (sizes.features, "int32"),
        "live": (1, "int32"),
        "lost": (sizes.labels, "uint64"),
    }


def _temporary_bytes(sizes: StepSizes) -> int:
    """What the kernel of a step that needs most has at a time."""
    sums = 4 * _MOST_SUMS * sizes.units + 8 * 4 * SUM_BLOCKS
    sparse = sparse_scratch_bytes(sizes.rows, sizes.nonzeros)
    return max(sums, sparse, label_scratch_bytes(sizes.rows, sizes.labels))
