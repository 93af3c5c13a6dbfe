"""Adasum in linear order, ``Adasum(Adasum(g0, g1), g2)`` and so on, in one step for all ranks.

Maleki et al. 2021, section 3.4. Combined in pairs, one after the other, the n-th vector would have
to wait for n - 1 others. But whatever Adasum makes of vectors is a sum of them with factors, and
the factors follow from their dot products alone: with ``v = sum_i c_i g_i``, ``v . g_k = sum_i c_i
G_ik`` and ``v . v = sum_ij c_i c_j G_ij``, where ``G_ij = g_i . g_j`` is the Gram matrix of a
layer. So:

1. each rank gathers its slice of all vectors, and takes the dot products of every layer while the
   pieces are in the cache: ``1 - 1 / n`` of a vector is sent;
2. the partial Gram matrices are exchanged and summed, in the order of the ranks, in float64;
3. each rank finds the factors by the recursion, in float64, makes its slice of the result, and
   sends it to all others: again ``1 - 1 / n`` of a vector.

That is as much as a ring all-reduce sends. Slices go straight from rank to rank: passed on round
the ring, the first step would take ``n / 2`` times as much. Its arithmetic grows with the number
of ranks, and extra memory is ``1 - 1 / n`` of a vector, where the tree needs half of one.

Where a sum of vectors cancels so far that what is left lies below float32's rounding of its terms,
its dot products are noise, and it counts as zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from daskxml.combine.adasum import Segment, coefficients, norm_ratios
from daskxml.combine.halving import Parcel, pieces
from daskxml.combine.joins import Join, Tree, chain
from daskxml.combine.kernels import CombineKernels, work_array
from daskxml.combine.layers import Layers
from daskxml.combine.messages import Flush, Program
from daskxml.combine.ring_order import partition_bounds
from daskxml.combine.spreading import AHEAD, Spread, spread, tell_all
from daskxml.combine.wire import Wire, make_wire
from daskxml.types import Array

PIECE_FLOATS = 1 << 17  # 512 KiB, of every vector: large enough for its system calls
_NOISE = 1e-14  # squared: a few times float32's rounding


def adasum_linear(
    rank: int,
    ranks: int,
    x: Array,
    segments: Sequence[Segment],
    kernels: CombineKernels,
    transfer: str = "float32",
    work: Array | None = None,
    piece_size: int = PIECE_FLOATS,
) -> Program[dict[str, float]]:
    """Combine the vectors of all ranks one after the other; the same bits on every rank.

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
        Overwritten: ``(size,)`` float32; allocated where it is missing or too small (vectors of
        a few hundred elements).
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
    >>> x = np.ones((3, 2), "f4")
    >>> run_together([adasum_linear(r, 3, x[r], [("all", 0, 2)], NaiveKernels())
    ...     for r in range(3)])[0]
    {'all': 0.333...}
    """
    if ranks == 1:
        return {}
    wire = make_wire(transfer, kernels, min(piece_size, int(x.shape[0])))
    bounds = partition_bounds(int(x.shape[0]), ranks)
    size = bounds[rank][1] - bounds[rank][0]
    rows = work_array(work, (ranks - 1) * size, kernels).reshape(ranks - 1, size)
    slices = _Slices(rank, ranks, x, rows, bounds, Layers(segments), kernels, wire, piece_size)
    grams = yield from slices.gather()
    everybody = yield from tell_all(rank, range(ranks), grams)
    grams = _total(everybody)
    factors = factors_along(chain(range(ranks)), grams)
    yield from slices.spread(factors)
    yield Flush()
    return _orthogonality(slices.layers.names, grams, factors)


@dataclass
class _Slices:
    """One rank's slice of everybody's vectors: its own in ``x``, the others' in ``rows``."""

    rank: int
    ranks: int
    x: Array
    rows: Array
    bounds: Sequence[tuple[int, int]]
    layers: Layers
    kernels: CombineKernels
    wire: Wire
    piece_size: int

    def __post_init__(self) -> None:
        before = ((self.rank - turn) % self.ranks for turn in range(1, self.ranks))
        self._others = list(before)  # the one before this one first: the order of ``rows``

    def gather(self) -> Program[Array]:
        """Exchange slices; return this rank's share of the Gram matrices ``(layers, n, n)``."""
        grams = np.zeros((len(self.layers), self.ranks, self.ranks))
        cut = [list(pieces(*bounds, self.piece_size)) for bounds in self.bounds]
        sent = 0
        for number in range(max(map(len, cut))):
            while sent < min(number + AHEAD, max(map(len, cut))):
                yield from self._send(cut, sent)
                sent += 1
            if number < len(cut[self.rank]):
                yield from self._receive(*cut[self.rank][number])
                self._add_dots(grams, *cut[self.rank][number])
        return grams

    def spread(self, factors: Array) -> Program[None]:
        """Make this rank's slice of the result, and tell it to all."""
        parcels = {
            rank: (Parcel(*self.bounds[rank], tuple(r for r in range(self.ranks) if r != rank)),)
            for rank in range(self.ranks)
        }

        def prepare(start: int, stop: int) -> Array:
            self._combine(factors, start, stop)
            return self._piece(self._others[0], start, stop)

        job = Spread(self.rank, self.ranks, self.x, self.wire, self.piece_size)
        yield from spread(job, parcels, prepare)

    def _piece(self, rank: int, start: int, stop: int) -> Array:
        if rank == self.rank:
            return self.x[start:stop]
        first = self.bounds[self.rank][0]
        return self.rows[self._others.index(rank)][start - first : stop - first]

    def _send(self, cut: Sequence[Sequence[tuple[int, int]]], number: int) -> Program[None]:
        for to in reversed(self._others):
            if number < len(cut[to]):
                start, stop = cut[to][number]
                yield from self.wire.send([to], self.x[start:stop])

    def _receive(self, start: int, stop: int) -> Program[None]:
        for source in self._others:
            yield from self.wire.receive(source, self._piece(source, start, stop))

    @np.errstate(invalid="ignore")
    def _add_dots(self, grams: Array, start: int, stop: int) -> None:
        sums = np.zeros((3, len(self.layers)))
        for i, j in combinations(range(self.ranks), 2):
            sums[...] = 0.0
            one, other = self._piece(i, start, stop), self._piece(j, start, stop)
            self.layers.add_dots(sums, one, other, start, stop, self.kernels)
            grams[:, i, j] += sums[0]
            grams[:, j, i] += sums[0]
            if j == i + 1:
                grams[:, i, i] += sums[1]
            if j == self.ranks - 1 == i + 1:
                grams[:, j, j] += sums[2]

    def _combine(self, factors: Array, start: int, stop: int) -> None:
        first, *others = self._others
        out, one = self.x[start:stop], self._piece(first, start, stop)
        of_own, of_first = factors[:, self.rank], factors[:, first]
        self.layers.weigh(out, of_own, one, of_first, start, stop, self.kernels)
        for i, j in zip(others[::2], others[1::2], strict=False):
            for layer, part in self.layers.within(start, stop):
                one, other = (self._piece(k, part.start, part.stop) for k in (i, j))
                of_one, of_other = float(factors[layer, i]), float(factors[layer, j])
                self.kernels.add_two(self.x[part], one, of_one, other, of_other)
        for last in others[-1:] if len(others) % 2 else ():
            for layer, part in self.layers.within(start, stop):
                one = self._piece(last, part.start, part.stop)
                self.kernels.add_scaled(self.x[part], one, float(factors[layer, last]))


@np.errstate(invalid="ignore", over="ignore")  # what is not finite shows in the result
def factors_along(tree: Tree, grams: Array) -> Array:
    """Return what every vector is multiplied by in what Adasum makes of them along a tree.

    Parameters
    ----------
    tree
        Its leaves are ``0 .. n - 1``.
    grams
        ``(layers, n, n)`` float64: the dot products of the vectors, layer by layer.

    Returns
    -------
    array
        ``(layers, n)`` float64.

    Examples
    --------
    >>> factors_along(Join(Join(0, 1), 2), np.ones((1, 3, 3)))
    array([[0.25, 0.25, 0.5 ]])
    """
    if not isinstance(tree, Join):
        factors = np.zeros(grams.shape[:2])
        factors[:, tree] = 1.0
        return factors
    left, right = factors_along(tree.left, grams), factors_along(tree.right, grams)
    if not tree.adapts:
        return left + right
    ab = np.einsum("li,lij,lj->l", left, grams, right)
    of_left, of_right = coefficients(ab, _norms(left, grams), _norms(right, grams))
    return of_left[:, None] * left + of_right[:, None] * right


def _norms(factors: Array, grams: Array) -> Array:
    """Return the squared norms ``(layers,)`` of sums of vectors; 0 where only noise is left."""
    norms = np.einsum("li,lij,lj->l", factors, grams, factors)
    terms = np.einsum("li,lij,lj->l", abs(factors), abs(grams), abs(factors))
    return np.where(norms > _NOISE * terms, norms, 0.0)


@np.errstate(invalid="ignore")
def _total(grams: Sequence[Array]) -> Array:
    return sum(grams)


@np.errstate(invalid="ignore", over="ignore")
def _orthogonality(names: Sequence[str], grams: Array, factors: Array) -> dict[str, float]:
    norms = np.einsum("li,lij,lj->l", factors, grams, factors)
    return norm_ratios(names, norms, np.einsum("lii->l", grams))
