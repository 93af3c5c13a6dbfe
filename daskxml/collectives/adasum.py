"""Adasum: its formula, the trees along which it combines vectors, and layers of flat vectors.

Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2021, section 3:

    Adasum(a, b) = (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b

Orthogonal vectors are added, parallel ones of one length averaged. More than two are combined
along a binary tree (section 3.4), ``linear`` or balanced, and every layer on its own (section 3.6).
The paper does not say what a zero vector does; here it contributes nothing.

The programs in `adasum_tree` and `adasum_linear` do this among ranks. They are tested against the
definition itself, for vectors in one process.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from daskxml.collectives.codec import Codec, make_codec
from daskxml.core.arrays import Array
from daskxml.kernels import Kernels

PIECE_FLOATS = 1 << 17  # 512 KiB: what arrives and its counterpart fit a core's own cache
ParameterSpan = tuple[str, int, int]
"""A parameter's (layer's) name, its first element in the flat array, and the one after its last."""


@dataclass(frozen=True, slots=True)
class Vector:
    """One rank's vector, which becomes the result, and how it is combined with the others.

    Attributes
    ----------
    rank
        This rank, from 0.
    x
        ``(size,)`` float32, overwritten with the result.
    spans
        The layers of ``x``, ascending.
    kernels
        The arithmetic.
    transfer
        ``float32``, ``float16`` or ``bfloat16``, of messages.
    work
        Overwritten: ``(size,)`` float32; allocated where it is missing or too small (vectors of
        a few hundred elements).
    piece_size
        Elements of a piece, at most; 1 or more.
    """

    rank: int
    x: Array
    spans: Sequence[ParameterSpan]
    kernels: Kernels
    transfer: str = "float32"
    work: Array | None = None
    piece_size: int = PIECE_FLOATS

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self.x.shape[0])

    def make_codec(self) -> Codec:
        """Return how pieces are encoded."""
        return make_codec(self.transfer, self.kernels, min(self.piece_size, self.size))

    def work_array(self, size: int) -> Array:
        """Return an array of ``size`` elements: the start of ``work`` if it is long enough."""
        if self.work is None or self.work.shape[0] < size:
            return self.kernels.empty(size)
        return self.work[:size]


# ---------------------------------------------------------------------------------- formula


def coefficients(ab: Array, aa: Array, bb: Array) -> tuple[Array, Array]:
    """Return the factors of ``a`` and ``b`` in ``Adasum(a, b)``, of one layer or of many at once.

    Parameters
    ----------
    ab, aa, bb
        The dot products, float64, scalars or of any one shape.

    Examples
    --------
    >>> coefficients(np.array([0.0, 2.0, 0.0]), np.array([1.0, 2.0, 0.0]), np.ones(3))
    (array([1. , 0.5, 1. ]), array([1., 0., 1.]))
    """
    return _coefficient(ab, aa), _coefficient(ab, bb)


def _coefficient(ab: Array, own: Array) -> Array:
    ratio = np.divide(ab, own, out=np.zeros_like(np.asarray(ab)), where=np.asarray(own) > 0)
    return 1.0 - 0.5 * ratio


def norm_ratios(names: Sequence[str], part: Array, whole: Array) -> dict[str, float]:
    """Return ``part / whole`` of squared norms ``(layers,)`` by name, where ``whole`` is not zero.

    With ``||Adasum(g)||^2`` and ``sum_i ||g_i||^2`` this is the *orthogonality* of section 3.6: 1
    for orthogonal vectors, 1 / n for n equal ones.

    Examples
    --------
    >>> norm_ratios(["a", "b"], np.array([1.0, 0.0]), np.array([2.0, 0.0]))
    {'a': 0.5}
    """
    return {
        name: max(0.0, float(p)) / float(w)
        for name, p, w in zip(names, part, whole, strict=True)
        if w > 0
    }


# ------------------------------------------------------------------------------------ trees


@dataclass(frozen=True, slots=True)
class Node:
    """Two subtrees whose vectors are combined: by Adasum, or else by addition."""

    left: Tree
    right: Tree
    is_adasum: bool = True


Tree: TypeAlias = int | Node
"""In which order vectors are combined in pairs: a binary tree whose leaves are ranks."""


def balanced(parts: Sequence[Tree], is_adasum: bool = True) -> Tree:
    """Combine neighbours, then pairs of neighbours; one that is left over joins the next level.

    Examples
    --------
    >>> balanced((0, 1, 2))
    Node(left=Node(left=0, right=1, is_adasum=True), right=2, is_adasum=True)
    """
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        nodes: list[Tree] = [Node(left, right, is_adasum) for left, right in pairs]
        parts = [*nodes, *(parts[-1:] if len(parts) % 2 else [])]
    return parts[0]


def chain(parts: Sequence[Tree], is_adasum: bool = True) -> Tree:
    """Combine the first with the second, the result with the third, and so on.

    Examples
    --------
    >>> chain((0, 1, 2)).left
    Node(left=0, right=1, is_adasum=True)
    """
    tree = parts[0]
    for part in parts[1:]:
        tree = Node(tree, part, is_adasum)
    return tree


def ranks_of(tree: Tree) -> tuple[int, ...]:
    """Return the leaves from left to right.

    Examples
    --------
    >>> ranks_of(Node(Node(0, 1), 2))
    (0, 1, 2)
    """
    if not isinstance(tree, Node):
        return (tree,)
    return ranks_of(tree.left) + ranks_of(tree.right)


# ----------------------------------------------------------------------------------- layers


class Layers:
    """The layers of flat float32 vectors, which are combined each on its own.

    This is the bookkeeping of tensor boundaries in a fused tensor of Maleki et al. 2021, section
    4.4.3: small layers travel in one message with their neighbours.

    Parameters
    ----------
    spans
        Ascending, without overlap. What is between them (the padding of a model) is moved but
        not combined.
    kernels
        The arithmetic.

    Examples
    --------
    >>> layers = Layers([("a", 0, 5), ("b", 8, 10)], kernels=None)
    >>> list(layers.within(3, 9))
    [(0, slice(3, 5, None)), (1, slice(8, 9, None))]
    """

    def __init__(self, spans: Sequence[ParameterSpan], kernels: Kernels) -> None:
        self.names = [name for name, _, _ in spans]
        self._starts = [start for _, start, _ in spans]
        self._stops = [stop for _, _, stop in spans]
        self._kernels = kernels
        assert all(a <= b for a, b in zip(self._stops, self._starts[1:], strict=False))

    def __len__(self) -> int:
        return len(self.names)

    def within(self, start: int, stop: int) -> Iterator[tuple[int, slice]]:
        """Yield the layers that ``start .. stop - 1`` overlaps, each with the overlap."""
        for layer in range(max(0, bisect_right(self._starts, start) - 1), len(self)):
            if self._starts[layer] >= stop:
                return
            first, last = max(start, self._starts[layer]), min(stop, self._stops[layer])
            if first < last:
                yield layer, slice(first, last)

    @np.errstate(invalid="ignore")  # what is not finite shows in the result
    def add_dots(self, sums: Array, x: Array, y: Array, start: int) -> None:
        """Add the dot products of a piece to ``sums (3, layers)`` float64: x.y, x.x and y.y.

        ``x`` and ``y`` have the same size and are at ``start`` in their flat vectors.
        """
        for layer, part in self.within(start, start + x.shape[0]):
            here = slice(part.start - start, part.stop - start)
            for row, value in enumerate(self._kernels.dots(x[here], y[here])):
                sums[row, layer] += value

    def axpby(
        self, x: Array, x_factors: Sequence[float], y: Array, y_factors: Sequence[float], start: int
    ) -> None:
        """Overwrite a piece ``x`` with ``x_factors * x + y_factors * y``, layer by layer.

        ``x`` and ``y`` have the same size and are at ``start`` in their flat vectors; there is one
        factor for each layer.
        """
        for layer, part in self.within(start, start + x.shape[0]):
            here = slice(part.start - start, part.stop - start)
            out = x[here]
            a, b = float(x_factors[layer]), float(y_factors[layer])
            self._kernels.axpby(out, out, a, y[here], b)
