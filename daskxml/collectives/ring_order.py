"""Which piece travels from rank to rank, and when, in a ring all-reduce.

The flat model is split into as many partitions as there are workers (the multi-stream merging of
Ma et al., "Adaptive Elastic Training for Sparse Deep Learning on Heterogeneous Multi-GPU
Servers", 2021, section 4: every stream starts from another worker). Partition ``p`` starts at
rank ``p`` and travels ``p, p + 1, ..., p - 1`` (modulo the number of ranks), each rank adding its
own term; the last of them, rank ``p - 1``, then holds the full sum (reduce-scatter), which travels
round once more (all-gather). So a rank receives only from ``rank - 1`` and sends only to
``rank + 1``, and what it receives at one step is what it sends at the next. Each partition is cut
into pieces, so that a piece is forwarded while the next one arrives; the paper moves whole
partitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

ALIGNMENT_FLOATS = 16  # 64 bytes: no two partitions share a cache line


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """One piece on its way from a rank to the next.

    Attributes
    ----------
    step
        When: ``0 .. 2 * ranks - 3``; the first ``ranks - 1`` are the reduce-scatter.
    partition
        Which partition the piece belongs to.
    start, stop
        The elements of the flat model that it covers.
    reduces
        Whether the receiver adds its own term (else it takes the piece unchanged).
    completes
        Whether the receiver's term is the last, so that the sum is full afterwards.
    forwards
        Whether the receiver sends the piece on.
    """

    step: int
    partition: int
    start: int
    stop: int
    reduces: bool
    completes: bool
    forwards: bool


def partition_bounds(size: int, ranks: int) -> list[tuple[int, int]]:
    """Split ``size`` elements into one partition per rank, of nearly equal sizes.

    Parameters
    ----------
    size
        Number of elements, 0 or more.
    ranks
        Number of partitions, 1 or more. Some are empty when there are too few elements.

    Returns
    -------
    list of (start, stop)
        Ascending and gapless; inner bounds are multiples of 16 elements.

    Examples
    --------
    >>> partition_bounds(100, 3)
    [(0, 32), (32, 64), (64, 100)]
    >>> partition_bounds(5, 2)
    [(0, 0), (0, 5)]
    """
    even = [rank * size // ranks for rank in range(ranks)]
    starts = [start - start % ALIGNMENT_FLOATS for start in even]
    return list(zip(starts, [*starts[1:], size], strict=True))


def pieces(start: int, stop: int, piece_size: int) -> Iterator[tuple[int, int]]:
    """Cut the elements ``start .. stop - 1`` into pieces of at most ``piece_size``.

    Examples
    --------
    >>> list(pieces(3, 8, 2))
    [(3, 5), (5, 7), (7, 8)]
    """
    for at in range(start, stop, piece_size):
        yield at, min(at + piece_size, stop)


def incoming(rank: int, ranks: int, size: int, piece_size: int) -> Iterator[Transfer]:
    """Yield what a rank receives from the rank before it, in order.

    Parameters
    ----------
    rank, ranks
        The receiver's place, ``0 .. ranks - 1``, and the number of ranks.
    size
        Elements of the flat model.
    piece_size
        Elements of a piece, at most; 1 or more.

    Examples
    --------
    >>> [(t.step, t.partition, t.start, t.stop) for t in incoming(0, 2, 64, 32)]
    [(0, 1, 32, 64), (1, 0, 0, 32)]
    """
    bounds = partition_bounds(size, ranks)
    for step in range(2 * ranks - 2):
        partition = (rank - step - 1) % ranks
        for start, stop in pieces(*bounds[partition], piece_size):
            yield Transfer(
                step=step,
                partition=partition,
                start=start,
                stop=stop,
                reduces=step < ranks - 1,
                completes=step == ranks - 2,
                forwards=step < 2 * ranks - 3,
            )


def outgoing(rank: int, ranks: int, size: int, piece_size: int) -> Iterator[Transfer]:
    """Yield what a rank sends to the rank after it, in the order in which that one receives it.

    Examples
    --------
    >>> [(t.step, t.partition) for t in outgoing(0, 3, 96, 32)]
    [(0, 0), (1, 2), (2, 1), (3, 0)]
    """
    return incoming((rank + 1) % ranks, ranks, size, piece_size)
