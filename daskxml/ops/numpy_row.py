# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""One row's step on a CPU: one call of compiled code, which other threads need not wait for."""

from __future__ import annotations

import numpy as np

from daskxml.ops import numba_row
from daskxml.ops.lanes import Lanes
from daskxml.ops.row_protocol import RowNet
from daskxml.types import Csr

_ONES = np.empty(0, np.float32)


class NumpyRow:
    """Implements :class:`daskxml.ops.row_protocol.RowKernels` for host memory."""

    _lanes: Lanes

    @property
    def has_row_step(self) -> bool:
        """On one lane; several share the labels of a row among them, kernel by kernel."""
        return self._lanes.count == 1

    def row_step(self, net: RowNet, x: Csr, y: Csr, row: int, lr: float, output_lr: float) -> float:
        data = _ONES if x.data is None else x.data
        loss = numba_row.step(
            net.flat, net.places, net.scratch, x.indptr, x.indices, data, y.indptr, y.indices,
            row, net.activation == "relu", net.loss == "softmax",
            np.float32(-lr), np.float32(-output_lr),
        )  # fmt: skip
        return float(loss)
