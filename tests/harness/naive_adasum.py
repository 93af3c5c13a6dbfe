"""Adasum as it is defined, in float64, for one process that has all vectors."""

from collections.abc import Sequence

import numpy as np

from daskxml.collectives.adasum import Node, ParameterSpan, Tree, balanced, chain
from daskxml.core.arrays import Array


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
    ab, aa, bb = a @ b, a @ a, b @ b
    return (1.0 - ab / (2.0 * aa or 1.0)) * a + (1.0 - ab / (2.0 * bb or 1.0)) * b


def adasum_recursive(
    vectors: Sequence[Array], order: str = "tree", spans: Sequence[ParameterSpan] | None = None
) -> Array:
    """Combine any number of vectors, in float64.

    Parameters
    ----------
    vectors
        One ``(size,)`` array for each rank.
    order
        ``tree``: neighbours in pairs, then pairs of pairs, and one that is left over joins the
        next level; ``linear``: ``Adasum(Adasum(g0, g1), g2)`` and so on.
    spans
        The layers, each combined on its own; by default one. What is in none is 0.

    Examples
    --------
    >>> adasum_recursive([np.ones(2), np.ones(2), np.ones(2)])
    array([1., 1.])
    """
    spans = [("all", 0, len(vectors[0]))] if spans is None else spans
    tree = (balanced if order == "tree" else chain)(tuple(range(len(vectors))))
    out = np.zeros(len(vectors[0]))
    for _, start, stop in spans:
        out[start:stop] = _combine([vector[start:stop] for vector in vectors], tree)
    return out


def _combine(vectors: Sequence[Array], tree: Tree) -> Array:
    if not isinstance(tree, Node):
        return np.asarray(vectors[tree], np.float64)
    left, right = _combine(vectors, tree.left), _combine(vectors, tree.right)
    return adasum(left, right) if tree.is_adasum else left + right
