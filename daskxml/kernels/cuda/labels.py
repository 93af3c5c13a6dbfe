# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""Kernels on blocks of labels on a GPU, with a fused softmax."""

from __future__ import annotations

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.kernels.cuda.dense import THREADS, grid
from daskxml.kernels.cuda.device import CudaDevice, ZeroedScratch, aligned
from daskxml.kernels.labels import LabelWork

_TILE = 32, 8  # rows and labels of a block of threads
MOST_CHUNKS = 256  # of labels, whose partial results are merged
_RANK_THREADS = 1 << 17  # that rank labels at the same time
_LEAST_CHUNK = 64
_FIXED_POINT = 2.0**50  # units of a 1 that is subtracted, see apply_deferred in targets.cu


class CudaLabels:
    """Implements :class:`daskxml.kernels.labels.LabelKernels` for a GPU, with one host thread."""

    has_fused_softmax = True
    _device: CudaDevice
    _zeroed: ZeroedScratch

    def block_labels(self, rows: int, labels: int) -> int:
        """All of them: fewer launches are better; the budget for logits limits them."""
        return labels

    def for_label_blocks(self, labels: int, block: int, work: LabelWork) -> int:
        for start in range(0, labels, block):
            work(0, start, min(start + block, labels))
        return 1

    def target_weights(
        self, row_weight: Array, label_weight: Array, lengths: Array, factor: float,
        each_row: bool,
    ) -> None:  # fmt: skip
        rows = int(lengths.shape[0])
        self._device.launch(
            "target_weights", *grid(rows),
            row_weight, label_weight, lengths, np.float32(factor), np.int32(each_row),
            np.int64(rows),
        )  # fmt: skip

    def target_logits(
        self, out: Array, logits: Array, bias: Array, y: Csr, rows: Array,
        first_row: int, first_label: int,
    ) -> None:  # fmt: skip
        count, labels, stride = int(rows.shape[0]), *_shape(logits)
        name, stored = _stored("target_logits", logits)
        self._device.launch(
            name, (-(-count // 8),), (THREADS,),
            out, stored, bias, y.indptr, y.indices, rows, np.int64(count), stride,
            np.int64(first_row), np.int64(first_label), labels,
        )  # fmt: skip

    def subtract_targets(
        self, delta: Array, row_sums: Array, weights: Array, y: Csr, rows: Array,
        first_row: int, first_label: int,
    ) -> None:  # fmt: skip
        self.subtract_targets_deferred(delta, weights, y, rows, first_row, first_label)
        self.apply_deferred_sums(row_sums, first_label)

    def subtract_targets_deferred(
        self, delta: Array, weights: Array, y: Csr, rows: Array, first_row: int,
        first_label: int, scale: float = 1.0,
    ) -> None:  # fmt: skip
        """Sums are integers, multiples of 2**-50: less than 2**13 in all."""
        count, labels, stride = int(rows.shape[0]), *_shape(delta)
        deferred = self._zeroed.zeros("deferred", y.columns, "uint64")[
            first_label : first_label + labels
        ]
        name, stored = _stored("subtract_targets", delta)
        self._device.launch(
            name, (-(-count // 8),), (THREADS,),
            stored, deferred, weights, y.indptr, y.indices, rows, np.int64(count),
            stride, np.int64(first_row), np.int64(first_label), labels,
            np.float64(_FIXED_POINT / scale),
        )  # fmt: skip

    def apply_deferred_sums(self, row_sums: Array, first_label: int = 0) -> None:
        labels = int(row_sums.shape[0])
        deferred = self._zeroed.zeros("deferred", first_label + labels, "uint64")[first_label:][
            :labels
        ]
        self._device.launch("apply_deferred", *grid(labels), row_sums, deferred, np.int64(labels))

    def softmax_block(
        self, logits: Array, bias: Array, peak: Array, total: Array, part: Array
    ) -> None:
        """``part`` is not used: chunks of labels have sums of their own."""
        self.softmax_sums(logits, bias, peak, total)
        labels, rows = _shape(logits)
        chunks, chunk = _chunks(int(labels))
        blocks = -(-int(rows) // _TILE[0]), chunks
        self._device.launch("exponentiate", blocks, _TILE, logits, bias, peak, labels, rows, chunk)

    def softmax_sums(self, logits: Array, bias: Array, peak: Array, total: Array) -> None:
        (labels, stride), rows = _shape(logits), np.int64(peak.shape[0])
        if int(stride) * logits.itemsize % 4:
            raise ValueError(f"softmax_sums: float16 logits with an odd stride, {stride}")
        chunks, chunk = _chunks(int(labels))
        make, launch = self._device.scratch(), self._device.launch
        tops, sums = (make((chunks, int(rows)), "float32") for _ in range(2))
        name, stored = _stored("softmax_parts", logits)
        blocks = -(-int(rows) * logits.itemsize // (4 * _TILE[0])), chunks  # 128 bytes of a label
        launch(name, blocks, _TILE, tops, sums, stored, bias, labels, rows, stride, chunk)
        merge_chunks(self._device, peak, total, tops, sums)

    def softmax_shift(self, out: Array, peak: Array, total: Array, weight: Array) -> None:
        rows = int(out.shape[0])
        operands = out, peak, total, weight, np.int64(rows)
        self._device.launch("softmax_shift", *grid(rows), *operands)

    def softmax_gradient(self, logits: Array, bias: Array, shift: Array, row_sums: Array) -> None:
        (labels, stride), rows = _shape(logits), np.int64(shift.shape[0])
        name, stored = _stored("softmax_gradient", logits)
        blocks = (-(-int(labels) // 8),)
        operands = stored, bias, shift, row_sums, labels, rows, stride
        self._device.launch(name, blocks, (THREADS,), *operands)

    def merge_softmax(self, peaks: Array, totals: Array, peak: Array, total: Array) -> None:
        parts, rows = (int(size) for size in peaks.shape)
        self._device.launch(
            "merge_softmax", *grid(rows), peak, total, peaks, totals, np.int32(parts),
            np.int64(rows),
        )  # fmt: skip

    def softmax_factors(
        self, out: Array, reference: Array, peak: Array, total: Array, weight: Array
    ) -> None:
        rows = int(out.shape[0])
        self._device.launch(
            "softmax_factors", *grid(rows), out, reference, peak, total, weight, np.int64(rows)
        )

    def softmax_losses(
        self, out: Array, peak: Array, total: Array, partial_targets: Array, lengths: Array
    ) -> None:
        parts, rows = (int(size) for size in partial_targets.shape)
        self._device.launch(
            "softmax_losses", *grid(rows), out, peak, total, partial_targets, lengths,
            np.int32(parts), np.int64(rows),
        )  # fmt: skip

    def scale_columns(self, delta: Array, factors: Array, row_sums: Array) -> None:
        labels, rows = _shape(delta)
        self._device.launch(
            "scale_columns", (-(-int(labels) // 8),), (THREADS,),
            delta, factors, row_sums, labels, rows,
        )  # fmt: skip

    def sigmoid_block(
        self, logits: Array, bias: Array, weight: float, row_sums: Array, loss: Array, part: Array
    ) -> None:
        """``part`` is not used: chunks of labels have sums of their own."""
        (labels, stride), rows = _shape(logits), np.int64(loss.shape[0])
        chunks, chunk = _chunks(int(labels))
        tiles = -(-int(rows) // _TILE[0])
        parts = self._device.scratch()((chunks, int(rows)), "float64")
        launch = self._device.launch
        name, stored = _stored("softplus_parts", logits)
        launch(name, (tiles, chunks), _TILE, parts, stored, bias, labels, rows, stride, chunk)
        launch("add_parts", (tiles,), _TILE, loss, parts, np.int32(chunks), rows)
        name, _ = _stored("sigmoid_labels", logits)
        operands = stored, bias, np.float32(weight), row_sums, labels, rows, stride
        launch(name, (-(-int(labels) // 8),), (THREADS,), *operands)

    def top_k_block(
        self, logits: Array, bias: Array, first_label: int, scores: Array, ids: Array
    ) -> None:
        labels, stride = _shape(logits)
        rows, k = (int(size) for size in scores.shape)
        chunks = max(1, min(_RANK_THREADS // max(1, rows), -(-int(labels) // _LEAST_CHUNK), 65535))
        chunk = -(-int(labels) // chunks)
        make = self._device.scratch()
        lists, labels_of = make((chunks, rows, k), "float32"), make((chunks, rows, k), "int32")
        self._device.launch(
            "top_k_parts", (-(-rows // 32), chunks), (32,), lists, labels_of, logits, bias,
            np.int32(first_label), np.int32(k), labels, np.int64(rows), stride, np.int64(chunk),
        )  # fmt: skip
        self._merge_ranks(scores, ids, lists, labels_of, keep=True)

    def merge_top_k(
        self, partial_scores: Array, partial_ids: Array, scores: Array, ids: Array
    ) -> None:
        self._merge_ranks(scores, ids, partial_scores, partial_ids, keep=False)

    def _merge_ranks(
        self, scores: Array, ids: Array, lists: Array, labels_of: Array, keep: bool
    ) -> None:
        rows, k = (int(size) for size in scores.shape)
        self._device.launch(
            "merge_ranks", *grid(rows), scores, ids, lists, labels_of,
            np.int32(lists.shape[0]), np.int32(k), np.int32(keep), np.int64(rows),
        )  # fmt: skip

    def softmax_scores(self, scores: Array, ids: Array, peak: Array, total: Array) -> None:
        rows, k = (int(size) for size in scores.shape)
        self._device.launch(
            "softmax_scores", *grid(rows), scores, ids, peak, total, np.int32(k), np.int64(rows)
        )

    def sigmoid_scores(self, scores: Array, ids: Array) -> None:
        rows, k = (int(size) for size in scores.shape)
        self._device.launch("sigmoid_scores", *grid(rows), scores, ids, np.int32(k), np.int64(rows))


def merge_chunks(device: CudaDevice, peak: Array, total: Array, tops: Array, sums: Array) -> None:
    """Maxima and sums of chunks of labels, ``(chunks, rows)``, into those of all before."""
    chunks, rows = (int(size) for size in tops.shape)
    operands = peak, total, tops, sums, np.int32(chunks), np.int64(rows)
    device.launch("softmax_merge", (-(-rows // _TILE[0]),), _TILE, *operands)


def label_scratch_bytes(rows: int, labels: int) -> int:
    """Temporary memory of `CudaLabels` in training: two floats for each chunk and row."""
    return _chunks(max(1, labels))[0] * rows * 8 + 2 * aligned(1)


def _stored(name: str, block: Array) -> tuple[str, Array]:
    """The kernel for blocks of this dtype, and the block as its operand: float16 as its bits."""
    if block.dtype == np.float16:
        return f"{name}_half", block.view("uint16")
    return name, block


def _shape(block: Array) -> tuple[np.int64, np.int64]:
    """Labels of a block, and numbers for each of them, for a kernel."""
    return np.int64(block.shape[0]), np.int64(block.shape[1])


def _chunks(labels: int) -> tuple[int, np.int64]:
    """The number of chunks of labels, and the labels in each."""
    chunk = max(_LEAST_CHUNK, -(-labels // MOST_CHUNKS))
    return -(-labels // chunk), np.int64(chunk)
