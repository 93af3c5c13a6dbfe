"""Who sends what to whom when vectors are combined in pairs by recursive halving.

Recursive vector halving (Maleki et al. 2021, Algorithm 1, after van de Geijn) for any number of
ranks and any binary tree. When two groups meet, each holds one vector, spread over its ranks in
parts. Where a part of a left rank overlaps one of a right rank there is a *cell*: the left rank
keeps the front of it and the right rank the back, in proportion to the sizes of the groups, and
each sends the other what it does not keep. Afterwards the joint vector is spread evenly over the
ranks of both groups. With two groups of the same size these are the halves of Algorithm 1.

A rank that is left over holds its vector whole until it meets a group. It has then a cell with
each of that group's ranks: it sends each of them its share and takes a share from each. So no
vector moves to another rank only to be ready for halving, and every rank sends ``1 - 1 / ranks``
of a vector in all: as little as the ring.

At the end every part of the result lies at one rank. A *unit* is a set of ranks with one vector:
usually one rank, or all ranks of a machine. Each part goes from its owner straight to the one rank
of each other unit that held it when the unit's own vector was complete, and then to all ranks of
the unit: so it passes between two machines once. (Algorithm 1 undoes its steps instead, which
moves as many bytes but lets them wait for each other.)

Messages have one order that all ranks keep: by meeting, by the number of the piece in its cell, by
cell. So no two ranks can wait for each other, however little a connection holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from daskxml.combine.joins import Join, Tree, ranks_of
from daskxml.combine.ring_order import ALIGNMENT_FLOATS

Units = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Part:
    """The elements ``start .. stop - 1`` of a vector, and the rank that holds them."""

    rank: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Cell:
    """``left`` keeps ``start .. middle - 1`` and ``right`` keeps ``middle .. stop - 1``."""

    left: int
    right: int
    start: int
    middle: int
    stop: int

    def seen_by(self, rank: int) -> tuple[int, tuple[int, int], tuple[int, int]]:
        """Return the other rank, what is given to it and what is kept, each from start to stop."""
        front, back = (self.start, self.middle), (self.middle, self.stop)
        return (self.right, back, front) if rank == self.left else (self.left, front, back)


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two groups combine their vectors.

    Attributes
    ----------
    left, right
        Their ranks.
    adapts
        By Adasum; else by addition.
    is_inside
        Within one unit.
    cells
        Ascending; together the whole vector.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    adapts: bool
    is_inside: bool
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Parcel:
    """The elements ``start .. stop - 1``, and the ranks that they go to."""

    start: int
    stop: int
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that happens.

    Attributes
    ----------
    meetings
        In an order in which they can happen.
    between
        For each rank, the parts of the result that it owns, cut where another unit's parts end,
        with the ranks (one in each other unit) that they go to.
    within
        For each rank, the parts that it then passes on to the others of its unit.
    """

    meetings: tuple[Meeting, ...]
    between: Mapping[int, Sequence[Parcel]]
    within: Mapping[int, Sequence[Parcel]]


@lru_cache(maxsize=32)  # a simulator asks once for each rank and step
def make_plan(tree: Tree, units: Units, size: int) -> Plan:
    """Lay out the combining of vectors of ``size`` elements along a tree.

    Parameters
    ----------
    tree
        Its leaves are all ranks; every unit is the whole of one of its subtrees.
    units
        The ranks of each unit, from left to right.
    size
        Elements of a vector.

    Examples
    --------
    >>> plan = make_plan(Join(Join(0, 1), 2), ((0,), (1,), (2,)), 96)
    >>> [[(c.left, c.right, c.start, c.middle, c.stop) for c in m.cells] for m in plan.meetings]
    [[(0, 1, 0, 48, 96)], [(0, 2, 0, 32, 48), (1, 2, 48, 80, 96)]]
    """
    survey = _Survey(size, units)
    final = survey.visit(tree)
    unit_parts = [survey.parts[unit] for unit in units]
    between: dict[int, list[Parcel]] = {rank: [] for rank in ranks_of(tree)}
    for part, targets in _cut(final, unit_parts):
        theirs = tuple(t for t, unit in zip(targets, units, strict=True) if part.rank not in unit)
        between[part.rank].append(Parcel(part.start, part.stop, theirs))
    within: dict[int, list[Parcel]] = {rank: [] for rank in ranks_of(tree)}
    for unit, parts in zip(units, unit_parts, strict=True):
        for part in parts if len(unit) > 1 else ():
            others = tuple(rank for rank in unit if rank != part.rank)
            within[part.rank].append(Parcel(part.start, part.stop, others))
    return Plan(tuple(survey.meetings), between, within)


@dataclass
class _Survey:
    """Walks a tree from its leaves, and notes who holds what."""

    size: int
    units: Units
    meetings: list[Meeting] = field(default_factory=list)
    parts: dict[tuple[int, ...], list[Part]] = field(default_factory=dict)

    def visit(self, tree: Tree) -> list[Part]:
        """Return who holds the vector of a subtree."""
        ranks = ranks_of(tree)
        self.parts[ranks] = self._join(tree) if isinstance(tree, Join) else self._leaf(tree)
        return self.parts[ranks]

    def _leaf(self, rank: int) -> list[Part]:
        return [Part(rank, 0, self.size)]

    def _join(self, join: Join) -> list[Part]:
        left, right = self.visit(join.left), self.visit(join.right)
        ranks = ranks_of(join.left), ranks_of(join.right)
        cells = list(_cells(left, right, len(ranks[0]), len(ranks[1])))
        both = {*ranks[0], *ranks[1]}
        is_inside = any(both <= set(unit) for unit in self.units)
        self.meetings.append(Meeting(*ranks, join.adapts, is_inside, tuple(cells)))
        halves = [
            half
            for cell in cells
            for half in (
                Part(cell.left, cell.start, cell.middle),
                Part(cell.right, cell.middle, cell.stop),
            )
        ]
        return [half for half in halves if half.start < half.stop]


def _cells(
    left: Sequence[Part], right: Sequence[Part], left_ranks: int, right_ranks: int
) -> Iterator[Cell]:
    for part, (other,) in _cut(left, [right]):
        kept = (part.stop - part.start) * left_ranks // (left_ranks + right_ranks)
        middle = part.start + kept
        middle = max(part.start, middle - middle % ALIGNMENT_FLOATS)
        yield Cell(part.rank, other, part.start, middle, part.stop)


def _cut(
    parts: Sequence[Part], others: Sequence[Sequence[Part]]
) -> Iterator[tuple[Part, tuple[int, ...]]]:
    """Cut parts where any part of the others ends; with the rank that holds it in each of them."""
    places = [0] * len(others)
    for part in parts:
        start = part.start
        while start < part.stop:
            here = [other[place] for other, place in zip(others, places, strict=True)]
            stop = min(part.stop, *(held.stop for held in here))
            yield Part(part.rank, start, stop), tuple(held.rank for held in here)
            places = [p + (held.stop == stop) for p, held in zip(places, here, strict=True)]
            start = stop


def pieces(start: int, stop: int, piece_size: int) -> Iterator[tuple[int, int]]:
    """Cut a run of elements into pieces.

    Examples
    --------
    >>> list(pieces(3, 8, 2))
    [(3, 5), (5, 7), (7, 8)]
    """
    for at in range(start, stop, piece_size):
        yield at, min(at + piece_size, stop)
