# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""Products with the softmax in them, on the tensor cores of a GPU of capability 9.0."""

from __future__ import annotations

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.kernels.cuda.dense import THREADS, grid
from daskxml.kernels.cuda.device import CudaDevice
from daskxml.kernels.cuda.labels import MOST_CHUNKS, merge_chunks

_UNITS = 64, 128
_HEIGHT = 64  # of a tile, and the labels of a block of `softmax_update`
_ROWS, _SUM_THREADS, _UPDATE_THREADS = 128, 256, 128  # as fused.cu has them


class CudaFused:
    """Implements :class:`daskxml.kernels.fused.FusedKernels` for a GPU."""

    _device: CudaDevice

    def fuses_products(self, units: int) -> bool:
        return units in _UNITS and self._device.has_fused_kernels

    def softmax_products(
        self, hidden: Array, weight: Array, bias: Array, peak: Array, total: Array
    ) -> None:
        (labels, units), rows = weight.shape, int(peak.shape[0])
        chunk = _HEIGHT * max(1, -(-int(labels) // (MOST_CHUNKS * _HEIGHT)))
        chunks, make = -(-int(labels) // chunk), self._device.scratch()
        tops, sums = (make((chunks, rows), "float32") for _ in range(2))
        self._device.launch(
            f"softmax_products_{units}", (-(-rows // _ROWS), chunks), (_SUM_THREADS,),
            tops, sums, hidden.view("uint16"), weight.view("uint16"), bias, np.int64(labels),
            np.int64(rows), np.int64(chunk),
        )  # fmt: skip
        merge_chunks(self._device, peak, total, tops, sums)

    def softmax_update(
        self, delta: Array, out: Array, row_sums: Array, hidden: Array, weight: Array,
        bias: Array, shift: Array, factor: float, keep: float,
    ) -> None:  # fmt: skip
        (labels, stride), rows = delta.shape, np.int64(shift.shape[0])
        self._device.launch(
            f"softmax_update_{int(weight.shape[1])}", (-(-int(labels) // _HEIGHT),),
            (_UPDATE_THREADS,), delta.view("uint16"), out, row_sums, hidden.view("uint16"),
            weight.view("uint16"), bias, shift, np.int64(labels), rows, np.int64(stride),
            np.float32(factor), np.float32(keep),
        )  # fmt: skip

    def target_products(
        self, out: Array, hidden: Array, weight: Array, bias: Array, y: Csr, rows: Array,
        first_row: int,
    ) -> None:  # fmt: skip
        self._device.launch(
            "target_products", (int(rows.shape[0]),), (THREADS,),
            out, hidden.view("uint16"), weight.view("uint16"), bias, y.indptr, y.indices, rows,
            np.int32(weight.shape[1]), np.int64(first_row),
        )  # fmt: skip

    def scale_rows(self, out: Array, x: Array, factors: Array) -> None:
        size, units = int(out.size), np.int64(out.shape[1])
        self._device.launch("scale_rows", *grid(size), out, x, factors, units, np.int64(size))
