"""The ring all-reduce of one rank, as a program of messages.

Who sends which piece when is ``ring_order``'s. Every piece is added to while it is in the cache,
and goes on to the next rank while the one after it arrives.

Memory is ``out`` (and one piece, where the result takes the place of this rank's own term).
Partial sums live in ``out`` from the moment they arrive, so receiving never waits for sending. An
element of ``out`` that has been sent is overwritten once, by its final value in the all-gather.
That value contains this rank's own term, so the partial sum that carried it has arrived by then:
nothing has to be waited for in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from daskxml.combine.kernels import CombineKernels
from daskxml.combine.messages import Flush, Program, Send
from daskxml.combine.ring_order import Transfer, incoming, outgoing
from daskxml.combine.wire import Wire, make_wire
from daskxml.types import Array

PIECE_FLOATS = 1 << 18  # 1 MiB: stays in a cache, and is worth its system calls
_AHEAD = 2  # own pieces on their way before the first one is waited for

Finish = Callable[[slice], None]


def ring_all_reduce(
    rank: int,
    ranks: int,
    out: Array,
    term: Array,
    weight: float,
    kernels: CombineKernels,
    finish: Finish | None = None,
    piece_size: int = PIECE_FLOATS,
    transfer: str = "float32",
) -> Program[None]:
    """Write ``sum_i weight_i * term_i`` into every rank's ``out``, the same bits on all of them.

    The bits are those of `merge_weighted`. Every rank calls this with the same ``ranks``,
    ``piece_size``, ``transfer`` and sizes.

    Parameters
    ----------
    rank, ranks
        This rank's place and the number of ranks.
    out
        ``(size,)`` float32, overwritten; either ``term`` itself or memory of its own.
    term, weight
        What this rank adds: ``(size,)`` float32 and its factor.
    kernels
        The arithmetic.
    finish
        Called once for each piece of the sum, by the rank that completes it, with its place in
        ``out``: what it adds there (momentum, say), everyone gets.
    piece_size
        Elements of a piece, at most; 1 or more.
    transfer
        ``bfloat16`` halves the bytes: every partial sum is rounded when it goes on, and the result.
        What is on its way then takes half a vector of memory.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.combine.lockstep import run_together
    >>> from daskxml.ops.naive import NaiveKernels
    >>> terms = [np.ones(3, "f4"), np.full(3, 3, "f4")]
    >>> outs = [np.empty(3, "f4"), np.empty(3, "f4")]
    >>> _ = run_together([ring_all_reduce(r, 2, outs[r], terms[r], 0.5, NaiveKernels())
    ...     for r in range(2)])
    >>> outs
    [array([2., 2., 2.], dtype=float32), array([2., 2., 2.], dtype=float32)]
    """
    wire = make_wire(transfer, kernels, min(piece_size, int(out.shape[0])))
    ring = _Ring(rank, ranks, out, term, weight, kernels, finish, piece_size, wire)
    yield from ring.alone() if ranks == 1 else ring.reduce()
    yield Flush()


@dataclass
class _Ring:
    rank: int
    ranks: int
    out: Array
    term: Array
    weight: float
    kernels: CombineKernels
    finish: Finish | None
    piece_size: int
    wire: Wire
    forwards: deque[Array] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.size = int(self.out.shape[0])
        self.next = (self.rank + 1) % self.ranks
        self.arrived = None  # a partial sum, where ``out`` still holds this rank's own term
        if self.out is self.term and self.ranks > 1:
            self.arrived = self.kernels.empty(min(self.piece_size, self.size))

    def alone(self) -> Program[None]:
        """Weigh the only term there is."""
        for start in range(0, self.size, self.piece_size):
            piece = slice(start, min(start + self.piece_size, self.size))
            self._scale(piece)
            if self.finish is not None:
                self.finish(piece)
        yield from ()

    def reduce(self) -> Program[None]:
        """Receive every piece, add to it, pass it on; own pieces go first, one for each received.

        Messages to the next rank keep the order of ``outgoing``: what arrives early waits until
        all own pieces have left. Whoever has own pieces left has sent more than was received, so
        all ranks cannot wait at once.
        """
        own = self._own_pieces()
        for _, piece in zip(range(_AHEAD), own, strict=False):
            yield Send(self.next, piece)
        for transfer in incoming(self.rank, self.ranks, self.size, self.piece_size):
            yield from self._receive(transfer)
            piece = next(own, None)
            if piece is not None:
                yield Send(self.next, piece)
                continue
            while self.forwards:
                yield Send(self.next, self.forwards.popleft())
        for piece in (*own, *self.forwards):
            yield Send(self.next, piece)

    def _own_pieces(self) -> Iterator[Array]:
        for transfer in outgoing(self.rank, self.ranks, self.size, self.piece_size):
            if transfer.step:
                return
            piece = slice(transfer.start, transfer.stop)
            self._scale(piece)
            yield self.wire.load(self.out[piece])

    def _scale(self, piece: slice) -> None:
        if self.out is not self.term or self.weight != 1.0:
            out = self.out[piece]
            term = out if self.out is self.term else self.term[piece]
            self.kernels.scale(out, term, self.weight)

    def _receive(self, transfer: Transfer) -> Program[None]:
        piece = slice(transfer.start, transfer.stop)
        out, source = self.out[piece], (self.rank - 1) % self.ranks
        if transfer.reduces:
            yield from self._add(source, out, piece)
        else:
            yield from self.wire.receive(source, out)
        if transfer.completes and self.finish is not None:
            self.finish(piece)
        if transfer.forwards:
            is_partial = transfer.reduces and not transfer.completes
            self.forwards.append(self.wire.load(out) if is_partial else self.wire.freeze(out))

    def _add(self, source: int, out: Array, piece: slice) -> Program[None]:
        """Add this rank's term to what arrives, from where it lies."""
        room = out if self.arrived is None else self.arrived[: out.shape[0]]
        arrived = yield from self.wire.borrow(source, room)
        if arrived is out:
            self.kernels.add_scaled(out, self.term[piece], self.weight)
        else:
            term = out if self.arrived is not None else self.term[piece]
            self.kernels.weigh_two(out, arrived, 1.0, term, self.weight)
