# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The kernels, slow and obvious: what every fast kernel is tested against.

:class:`NaiveKernels` implements the whole Protocol with plain NumPy on arrays of any float type,
so that a whole model can also run in float64, where numeric gradients can be checked.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from daskxml.ops.label_protocol import LabelWork
from daskxml.ops.memory_protocol import HostMemory
from daskxml.ops.naive_flat import NaiveFlat
from daskxml.ops.naive_hash import hash64
from daskxml.ops.naive_optim import NaiveOptim
from daskxml.ops.naive_row import NaiveRow
from daskxml.ops.naive_row_sets import NaiveRowSets
from daskxml.ops.naive_sampling import NaiveSampling
from daskxml.ops.protocol import KEEP_ALL, Drop
from daskxml.types import Array, Csr

T = TypeVar("T")


def drop_factors(rows: int, columns: int, drop: Drop) -> Array:
    """``(rows, columns)`` float64: 0 where ``drop`` drops, else its scale.

    Examples
    --------
    >>> drop_factors(1, 2, KEEP_ALL)
    array([[1., 1.]])
    """
    out = np.empty((rows, columns))
    for row in range(rows):
        for column in range(columns):
            place = (drop.first_row + row) * columns + column
            kept = hash64(drop.key, place) >> 32 >= drop.limit
            out[row, column] = drop.scale if kept else 0.0
    return out


def dense_rows(x: Csr, rows: Array, drop: Drop = KEEP_ALL) -> Array:
    """``x[rows]`` as a dense float64 matrix.

    Examples
    --------
    >>> x = Csr(np.array([0, 1]), np.array([2], np.int32), None, 3)
    >>> dense_rows(x, np.array([0, 0]))
    array([[0., 0., 1.],
           [0., 0., 1.]])
    """
    out = np.zeros((len(rows), x.columns))
    for i, row in enumerate(rows):
        for j in range(x.indptr[row], x.indptr[row + 1]):
            out[i, x.indices[j]] = 1.0 if x.data is None else x.data[j]
    return out * drop_factors(*out.shape, drop)


def sigmoid(x: Array) -> Array:
    """``1 / (1 + exp(-x))`` in float64, without overflow.

    Examples
    --------
    >>> sigmoid(np.array([-1e4, 0.0, 1e4]))
    array([0. , 0.5, 1. ])
    """
    small = np.exp(-np.abs(np.asarray(x, np.float64)))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


class NaiveKernels(HostMemory, NaiveFlat, NaiveOptim, NaiveRow, NaiveSampling, NaiveRowSets):
    """Implements :class:`daskxml.ops.Kernels` in plain NumPy.

    Parameters
    ----------
    dtype
        What ``empty`` and ``zeros`` use for ``float32``.
    lanes, block
        How the labels are split; the lanes are walked one after the other.

    Examples
    --------
    >>> NaiveKernels("float64").zeros(2).dtype
    dtype('float64')
    """

    name = "naive"

    def __init__(self, dtype: str = "float32", lanes: int = 1, block: int = 1 << 30) -> None:
        self.dtype, self.lanes, self.block = dtype, lanes, block
        self._noted: Array = np.zeros(0)  # what labels have lost, by `note_targets`

    def close(self) -> None:
        """Nothing is held."""

    def empty(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
        return np.full(shape, 77, self.dtype if dtype == "float32" else dtype)

    def zeros(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
        return np.zeros(shape, self.dtype if dtype == "float32" else dtype)

    def to_device(self, value: T) -> T:
        return value

    def send(self, value: T) -> T:
        return self.to_device(value)

    def to_host(self, value: T) -> T:
        return value

    def nonzeros(self, x: Csr, rows: Array) -> int:
        return sum(int(x.indptr[row + 1] - x.indptr[row]) for row in rows)

    def row_lengths(self, out: Array, x: Csr, rows: Array) -> None:
        out[:] = [x.indptr[row + 1] - x.indptr[row] for row in rows]

    def sparse_forward(
        self, out: Array, x: Csr, rows: Array, weight: Array, bias: Array, drop: Drop = KEEP_ALL
    ) -> None:
        out[:] = dense_rows(x, rows, drop) @ weight + bias

    def sparse_update(
        self, weight: Array, x: Csr, rows: Array, delta: Array, factor: float,
        drop: Drop = KEEP_ALL,
    ) -> None:  # fmt: skip
        weight += (factor * (dense_rows(x, rows, drop).T @ delta)).astype(weight.dtype)

    def feature_entries(
        self, out: tuple[Array, Array, Array], x: Csr, rows: Array, place: int, drop: Drop
    ) -> int:
        factors, count = drop_factors(len(rows), x.columns, drop), 0
        for i, row in enumerate(rows):
            for j in range(x.indptr[row], x.indptr[row + 1]):
                column, value = x.indices[j], 1.0 if x.data is None else x.data[j]
                if factors[i, column]:
                    out[0][count], out[1][count] = column, place + i
                    out[2][count] = value * factors[i, column]
                    count += 1
        return count

    def densify(self, out: Array, x: Csr, rows: Array, drop: Drop = KEEP_ALL) -> None:
        out[:] = dense_rows(x, rows, drop)

    def gemm(self, out: Array, a: Array, b: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
        out[:] = alpha * (a @ b) + (beta * out if beta else 0.0)

    def fill_rows(self, out: Array, row: Array) -> None:
        out[:] = row

    def column_sums(self, out: Array, x: Array) -> None:
        out[:] = x.sum(axis=0)

    def activate(self, x: Array, activation: str) -> None:
        x[:] = np.maximum(x, 0) if activation == "relu" else sigmoid(x)

    def activation_gradient(
        self, delta: Array, active: Array, activation: str, keep: float = 1.0
    ) -> None:
        value = keep * active
        delta *= active > 0 if activation == "relu" else value * (1 - value)

    def dropout(self, x: Array, drop: Drop) -> None:
        x *= drop_factors(x.shape[0], x.shape[1], drop).astype(x.dtype)

    def block_labels(self, rows: int, labels: int) -> int:
        return min(labels, self.block)

    def for_label_blocks(self, labels: int, block: int, work: LabelWork) -> int:
        used = max(1, min(self.lanes, labels))
        for lane in range(used):
            last = labels * (lane + 1) // used
            for start in range(labels * lane // used, last, block):
                work(lane, start, min(start + block, last))
        return used

    def target_weights(
        self, row_weight: Array, label_weight: Array, lengths: Array, factor: float,
        each_row: bool,
    ) -> None:  # fmt: skip
        row_weight[:] = np.where((lengths > 0) | (not each_row), factor, 0.0)
        label_weight[:] = row_weight / np.maximum(lengths, 1) if each_row else factor

    def target_logits(
        self, out: Array, logits: Array, bias: Array, y: Csr, rows: Array,
        first_row: int, first_label: int,
    ) -> None:  # fmt: skip
        targets, span = self._targets(y, rows, first_row, first_label, logits)
        out[span] += (targets * (logits[:, span] + bias[:, None])).sum(axis=0)

    def subtract_targets(
        self, delta: Array, row_sums: Array, weights: Array, y: Csr, rows: Array,
        first_row: int, first_label: int,
    ) -> None:  # fmt: skip
        targets, span = self._targets(y, rows, first_row, first_label, delta)
        delta[:, span] -= targets * weights[span]
        row_sums -= (targets * weights[span]).sum(axis=1)

    def note_targets(
        self, delta: Array, weights: Array, y: Csr, rows: Array, first_row: int,
        first_label: int, scale: float = 1.0,
    ) -> None:  # fmt: skip
        if self._noted.shape[0] != y.columns:
            self._noted = np.zeros(y.columns)
        lost = np.zeros(delta.shape[0])
        self.subtract_targets(delta, lost, weights, y, rows, first_row, first_label)
        self._noted[first_label : first_label + delta.shape[0]] += lost / scale

    def settle_sums(self, row_sums: Array) -> None:
        row_sums += self._noted
        self._noted[:] = 0.0

    @staticmethod
    def _targets(
        y: Csr, rows: Array, first_row: int, first_label: int, block: Array
    ) -> tuple[Array, slice]:
        """The block's part of the target matrix, label-major, and the rows that it covers."""
        targets = dense_rows(y, rows)[:, first_label : first_label + block.shape[0]].T
        return targets.astype(block.dtype), slice(first_row, first_row + len(rows))

    def softmax_block(
        self, logits: Array, bias: Array, peak: Array, total: Array, part: Array
    ) -> None:
        logits += bias[:, None]
        raised = np.maximum(peak, logits.max(axis=0))
        total *= np.exp(peak - raised)
        peak[:] = raised
        logits[:] = np.exp(logits - peak)
        total += logits.sum(axis=0)

    has_fused_softmax = False  # unless a test asks for it

    def softmax_sums(self, logits: Array, bias: Array, peak: Array, total: Array) -> None:
        self.softmax_block(logits[:, : len(peak)].copy(), bias, peak, total, peak)

    def softmax_shift(self, out: Array, peak: Array, total: Array, weight: Array) -> None:
        with np.errstate(divide="ignore"):
            out[:] = peak + np.log(total) - np.log(weight)

    def softmax_gradient(self, logits: Array, bias: Array, shift: Array, row_sums: Array) -> None:
        own = logits[:, : len(shift)]
        own[:] = np.exp(own + bias[:, None] - shift)
        row_sums[:] = own.sum(axis=1)

    def merge_softmax(self, peaks: Array, totals: Array, peak: Array, total: Array) -> None:
        peak[:] = peaks.max(axis=0)
        total[:] = (totals * np.exp(peaks - peak)).sum(axis=0)

    def softmax_factors(
        self, out: Array, reference: Array, peak: Array, total: Array, weight: Array
    ) -> None:
        out[:] = weight * np.exp(reference - peak) / total

    def softmax_losses(
        self, out: Array, peak: Array, total: Array, lane_target: Array, lengths: Array
    ) -> None:
        mean = lane_target.sum(axis=0) / np.maximum(lengths, 1)
        out[:] = np.where(lengths > 0, peak + np.log(total) - mean, 0.0)

    def scale_columns(self, delta: Array, factors: Array, row_sums: Array) -> None:
        delta *= factors
        row_sums[:] = delta.sum(axis=1)

    def sigmoid_block(
        self, logits: Array, bias: Array, weight: float, row_sums: Array, loss: Array, part: Array
    ) -> None:
        own = logits[:, : len(loss)]
        loss += np.logaddexp(0.0, np.float64(own + bias[:, None])).sum(axis=0)
        own[:] = weight * sigmoid(own + bias[:, None])
        row_sums[:] = own.sum(axis=1)

    def top_k_block(
        self, logits: Array, bias: Array, first_label: int, scores: Array, ids: Array
    ) -> None:
        block_ids = np.arange(first_label, first_label + logits.shape[0])
        for r in range(scores.shape[0]):
            held = [*zip(scores[r], ids[r], strict=True)]
            held += zip(logits[:, r] + bias, block_ids, strict=True)
            self._keep_best(held, scores[r], ids[r])

    def merge_top_k(self, lane_scores: Array, lane_ids: Array, scores: Array, ids: Array) -> None:
        for r in range(scores.shape[0]):
            held = zip(lane_scores[:, r].ravel(), lane_ids[:, r].ravel(), strict=True)
            self._keep_best(list(held), scores[r], ids[r])

    @staticmethod
    def _keep_best(held: list[tuple[float, int]], scores: Array, ids: Array) -> None:
        real = sorted((-score, label) for score, label in held if label >= 0)[: len(ids)]
        scores[:] = [-score for score, _ in real] + [-np.inf] * (len(ids) - len(real))
        ids[:] = [label for _, label in real] + [-1] * (len(ids) - len(real))

    def softmax_scores(self, scores: Array, ids: Array, peak: Array, total: Array) -> None:
        scores[:] = np.exp(np.float64(scores) - peak[:, None]) / total[:, None]
        scores[ids < 0] = -np.inf

    def sigmoid_scores(self, scores: Array, ids: Array) -> None:
        scores[:] = sigmoid(scores)
        scores[ids < 0] = -np.inf
