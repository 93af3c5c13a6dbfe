"""Arrays from each rank to others: small ones, one to many, and the parts of a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from daskxml.collectives.codec import Codec
from daskxml.collectives.messages import Flush, Program, Receive, Send
from daskxml.collectives.ring import pieces
from daskxml.core.arrays import Array

IN_FLIGHT = 2  # own pieces that are sent before the first one is received


@dataclass(frozen=True, slots=True)
class Multicast:
    """The elements ``start .. stop - 1``, and the ranks that they are sent to."""

    start: int
    stop: int
    targets: tuple[int, ...]


def multicast(
    rank: int,
    x: Array,
    codec: Codec,
    multicasts: Mapping[int, Sequence[Multicast]],
    prepare: Callable[[int, int], Array],
    piece_size: int,
) -> Program[None]:
    """Send this rank's parts of ``x``, and receive those that others send to it.

    Piece ``p`` of every rank goes to the ranks behind it in turn. So there is one order of all
    messages that senders and receivers keep, and no two ranks can wait for each other.

    Parameters
    ----------
    rank
        This rank.
    x
        ``(size,)``: holds the rank's own parts, and receives those of others.
    codec
        How pieces are encoded.
    multicasts
        For every rank, what it sends.
    prepare
        Called with start and stop of every own piece before it is sent, in order: computes it, and
        returns an array of its size that is not needed any more.
    piece_size
        Elements of a piece, at most.
    """
    own = list(_cut(multicasts[rank], piece_size))
    arrivals = sorted(
        (number, (rank - source) % len(multicasts), source, piece.start, piece.stop)
        for source, theirs in multicasts.items()
        for number, piece in enumerate(_cut(theirs, piece_size))
        if rank in piece.targets
    )

    def send(piece: Multicast) -> Program[None]:
        scratch = prepare(piece.start, piece.stop)
        if not piece.targets:
            return
        message = codec.encode_rounding(x[piece.start : piece.stop], scratch)
        for target in sorted(piece.targets, key=lambda to: (to - rank) % len(multicasts)):
            yield Send(target, message)

    sent = 0
    for number, _, source, start, stop in arrivals:
        while sent < min(number + IN_FLIGHT, len(own)):
            yield from send(own[sent])
            sent += 1
        yield from codec.receive(source, x[start:stop])
    for piece in own[sent:]:
        yield from send(piece)


def _cut(multicasts: Sequence[Multicast], piece_size: int) -> Iterator[Multicast]:
    for whole in multicasts:
        for start, stop in pieces(whole.start, whole.stop, piece_size):
            yield Multicast(start, stop, whole.targets)


def all_gather(rank: int, group: Sequence[int], own: Array) -> Program[list[Array]]:
    """Exchange small arrays in a group; return those of all ranks, in the order of the group.

    Parameters
    ----------
    rank
        One of the group.
    group
        Ranks, in the same order on all of them.
    own
        A NumPy array, of the same shape and dtype on all; must not change before a `Flush`.

    Examples
    --------
    >>> from daskxml.local.clock import run_together
    >>> run_together([all_gather(rank, (0, 1), np.full(1, rank + 5.0)) for rank in (0, 1)])
    [[array([5.]), array([6.])], [array([5.]), array([6.])]]
    """
    place = group.index(rank)
    gathered = [own if other == rank else np.empty_like(own) for other in group]
    for turn in range(1, len(group)):
        yield Send(group[(place + turn) % len(group)], own)
        source = (place - turn) % len(group)
        yield Receive(group[source], gathered[source])
    return gathered


def broadcast(rank: int, source: int, targets: Sequence[int], x: Array) -> Program[None]:
    """Send the array of one rank to others, which must not be that rank.

    Parameters
    ----------
    rank
        This rank; one that is neither ``source`` nor a target does nothing.
    source, targets
        The same on all ranks.
    x
        Sent, or overwritten.

    Examples
    --------
    >>> from daskxml.local.clock import run_together
    >>> x = np.array([[1, 2], [0, 0]])
    >>> _ = run_together([broadcast(rank, 0, [1], x[rank]) for rank in (0, 1)])
    >>> x[1]
    array([1, 2])
    """
    if rank in targets:
        yield Receive(source, x)
    if rank == source:
        for target in targets:
            yield Send(target, x)
        yield Flush()
