"""The contract of the kernels: everything that computes on arrays element by element.

Symbols: ``rows`` of the batch, ``features``, hidden ``units``, a ``block`` of labels. Arrays marked
"in place" are overwritten. All floats are float32 unless said otherwise.

A block of logits is *label-major*, ``(block, rows)``: one contiguous row per label. Several
threads compute partial results over label ranges of their own, which are merged afterwards. On a
GPU a label's row of logits may be longer than the batch, and what is beyond is ignored; except for
``top_k_block``, the block may also be float16; sums and biases may not.

A sparse matrix ``x`` is ``(n, features)``, ``rows`` ``(count,)`` int64 are the row numbers of a
batch. Kernels on sparse rows give equal bits for any number of threads.

Parameters of optimizers and their moments are matrices ``(rows, width)``. A gradient covers some of
the rows, or all. ``keep`` is 1 - learning rate * weight decay, the share of a weight that decay
leaves. Threads share the rows: equal bits for any number of threads.

A tree's nodes are numbered level by level from the root, 0, and its leaves, the positions of
labels, behind the last node. A *chunk* is what one node holds for one feature: weights of some of
its children.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, SupportsFloat, TypeVar

from daskxml.core.arrays import Array, Csr
from daskxml.core.hardware import free_memory_bytes
from daskxml.kernels.operands import (
    KEEP_ALL,
    DeviceCount,
    Drop,
    FittedBlock,
    LabelWork,
    NodeProblem,
    RowGradient,
    RuleStep,
    StepSizes,
    TreeArrays,
    TreeWeights,
)

T = TypeVar("T")


class Kernels(Protocol):
    """The kernels of one device, with a fixed number of threads.

    The same inputs and the same number of threads give the same bits. Methods that return a number
    synchronize with the device; the others need not. What only a CPU has is not here: samples of
    labels, weights of rows and labels, steps with one row and their ranking are functions of
    `daskxml.kernels.cpu`, and the run file refuses them on a GPU.

    Attributes
    ----------
    name
        ``cpu`` or ``cuda``.
    threads
        How many label ranges are worked on at the same time: threads of a CPU, 1 on a GPU.
    has_fused_softmax
        Whether exponentials are computed twice and not stored: on a GPU. The steps of softmax
        differ: a CPU's are `daskxml.kernels.cpu.kernels.CpuKernels`'s own, a GPU's
        `daskxml.kernels.cuda.labels.CudaLabels`'s.
    gradient_floats
        How many floats of a gradient to form at a time, where it must be materialized.
    """

    name: str
    threads: int
    has_fused_softmax: bool
    gradient_floats: int

    def close(self) -> None:
        """Stop the threads; the kernels may not be used afterwards."""

    # -- memory ------------------------------------------------------------------------------------

    def empty(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
        """A new array, aligned to 64 bytes; its contents are arbitrary."""

    def zeros(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
        """A new array of zeros, aligned to 64 bytes."""

    def to_device(self, value: T) -> T:
        """Move an array, ``Csr``, ``Partition`` or ``Segment`` to where the kernels can read it.

        Returns the very same object if it is there already.
        """

    def to_device_async(self, value: T) -> T:
        """As ``to_device``, concurrently with queued work: call `await_uploads` before using it."""

    def await_uploads(self) -> None:
        """Make work that is queued from now on wait for asynchronous uploads."""

    def time_range(self, name: str) -> AbstractContextManager[None]:
        """A range of this name in what a GPU's profiler records (NVTX); on a CPU, nothing."""

    def to_host(self, value: T) -> T:
        """The same as NumPy arrays; without a copy where they already are."""

    def free_bytes(self) -> int:
        """How much can still be allocated; 0 if unknown."""

    def scratch_bytes(self, sizes: StepSizes) -> int:
        """How much `reserve` allocates for steps of these sizes."""

    def reserve(self, sizes: StepSizes) -> None:
        """Allocate the temporary arrays of the kernels of a step.

        Raises
        ------
        MemoryError
            If the device does not have enough memory.
        """

    def release(self) -> None:
        """Free reserved memory and cached memory that is not in use."""

    # -- flat vectors: the arithmetic of merging ---------------------------------------------------

    def copy(self, out: Array, x: Array) -> None:
        """``out = x``, both ``(n,)``, in place."""

    def fill(self, out: Array, value: float) -> None:
        """``out = value`` everywhere, any shape and dtype, in place."""

    def deferred_sum(self, *terms: tuple[Array, float]) -> SupportsFloat:
        """The sum over terms of ``factor * sum(x)``, ``x (n,)`` float64; always in the same order.

        Converting it to float synchronizes.
        """

    def scale(self, out: Array, x: Array, factor: float) -> None:
        """``out = factor * x``, in place."""

    def add_scaled(self, out: Array, x: Array, factor: float) -> None:
        """``out += factor * x``, in place."""

    def momentum(self, out: Array, current: Array, previous: Array, gamma: float) -> None:
        """``out += gamma * (current - previous)``, in place."""

    def add_two(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        """``out += a * x + b * y``, in place."""

    def axpby(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        """``out = a * x + b * y``, in place; ``out`` may be ``x`` or ``y``."""

    def dots(self, x: Array, y: Array) -> tuple[float, float, float]:
        """``(x . y, x . x, y . y)`` of ``(n,)`` in float64; equal bits for any threads."""

    def largest(self, x: Array) -> float:
        """The largest magnitude in ``(n,)``; 0 if empty, NaN or infinity if there is one."""

    def convert(self, out: Array, x: Array, factor: float) -> None:
        """``out = factor * x``, in place, between float32 and float16, or bfloat16 as uint16."""

    def squared_norm(self, x: Array) -> float:
        """Sum of squares of ``(n,)`` in float64; equal bits for any number of threads."""

    # -- dense layers ------------------------------------------------------------------------------

    def gemm(self, out: Array, a: Array, b: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
        """``out = alpha * a @ b + beta * out``, in place; transposed views cost nothing.

        On a GPU both operands may be float16, with ``out`` float16 or float32; sums are float32.
        """

    def fill_rows(self, out: Array, row: Array) -> None:
        """``out[i] = row`` for every row, in place."""

    def column_sums(self, out: Array, x: Array) -> None:
        """``out[j] = sum of x[:, j]``, in place."""

    def activate(self, x: Array, activation: str) -> None:
        """``relu`` or ``sigmoid`` of ``(rows, units)``, in place."""

    def activation_gradient(
        self, delta: Array, active: Array, activation: str, keep: float = 1.0
    ) -> None:
        """``delta *= activation'``, in place, computed from the layer's output.

        ``keep`` (1 - dropout rate) undoes the scaling of outputs that dropout kept; ``delta`` of
        dropped outputs must be zero already.
        """

    def dropout(self, x: Array, drop: Drop) -> None:
        """Zero or scale the entries of ``(rows, units)``, in place (outputs and deltas alike)."""

    # -- sparse rows -------------------------------------------------------------------------------

    def nonzeros(self, x: Csr, rows: Array) -> int:
        """Stored entries of ``rows``."""

    def row_lengths(self, out: Array, x: Csr, rows: Array) -> None:
        """``out[i]`` (float32) = stored entries of ``rows[i]``."""

    def sparse_forward(
        self, out: Array, x: Csr, rows: Array, weight: Array, bias: Array, drop: Drop = KEEP_ALL
    ) -> None:
        """``out (count, units) = x[rows] @ weight (features, units) + bias``, in place.

        On a CPU ``weight`` may be `Quantised`; then nothing is dropped.
        """

    def sparse_update(
        self, weight: Array, x: Csr, rows: Array, delta: Array, factor: float,
        drop: Drop = KEEP_ALL,
    ) -> None:  # fmt: skip
        """``weight += factor * x[rows].T @ delta``; touches the features of ``rows`` only."""

    def densify(self, out: Array, x: Csr, rows: Array, drop: Drop = KEEP_ALL) -> None:
        """``out (count, features) = x[rows]``, in place."""

    # -- the gradient of the features in use -----------------------------------------------------

    def feature_entries(
        self, out: tuple[Array, Array, Array], x: Csr, rows: Array, row_offset: int, drop: Drop
    ) -> int:
        """Write the entries of ``x[rows]`` that dropout keeps as columns, rows and values.

        Row ``rows[i]`` gets the number ``row_offset + i``; ``out`` are int32, int32, float32 and
        long enough. Returns the number of entries.
        """

    def group_entries(
        self, features: Array, starts: Array, rows: Array, values: Array,
        entries: tuple[Array, Array, Array], counts: Array,
    ) -> tuple[int, Array | None]:  # fmt: skip
        """Sort entries by feature, in the order of their first use.

        ``entries`` are columns int32, rows int32, values float32, each ``(n,)``; rows ascend and
        have a feature at most once. Feature ``i`` is ``features[i]`` int32 and has ``rows`` and
        ``values`` from ``starts[i]`` to ``starts[i + 1]`` (int64, one more than features), in the
        order of the entries. ``counts`` int32, one for each column, is zero before and after.

        Returns
        -------
        int
            The number of features, or an upper bound of it.
        Array or None
            Where it is a bound: the number, ``(1,)`` int32 on the device, without synchronizing.
        """

    def gather_rows(
        self, out: Array, starts: Array, rows: Array, values: Array, delta: Array,
        device_count: DeviceCount | None = None,
    ) -> None:  # fmt: skip
        """``out[i] = sum of values[e] * delta[rows[e]]``, ``e`` in ``starts[i] .. starts[i + 1]``.

        ``out`` is ``(count, units)``, ``starts`` ``(count + 1,)``; rows beyond ``device_count``
        are not written.
        """

    # -- blocks of labels --------------------------------------------------------------------------

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

    # -- softmax ---------------------------------------------------------------------------------

    def merge_softmax(self, peaks: Array, totals: Array, peak: Array, total: Array) -> None:
        """Merge partial results ``(parts, rows)`` into ``(rows,)``, in place."""

    def softmax_losses(
        self, out: Array, peak: Array, total: Array, partial_targets: Array, lengths: Array
    ) -> None:
        """``out (rows,)`` float64 ``= peak + log(total) - mean target logit``; 0 without labels.

        ``partial_targets (parts, rows)`` are sums of target logits over parts of the labels.
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

    # -- optimizers --------------------------------------------------------------------------------

    def sgd_rows(self, weight: Array, gradient: RowGradient, lr: float, keep: float) -> None:
        """``weight = keep * weight - lr * g``."""

    def moment_rows(
        self, rule: str, weight: Array, moments: tuple[Array, ...], gradient: RowGradient,
        step: RuleStep,
    ) -> None:  # fmt: skip
        """Update the moments of a rule, and ``weight = keep * weight - lr * move``.

        ========  =======  ====================================================================
        rule      moments  move
        ========  =======  ====================================================================
        momentum  b        ``b = momentum * b + g``; if it is Nesterov's, ``g + momentum * b``
        adam      m, v     ``m / (sqrt(v) + epsilon)``, both corrected
        row-rms   v        ``g / (sqrt(v) + epsilon)``, v corrected; ``v[:, 0]`` follows the mean
                           of a row's ``g**2``, other columns are not used
        ========  =======  ====================================================================
        """

    def lamb_moments(
        self, norms: Array, weight: Array, first: Array, second: Array, gradient: RowGradient,
        adam: RuleStep,
    ) -> None:  # fmt: skip
        """Update the moments only; ``norms`` is ``(2, count)`` float64.

        ``norms[:, i]`` are the sums of squares of row ``i`` of the weights and of the update
        ``m / (sqrt(v) + epsilon) + weight_decay * weight``; both 0 for a skipped row.
        """

    def lamb_trust(self, trust: Array, norms: Array) -> None:
        """``trust (1,)`` float64 ``= ||weight|| / ||update||`` by `lamb_moments`; 1 if one is 0."""

    def lamb_rows(
        self, weight: Array, first: Array, second: Array, gradient: RowGradient,
        adam: RuleStep, trust: Array,
    ) -> None:  # fmt: skip
        """``weight -= lr * trust * update``, the update being that of `lamb_moments`."""

    # -- label trees -------------------------------------------------------------------------------

    def fit_nodes(
        self, x: Csr, problems: Iterable[NodeProblem], passes: int, smallest: float
    ) -> list[FittedBlock]:
        """Fit linear scores: at least 1 for a row's own children, at most -1 for the others.

        What a child gets does not depend on the node's other children, nor on other problems.

        Parameters
        ----------
        x
            The rows that the problems refer to.
        problems
            Read as far ahead as they are fitted together.
        passes
            Of dual coordinate descent (Hsieh et al., ICML 2008, algorithm 1, with its L2 loss) over
            a problem's rows, each in another order.
        smallest
            Weights below are dropped.

        Returns
        -------
        list of FittedBlock
            On the host, in the order of the problems.
        """

    def tree_weights(self, arrays: TreeArrays) -> TreeWeights:
        """Prepare a tree for `rank_leaves`."""

    def rank_leaves(
        self, tree: TreeWeights, x: Csr, rows: Array, beam: int, count: int
    ) -> tuple[Array, Array]:
        """Find the best leaves of rows by a beam of so many nodes a level.

        A child's score ``z`` adds ``-max(0, 1 - z)^3`` to its parent's log probability.

        Returns
        -------
        ids, scores
            ``(rows, count)`` int32 and float32, descending, ties to the lowest leaf; where fewer
            are found, -1 and minus infinity.
        """

    def average_rankings(
        self, ids: Array, scores: Array, shares: Array, count: int
    ) -> tuple[Array, Array]:
        """Rank labels by the sum of their scores in several rankings, each times its share.

        ``ids`` and ``scores`` are ``(rankings, rows, candidates)``, -1 where a ranking has no more;
        ``shares`` ``(rankings,)`` float32. A label that a ranking lacks has the score 0 there.
        Returns ids and sums, ``(rows, count)``; -1 and 0 where there are fewer.
        """


class HostMemory:
    """What `Kernels` asks of a device's memory, where there is none.

    Examples
    --------
    >>> HostMemory().free_bytes() > 0
    True
    """

    gradient_floats = 1 << 16  # stays in a core's cache, and is too little to wake a second thread

    def free_bytes(self) -> int:
        """Of this machine and this process's control groups."""
        return free_memory_bytes()

    def scratch_bytes(self, sizes: StepSizes) -> int:
        """0."""
        return 0

    def reserve(self, sizes: StepSizes) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""

    def await_uploads(self) -> None:
        """Do nothing."""

    def time_range(self, name: str) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()
