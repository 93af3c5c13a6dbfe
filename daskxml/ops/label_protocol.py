"""The part of `daskxml.ops.Kernels` on blocks of labels.

Symbols and the order of a block, ``(block, rows)``, are those of `daskxml.ops.protocol`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from daskxml.types import Array, Csr

LabelWork = Callable[[int, int, int], None]  # (lane, first label, label behind the last)


class LabelKernels(Protocol):
    """What is done to the scores of a batch, a block of labels at a time."""

    def block_labels(self, rows: int, labels: int) -> int:
        """How many labels this device likes in a block of logits for ``rows`` rows."""

    def for_label_blocks(self, labels: int, block: int, work: LabelWork) -> int:
        """Call ``work(lane, start, stop)`` for all blocks; returns how many lanes were used.

        A lane owns consecutive labels, walks them in ascending order, and lanes are in ascending
        order too. Calls of different lanes may run at the same time.
        """

    def target_weights(
        self, row_weight: Array, label_weight: Array, lengths: Array, factor: float,
        each_row: bool,
    ) -> None:  # fmt: skip
        """What rows and their labels weigh, all ``(rows,)``, in place.

        ``each_row`` (softmax): a row with ``lengths`` labels weighs ``factor``, each label its
        even share, a row without labels 0. Otherwise (sigmoid) each weighs ``factor``.
        """

    def target_logits(
        self, out: Array, logits: Array, bias: Array, y: Csr, rows: Array,
        first_row: int, first_label: int,
    ) -> None:  # fmt: skip
        """``out[first_row + i] += sum of (logits + bias)`` at ``rows[i]``'s labels in the block.

        ``out`` is ``(rows,)`` float64, ``logits`` the block ``(block, rows)`` whose first label is
        ``first_label``, ``bias`` the block's ``(block,)``.
        """

    def softmax_block(
        self, logits: Array, bias: Array, peak: Array, total: Array, part: Array
    ) -> None:
        """One block of an online softmax (Milakov and Gimelshein 2018), in place.

        Raises ``peak (rows,)`` to cover ``logits + bias``, leaves ``exp(logits + bias - peak)`` in
        ``logits``, and keeps ``total (rows,)`` float64 the sum of all exponentials so far relative
        to the new peak. ``part (rows,)`` is scratch. Start from ``-inf`` and 0.
        """

    def merge_softmax(self, peaks: Array, totals: Array, peak: Array, total: Array) -> None:
        """Join lanes: ``(lanes, rows)`` each into ``(rows,)``, in place."""

    def softmax_factors(
        self, out: Array, reference: Array, peak: Array, total: Array, weight: Array
    ) -> None:
        """``out = weight * exp(reference - peak) / total``, all ``(rows,)``, in place.

        It turns a block that was left relative to the peak ``reference`` into probabilities.
        """

    def softmax_losses(
        self, out: Array, peak: Array, total: Array, lane_target: Array, lengths: Array
    ) -> None:
        """``out (rows,)`` float64 ``= peak + log(total) - mean target logit``; 0 without labels.

        ``lane_target (lanes, rows)`` holds the sums of the target logits, lane by lane.
        """

    def scale_columns(self, delta: Array, factors: Array, row_sums: Array) -> None:
        """``delta (block, rows) *= factors (rows,)``; ``row_sums (block,)`` of it. In place."""

    def sigmoid_block(
        self, logits: Array, bias: Array, weight: float, row_sums: Array, loss: Array, part: Array
    ) -> None:
        """``logits = weight * sigmoid(logits + bias)``; ``row_sums (block,)`` of it. In place.

        Adds ``log(1 + exp(logits + bias))``, summed over the block, to ``loss (rows,)`` float64.
        ``part (2, rows)`` is scratch.
        """

    def subtract_targets(
        self, delta: Array, row_sums: Array, weights: Array, y: Csr, rows: Array,
        first_row: int, first_label: int,
    ) -> None:  # fmt: skip
        """Subtract ``weights[first_row + i]`` at ``rows[i]``'s labels, from ``row_sums`` too."""

    def top_k_block(
        self, logits: Array, bias: Array, first_label: int, scores: Array, ids: Array
    ) -> None:
        """Insert a block's ``logits + bias`` into the best ``(rows, k)``; start from -inf and -1.

        Blocks must come in ascending order of labels; among equals the lowest label is kept.
        """

    def merge_top_k(self, lane_scores: Array, lane_ids: Array, scores: Array, ids: Array) -> None:
        """Join lanes ``(lanes, rows, k)`` into ``(rows, k)``, in place."""

    def softmax_scores(self, scores: Array, ids: Array, peak: Array, total: Array) -> None:
        """Ranked logits ``(rows, k)`` into probabilities ``exp(s - peak) / total``, in place.

        Where rounding makes two probabilities equal although the logits were not, the lower is
        moved by as little as float32 allows if its label is the lower one, so that ranking by
        score, lowest label first on ties, gives the same order again. Empty places stay -inf.
        """

    def sigmoid_scores(self, scores: Array, ids: Array) -> None:
        """Ranked logits ``(rows, k)`` into ``1 / (1 + exp(-s))``, in place, as above."""
