"""Rows of a parameter, each updated once with the sum that is its gradient."""

from __future__ import annotations

from collections.abc import Callable

from daskxml.ops import Kernels, RowGradient, RowSums
from daskxml.optim.scratch import Scratch
from daskxml.types import Array

_CHUNK_FLOATS = 1 << 16  # of a gradient at a time: stays in a core's cache, wakes no other lane


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
    chunk = max(1, _CHUNK_FLOATS // width)

    def work(lane: int, start: int, stop: int) -> None:
        with scratch.borrow(chunk * width) as memory:
            slope = memory[: (stop - start) * width].reshape(-1, width)
            starts = sums.starts[start : stop + 1]
            kernels.gather_rows(slope, starts, sums.rows, sums.values, x)
            update(RowGradient(slope, sums.ids[start:stop], waits=waits))

    kernels.for_label_blocks(sums.count, chunk, work)
