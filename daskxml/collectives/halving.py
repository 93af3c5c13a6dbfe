"""Which part of a vector each rank combines, sends and receives in recursive vector halving.

Recursive vector halving (Maleki et al. 2021, Algorithm 1, after van de Geijn) for any number of
ranks and any binary tree. When two groups exchange, each has one vector, spread over its ranks in
parts. Where a part of a left rank overlaps one of a right rank there is a *chunk*: the left rank
keeps the front of it and the right rank the back, in proportion to the sizes of the groups, and
each sends the other what it does not keep. Afterwards the joint vector is spread evenly over the
ranks of both groups. With two groups of the same size these are the halves of Algorithm 1.

A rank that is left over has its whole vector until it exchanges with a group. It then has a chunk
with each of that group's ranks: it sends each of them its share and takes a share from each. So no
vector is moved to another rank only to be ready for halving, and every rank sends ``1 - 1 / ranks``
of a vector in all: as little as the ring.

At the end every part of the result is on one rank. A *unit* is a set of ranks with one vector:
usually one rank, or all ranks of a machine. Each part goes from its owner straight to the one rank
of each other unit that held it when the unit's own vector was complete, and then to all ranks of
the unit: so it passes between two machines once. (Algorithm 1 undoes its steps instead, which
moves as many bytes but lets them wait for each other.)

Messages have one order that all ranks keep: by exchange, by the number of the piece in its chunk,
by chunk. So no two ranks can wait for each other, however little a connection buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from daskxml.collectives.adasum import Node, Tree, ranks_of
from daskxml.collectives.all_gather import Multicast
from daskxml.collectives.ring import ALIGNMENT_FLOATS

Units = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class OwnedSpan:
    """The elements ``start .. stop - 1`` of a vector, and the rank that has them."""

    rank: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """``left`` keeps ``start .. middle - 1`` and ``right`` keeps ``middle .. stop - 1``."""

    left: int
    right: int
    start: int
    middle: int
    stop: int

    def halves(self) -> tuple[OwnedSpan, OwnedSpan]:
        """Return what both keep."""
        left = OwnedSpan(self.left, self.start, self.middle)
        return left, OwnedSpan(self.right, self.middle, self.stop)

    def on_rank(self, rank: int) -> tuple[int, tuple[int, int], tuple[int, int]]:
        """Return the other rank, what is sent to it and what is kept, each as (start, stop)."""
        front, back = (self.start, self.middle), (self.middle, self.stop)
        return (self.right, back, front) if rank == self.left else (self.left, front, back)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Two groups combine their vectors.

    Attributes
    ----------
    left, right
        Their ranks.
    is_adasum
        By Adasum; else by addition.
    is_inside
        Within one unit.
    chunks
        Ascending; together the whole vector.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    is_adasum: bool
    is_inside: bool
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class HalvingSchedule:
    """All messages of a combination of vectors.

    Attributes
    ----------
    exchanges
        In an order in which they can happen.
    between
        For each rank, the parts of the result that it owns, cut where another unit's parts end,
        with the ranks (one in each other unit) that they are sent to.
    within
        For each rank, the parts that it then forwards to the others of its unit.
    """

    exchanges: tuple[Exchange, ...]
    between: Mapping[int, Sequence[Multicast]]
    within: Mapping[int, Sequence[Multicast]]


@lru_cache(maxsize=32)  # a simulator calls it once for each rank and step
def halving_schedule(tree: Tree, units: Units, size: int) -> HalvingSchedule:
    """Schedule the combination of vectors of ``size`` elements along a tree.

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
    >>> schedule = halving_schedule(Node(Node(0, 1), 2), ((0,), (1,), (2,)), 96)
    >>> [[(c.left, c.right, c.start, c.middle, c.stop) for c in exchange.chunks]
    ...  for exchange in schedule.exchanges]
    [[(0, 1, 0, 48, 96)], [(0, 2, 0, 32, 48), (1, 2, 48, 80, 96)]]
    """
    exchanges: list[Exchange] = []
    parts: dict[tuple[int, ...], list[OwnedSpan]] = {}
    final = _visit(tree, units, size, exchanges, parts)
    unit_parts = [parts[unit] for unit in units]
    between: dict[int, list[Multicast]] = {rank: [] for rank in ranks_of(tree)}
    for part, targets in _cut(final, unit_parts):
        theirs = tuple(t for t, unit in zip(targets, units, strict=True) if part.rank not in unit)
        between[part.rank].append(Multicast(part.start, part.stop, theirs))
    within: dict[int, list[Multicast]] = {rank: [] for rank in ranks_of(tree)}
    for unit, own in zip(units, unit_parts, strict=True):
        for part in own if len(unit) > 1 else ():
            others = tuple(rank for rank in unit if rank != part.rank)
            within[part.rank].append(Multicast(part.start, part.stop, others))
    return HalvingSchedule(tuple(exchanges), between, within)


def _visit(
    tree: Tree, units: Units, size: int, exchanges: list[Exchange],
    parts: dict[tuple[int, ...], list[OwnedSpan]],
) -> list[OwnedSpan]:  # fmt: skip
    """Return which rank owns which part of a subtree's vector; add this, and its exchanges."""
    ranks = ranks_of(tree)
    if not isinstance(tree, Node):
        return parts.setdefault(ranks, [OwnedSpan(tree, 0, size)])
    left = _visit(tree.left, units, size, exchanges, parts)
    right = _visit(tree.right, units, size, exchanges, parts)
    groups = ranks_of(tree.left), ranks_of(tree.right)
    chunks = tuple(_chunks(left, right, *map(len, groups)))
    is_inside = any({*ranks} <= {*unit} for unit in units)
    exchanges.append(Exchange(*groups, tree.is_adasum, is_inside, chunks))
    halves = (half for chunk in chunks for half in chunk.halves())
    return parts.setdefault(ranks, [half for half in halves if half.start < half.stop])


def _chunks(
    left: Sequence[OwnedSpan], right: Sequence[OwnedSpan], left_ranks: int, right_ranks: int
) -> Iterator[Chunk]:
    for part, (other,) in _cut(left, [right]):
        kept = (part.stop - part.start) * left_ranks // (left_ranks + right_ranks)
        middle = part.start + kept
        middle = max(part.start, middle - middle % ALIGNMENT_FLOATS)
        yield Chunk(part.rank, other, part.start, middle, part.stop)


def _cut(
    parts: Sequence[OwnedSpan], others: Sequence[Sequence[OwnedSpan]]
) -> Iterator[tuple[OwnedSpan, tuple[int, ...]]]:
    """Cut parts where any part of the others ends; yield the rank that has it in each of them."""
    places = [0] * len(others)
    for part in parts:
        start = part.start
        while start < part.stop:
            here = [other[place] for other, place in zip(others, places, strict=True)]
            stop = min(part.stop, *(held.stop for held in here))
            yield OwnedSpan(part.rank, start, stop), tuple(held.rank for held in here)
            places = [p + (held.stop == stop) for p, held in zip(places, here, strict=True)]
            start = stop
