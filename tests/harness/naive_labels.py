"""Naive twins of the kernels on blocks of labels."""

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.kernels.operands import LabelWork
from harness.naive_dense import sigmoid
from harness.naive_sparse import dense_rows


class NaiveLabels:
    """Implements :class:`daskxml.kernels.Kernels` in plain NumPy.

    Labels are split among ``threads`` parts, which are visited one after the other.
    """

    threads: int
    block: int
    has_fused_softmax = False  # unless a test asks for it
    _deferred: Array = np.zeros(0)  # sums of `subtract_targets_deferred`

    def block_labels(self, rows: int, labels: int) -> int:
        return min(labels, self.block)

    def for_label_blocks(self, labels: int, block: int, work: LabelWork) -> int:
        used = max(1, min(self.threads, labels))
        for thread in range(used):
            last = labels * (thread + 1) // used
            for start in range(labels * thread // used, last, block):
                work(thread, start, min(start + block, last))
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

    def subtract_targets_deferred(
        self, delta: Array, weights: Array, y: Csr, rows: Array, first_row: int,
        first_label: int, scale: float = 1.0,
    ) -> None:  # fmt: skip
        if self._deferred.shape[0] != y.columns:
            self._deferred = np.zeros(y.columns)
        sums = np.zeros(delta.shape[0])
        self.subtract_targets(delta, sums, weights, y, rows, first_row, first_label)
        self._deferred[first_label : first_label + delta.shape[0]] += sums / scale

    def apply_deferred_sums(self, row_sums: Array) -> None:
        row_sums += self._deferred
        self._deferred[:] = 0.0

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

    def softmax_sums(self, logits: Array, bias: Array, peak: Array, total: Array) -> None:
        self.softmax_block(logits[:, : len(peak)].copy(), bias, peak, total, peak)

    def softmax_shift(self, out: Array, peak: Array, total: Array, weight: Array) -> None:
        with np.errstate(divide="ignore"):
            out[:] = peak + np.log(total) - np.log(weight)

    def softmax_gradient(self, logits: Array, bias: Array, shift: Array, row_sums: Array) -> None:
        own = logits[:, : len(shift)]
        own[:] = np.exp(own + bias[:, None] - shift)
        row_sums[:] = own.sum(axis=1)

    def fuses_products(self, units: int) -> bool:
        return False

    @staticmethod
    def tiled_rows(rows: int) -> int:
        return next(height for height in range(0, rows + 64, 64) if height >= rows)

    @staticmethod
    def product_chunks(rows: int, labels: int) -> int:
        return 3

    def to_tiles(self, out: Array, x: Array, is_hidden: bool = False) -> None:
        out[:] = 0.0
        out.reshape(-1)[_places(*x.shape)] = x * (np.log2(np.e) if is_hidden else 1.0)

    def softmax_products(
        self, parts: tuple[Array, Array, Array], hidden: Array, weight: Array, bias: Array,
        peak: Array, total: Array,
    ) -> None:  # fmt: skip
        w, logits = _operands(hidden, weight, bias, len(peak))
        self.softmax_sums(logits, np.zeros_like(bias), peak, total)
        for labels, *part in zip(
            np.array_split(np.arange(len(w)), len(parts[0])), *parts, strict=True
        ):
            if len(labels):
                part[0][:] = logits[labels].max(axis=0)
                powers = np.exp(logits[labels] - part[0])
                part[1][:], part[2][:] = powers.sum(axis=0), powers.T @ w[labels]
            else:
                part[0][:], part[1][:], part[2][:] = -np.inf, 0.0, 0.0

    def join_products(
        self, out: Array, parts: tuple[Array, Array, Array], shift: Array, weights: Array,
        unscale: float,
    ) -> None:  # fmt: skip
        tops, _, means = parts
        joined = (np.exp(tops - shift)[:, :, None] * means).sum(axis=0)
        out[:] = unscale * (joined - weights[:, None] * out)

    def softmax_update(
        self, out: Array, row_sums: Array, hidden: Array, weight: Array, bias: Array,
        shift: Array, factor: float, keep: float,
    ) -> None:  # fmt: skip
        rows, units = len(shift), out.shape[1]
        _, gradient = _operands(hidden, weight, bias, rows)
        self.softmax_gradient(gradient, np.zeros_like(bias), shift, row_sums)
        plain = hidden.reshape(-1)[_places(rows, units)] / np.log2(np.e)
        out[:] = (keep * out if keep else 0.0) + factor * gradient @ plain

    def target_products(
        self, out: Array, sums: Array, hidden: Array, weight: Array, bias: Array, y: Csr,
        rows: Array, first_row: int,
    ) -> None:  # fmt: skip
        w, logits = _operands(hidden, weight, bias, len(out))
        self.target_logits(out, logits, np.zeros_like(bias), y, rows, first_row, 0)
        for i, row in enumerate(rows):
            sums[first_row + i] = w[y.indices[y.indptr[row] : y.indptr[row + 1]]].sum(axis=0)

    def scale_rows(self, out: Array, x: Array, factors: Array) -> None:
        out[:] = factors[:, None] * x

    def merge_softmax(self, peaks: Array, totals: Array, peak: Array, total: Array) -> None:
        peak[:] = peaks.max(axis=0)
        total[:] = (totals * np.exp(peaks - peak)).sum(axis=0)

    def softmax_factors(
        self, out: Array, reference: Array, peak: Array, total: Array, weight: Array
    ) -> None:
        out[:] = weight * np.exp(reference - peak) / total

    def softmax_losses(
        self, out: Array, peak: Array, total: Array, partial_targets: Array, lengths: Array
    ) -> None:
        mean = partial_targets.sum(axis=0) / np.maximum(lengths, 1)
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
            _keep_best(held, scores[r], ids[r])

    def merge_top_k(
        self, partial_scores: Array, partial_ids: Array, scores: Array, ids: Array
    ) -> None:
        for r in range(scores.shape[0]):
            held = zip(partial_scores[:, r].ravel(), partial_ids[:, r].ravel(), strict=True)
            _keep_best(list(held), scores[r], ids[r])

    def softmax_scores(self, scores: Array, ids: Array, peak: Array, total: Array) -> None:
        scores[:] = np.exp(np.float64(scores) - peak[:, None]) / total[:, None]
        scores[ids < 0] = -np.inf

    def sigmoid_scores(self, scores: Array, ids: Array) -> None:
        scores[:] = sigmoid(scores)
        scores[ids < 0] = -np.inf


def _keep_best(held: list[tuple[float, int]], scores: Array, ids: Array) -> None:
    real = sorted((-score, label) for score, label in held if label >= 0)[: len(ids)]
    scores[:] = [-score for score, _ in real] + [-np.inf] * (len(ids) - len(real))
    ids[:] = [label for _, label in real] + [-1] * (len(ids) - len(real))


def rank_row(
    team: object, hidden: Array, weight: Array, bias: Array, scores: Array, ids: Array,
    total: Array | None,
) -> None:  # fmt: skip
    logits = np.float64(weight) @ np.float64(hidden) + bias
    _keep_best(list(zip(logits, range(len(logits)), strict=True)), scores[0], ids[0])
    if total is not None:
        total[:] = logits.max(), np.exp(logits - logits.max()).sum()


def _places(rows: int, units: int) -> Array:
    """Where the tiles of fused.cu have each number of a matrix."""
    places = np.empty((rows, units), np.int64)
    for row, unit in np.ndindex(rows, units):
        piece = unit % 64 // 8 ^ row % 8
        places[row, unit] = row // 64 * 64 * units + unit // 64 * 4096 + row % 64 * 64
        places[row, unit] += piece * 8 + unit % 8
    return places


def _operands(hidden: Array, weight: Array, bias: Array, rows: int) -> tuple[Array, Array]:
    """The weights of tiles, and the logits (labels, rows) with the bias."""
    units = hidden.shape[1]
    w = np.float64(weight.reshape(-1)[_places(len(bias), units)])
    h = np.float64(hidden.reshape(-1)[_places(rows, units)]) / np.log2(np.e)
    return w, w @ h.T + bias[:, None]
