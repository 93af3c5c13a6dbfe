# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The kernels on a CPU: BLAS products and Numba loops over NumPy arrays, shared among threads."""

from __future__ import annotations

from typing import TypeVar, cast

import numpy as np

from daskxml.ops import blas, numba_dense, numba_labels, numba_optim, numba_sparse
from daskxml.ops.fused_protocol import KeepsExponentials
from daskxml.ops.label_protocol import LabelWork
from daskxml.ops.lanes import Lanes
from daskxml.ops.memory_protocol import HostMemory
from daskxml.ops.numpy_flat import NumpyFlat
from daskxml.ops.numpy_optim import NumpyOptim
from daskxml.ops.numpy_row import NumpyRow
from daskxml.ops.numpy_row_sets import NumpyRowSets
from daskxml.ops.numpy_sampling import NumpySampling
from daskxml.ops.placement import relocate
from daskxml.ops.protocol import KEEP_ALL, Drop
from daskxml.types import Array, Csr

T = TypeVar("T")
_SPARSE_GRAIN = 1 << 20  # products: a tenth of a millisecond, what a thread takes to wake
_BLOCK_FLOATS = 1 << 17  # half a megabyte of logits: a block stays in a core's L2 cache


class NumpyKernels(
    HostMemory, KeepsExponentials, NumpyFlat, NumpyOptim, NumpyRow, NumpySampling, NumpyRowSets
):
    """Implements :class:`daskxml.ops.Kernels` for host memory.

    Parameters
    ----------
    threads
        Lanes, at least 1. BLAS itself runs on one thread in each (see ``daskxml.ops.blas``).

    Examples
    --------
    >>> kernels = NumpyKernels(threads=1)
    >>> x = kernels.zeros(3)
    >>> kernels.add_scaled(x, np.ones(3, np.float32), 2.0)
    >>> x
    array([2., 2., 2.], dtype=float32)
    """

    name = "cpu"

    def __init__(self, threads: int) -> None:
        self._lanes = Lanes(threads)

    @property
    def lanes(self) -> int:
        return self._lanes.count

    def close(self) -> None:
        self._lanes.close()

    # -- arrays -----------------------------------------------------------------------------------

    def empty(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
        kind = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        raw = np.empty(nbytes + 64, np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + nbytes].view(kind).reshape(shape)

    def zeros(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
        out = self.empty(shape, dtype)
        out[...] = 0
        return out

    def to_device(self, value: T) -> T:
        return cast(T, relocate(value, np.ascontiguousarray))

    def send(self, value: T) -> T:
        return self.to_device(value)

    def to_host(self, value: T) -> T:
        return cast(T, relocate(value, np.asarray))

    # -- sparse rows ------------------------------------------------------------------------------

    def nonzeros(self, x: Csr, rows: Array) -> int:
        return int(numba_sparse.count(x.indptr, rows))

    def row_lengths(self, out: Array, x: Csr, rows: Array) -> None:
        numba_sparse.row_lengths(out, x.indptr, rows)

    def sparse_forward(
        self, out: Array, x: Csr, rows: Array, weight: Array, bias: Array, drop: Drop = KEEP_ALL
    ) -> None:
        operands = (out, x.indptr, x.indices, _values(x), rows, weight, bias)
        grain = self._grain(rows.shape[0], self.nonzeros(x, rows) * weight.shape[1])
        counter = _counter(x, drop)
        self._lanes.run(
            rows.shape[0], grain,
            lambda _, start, stop: numba_sparse.forward(*operands, start, stop, *counter),
        )  # fmt: skip

    def sparse_update(
        self, weight: Array, x: Csr, rows: Array, delta: Array, factor: float,
        drop: Drop = KEEP_ALL,
    ) -> None:  # fmt: skip
        step = np.float32(factor)
        operands = (weight, x.indptr, x.indices, _values(x), rows, delta, step)
        units = weight.shape[1]
        grain = max(16, self._grain(units, self.nonzeros(x, rows) * units))
        counter = _counter(x, drop)
        self._lanes.run(
            units, grain,
            lambda _, start, stop: numba_sparse.update(*operands, start, stop, *counter),
        )  # fmt: skip

    def feature_entries(
        self, out: tuple[Array, Array, Array], x: Csr, rows: Array, place: int, drop: Drop
    ) -> int:
        operands = (*out, x.indptr, x.indices, _values(x), rows, place)
        return int(numba_optim.feature_entries(*operands, *_counter(x, drop)))

    def densify(self, out: Array, x: Csr, rows: Array, drop: Drop = KEEP_ALL) -> None:
        numba_sparse.densify(out, x.indptr, x.indices, _values(x), rows, *_counter(x, drop))

    @staticmethod
    def _grain(items: int, products: int) -> int:
        """Items a lane must have to be worth waking for."""
        return max(1, items * _SPARSE_GRAIN // max(1, products))

    # -- dense layers -----------------------------------------------------------------------------

    def gemm(self, out: Array, a: Array, b: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
        blas.gemm(out, a, b, alpha, beta)

    def fill_rows(self, out: Array, row: Array) -> None:
        out[...] = row

    def column_sums(self, out: Array, x: Array) -> None:
        numba_dense.column_sums(out, x)

    def activate(self, x: Array, activation: str) -> None:
        {"relu": numba_dense.relu, "sigmoid": numba_dense.sigmoid}[activation](x)

    def activation_gradient(
        self, delta: Array, active: Array, activation: str, keep: float = 1.0
    ) -> None:
        if activation == "relu":
            numba_dense.relu_gradient(delta, active)
        else:
            numba_dense.sigmoid_gradient(delta, active, np.float32(keep))

    def dropout(self, x: Array, drop: Drop) -> None:
        if drop.rate > 0.0:
            numba_dense.dropout(
                x, drop.first_row, np.uint64(drop.key), np.uint64(drop.limit),
                np.float32(drop.scale),
            )  # fmt: skip

    # -- blocks of labels -------------------------------------------------------------------------

    def block_labels(self, rows: int, labels: int) -> int:
        return max(1, min(labels, max(64, min(2048, _BLOCK_FLOATS // max(1, rows)))))

    def for_label_blocks(self, labels: int, block: int, work: LabelWork) -> int:
        def walk(lane: int, first: int, last: int) -> None:
            for start in range(first, last, block):
                work(lane, start, min(start + block, last))

        return self._lanes.run(labels, 2 * block, walk)  # less is done before a thread is awake

    def target_weights(
        self, row_weight: Array, label_weight: Array, lengths: Array, factor: float,
        each_row: bool,
    ) -> None:  # fmt: skip
        numba_labels.target_weights(row_weight, label_weight, lengths, np.float32(factor), each_row)

    def target_logits(
        self, out: Array, logits: Array, bias: Array, y: Csr, rows: Array,
        first_row: int, first_label: int,
    ) -> None:  # fmt: skip
        numba_sparse.target_logits(
            out, logits, bias, y.indptr, y.indices, rows, first_row, first_label
        )

    def subtract_targets(
        self, delta: Array, row_sums: Array, weights: Array, y: Csr, rows: Array,
        first_row: int, first_label: int,
    ) -> None:  # fmt: skip
        numba_sparse.subtract_targets(
            delta, row_sums, weights, y.indptr, y.indices, rows, first_row, first_label
        )

    def softmax_block(
        self, logits: Array, bias: Array, peak: Array, total: Array, part: Array
    ) -> None:
        numba_labels.softmax_block(logits, bias, peak, total, part)

    def merge_softmax(self, peaks: Array, totals: Array, peak: Array, total: Array) -> None:
        numba_labels.merge_softmax(peaks, totals, peak, total)

    def softmax_factors(
        self, out: Array, reference: Array, peak: Array, total: Array, weight: Array
    ) -> None:
        numba_labels.softmax_factors(out, reference, peak, total, weight)

    def softmax_losses(
        self, out: Array, peak: Array, total: Array, lane_target: Array, lengths: Array
    ) -> None:
        numba_labels.softmax_losses(out, peak, total, lane_target, lengths)

    def scale_columns(self, delta: Array, factors: Array, row_sums: Array) -> None:
        numba_labels.scale_columns(delta, factors, row_sums)

    def sigmoid_block(
        self, logits: Array, bias: Array, weight: float, row_sums: Array, loss: Array, part: Array
    ) -> None:
        numba_labels.sigmoid_block(logits, bias, np.float32(weight), row_sums, loss, part)

    def top_k_block(
        self, logits: Array, bias: Array, first_label: int, scores: Array, ids: Array
    ) -> None:
        numba_labels.top_k_block(logits, bias, first_label, scores, ids)

    def merge_top_k(self, lane_scores: Array, lane_ids: Array, scores: Array, ids: Array) -> None:
        numba_labels.merge_top_k(lane_scores, lane_ids, scores, ids)

    def softmax_scores(self, scores: Array, ids: Array, peak: Array, total: Array) -> None:
        numba_labels.softmax_scores(scores, ids, peak, total)

    def sigmoid_scores(self, scores: Array, ids: Array) -> None:
        numba_labels.sigmoid_scores(scores, ids)


def _values(x: Csr) -> Array:
    """The stored values; a matrix of ones gets them written out (labels never come here)."""
    return np.ones(x.nonzeros, np.float32) if x.data is None else x.data


def _counter(x: Csr, drop: Drop) -> tuple[int, int, np.uint64, np.uint64, np.float32]:
    """What the sparse kernels hash for dropout."""
    return (
        drop.first_row, x.columns, np.uint64(drop.key), np.uint64(drop.limit),
        np.float32(drop.scale),
    )  # fmt: skip
