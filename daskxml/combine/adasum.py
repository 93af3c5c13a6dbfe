"""Adasum: what it computes, for vectors that lie in one place.

Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2021, section 3:

    Adasum(a, b) = (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b

Orthogonal vectors are added, parallel ones of one length averaged. More than two are combined
along a binary tree (section 3.4), ``linear`` or balanced, and every layer on its own (section 3.6).
The paper does not say what a zero vector does; here it adds nothing and takes nothing away.

The programs in ``adasum_tree`` and ``adasum_linear`` do the same among ranks; `adasum_recursive`
is the slow and obvious form that they are tested against.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daskxml.combine.joins import Join, Tree, balanced, chain
from daskxml.types import Array

Segment = tuple[str, int, int]
"""A layer's name, and its first element and the one behind its last in the flat array."""


def coefficients(ab: Array, aa: Array, bb: Array) -> tuple[Array, Array]:
    """Return what ``a`` and ``b`` are multiplied by, of one layer or of many at once.

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
    share = np.divide(ab, own, out=np.zeros_like(np.asarray(ab)), where=np.asarray(own) > 0)
    return 1.0 - 0.5 * share


def adasum(a: Array, b: Array) -> Array:
    """Combine two vectors, in float64.

    Examples
    --------
    >>> adasum(np.array([1.0, 0.0]), np.array([0.0, 2.0]))
    array([1., 2.])
    >>> adasum(np.array([2.0, 2.0]), np.array([2.0, 2.0]))
    array([2., 2.])
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    of_a, of_b = coefficients(a @ b, a @ a, b @ b)
    return of_a * a + of_b * b


def adasum_recursive(
    vectors: Sequence[Array], order: str = "tree", segments: Sequence[Segment] | None = None
) -> Array:
    """Combine any number of vectors, in float64.

    Parameters
    ----------
    vectors
        One ``(size,)`` array for each rank.
    order
        ``tree``: neighbours in pairs, then pairs of pairs, and one that is left over joins the
        next level; ``linear``: ``Adasum(Adasum(g0, g1), g2)`` and so on.
    segments
        The layers, each combined on its own; by default one. What lies in none is 0.

    Examples
    --------
    >>> adasum_recursive([np.ones(2), np.ones(2), np.ones(2)])
    array([1., 1.])
    """
    segments = [("all", 0, len(vectors[0]))] if segments is None else segments
    tree = (balanced if order == "tree" else chain)(tuple(range(len(vectors))))
    out = np.zeros(len(vectors[0]))
    for _, start, stop in segments:
        out[start:stop] = _combine([vector[start:stop] for vector in vectors], tree)
    return out


def _combine(vectors: Sequence[Array], tree: Tree) -> Array:
    if not isinstance(tree, Join):
        return np.asarray(vectors[tree], np.float64)
    left, right = _combine(vectors, tree.left), _combine(vectors, tree.right)
    return adasum(left, right) if tree.adapts else left + right


def orthogonality(
    vectors: Sequence[Array], combined: Array, segments: Sequence[Segment]
) -> dict[str, float]:
    """Return ``||Adasum(g)||^2 / sum_i ||g_i||^2`` of every layer (section 3.6).

    1 for orthogonal vectors, 1 / n for n equal ones; layers where all are zero are left out.

    Examples
    --------
    >>> orthogonality([np.ones(2), np.ones(2)], np.ones(2), [("all", 0, 2)])
    {'all': 0.5}
    """
    whole, part = (
        np.array([np.sum(np.square(rows[..., a:b], dtype=np.float64)) for _, a, b in segments])
        for rows in (np.asarray(vectors), combined)
    )
    return norm_ratios([name for name, _, _ in segments], part, whole)


def norm_ratios(names: Sequence[str], part: Array, whole: Array) -> dict[str, float]:
    """Return ``part / whole`` by name, where there is anything; squared norms ``(layers,)``.

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
