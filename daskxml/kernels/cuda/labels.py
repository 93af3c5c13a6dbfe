# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""Kernels on blocks of labels on a GPU: a fused softmax, products with the softmax in them."""

from __future__ import annotations

import math

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.kernels.cuda.dense import rate_operands
from daskxml.kernels.cuda.device import NULL, THREADS, DeviceKernels, aligned
from daskxml.kernels.operands import LabelWork

_TILE = 32, 8  # rows and labels of a block of threads
_MOST_CHUNKS = 256  # of labels, whose partial results are merged
_RANK_THREADS = 1 << 17  # that rank labels at the same time
_LEAST_CHUNK = 64
_FUSED_UNITS, _HEIGHT, _FUSED_THREADS = (64, 128), 64, 128  # the height of a tile, as in fused.cu
_FUSED_BLOCKS = 3 * 132  # that the multiprocessors of an H100 or H200 take at a time
_LOG2E = math.log2(math.e)
_FIXED_POINT = 2.0**50  # units of a 1 that is subtracted, see apply_deferred in targets.cu


class CudaLabels(DeviceKernels):
    """A GPU's kernels on blocks of labels, with one host thread.

    Where reading a block costs more than an exponential, a block of logits is read once for the
    sums and once for the gradient, and exponentials are computed twice instead of stored.
    """

    has_fused_softmax = True

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
        operands = row_weight, label_weight, lengths, np.float32(factor), np.int32(each_row)
        self._each("target_weights", int(lengths.shape[0]), *operands)

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

    def subtract_targets_deferred(
        self, delta: Array | None, weights: Array, y: Csr, rows: Array, first_row: int,
        first_label: int, scale: float = 1.0,
    ) -> None:  # fmt: skip
        """Subtract ``weights[first_row + i]``, times ``scale``, at ``rows[i]``'s labels.

        `apply_deferred_sums` subtracts them from the row sums later, without the scale. Until then
        sums are integers, multiples of 2**-50: less than 2**13 in all. Without a ``delta``, which
        would have all labels, only that is done.
        """
        count, (labels, stride) = int(rows.shape[0]), (np.int64(y.columns), np.int64(0))
        name, stored = "subtract_targets", NULL
        if delta is not None:
            (labels, stride), (name, stored) = _shape(delta), _stored(name, delta)
        deferred = self._zeros_of("deferred", y.columns, "uint64")[
            first_label : first_label + int(labels)
        ]
        self._device.launch(
            name, (-(-count // 8),), (THREADS,),
            stored, deferred, weights, y.indptr, y.indices, rows, np.int64(count),
            stride, np.int64(first_row), np.int64(first_label), labels,
            np.float64(_FIXED_POINT / scale),
        )  # fmt: skip

    def apply_deferred_sums(self, row_sums: Array) -> None:
        """Subtract the deferred weights of all blocks from ``row_sums (labels,)``, and reset."""
        labels = int(row_sums.shape[0])
        deferred = self._zeros_of("deferred", labels, "uint64")[:labels]
        self._each("apply_deferred", labels, row_sums, deferred)

    def softmax_sums(self, logits: Array, bias: Array, peak: Array, total: Array) -> None:
        """Raise ``peak (rows,)`` to cover a block's ``logits + bias``, which are not changed.

        ``total (rows,)`` float64 stays the sum of all exponentials so far, relative to the peak.
        Each label's float16 logits begin at a multiple of 4 bytes.
        """
        (labels, stride), rows = _shape(logits), np.int64(peak.shape[0])
        if int(stride) * logits.itemsize % 4:
            raise ValueError(f"softmax_sums: float16 logits with an odd stride, {stride}")
        chunks, chunk = _chunks(int(labels))
        make, launch = self._device.scratch(), self._device.launch
        tops, sums = (make((chunks, int(rows)), "float32") for _ in range(2))
        name, stored = _stored("softmax_parts", logits)
        blocks = -(-int(rows) * logits.itemsize // (4 * _TILE[0])), chunks  # 128 bytes of a label
        launch(name, blocks, _TILE, tops, sums, stored, bias, labels, rows, stride, chunk)
        self._merge_chunks(peak, total, tops, sums)

    def softmax_shift(self, out: Array, peak: Array, total: Array, weight: Array) -> None:
        """``out = peak + log(total) - log(weight)``, all ``(rows,)``; infinite for a weight of 0.

        ``exp(logit - out)`` is then a label's probability times the row's weight.
        """
        self._each("softmax_shift", int(out.shape[0]), out, peak, total, weight)

    def softmax_gradient(self, logits: Array, bias: Array, shift: Array, row_sums: Array) -> None:
        """``logits = exp(logits + bias - shift)``; ``row_sums (block,)`` of it. In place."""
        (labels, stride), rows = _shape(logits), np.int64(shift.shape[0])
        name, stored = _stored("softmax_gradient", logits)
        blocks = (-(-int(labels) // 8),)
        operands = stored, bias, shift, row_sums, labels, rows, stride
        self._device.launch(name, blocks, (THREADS,), *operands)

    def _merge_chunks(self, peak: Array, total: Array, tops: Array, sums: Array) -> None:
        """Maxima and sums of chunks of labels, ``(chunks, rows)``, into those of all before."""
        chunks, rows = (int(size) for size in tops.shape)
        operands = peak, total, tops, sums, np.int32(chunks), np.int64(rows)
        self._device.launch("softmax_merge", (-(-rows // _TILE[0]),), _TILE, *operands)

    def merge_softmax(self, peaks: Array, totals: Array, peak: Array, total: Array) -> None:
        parts, rows = (int(size) for size in peaks.shape)
        self._each("merge_softmax", rows, peak, total, peaks, totals, np.int32(parts))

    def softmax_losses(
        self, out: Array, peak: Array, total: Array, partial_targets: Array, lengths: Array
    ) -> None:
        parts, rows = (int(size) for size in partial_targets.shape)
        operands = out, peak, total, partial_targets, lengths, np.int32(parts)
        self._each("softmax_losses", rows, *operands)

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
        numbers = np.int32(lists.shape[0]), np.int32(k), np.int32(keep)
        self._each("merge_ranks", rows, scores, ids, lists, labels_of, *numbers)

    def softmax_scores(self, scores: Array, ids: Array, peak: Array, total: Array) -> None:
        rows, k = (int(size) for size in scores.shape)
        self._each("softmax_scores", rows, scores, ids, peak, total, np.int32(k))

    def sigmoid_scores(self, scores: Array, ids: Array) -> None:
        rows, k = (int(size) for size in scores.shape)
        self._each("sigmoid_scores", rows, scores, ids, np.int32(k))

    # -- products with the softmax in them ---------------------------------------------------------
    #
    # On the tensor cores of a GPU of capability 9.0, logits are computed twice, and never stored.
    # The hidden layer and the output weights are float16 in tiles (`to_tiles`), the former times
    # log2(e); sums, biases, shifts and what is updated are float32.

    def fuses_products(self, units: int) -> bool:
        """Whether the kernels below exist for so many units."""
        return units in _FUSED_UNITS and self._device.has_fused_kernels

    @staticmethod
    def tiled_rows(rows: int) -> int:
        """The rows of a matrix in tiles of 64.

        Examples
        --------
        >>> [CudaLabels.tiled_rows(rows) for rows in (1, 64, 65)]
        [64, 64, 128]
        """
        return -(-rows // _HEIGHT) * _HEIGHT

    @staticmethod
    def product_chunks(rows: int, labels: int) -> int:
        """The number of chunks of labels whose products are summed apart, to occupy a GPU.

        Examples
        --------
        >>> [CudaLabels.product_chunks(rows, 670_091) for rows in (64, 1024, 4096)]
        [388, 24, 6]
        """
        tiles, most = -(-labels // _HEIGHT), max(1, _FUSED_BLOCKS // -(-rows // _HEIGHT))
        return -(-tiles // -(-tiles // most))

    def to_tiles(self, out: Array, x: Array, is_hidden: bool = False) -> None:
        """``out (tiled_rows(rows), units)`` float16: ``x (rows, units)`` in tiles, 0 below it."""
        (rows, units), pieces = x.shape, int(out.size) // 8
        factor = np.float32(_LOG2E if is_hidden else 1.0)
        operands = out.view("uint16"), x, factor, np.int64(rows), np.int32(units)
        self._each("to_tiles", pieces, *operands)

    def softmax_products(
        self, parts: tuple[Array, Array, Array], hidden: Array, weight: Array, bias: Array,
        peak: Array, total: Array,
    ) -> None:  # fmt: skip
        """As `softmax_sums`, with a peak up to ``15 log(2)`` below the largest of all logits.

        ``parts``, for `join_products`, are ``(chunks, rows)`` twice and ``(chunks, rows, units)``,
        with as many chunks as `product_chunks` returns.
        """
        chunks, rows, units = (int(size) for size in parts[2].shape)
        labels = int(bias.shape[0])
        chunk = _HEIGHT * -(-labels // (chunks * _HEIGHT))
        self._device.launch(
            f"softmax_products_{units}", (-(-rows // _HEIGHT), chunks), (_FUSED_THREADS,),
            *parts, hidden.view("uint16"), weight.view("uint16"), bias, np.int64(labels),
            np.int64(rows), np.int64(chunk),
        )  # fmt: skip
        self._merge_chunks(peak, total, *parts[:2])

    def join_products(
        self, out: Array, parts: tuple[Array, Array, Array], shift: Array, weights: Array,
        unscale: float,
    ) -> None:  # fmt: skip
        """``out = unscale * (exp(logits - shift) @ weight - weights * out)``, ``(rows, units)``.

        The logits and weights are those of `softmax_products`, which has filled ``parts``.
        """
        tops, _, means = parts
        chunks, rows, units = (int(size) for size in means.shape)
        self._device.launch(
            "join_products", (rows,), (THREADS,), out, tops, means, shift, weights,
            np.float32(unscale), np.int32(chunks), np.int64(rows), np.int32(units),
        )  # fmt: skip

    def softmax_update(
        self, out: Array, row_sums: Array, hidden: Array, weight: Array, bias: Array,
        shift: Array, factor: float, keep: float,
    ) -> None:  # fmt: skip
        """``out = keep * out + factor * delta @ hidden`` with ``delta = exp(logits - shift)``.

        ``row_sums (labels,)`` is the sum of ``delta`` over its rows, and ``out (labels, units)`` is
        not read where ``keep`` is 0.
        """
        (labels, units), rows = out.shape, np.int64(shift.shape[0])
        self._device.launch(
            f"softmax_update_{int(units)}", (-(-int(labels) // _HEIGHT),), (_FUSED_THREADS,),
            out, row_sums, hidden.view("uint16"), weight.view("uint16"), bias, shift,
            np.int64(labels), rows, *rate_operands(factor / _LOG2E), np.float32(keep),
        )  # fmt: skip

    def target_products(
        self, out: Array, sums: Array, hidden: Array, weight: Array, bias: Array, y: Csr,
        rows: Array, first_row: int,
    ) -> None:  # fmt: skip
        """As `target_logits` of all labels; ``sums[first_row + i]``: of its labels' weights."""
        self._device.launch(
            "target_products", (int(rows.shape[0]),), (THREADS,), out, sums,
            hidden.view("uint16"), weight.view("uint16"), bias, y.indptr, y.indices, rows,
            np.int32(sums.shape[1]), np.int64(first_row),
        )  # fmt: skip

    def scale_rows(self, out: Array, x: Array, factors: Array) -> None:
        """``out[i] = factors[i] * x[i]``; matrices ``(rows, units)`` float32."""
        self._each("scale_rows", int(out.size), out, x, factors, np.int64(out.shape[1]))


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
    chunk = max(_LEAST_CHUNK, -(-labels // _MOST_CHUNKS))
    return -(-labels // chunk), np.int64(chunk)
