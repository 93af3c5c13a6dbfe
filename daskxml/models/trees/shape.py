"""The shape of a balanced tree over the labels: a function of their number alone.

A level has nodes; a node's children are the nodes of the next level, of the last one labels. The
labels of a tree are in an order of its own, in which every node's are consecutive: so a node is a
range of positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daskxml.core.arrays import Array
from daskxml.models.trees.spec import TreeSpec


@dataclass(frozen=True)
class TreeShape:
    """Where the nodes of each level begin.

    Attributes
    ----------
    bounds
        For every level from the root on, the first position of each node, and the number of
        labels, ``(nodes + 1,)`` int64; the last array is of single labels.

    Examples
    --------
    >>> shape = TreeShape.of(TreeSpec(features=1, labels=5, leaf_labels=2))
    >>> [bounds.tolist() for bounds in shape.bounds]
    [[0, 5], [0, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]
    >>> shape.child_starts(0).tolist(), shape.child_starts(1).tolist()
    ([0, 4], [0, 2, 3, 4, 5])
    """

    bounds: tuple[Array, ...]

    @classmethod
    def of(cls, spec: TreeSpec) -> TreeShape:
        """Return the shape of trees over so many labels."""
        bounds = [np.array([0, spec.labels], np.int64)]
        for bits in spec.level_bits:
            cut = bounds[-1]
            for _ in range(bits):
                cut = halved(cut)
            bounds.append(cut)
        return cls((*bounds, np.arange(spec.labels + 1)))

    @property
    def levels(self) -> int:
        """Levels of nodes that have scores for their children."""
        return len(self.bounds) - 1

    def child_starts(self, level: int) -> Array:
        """Return the number of the first child of every node of a level, ``(nodes + 1,)`` int64."""
        return np.searchsorted(self.bounds[level + 1], self.bounds[level])


def halved(bounds: Array) -> Array:
    """Cut every range in two; the first half is the larger one.

    Examples
    --------
    >>> halved(np.array([0, 3, 7])).tolist()
    [0, 2, 3, 5, 7]
    """
    middle = bounds[:-1] + (np.diff(bounds) + 1) // 2
    return np.append(np.stack([bounds[:-1], middle], axis=1).reshape(-1), bounds[-1])
