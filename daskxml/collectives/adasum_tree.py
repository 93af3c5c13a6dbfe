"""Adasum along a tree, by recursive vector halving in two phases.

Algorithm 1 of Maleki et al. 2021, for any number of ranks and in pieces. When two groups exchange,
each rank swaps halves with the others (`daskxml.collectives.halving`) and takes the dot products of
every layer while a piece is in the cache (phase one). The products are summed over both groups by
small messages, always in the order of the ranks, in float64. The halves are combined with them
(phase two) piece by piece as the next exchange needs them, so that a piece is sent as soon as it is
computed, and what is kept meets the piece that arrives for it with all three in the cache.

Extra memory is half a vector: an element's counterpart has the same place at every exchange, where
the last one has just been used up. An element of ``x`` that was sent is not touched again before
its final value arrives, which depends on it and so cannot arrive too early.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from daskxml.collectives.adasum import Layers, Tree, Vector, balanced, coefficients, norm_ratios
from daskxml.collectives.all_gather import IN_FLIGHT, all_gather, multicast
from daskxml.collectives.codec import Codec
from daskxml.collectives.halving import Exchange, HalvingSchedule, Units, halving_schedule
from daskxml.collectives.messages import Flush, Program, Send
from daskxml.collectives.ring import pieces
from daskxml.core.arrays import Array

_DOTS, _LEAVES = slice(0, 3), 3  # rows of the small arrays that groups exchange
_UNKNOWN = -1.0

Piece = tuple[int, int, int, int]  # number in its chunk, the other rank, start, stop


def adasum_tree(
    own: Vector, ranks: int, tree: Tree | None = None, units: Units | None = None
) -> Program[dict[str, float]]:
    """Combine the vectors of all ranks along a tree; the same bits on every rank.

    Parameters
    ----------
    own
        This rank's vector. Half of it, and 16 elements, are enough for its ``work``.
    ranks
        Their number, 1 or more.
    tree
        Its leaves are the ranks; by default neighbours come first.
    units
        The ranks of each unit, from left to right (see `daskxml.collectives.halving`); every unit
        is the whole of one of the tree's subtrees. By default each rank is one. Messages within a
        unit are float32, whatever ``own.transfer`` says.

    Returns
    -------
    dict
        The orthogonality of every layer that is not zero (section 3.6); empty for one rank.

    Examples
    --------
    >>> from daskxml.local.clock import run_together
    >>> from daskxml.kernels import get_kernels
    >>> x = np.array([[1, 0, 2, 2], [0, 1, 2, 2]], "f4")
    >>> own = [Vector(r, x[r], [("a", 0, 2), ("b", 2, 4)], get_kernels("cpu", 1)) for r in range(2)]
    >>> run_together([adasum_tree(vector, 2) for vector in own])[0]
    {'a': 1.0, 'b': 0.5}
    >>> x[1]
    array([1., 1., 2., 2.], dtype=float32)
    """
    everyone = tuple(range(ranks))
    tree, units = tree or balanced(everyone), units or tuple((one,) for one in everyone)
    schedule = halving_schedule(tree, units, own.size)
    if not schedule.exchanges:
        return {}
    halving = _Halving(schedule, own)
    yield from halving.reduce()
    yield from halving.gather()
    yield Flush()
    return halving.orthogonality


class _Halving:
    """One rank's part in a schedule."""

    def __init__(self, schedule: HalvingSchedule, own: Vector) -> None:
        self.schedule, self.rank, self.x = schedule, own.rank, own.x
        self.layers, self.piece_size = Layers(own.spans, own.kernels), own.piece_size
        self.codec = own.make_codec()
        self.orthogonality: dict[str, float] = {}
        self._leaves: Array | None = None  # per layer: the squared norms of what Adasum combined
        self._factors: tuple[Array, Array] | None = None  # of x and of its counterpart, not applied
        self._kept_starts: list[int] = []  # of this rank's chunks in its first exchange, ascending
        self._places: list[int] = []  # where the counterparts of these chunks start in ``work``
        place = 0
        for _, _, (start, stop) in _chunks_of(self._exchanges()[0], own.rank):
            self._kept_starts.append(start)
            self._places.append(place)
            place += stop - start
        self.work = own.work_array(place)

    def reduce(self) -> Program[None]:
        """Run the exchanges; this rank's parts of the result are then complete but for `_weigh`."""
        for exchange in self._exchanges():
            yield from self._run(exchange)

    def gather(self) -> Program[None]:
        """Send this rank's parts of the result to all ranks, and receive theirs."""
        between, within, size = self.schedule.between, self.schedule.within, self.piece_size
        yield from multicast(self.rank, self.x, self.codec, between, self._weigh, size)
        yield from multicast(
            self.rank, self.x, Codec(), within, lambda start, stop: self.x[start:stop], size
        )

    def _exchanges(self) -> list[Exchange]:
        return [one for one in self.schedule.exchanges if self.rank in one.left + one.right]

    def _run(self, exchange: Exchange) -> Program[None]:
        codec = Codec() if exchange.is_inside else self.codec
        sums = np.zeros((4, len(self.layers)))
        sent, kept = _pieces(exchange, self.rank, self.piece_size)
        for number, source, start, stop in kept:
            while sent and sent[0][0] < number + IN_FLIGHT:
                yield self._send(sent.popleft(), codec)
            counterpart = self._weigh(start, stop)
            yield from codec.receive(source, counterpart)
            if exchange.is_adasum:
                self.layers.add_dots(sums[_DOTS], self.x[start:stop], counterpart, start)
        for piece in sent:
            yield self._send(piece, codec)
        yield from self._find_factors(exchange, sums)

    def _send(self, piece: Piece, codec: Codec) -> Send:
        _, to, start, stop = piece
        if self._factors is not None:
            self._weigh(start, stop)
        return Send(to, codec.encode(self.x[start:stop]))

    def _find_factors(self, exchange: Exchange, sums: Array) -> Program[None]:
        """Compute the factors of both groups' vectors, the same on all of their ranks."""
        if not exchange.is_adasum:
            self._factors = np.ones(len(self.layers)), np.ones(len(self.layers))
            return
        is_left = self.rank in exchange.left
        if not is_left:
            sums[1:3] = sums[2:0:-1].copy()  # a is the left group's, b the right group's
        sums[_LEAVES] = _UNKNOWN if self._leaves is None else self._leaves
        gathered = yield from all_gather(self.rank, exchange.left + exchange.right, sums)
        self._set_factors(is_left, gathered, gathered[len(exchange.left)])

    @np.errstate(invalid="ignore", over="ignore")  # what is not finite shows in the result
    def _set_factors(self, is_left: bool, gathered: Sequence[Array], first_right: Array) -> None:
        ab, aa, bb = sum(one[_DOTS] for one in gathered)
        left, right = coefficients(ab, aa, bb)
        self._factors = (left, right) if is_left else (right, left)
        of_left, of_right = gathered[0][_LEAVES], first_right[_LEAVES]
        self._leaves = np.where(of_left == _UNKNOWN, aa, of_left)
        self._leaves += np.where(of_right == _UNKNOWN, bb, of_right)
        norms = left * left * aa + 2.0 * left * right * ab + right * right * bb
        self.orthogonality = norm_ratios(self.layers.names, norms, self._leaves)

    def _weigh(self, start: int, stop: int) -> Array:
        """Combine a piece of ``x`` with its counterpart; return the latter's memory, now free."""
        chunk = bisect_right(self._kept_starts, start) - 1
        place = self._places[chunk] + start - self._kept_starts[chunk]
        counterpart = self.work[place : place + stop - start]
        if self._factors is not None:
            own, other = self._factors
            self.layers.axpby(self.x[start:stop], own, counterpart, other, start)
        return counterpart


def _chunks_of(exchange: Exchange, rank: int) -> list[tuple[int, tuple[int, int], tuple[int, int]]]:
    return [chunk.on_rank(rank) for chunk in exchange.chunks if rank in (chunk.left, chunk.right)]


def _pieces(exchange: Exchange, rank: int, piece_size: int) -> tuple[deque[Piece], deque[Piece]]:
    """Return what a rank sends and what it keeps, in the order of the messages.

    All first pieces of chunks come before all second ones, and so on, on either side.
    """
    sent: list[Piece] = []
    kept: list[Piece] = []
    for other, to_send, to_keep in _chunks_of(exchange, rank):
        for bounds, found in ((to_send, sent), (to_keep, kept)):
            found += [(n, other, *piece) for n, piece in enumerate(pieces(*bounds, piece_size))]
    return deque(sorted(sent, key=itemgetter(0))), deque(sorted(kept, key=itemgetter(0)))
