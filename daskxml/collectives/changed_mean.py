"""Each element's mean over the ranks that changed it, as a program of messages.

With ``x_i`` what rank i changed and ``a_i`` its weight, every element of the result is

    sum_i a_i  *  sum_i a_i x_i / sum_(i : x_i != 0) a_i

The mean divides by all weights: where one of n workers alone changed an element, as many of a
sparse first layer are in a short mega-batch, an n-th of its change is left. Here all of it is.
Where all ranks changed an element, both rules give the same bits.

The sums are the ring's. For every element a rank sends a byte, whether it changed it, to the rank
that completes that element's sum, which divides it before it travels on. So the divisor is exact in
any codec, and the bytes sent grow by an eighth (with bfloat16, by a quarter).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daskxml.collectives.messages import Program, Receive, Send
from daskxml.collectives.ring import PIECE_FLOATS, ring_all_reduce
from daskxml.collectives.ring_order import partition_bounds
from daskxml.core.arrays import Array
from daskxml.kernels import Kernels


def changed_mean(
    rank: int,
    x: Array,
    weights: Sequence[float],
    kernels: Kernels,
    piece_size: int = PIECE_FLOATS,
    transfer: str = "float32",
) -> Program[None]:
    """Replace every rank's ``x`` by each element's mean over the ranks where it is not zero.

    Parameters
    ----------
    rank
        This rank, ``0 .. n - 1``.
    x
        ``(size,)`` float32: what this rank changed, overwritten with the same bits on all ranks.
    weights
        The weight of every rank ``(n,)``, 0 or more. An element that only ranks of weight 0
        changed becomes 0.
    kernels
        The arithmetic.
    piece_size, transfer
        As for `daskxml.collectives.ring.ring_all_reduce`.

    Examples
    --------
    >>> from daskxml.collectives.messages import run_together
    >>> from daskxml.kernels import get_kernels
    >>> x = np.array([[1, 0, 4], [3, 0, 0]], "f4")
    >>> _ = run_together([changed_mean(r, x[r], [0.5, 0.5], get_kernels("cpu", 1))
    ...     for r in range(2)])
    >>> x[0]
    array([2., 0., 4.], dtype=float32)
    """
    ranks, size = len(weights), int(x.shape[0])
    bounds = partition_bounds(size, ranks)
    first, stop = bounds[(rank + 1) % ranks]
    marks = kernels.empty((ranks, stop - first), "uint8")
    yield from _exchange_marks(rank, x, bounds, marks, kernels)
    shares = kernels.to_device(np.array(weights, np.float32))

    def divide(piece: slice) -> None:
        kernels.divide_by_shares(x[piece], marks, piece.start - first, shares)

    yield from ring_all_reduce(
        rank, ranks, x, x, weights[rank], kernels, divide, piece_size, transfer
    )  # fmt: skip


def _exchange_marks(
    rank: int, x: Array, bounds: Sequence[tuple[int, int]], marks: Array, kernels: Kernels
) -> Program[None]:
    """Write ``(ranks, elements)`` marks of the partition that this rank completes.

    Partition p is completed by rank p - 1, the last in the ring to add to it.
    """
    ranks = len(bounds)
    own = kernels.empty(x.shape[0], "uint8")
    kernels.mark_nonzero(own, x)
    for turn in range(1, ranks):
        to, source = (rank + turn) % ranks, (rank - turn) % ranks
        yield Send(to, own[slice(*bounds[(to + 1) % ranks])])
        yield Receive(source, marks[source])
    kernels.copy(marks[rank], own[slice(*bounds[(rank + 1) % ranks])])
