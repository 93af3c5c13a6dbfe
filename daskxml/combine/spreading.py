"""The second half of a collective: every rank sends others the parts of a result that it owns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from daskxml.combine.halving import Parcel, pieces
from daskxml.combine.messages import Program, Receive, Send
from daskxml.combine.wire import Wire
from daskxml.types import Array

AHEAD = 2  # pieces on their way before the first one is waited for


@dataclass(frozen=True, slots=True)
class Spread:
    """What `spread` needs to know of one rank.

    Attributes
    ----------
    rank, ranks
        Its number, and how many there are.
    x
        ``(size,)``: holds the rank's own parts, and takes those of others.
    wire
        How they travel.
    piece_size
        Elements of a piece.
    """

    rank: int
    ranks: int
    x: Array
    wire: Wire
    piece_size: int


def spread(
    job: Spread,
    parcels: Mapping[int, Sequence[Parcel]],
    prepare: Callable[[int, int], Array],
) -> Program[None]:
    """Send this rank's parcels, and receive those of others that are for it.

    Piece ``p`` of every rank goes to the ranks behind it in turn. So there is one order of all
    messages that senders and receivers keep, and no two ranks can wait for each other.

    Parameters
    ----------
    job
        Who, and from where to where.
    parcels
        What every rank has to send; ranks without any may be missing.
    prepare
        Called with start and stop of every own piece before it is sent, in order: computes it, and
        returns an array of its size that nobody needs.
    """
    own = list(_cut(parcels.get(job.rank, ()), job.piece_size))
    coming = list(_arrivals(job, parcels))
    sent = 0
    for number, source, start, stop in coming:
        while sent < min(number + AHEAD, len(own)):
            yield from _publish(job, own[sent], prepare)
            sent += 1
        yield from job.wire.receive(source, job.x[start:stop])
    for parcel in own[sent:]:
        yield from _publish(job, parcel, prepare)


def _publish(job: Spread, own: Parcel, prepare: Callable[[int, int], Array]) -> Program[None]:
    spare = prepare(own.start, own.stop)
    if not own.targets:
        return
    targets = sorted(own.targets, key=lambda target: (target - job.rank) % job.ranks)
    yield from job.wire.publish(targets, job.x[own.start : own.stop], spare)


def _arrivals(
    job: Spread, parcels: Mapping[int, Sequence[Parcel]]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, source, start and stop of every piece for this rank, in the common order."""
    arriving = [
        (number, (job.rank - source) % job.ranks, source, piece.start, piece.stop)
        for source, theirs in parcels.items()
        for number, piece in enumerate(_cut(theirs, job.piece_size))
        if job.rank in piece.targets
    ]
    for number, _, source, start, stop in sorted(arriving):
        yield number, source, start, stop


def _cut(parcels: Sequence[Parcel], piece_size: int) -> Iterator[Parcel]:
    for parcel in parcels:
        for start, stop in pieces(parcel.start, parcel.stop, piece_size):
            yield Parcel(start, stop, parcel.targets)


def tell_all(rank: int, group: Sequence[int], mine: Array) -> Program[list[Array]]:
    """Exchange small arrays in a group; return everybody's, in the order of the group.

    Parameters
    ----------
    rank
        One of the group.
    group
        Ranks, in the same order on all of them.
    mine
        A NumPy array, of the same shape and dtype on all; must not change before a `Flush`.

    Examples
    --------
    >>> from daskxml.combine.lockstep import run_together
    >>> run_together([tell_all(rank, (0, 1), np.full(1, rank + 5.0)) for rank in (0, 1)])
    [[array([5.]), array([6.])], [array([5.]), array([6.])]]
    """
    place = group.index(rank)
    everybody = [mine if other == rank else np.empty_like(mine) for other in group]
    for turn in range(1, len(group)):
        yield Send(group[(place + turn) % len(group)], mine)
        source = (place - turn) % len(group)
        yield Receive(group[source], everybody[source])
    return everybody
