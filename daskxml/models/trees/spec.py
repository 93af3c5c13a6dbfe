"""The description of label trees, and their shape, which follows from the number of labels.

A level of a balanced tree has nodes; a node's children are the nodes of the next level, of the last
one labels. The labels of a tree are in an order of its own, in which every node's are consecutive:
so a node is a range of positions. Labels that came later make some of the leaves' parents wider.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from daskxml.core.arrays import Array
from daskxml.core.fields import bounded
from daskxml.models.protocol import Spec

AUTO = "auto"
FIRST_BRANCHING = 32  # of trees that were stored before it could be chosen
_REMOVED = {"hard_negatives", "solver", "lr", "last_lr"}
_COMMON = -0.3  # power of a child's share of rows by which its cost is multiplied
MAX_CHILDREN = 1 << 16  # of a node: children are stored in 16 bits


@dataclass(frozen=True, kw_only=True)
class TreeSpec(Spec):
    """A few label trees, whose probabilities are averaged.

    Attributes
    ----------
    powers
        Rows of tree ``t`` are their values to the power ``powers[t % len(powers)]``, scaled to
        unit length again: trees that see rows differently err differently.
    value_power
        What these powers are multiplied by. ``auto``: 1, or 0.5 where that ranks better on held-out
        rows, as where values grow with how often a word is in a text.
    leaf_labels
        Labels of a leaf's parent, about. More of them rank better, as fewer levels do, and take
        longer to fit.
    branching
        Most children of a node above those parents, rounded down to a power of two.
    passes
        Of dual coordinate descent over a node's rows. Where the cost is chosen and rows are dense,
        three times as many if they rank better.
    cost
        C, what the loss counts against half the weights' squared norm, of a child with as many rows
        as the others of its node have on average; see `child_costs`. ``auto``: chosen on held-out
        rows of a few labels before the first tree is fitted (`daskxml.models.trees.search`).
    smallest_weight
        Weights below are dropped once their node is fitted.
    beam
        Nodes of a level that a row descends to.

    Raises
    ------
    ConfigError
        If a value is out of its range.

    Examples
    --------
    >>> TreeSpec(features=500, labels=21_764).level_bits
    (6,)
    >>> TreeSpec(features=500, labels=670_091).level_bits
    (6, 5)
    >>> TreeSpec(features=500, labels=159).level_bits
    ()
    """

    kind: ClassVar[str] = "trees"
    powers: tuple[float, ...] = bounded((1.0,), above=0, high=10)
    value_power: float | Literal["auto"] = bounded(AUTO, above=0, high=10, words=(AUTO,))
    leaf_labels: int = bounded(400, low=1, high=MAX_CHILDREN)
    branching: int = bounded(256, low=2, high=MAX_CHILDREN)
    passes: int = bounded(6, low=1, high=10_000)
    cost: float | Literal["auto"] = bounded(AUTO, above=0, words=(AUTO,))
    smallest_weight: float = bounded(0.05, low=0)
    beam: int = bounded(10, low=1, high=MAX_CHILDREN)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.powers:
            raise self.refusal("powers", "give one number or more")

    def child_costs(self, rows: Array) -> Array:
        """Return C of each child of a node, float32, once ``cost`` is chosen.

        Common children get less: so are scores of common and of rare labels more alike.

        Parameters
        ----------
        rows
            ``(children,)``: what the training rows with each child count, those with several of its
            labels several times.

        Examples
        --------
        >>> TreeSpec(features=1, labels=2, cost=0.5).child_costs(np.array([8, 72])).round(2)
        array([0.81, 0.42], dtype=float32)
        """
        assert not isinstance(self.cost, str)
        share = np.maximum(rows, 1) / max(1.0, float(rows.mean()))
        return np.float32(self.cost * share**_COMMON)

    @property
    def level_bits(self) -> tuple[int, ...]:
        """Logarithm of the children of a node, by level; the leaves' parents are not among them."""
        parents = -(-self.labels // self.leaf_labels)
        return self.cut_bits(min((parents - 1).bit_length(), self.labels.bit_length() - 1))

    def cut_bits(self, bits: int) -> tuple[int, ...]:
        """Return `level_bits` of a tree with ``1 << bits`` parents of leaves."""
        levels = -(-bits // (self.branching.bit_length() - 1))
        return tuple(bits // levels + (level < bits % levels) for level in range(levels))

    def power_of(self, tree: int) -> float:
        """Return the power of a tree's values, before it is chosen that of rows as they are."""
        chosen = 1.0 if isinstance(self.value_power, str) else self.value_power
        return chosen * self.powers[tree % len(self.powers)]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TreeSpec:
        """As `Spec.from_dict`, of trees that were stored by older versions as well."""
        own = {name: value for name, value in values.items() if name not in _REMOVED}
        return super().from_dict({"branching": FIRST_BRANCHING, "value_power": 1.0, **own})


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
    def of(cls, spec: TreeSpec, leaf_starts: Array | None = None) -> TreeShape:
        """Return the shape of trees over so many labels.

        Parameters
        ----------
        spec
            Labels, and the most children of nodes.
        leaf_starts
            Of a tree with labels that came later: ``bounds[-2]``, for a power of two of nodes.
        """
        if leaf_starts is None:
            leaf_starts = np.array([0, spec.labels], np.int64)
            for _ in range(sum(spec.level_bits)):
                leaf_starts = halved(leaf_starts)
        bits = spec.cut_bits((leaf_starts.shape[0] - 1).bit_length() - 1)
        below = [sum(bits[level:]) for level in range(len(bits) + 1)]
        return cls((*(leaf_starts[:: 1 << each] for each in below), np.arange(spec.labels + 1)))

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
