"""Adasum in linear order, ``Adasum(Adasum(g0, g1), g2)`` and so on, in one step for all ranks.

Maleki et al. 2021, section 3.4. Combined in pairs, one after the other, the n-th vector would have
to wait for n - 1 others. But Adasum's result is a linear combination of the vectors, and the
factors follow from their dot products alone: with ``v = sum_i c_i g_i``, ``v . g_k = sum_i c_i
G_ik`` and ``v . v = sum_ij c_i c_j G_ij``, where ``G_ij = g_i . g_j`` is the Gram matrix of a
layer. So:

1. each rank gathers its slice of all vectors, and takes the dot products of every layer while the
   pieces are in the cache: ``1 - 1 / n`` of a vector is sent;
2. the partial Gram matrices are exchanged and summed, in the order of the ranks, in float64;
3. each rank computes the factors by the recursion, in float64, then its slice of the result, and
   sends it to all others: again ``1 - 1 / n`` of a vector.

That is as much as a ring all-reduce sends. Slices go straight from rank to rank: forwarded round
the ring, the first step would take ``n / 2`` times as much. Exchanges of halves along a chain
(`daskxml.collectives.adasum_tree.adasum_tree`) send as much as well, but each waits for the one
before: 8 MiB between 4, 8 and 16 ranks took 1.0, 2.4 and 7.8 ms on virtual clocks, and 0.55, 0.68
and 0.80 this way. Its arithmetic grows with the number
of ranks, and extra memory is ``1 - 1 / n`` of a vector, where the tree needs half of one.

Where a sum of vectors cancels so far that what is left is below float32's rounding of its terms,
its dot products are noise, and it counts as zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from daskxml.collectives.adasum import Layers, Node, Tree, Vector, chain, coefficients, norm_ratios
from daskxml.collectives.all_gather import IN_FLIGHT, Multicast, all_gather, multicast
from daskxml.collectives.messages import Flush, Program, Send
from daskxml.collectives.ring import partition_bounds, pieces
from daskxml.core.arrays import Array

_NOISE = 1e-14  # squared: a few times float32's rounding


def adasum_linear(own: Vector, ranks: int) -> Program[dict[str, float]]:
    """Combine the vectors of all ranks one after the other; the same bits on every rank.

    Parameters
    ----------
    own
        This rank's vector.
    ranks
        Their number, 1 or more.

    Returns
    -------
    dict
        The orthogonality of every layer that is not zero (section 3.6); empty for one rank.

    Examples
    --------
    >>> from daskxml.local.clock import run_together
    >>> from daskxml.kernels import get_kernels
    >>> x = np.ones((3, 2), "f4")
    >>> own = [Vector(r, x[r], [("all", 0, 2)], get_kernels("cpu", 1)) for r in range(3)]
    >>> run_together([adasum_linear(vector, 3) for vector in own])[0]
    {'all': 0.333...}
    """
    if ranks == 1:
        return {}
    slices = _Slices(own, ranks)
    grams = yield from slices.exchange()
    gathered = yield from all_gather(own.rank, range(ranks), grams)
    factors, orthogonality = _solved(slices.layers.names, gathered)
    yield from slices.gather(factors)
    yield Flush()
    return orthogonality


class _Slices:
    """One rank's slice of the vectors of all: its own in ``x``, the others' in ``rows``."""

    def __init__(self, own: Vector, ranks: int) -> None:
        self.rank, self.ranks, self.x, self.kernels = own.rank, ranks, own.x, own.kernels
        self.codec, self.piece_size = own.make_codec(), own.piece_size
        self.layers = Layers(own.spans, own.kernels)
        self.bounds = partition_bounds(own.size, ranks)
        start, stop = self.bounds[own.rank]
        self.rows = own.work_array((ranks - 1) * (stop - start)).reshape(ranks - 1, stop - start)
        # The rank before this one first; the order of ``rows``.
        self._others = [(own.rank - turn) % ranks for turn in range(1, ranks)]

    def exchange(self) -> Program[Array]:
        """Exchange slices; return this rank's share of the Gram matrices ``(layers, n, n)``."""
        grams = np.zeros((len(self.layers), self.ranks, self.ranks))
        cut = [list(pieces(*bounds, self.piece_size)) for bounds in self.bounds]
        sent = 0
        for number in range(max(map(len, cut))):
            while sent < min(number + IN_FLIGHT, max(map(len, cut))):
                yield from self._send(cut, sent)
                sent += 1
            if number < len(cut[self.rank]):
                yield from self._receive(*cut[self.rank][number])
                self._add_dots(grams, *cut[self.rank][number])
        return grams

    def gather(self, factors: Array) -> Program[None]:
        """Compute this rank's slice of the result, send it to all, and receive theirs."""
        multicasts = {
            rank: [Multicast(*bounds, tuple(r for r in range(self.ranks) if r != rank))]
            for rank, bounds in enumerate(self.bounds)
        }

        def prepare(start: int, stop: int) -> Array:
            self._combine(factors, start, stop)
            return self._piece(self._others[0], start, stop)

        yield from multicast(self.rank, self.x, self.codec, multicasts, prepare, self.piece_size)

    def _piece(self, rank: int, start: int, stop: int) -> Array:
        if rank == self.rank:
            return self.x[start:stop]
        first = self.bounds[self.rank][0]
        return self.rows[self._others.index(rank)][start - first : stop - first]

    def _send(self, cut: Sequence[Sequence[tuple[int, int]]], number: int) -> Program[None]:
        for to in reversed(self._others):
            if number < len(cut[to]):
                start, stop = cut[to][number]
                yield Send(to, self.codec.encode(self.x[start:stop]))

    def _receive(self, start: int, stop: int) -> Program[None]:
        for source in self._others:
            yield from self.codec.receive(source, self._piece(source, start, stop))

    @np.errstate(invalid="ignore")
    def _add_dots(self, grams: Array, start: int, stop: int) -> None:
        sums = np.zeros((3, len(self.layers)))
        for i, j in combinations(range(self.ranks), 2):
            sums[...] = 0.0
            one, other = self._piece(i, start, stop), self._piece(j, start, stop)
            self.layers.add_dots(sums, one, other, start)
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
        self.layers.axpby(out, of_own, one, of_first, start)
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
    """Return the factor of every vector in what Adasum combines them to along a tree.

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
    >>> factors_along(Node(Node(0, 1), 2), np.ones((1, 3, 3)))
    array([[0.25, 0.25, 0.5 ]])
    """
    if not isinstance(tree, Node):
        factors = np.zeros(grams.shape[:2])
        factors[:, tree] = 1.0
        return factors
    left, right = factors_along(tree.left, grams), factors_along(tree.right, grams)
    if not tree.is_adasum:
        return left + right
    ab = np.einsum("li,lij,lj->l", left, grams, right)
    of_left, of_right = coefficients(ab, _norms(left, grams), _norms(right, grams))
    return of_left[:, None] * left + of_right[:, None] * right


def _norms(factors: Array, grams: Array) -> Array:
    """Return the squared norms ``(layers,)`` of linear combinations; 0 where only noise is left."""
    norms = np.einsum("li,lij,lj->l", factors, grams, factors)
    terms = np.einsum("li,lij,lj->l", abs(factors), abs(grams), abs(factors))
    return np.where(norms > _NOISE * terms, norms, 0.0)


@np.errstate(invalid="ignore", over="ignore")
def _solved(names: Sequence[str], gathered: Sequence[Array]) -> tuple[Array, dict[str, float]]:
    """Return the factors of all vectors, and the orthogonality of every layer."""
    grams = sum(gathered)
    factors = factors_along(chain(range(len(gathered))), grams)
    norms = np.einsum("li,lij,lj->l", factors, grams, factors)
    return factors, norm_ratios(names, norms, np.einsum("lii->l", grams))
