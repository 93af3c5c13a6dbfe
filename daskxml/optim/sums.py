"""Gradients that are formed a few rows at a time, each used while the cache has it."""

from __future__ import annotations

from collections.abc import Callable

from daskxml.ops import Kernels, RowGradient, RowSums
from daskxml.optim.scratch import Scratch
from daskxml.types import Array


def update_by_sums(
    kernels: Kernels, scratch: Scratch, sums: RowSums, x: Array, waits: bool,
    update: Callable[[RowGradient], None],
) -> None:  # fmt: skip
    """Form the gradient of a few rows in each lane, have it used while the cache has it; go on.

    Parameters
    ----------
    sums, x
        The gradient: which rows of ``x (rows, width)`` make up which row of it.
    waits
        See `daskxml.ops.RowGradient`.
    update
        Called from several threads, with different rows.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.ops import get_kernels
    >>> ids, starts = np.array([7], np.int32), np.array([0, 2])
    >>> sums = RowSums(ids, starts, np.array([0, 1], np.int32), np.ones(2, np.float32))
    >>> x, kernels = np.array([[3], [4]], np.float32), get_kernels("cpu", 1)
    >>> update_by_sums(kernels, Scratch(kernels), sums, x, False, lambda g: print(g.ids, g.values))
    [7] [[7.]]
    """
    width = int(x.shape[1])
    chunk = max(1, min(sums.count, kernels.gradient_floats // width))

    def work(lane: int, start: int, stop: int) -> None:
        live = None if sums.live is None else (sums.live, start)
        with scratch.borrow(chunk * width) as memory:
            slope = memory[: (stop - start) * width].reshape(-1, width)
            starts = sums.starts[start : stop + 1]
            kernels.gather_rows(slope, starts, sums.rows, sums.values, x, live)
            update(RowGradient(slope, sums.ids[start:stop], waits=waits, live=live))

    kernels.for_label_blocks(sums.count, chunk, work)


def update_by_product(
    kernels: Kernels, scratch: Scratch, left: Array, right: Array, ids: Array | None,
    update: Callable[[slice, RowGradient], None], scale: float = 1.0,
) -> None:  # fmt: skip
    """Form ``scale * left.T @ right`` a few rows at a time, each used before the next.

    Parameters
    ----------
    left, right
        ``(batch, rows)`` and ``(batch, width)``.
    ids
        Which rows of a parameter these are; None: all in order.
    update
        Called with the rows in order and their gradient.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.ops import get_kernels
    >>> left, right, kernels = np.ones((4, 2), "f"), np.ones((4, 3), "f"), get_kernels("cpu", 1)
    >>> def show(span, gradient):
    ...     print(span, gradient.values[0])
    >>> update_by_product(kernels, Scratch(kernels), left, right, None, show)
    slice(0, 2, None) [4. 4. 4.]
    """
    rows, width = int(left.shape[1]), int(right.shape[1])
    chunk = max(1, kernels.gradient_floats // width)
    with scratch.borrow(min(rows, chunk) * width) as memory:
        for start in range(0, rows, chunk):
            span = slice(start, min(start + chunk, rows))
            slope = memory[: (span.stop - start) * width].reshape(-1, width)
            kernels.gemm(slope, left[:, span].T, right, scale)
            update(span, RowGradient(slope, None if ids is None else ids[span]))
