"""The contract of kernels on label trees: fitting the scores of nodes, and descending by beam.

A tree's nodes are numbered level by level from the root, 0, and its leaves, the positions of
labels, behind the last node. A *chunk* is what one node holds for one feature: weights of some of
its children.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from daskxml.core.arrays import Array, Csr


@dataclass(frozen=True, slots=True)
class Fit:
    """How the scores of a node are fitted: the squared hinge of every child on its own.

    Attributes
    ----------
    solver
        ``dual``: dual coordinate descent (Hsieh et al., ICML 2008, algorithm 1, with its L2 loss);
        ``sgd``: stochastic gradient descent.
    passes
        Over the node's rows, each in another order.
    cost
        C of the dual problem: what the loss counts against half the weights' squared norm.
    lr, last_lr
        First rate of SGD, of a step by ``lr / |x|^2``, and the last one as a share of it.
    """

    solver: str
    passes: int
    cost: float = 1.0
    lr: float = 0.5
    last_lr: float = 0.02


@dataclass(frozen=True, slots=True)
class NodeProblem:
    """What some children of a node are fitted to.

    Attributes
    ----------
    rows
        ``(count,)`` int64, ascending: the rows with labels below the node.
    children
        ``(count, children)``, ones: which of these children each row has labels below.
    key
        64 bits that give the order of the rows: a node's, whichever of its children these are.
    row_weights
        ``(count,)`` float32: what a row's loss counts; None: 1.
    child_weights
        ``(children,)`` float32: what it counts besides for a child that is the row's own; None: 1.
    """

    rows: Array
    children: Csr
    key: int
    row_weights: Array | None = None
    child_weights: Array | None = None


@dataclass(frozen=True, slots=True)
class FittedBlock:
    """The scores of some children of a node, without the weights that are too small to keep.

    Attributes
    ----------
    bias
        ``(children,)`` float32.
    features, counts
        ``(chunks,)`` int32: features that have weights, ascending, and how many each has.
    children, weights
        uint16 and float32: the weights of each feature in turn, by the child within the block.
    """

    bias: Array
    features: Array
    counts: Array
    children: Array
    weights: Array

    def arrays(self) -> tuple[Array, Array, Array, Array, Array]:
        """Return the arrays in the order of the fields."""
        return self.bias, self.features, self.counts, self.children, self.weights


@dataclass(frozen=True, slots=True)
class TreeArrays:
    """The weights of a tree.

    Attributes
    ----------
    levels
        Levels of nodes.
    child_starts
        ``(nodes + 1,)`` int64: the first child of every node, a node or a leaf; from 1 on.
    bias
        ``(nodes + leaves - 1,)`` float32: of every child, from number 1 on.
    node_starts
        ``(nodes + 1,)`` int64: the first chunk of every node.
    features
        ``(chunks,)`` int32, ascending within a node.
    chunk_starts
        ``(chunks + 1,)`` int64: the first weight of every chunk.
    children, weights
        ``(weights,)`` uint16 and float32: a child within its node, and its weight.
    """

    levels: int
    child_starts: Array
    bias: Array
    node_starts: Array
    features: Array
    chunk_starts: Array
    children: Array
    weights: Array


@dataclass(frozen=True, slots=True)
class TreeWeights:
    """A tree's weights, and the hash table by which a node finds the chunk of a feature.

    ``widest`` is the most children of a node.
    """

    arrays: TreeArrays
    table: Array
    widest: int


NO_ROWS_BIAS = -1.0  # of children of a node that no row has labels below
QUANTUM = 2.0**-24  # multiples of it are summed exactly in float64 up to 2**29
COARSE = 2.0**-13  # of two factors: products are summed exactly up to 2**27


class TreeKernels(Protocol):
    """The part of `daskxml.kernels.Kernels` on label trees."""

    def fit_nodes(
        self, x: Csr, problems: Iterable[NodeProblem], fit: Fit, smallest: float
    ) -> list[FittedBlock]:
        """Fit linear scores: at least 1 for a row's own children, at most -1 for the others.

        What a child gets does not depend on the node's other children, nor on other problems.

        Parameters
        ----------
        x
            The rows that the problems refer to.
        problems
            Read as far ahead as they are fitted together.
        fit
            How. SGD takes a step of rate ``r`` for a row that counts ``n`` by ``1 - (1 - r)^n``, as
            far as ``n`` steps on the row go.
        smallest
            Weights below are dropped.

        Returns
        -------
        list of FittedBlock
            On the host, in the order of the problems.
        """

    def tree_weights(self, arrays: TreeArrays) -> TreeWeights:
        """Prepare a tree for `rank_leaves`."""

    def rank_leaves(
        self, tree: TreeWeights, x: Csr, rows: Array, beam: int, count: int
    ) -> tuple[Array, Array]:
        """Find the best leaves of rows by a beam of so many nodes a level.

        A child's score ``z`` adds ``-max(0, 1 - z)^3`` to its parent's log probability.

        Returns
        -------
        ids, scores
            ``(rows, count)`` int32 and float32, descending, ties to the lowest leaf; where fewer
            are found, -1 and minus infinity.
        """

    def average_rankings(
        self, ids: Array, scores: Array, shares: Array, count: int
    ) -> tuple[Array, Array]:
        """Rank labels by the sum of their scores in several rankings, each times its share.

        ``ids`` and ``scores`` are ``(rankings, rows, candidates)``, -1 where a ranking has no more;
        ``shares`` ``(rankings,)`` float32. A label that a ranking lacks has the score 0 there.
        Returns ids and sums, ``(rows, count)``; -1 and 0 where there are fewer.
        """
