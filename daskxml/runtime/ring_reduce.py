"""One worker's part in a ring all-reduce, over two links and in two threads.

The order of the pieces is ``daskxml.combine.ring_order``'s. One thread receives a piece, adds
this worker's term while the piece is still in the cache, and hands it to the other thread, which
sends it on: transfer and addition overlap.

Memory is the scratch model and one piece. Partial sums live in ``scratch`` from the moment they
arrive, so receiving never waits for sending, and a ring of full sockets cannot deadlock. A piece
of ``scratch`` is overwritten once, by its final value in the all-gather; that value contains this
worker's own term, so the partial sum that carried it must have left (and arrived) before.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from queue import SimpleQueue

from daskxml.combine import MergeKernels, Transfer, incoming, outgoing
from daskxml.runtime.ring_links import Link
from daskxml.types import Array

FLOAT_BYTES = 4

Forwarded = SimpleQueue[Transfer | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class RingTerm:
    """What one worker brings to a merge, and where the result goes.

    Attributes
    ----------
    rank, ranks
        This worker's place and the number of workers.
    weight, gamma
        The factor of this replica, and the momentum.
    replica, global_, previous
        ``(size,)`` float32, read.
    scratch
        ``(size,)`` float32, overwritten with the merged model.
    kernels
        The arithmetic.
    piece_size
        Elements of a piece.
    """

    rank: int
    ranks: int
    weight: float
    gamma: float
    replica: Array
    global_: Array
    previous: Array
    scratch: Array
    kernels: MergeKernels
    piece_size: int

    @property
    def size(self) -> int:
        """Elements of the model."""
        return int(self.replica.shape[0])


def reduce_alone(term: RingTerm) -> None:
    """Merge the only replica there is.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.combine.weighted import NaiveMergeKernels
    >>> w, out = np.ones(4, "f4"), np.empty(4, "f4")
    >>> reduce_alone(RingTerm(rank=0, ranks=1, weight=0.5, gamma=0.0, replica=w, global_=w,
    ...     previous=w, scratch=out, kernels=NaiveMergeKernels(), piece_size=2))
    >>> out
    array([0.5, 0.5, 0.5, 0.5], dtype=float32)
    """
    for start in range(0, term.size, term.piece_size):
        piece = slice(start, start + term.piece_size)
        term.kernels.scale(term.scratch[piece], term.replica[piece], term.weight)
        _add_momentum(term, piece)


def send_pieces(term: RingTerm, outward: Link, forwarded: Forwarded) -> None:
    """Send this worker's own partition, scaled, and then whatever ``forwarded`` brings.

    Parameters
    ----------
    term
        This worker's part; ``scratch`` is read where pieces were forwarded.
    outward
        To the next rank.
    forwarded
        Pieces to pass on, in order; None ends it early.

    Raises
    ------
    OSError
        When the link breaks.
    """
    scaled = term.replica[: term.piece_size].copy()  # a buffer of the replica's array type
    for transfer in outgoing(term.rank, term.ranks, term.size, term.piece_size):
        piece = slice(transfer.start, transfer.stop)
        if transfer.step == 0:
            out = scaled[: transfer.stop - transfer.start]
            term.kernels.scale(out, term.replica[piece], term.weight)
            outward.send(out)
        elif forwarded.get() is None:
            return
        else:
            outward.send(term.scratch[piece])


def receive_pieces(term: RingTerm, inward: Link, forwarded: Forwarded) -> float:
    """Receive every piece into ``scratch``, add this worker's term where it is due, pass it on.

    Parameters
    ----------
    term
        This worker's part; ``scratch`` is overwritten.
    inward
        From the rank before.
    forwarded
        Receives the pieces to be sent on, and at the end, even after a failure, None.

    Returns
    -------
    float
        Seconds spent in waiting for pieces and copying them in.

    Raises
    ------
    OSError
        When the link breaks.
    """
    waited_s = 0.0
    try:
        for transfer in incoming(term.rank, term.ranks, term.size, term.piece_size):
            started_s = time.perf_counter()
            inward.receive_into(term.scratch[transfer.start : transfer.stop])
            waited_s += time.perf_counter() - started_s
            _add_own_term(term, transfer)
            if transfer.forwards:
                forwarded.put(transfer)
    finally:
        forwarded.put(None)
    return waited_s


def _add_own_term(term: RingTerm, transfer: Transfer) -> None:
    piece = slice(transfer.start, transfer.stop)
    if transfer.reduces:
        term.kernels.add_scaled(term.scratch[piece], term.replica[piece], term.weight)
    if transfer.completes:
        _add_momentum(term, piece)


def _add_momentum(term: RingTerm, piece: slice) -> None:
    if term.gamma:
        term.kernels.momentum(
            term.scratch[piece], term.global_[piece], term.previous[piece], term.gamma
        )
