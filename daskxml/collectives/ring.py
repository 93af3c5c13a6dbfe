"""The ring all-reduce of one rank, as a program of messages.

The flat model is split into as many partitions as there are workers (the multi-stream merging of
Ma et al., "Adaptive Elastic Training for Sparse Deep Learning on Heterogeneous Multi-GPU
Servers", 2021, section 4: every stream starts from another worker). Partition ``p`` starts at
rank ``p`` and travels ``p, p + 1, ..., p - 1`` (modulo the number of ranks), each rank adding its
own term; the last of them, rank ``p - 1``, then holds the full sum (reduce-scatter), which travels
round once more (all-gather). So a rank receives only from ``rank - 1`` and sends only to
``rank + 1``, and what it receives at one step is what it sends at the next. Each partition is cut
into pieces, so that a piece is forwarded while the next one arrives; the paper moves whole
partitions.

Every piece is added to while it is in the cache.

Memory is ``out``, and one piece where the result overwrites this rank's own term. Partial sums live
in ``out`` from the moment they arrive, so receiving never waits for sending. An element of ``out``
that has been sent is overwritten once, by its final value in the all-gather. That value contains
this rank's own term, so the partial sum that carried it has arrived by then: no `Flush` is needed
in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from daskxml.collectives.codec import Codec, make_codec
from daskxml.collectives.messages import Flush, Program, Send
from daskxml.core.arrays import Array
from daskxml.kernels import Kernels

PIECE_FLOATS = 1 << 18  # 1 MiB: stays in a cache, and is worth its system calls
ALIGNMENT_FLOATS = 16  # 64 bytes: no two partitions share a cache line
_IN_FLIGHT = 2  # own pieces that are sent before the first one is received

Finish = Callable[[slice], None]


def all_reduce(
    rank: int,
    ranks: int,
    out: Array,
    term: Array,
    weight: float,
    kernels: Kernels,
    finish: Finish | None = None,
    piece_size: int = PIECE_FLOATS,
    transfer: str = "float32",
) -> Program[None]:
    """Write ``sum_i weight_i * term_i`` into every rank's ``out``, the same bits on all of them.

    Terms of partition ``p`` are added in the order of the ranks from ``p`` on. ``ranks``,
    ``piece_size``, ``transfer`` and sizes must be the same on every rank.

    Parameters
    ----------
    rank, ranks
        This rank and the number of ranks.
    out
        ``(size,)`` float32, overwritten; either ``term`` itself or memory of its own.
    term, weight
        What this rank adds: ``(size,)`` float32 and its factor.
    kernels
        The arithmetic.
    finish
        Called once for each piece of the sum, on the rank that completes it, with the piece's slice
        of ``out``: what it adds there (momentum, say) reaches all ranks.
    piece_size
        Elements of a piece, at most; 1 or more.
    transfer
        ``bfloat16`` halves the bytes: every partial sum that is forwarded is rounded, and so is the
        result. Messages in flight then take half a vector of memory.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.local.clock import run_together
    >>> from daskxml.kernels import get_kernels
    >>> terms = [np.ones(3, "f4"), np.full(3, 3, "f4")]
    >>> outs = [np.empty(3, "f4"), np.empty(3, "f4")]
    >>> _ = run_together([all_reduce(r, 2, outs[r], terms[r], 0.5, get_kernels("cpu", 1))
    ...     for r in range(2)])
    >>> outs
    [array([2., 2., 2.], dtype=float32), array([2., 2., 2.], dtype=float32)]
    """
    codec = make_codec(transfer, kernels, min(piece_size, int(out.shape[0])))
    ring = _Ring(rank, ranks, out, term, weight, kernels, finish, piece_size, codec)
    if ranks == 1:
        ring.scale_all()
    else:
        yield from ring.reduce()
    yield Flush()


@dataclass
class _Ring:
    rank: int
    ranks: int
    out: Array
    term: Array
    weight: float
    kernels: Kernels
    finish: Finish | None
    piece_size: int
    codec: Codec
    forwards: deque[Array] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.size = int(self.out.shape[0])
        self.next = (self.rank + 1) % self.ranks
        self.arrived = None  # a partial sum, where ``out`` still holds this rank's own term
        if self.out is self.term and self.ranks > 1:
            self.arrived = self.kernels.empty(min(self.piece_size, self.size))

    def scale_all(self) -> None:
        """Scale the only term there is."""
        for start, stop in pieces(0, self.size, self.piece_size):
            piece = slice(start, stop)
            self._scale(piece)
            if self.finish is not None:
                self.finish(piece)

    def reduce(self) -> Program[None]:
        """Receive every piece, add to it, forward it; send an own piece for each one received.

        Messages to the next rank keep the order of its `incoming`: pieces to forward wait until all
        own pieces are sent. A rank with own pieces left has sent more than it has received, so the
        ranks cannot all wait at once.
        """
        own = self._own_pieces()
        for _, piece in zip(range(_IN_FLIGHT), own, strict=False):
            yield Send(self.next, piece)
        for step, start, stop in incoming(self.rank, self.ranks, self.size, self.piece_size):
            yield from self._receive(step, slice(start, stop))
            piece = next(own, None)
            if piece is not None:
                yield Send(self.next, piece)
                continue
            while self.forwards:
                yield Send(self.next, self.forwards.popleft())
        for piece in (*own, *self.forwards):
            yield Send(self.next, piece)

    def _own_pieces(self) -> Iterator[Array]:
        own = partition_bounds(self.size, self.ranks)[self.rank]
        for start, stop in pieces(*own, self.piece_size):
            piece = slice(start, stop)
            self._scale(piece)
            yield self.codec.encode(self.out[piece])

    def _scale(self, piece: slice) -> None:
        if self.out is not self.term or self.weight != 1.0:
            out = self.out[piece]
            term = out if self.out is self.term else self.term[piece]
            self.kernels.scale(out, term, self.weight)

    def _receive(self, step: int, piece: slice) -> Program[None]:
        out, source = self.out[piece], (self.rank - 1) % self.ranks
        last = self.ranks - 2  # of the steps in which a receiver adds its own term
        if step <= last:
            yield from self._add(source, out, piece)
        else:
            yield from self.codec.receive(source, out)
        if step == last and self.finish is not None:
            self.finish(piece)
        if step < 2 * self.ranks - 3:
            encode = self.codec.encode if step < last else self.codec.encode_rounding
            self.forwards.append(encode(out))

    def _add(self, source: int, out: Array, piece: slice) -> Program[None]:
        """Add this rank's term to a partial sum, which is read where it is."""
        into = out if self.arrived is None else self.arrived[: out.shape[0]]
        arrived = yield from self.codec.borrow(source, into)
        if arrived is out:
            self.kernels.add_scaled(out, self.term[piece], self.weight)
        else:
            term = out if self.arrived is not None else self.term[piece]
            self.kernels.axpby(out, arrived, 1.0, term, self.weight)


# ------------------------------------------------------------------ which piece travels when


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


def incoming(rank: int, ranks: int, size: int, piece_size: int) -> Iterator[tuple[int, int, int]]:
    """Yield what a rank receives from the rank before it, in order: step, start and stop.

    In each of the ``2 * ranks - 2`` steps a partition arrives, in pieces: in the first half, the
    reduce-scatter, the receiver adds its own term, later it takes them unchanged. In all steps but
    the last it forwards them, in the next step.

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
    >>> list(incoming(0, 2, 64, 32))
    [(0, 32, 64), (1, 0, 32)]
    """
    bounds = partition_bounds(size, ranks)
    for step in range(2 * ranks - 2):
        for start, stop in pieces(*bounds[(rank - step - 1) % ranks], piece_size):
            yield step, start, stop
