"""The contract of kernels on blocks of labels: losses, their gradients and the best k labels.

A block of logits is *label-major*, ``(block, rows)``: one contiguous row per label. Several
threads compute partial results over label ranges of their own, which are merged afterwards.

A GPU has a fused softmax: where reading a block costs more than an exponential, a block of logits
is read once for the sums and once for the gradient, and exponentials are computed twice instead of
stored. For these kernels, and for ``target_logits``, ``sigmoid_block`` and ``top_k_block``, a
label's row may be longer than the batch; what is beyond is ignored. Except for ``top_k_block``,
the block may also be float16; sums and biases may not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from daskxml.core.arrays import Array, Csr

LabelWork = Callable[[int, int, int], None]  # (thread, first label, label after the last)


class LabelKernels(Protocol):
    """The part of `daskxml.kernels.Kernels` on blocks of labels."""

    def block_labels(self, rows: int, labels: int) -> int:
        """The number of labels in a block of logits that suits this device."""

    def for_label_blocks(self, labels: int, block: int, work: LabelWork) -> int:
        """Call ``work(thread, start, stop)`` for all blocks; returns how many threads were used.

        A thread owns consecutive labels and visits them in ascending order; labels also ascend
        with the number of the thread. Calls of different threads may run at the same time.
        """

    # -- targets ---------------------------------------------------------------------------------

    def target_weights(
        self, row_weight: Array, label_weight: Array, lengths: Array, factor: float,
        each_row: bool,
    ) -> None:  # fmt: skip
        """The weights of rows and of their labels in the loss, all ``(rows,)``, in place.

        With ``each_row`` (softmax) a row weighs ``factor`` and each of its ``lengths`` labels an
        equal share of it; a row without labels weighs 0. Otherwise (sigmoid) each weighs
        ``factor``.
        """

    def target_logits(
        self, out: Array, logits: Array, bias: Array, y: Csr, rows: Array,
        first_row: int, first_label: int,
    ) -> None:  # fmt: skip
        """``out[first_row + i] += sum of (logits + bias)`` at ``rows[i]``'s labels in the block.

        ``out`` is ``(rows,)`` float64, ``logits`` the block ``(block, rows)`` whose first label is
        ``first_label``, ``bias`` the block's ``(block,)``.
        """

    def subtract_targets(
        self, delta: Array, row_sums: Array, weights: Array, y: Csr, rows: Array,
        first_row: int, first_label: int,
    ) -> None:  # fmt: skip
        """Subtract ``weights[first_row + i]`` at ``rows[i]``'s labels, from ``row_sums`` too."""

    # -- softmax ---------------------------------------------------------------------------------

    def softmax_block(
        self, logits: Array, bias: Array, peak: Array, total: Array, part: Array
    ) -> None:
        """One block of an online softmax (Milakov and Gimelshein 2018), in place.

        Raises ``peak (rows,)`` to cover ``logits + bias``, leaves ``exp(logits + bias - peak)`` in
        ``logits``, and keeps ``total (rows,)`` float64 the sum of all exponentials so far relative
        to the new peak. ``part (rows,)`` is scratch. Start from ``-inf`` and 0.
        """

    def merge_softmax(self, peaks: Array, totals: Array, peak: Array, total: Array) -> None:
        """Merge partial results ``(parts, rows)`` into ``(rows,)``, in place."""

    def softmax_factors(
        self, out: Array, reference: Array, peak: Array, total: Array, weight: Array
    ) -> None:
        """``out = weight * exp(reference - peak) / total``, all ``(rows,)``, in place.

        The factor that turns exponentials relative to the peak ``reference`` into probabilities.
        """

    def softmax_losses(
        self, out: Array, peak: Array, total: Array, partial_targets: Array, lengths: Array
    ) -> None:
        """``out (rows,)`` float64 ``= peak + log(total) - mean target logit``; 0 without labels.

        ``partial_targets (parts, rows)`` are sums of target logits over parts of the labels.
        """

    def scale_columns(self, delta: Array, factors: Array, row_sums: Array) -> None:
        """``delta (block, rows) *= factors (rows,)``; ``row_sums (block,)`` of it. In place."""

    # -- fused softmax ---------------------------------------------------------------------------

    @property
    def has_fused_softmax(self) -> bool:
        """Whether the kernels of this section exist; otherwise exponentials are stored."""

    def softmax_sums(self, logits: Array, bias: Array, peak: Array, total: Array) -> None:
        """As ``softmax_block``, but ``logits (block, rows)`` are not changed.

        Each label's float16 logits begin at a multiple of 4 bytes.
        """

    def softmax_shift(self, out: Array, peak: Array, total: Array, weight: Array) -> None:
        """``out = peak + log(total) - log(weight)``, all ``(rows,)``; infinite for a weight of 0.

        ``exp(logit - out)`` is then a label's probability times the row's weight.
        """

    def softmax_gradient(self, logits: Array, bias: Array, shift: Array, row_sums: Array) -> None:
        """``logits = exp(logits + bias - shift)``; ``row_sums (block,)`` of it. In place."""

    def subtract_targets_deferred(
        self, delta: Array, weights: Array, y: Csr, rows: Array, first_row: int,
        first_label: int, scale: float = 1.0,
    ) -> None:  # fmt: skip
        """As ``subtract_targets``, but `apply_deferred_sums` subtracts from the row sums later.

        ``weights`` and ``delta`` are multiplied by ``scale``, the row sums are not.
        """

    def apply_deferred_sums(self, row_sums: Array, first_label: int = 0) -> None:
        """Subtract the deferred weights of all blocks from ``row_sums (labels,)``, and reset.

        They are the sums of the labels from ``first_label`` on.
        """

    # -- sigmoid ---------------------------------------------------------------------------------

    def sigmoid_block(
        self, logits: Array, bias: Array, weight: float, row_sums: Array, loss: Array, part: Array
    ) -> None:
        """``logits = weight * sigmoid(logits + bias)``; ``row_sums (block,)`` of it. In place.

        Adds ``log(1 + exp(logits + bias))``, summed over the block, to ``loss (rows,)`` float64.
        ``part (2, rows)`` is scratch.
        """

    # -- the best k labels -----------------------------------------------------------------------

    def top_k_block(
        self, logits: Array, bias: Array, first_label: int, scores: Array, ids: Array
    ) -> None:
        """Insert a block's ``logits + bias`` into the best ``(rows, k)``; start from -inf and -1.

        Blocks must come in ascending order of labels; among equals the lowest label is kept.
        """

    def merge_top_k(
        self, partial_scores: Array, partial_ids: Array, scores: Array, ids: Array
    ) -> None:
        """Merge partial results ``(parts, rows, k)`` into ``(rows, k)``, in place."""

    def softmax_scores(self, scores: Array, ids: Array, peak: Array, total: Array) -> None:
        """Ranked logits ``(rows, k)`` into probabilities ``exp(s - peak) / total``, in place.

        Where rounding makes two probabilities equal although the logits were not, and the lower
        one has the lower label, one is moved by as little as float32 allows, so that ranking by
        score, lowest label first on ties, gives the same order again. Empty places stay -inf.
        """

    def sigmoid_scores(self, scores: Array, ids: Array) -> None:
        """Ranked logits ``(rows, k)`` into ``1 / (1 + exp(-s))``, in place, as above."""


def _refuse(self: object, *operands: Any, **options: Any) -> NoReturn:
    raise NotImplementedError("exponentials are kept here: has_fused_softmax is False")


class NoFusedSoftmax:
    """The fused softmax of `LabelKernels` on a device that stores exponentials instead.

    Examples
    --------
    >>> NoFusedSoftmax.has_fused_softmax
    False
    """

    has_fused_softmax = False
    softmax_sums = softmax_shift = softmax_gradient = _refuse
    subtract_targets_deferred = apply_deferred_sums = _refuse
