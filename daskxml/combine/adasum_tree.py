"""Adasum along a tree, by recursive vector halving in two phases.

Algorithm 1 of Maleki et al. 2021, for any number of ranks and in pieces. When two groups meet,
each rank exchanges halves with the others (``halving``) and takes the dot products of every layer
while a piece is in the cache (phase one). The products are summed over both groups by small
messages, always in the order of the ranks, in float64. The halves are combined with them (phase
two) piece by piece as the next meeting needs them, so that a piece leaves as soon as it is made:
what is to be given away goes out, and what is kept meets the piece that arrives for it, with all
three in the cache.

Extra memory is half a vector: an element's counterpart lies in the same place at every meeting,
where the last one has just been used up. An element of ``x`` that was given away is not touched
again before its final value comes, which depends on it and so cannot come too early.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

import numpy as np

from daskxml.combine.adasum import Segment, coefficients, norm_ratios
from daskxml.combine.halving import Meeting, Plan, Units, make_plan, pieces
from daskxml.combine.joins import Tree, balanced
from daskxml.combine.kernels import CombineKernels, work_array
from daskxml.combine.layers import Layers
from daskxml.combine.messages import Flush, Program
from daskxml.combine.spreading import AHEAD, Spread, spread, tell_all
from daskxml.combine.wire import PlainWire, Wire, make_wire
from daskxml.types import Array

PIECE_FLOATS = 1 << 17  # 512 KiB: what arrives and what it meets fit a core's own cache
_DOTS, _LEAVES = slice(0, 3), 3  # rows of what ranks tell each other when they meet
_UNKNOWN = -1.0

Piece = tuple[int, int, int, int]  # number in its cell, the other rank, start, stop


def adasum_tree(
    rank: int,
    ranks: int,
    x: Array,
    segments: Sequence[Segment],
    kernels: CombineKernels,
    transfer: str = "float32",
    work: Array | None = None,
    piece_size: int = PIECE_FLOATS,
) -> Program[dict[str, float]]:
    """Combine the vectors of all ranks, neighbours first; the same bits on every rank.

    Parameters
    ----------
    rank, ranks
        This rank's place and the number of ranks, 1 or more.
    x
        ``(size,)`` float32: this rank's vector, overwritten with the result.
    segments
        The layers, ascending: name, start, stop.
    kernels
        The arithmetic.
    transfer
        ``float32``, ``float16`` or ``bfloat16``.
    work
        Overwritten: ``(size / 2 + 16,)`` float32 or more; by default it is allocated.
    piece_size
        Elements of a piece, at most; 1 or more.

    Returns
    -------
    dict
        The orthogonality of every layer that is not zero (section 3.6); empty for one rank.

    Examples
    --------
    >>> from daskxml.combine.lockstep import run_together
    >>> from daskxml.ops.naive import NaiveKernels
    >>> x = np.array([[1, 0, 2, 2], [0, 1, 2, 2]], "f4")
    >>> layers = [("a", 0, 2), ("b", 2, 4)]
    >>> run_together([adasum_tree(r, 2, x[r], layers, NaiveKernels()) for r in range(2)])[0]
    {'a': 1.0, 'b': 0.5}
    >>> x[1]
    array([1., 1., 2., 2.], dtype=float32)
    """
    everyone = tuple(range(ranks))
    units = tuple((rank,) for rank in everyone)
    found = yield from combine_along(
        balanced(everyone), units, rank, x, segments, kernels, transfer, work, piece_size
    )
    return found


def combine_along(
    tree: Tree,
    units: Units,
    rank: int,
    x: Array,
    segments: Sequence[Segment],
    kernels: CombineKernels,
    transfer: str,
    work: Array | None = None,
    piece_size: int = PIECE_FLOATS,
) -> Program[dict[str, float]]:
    """Combine the vectors of all ranks along any tree.

    As `adasum_tree`; ``transfer`` is for what goes from one unit to another.

    Parameters
    ----------
    tree
        Its leaves are the ranks ``0 .. n - 1``; every unit is the whole of one of its subtrees.
    units
        The ranks of each unit, from left to right (see `Plan`).
    """
    plan = make_plan(tree, units, int(x.shape[0]))
    if not plan.meetings:
        return {}
    halving = _Halving(plan, rank, x, work, Layers(segments), kernels, transfer, piece_size)
    yield from halving.reduce()
    yield from halving.spread(sum(map(len, units)))
    yield Flush()
    return halving.orthogonality


class _Halving:
    """One rank's way through a plan."""

    def __init__(
        self,
        plan: Plan,
        rank: int,
        x: Array,
        work: Array | None,
        layers: Layers,
        kernels: CombineKernels,
        transfer: str,
        piece_size: int,
    ) -> None:
        self.plan, self.rank, self.x = plan, rank, x
        self.work: Array = work
        self.layers, self.kernels, self.piece_size = layers, kernels, piece_size
        self.wire = make_wire(transfer, kernels, min(piece_size, int(x.shape[0])))
        self.orthogonality: dict[str, float] = {}
        self._leaves: Array | None = None  # per layer: the squared norms of what Adasum combined
        self._factors: tuple[Array, Array] | None = None  # of x and of its counterpart, not applied
        self._kept_starts: list[int] = []
        self._places: list[int] = []

    def reduce(self) -> Program[None]:
        """Meet group after group; this rank's parts of the result are then there, unweighed."""
        for meeting in self.plan.meetings:
            if self.rank in meeting.left or self.rank in meeting.right:
                yield from self._meet(meeting)

    def spread(self, ranks: int) -> Program[None]:
        """Tell everybody this rank's parts."""
        job = Spread(self.rank, ranks, self.x, self.wire, self.piece_size)
        yield from spread(job, self.plan.between, self._settle)
        job = Spread(self.rank, ranks, self.x, PlainWire(), self.piece_size)
        yield from spread(job, self.plan.within, lambda start, stop: self.x[start:stop])

    def _meet(self, meeting: Meeting) -> Program[None]:
        wire = PlainWire() if meeting.is_inside else self.wire
        told = np.zeros((4, len(self.layers)))
        given, kept = _pieces(meeting, self.rank, self.piece_size)
        if not self._kept_starts:
            self._lay_out(meeting)
        for number, source, start, stop in kept:
            while given and given[0][0] < number + AHEAD:
                yield from self._give(given.popleft(), wire)
            counterpart = self._settle(start, stop)
            yield from wire.receive(source, counterpart)
            if meeting.adapts:
                own = self.x[start:stop]
                self.layers.add_dots(told[_DOTS], own, counterpart, start, stop, self.kernels)
        for piece in given:
            yield from self._give(piece, wire)
        yield from self._agree(meeting, told)

    def _give(self, piece: Piece, wire: Wire) -> Program[None]:
        _, to, start, stop = piece
        if self._factors is not None:
            self._settle(start, stop)
        yield from wire.send([to], self.x[start:stop])

    def _agree(self, meeting: Meeting, told: Array) -> Program[None]:
        """Find the factors of both groups' vectors, the same on all of their ranks."""
        if not meeting.adapts:
            self._factors = np.ones(len(self.layers)), np.ones(len(self.layers))
            return
        is_left = self.rank in meeting.left
        if not is_left:
            told[1:3] = told[2:0:-1].copy()  # a is the left group's, b the right group's
        told[_LEAVES] = _UNKNOWN if self._leaves is None else self._leaves
        everybody = yield from tell_all(self.rank, meeting.left + meeting.right, told)
        self._decide(is_left, everybody, everybody[len(meeting.left)])

    @np.errstate(invalid="ignore", over="ignore")  # what is not finite shows in the result
    def _decide(self, is_left: bool, everybody: Sequence[Array], first_right: Array) -> None:
        ab, aa, bb = sum(one[_DOTS] for one in everybody)
        left, right = coefficients(ab, aa, bb)
        self._factors = (left, right) if is_left else (right, left)
        of_left, of_right = everybody[0][_LEAVES], first_right[_LEAVES]
        self._leaves = np.where(of_left == _UNKNOWN, aa, of_left)
        self._leaves += np.where(of_right == _UNKNOWN, bb, of_right)
        norms = left * left * aa + 2.0 * left * right * ab + right * right * bb
        self.orthogonality = norm_ratios(self.layers.names, norms, self._leaves)

    def _settle(self, start: int, stop: int) -> Array:
        """Weigh a piece of ``x`` with its counterpart; return the place of that, now free."""
        run = bisect_right(self._kept_starts, start) - 1
        place = self._places[run] + start - self._kept_starts[run]
        counterpart = self.work[place : place + stop - start]
        if self._factors is not None:
            own, other = self._factors
            piece = self.x[start:stop]
            self.layers.weigh(piece, own, counterpart, other, start, stop, self.kernels)
        return counterpart

    def _lay_out(self, meeting: Meeting) -> None:
        """Give the elements that this rank keeps at its first meeting their places in ``work``."""
        place = 0
        for _, _, (start, stop) in _cells_of(meeting, self.rank):
            self._kept_starts.append(start)
            self._places.append(place)
            place += stop - start
        self.work = work_array(self.work, place, self.kernels)


def _cells_of(meeting: Meeting, rank: int) -> list[tuple[int, tuple[int, int], tuple[int, int]]]:
    return [cell.seen_by(rank) for cell in meeting.cells if rank in (cell.left, cell.right)]


def _pieces(meeting: Meeting, rank: int, piece_size: int) -> tuple[deque[Piece], deque[Piece]]:
    """Return what a rank gives away and what it keeps, in the order of the messages.

    All first pieces of cells come before all second ones, and so on, on either side.
    """
    given: list[Piece] = []
    kept: list[Piece] = []
    for other, to_give, to_keep in _cells_of(meeting, rank):
        for run, found in ((to_give, given), (to_keep, kept)):
            found += [(n, other, *cut) for n, cut in enumerate(pieces(*run, piece_size))]
    return deque(sorted(given, key=_number)), deque(sorted(kept, key=_number))


def _number(piece: Piece) -> int:
    return piece[0]
