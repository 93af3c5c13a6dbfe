"""Labels that come later: each goes to leaves that it resembles, its scores alone are fitted.

The rows of a new label descend each tree as it is. The label becomes a leaf of the parent at which
they arrive with the highest probability in the mean, so that the tree leads such rows to it. Its
scores are fitted as those of the parent's other labels were, by the rows with labels below the
parent, and besides by all that arrive there: rows without new labels may be few, or missing. So
what is not a label's own counts as much as the training rows with the parent's labels, however many
rows there are now; with fewer, a new label would seem as common as it is among them. No score that
was there before changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from daskxml.core.arrays import Array, Csr, Partition, starts_of
from daskxml.core.errors import InputError
from daskxml.data.rows import to_scipy
from daskxml.kernels import Kernels
from daskxml.kernels.operands import NodeProblem
from daskxml.models.trees.forest import LEAF_STARTS, assemble_tree, take_apart, tree_operand
from daskxml.models.trees.nodes import NodeBlock, TreeRows, fit_blocks, powered
from daskxml.models.trees.spec import MAX_CHILDREN, TreeShape, TreeSpec


class ArrivedRows(TreeRows):
    """Rows for the new labels of a tree; see the head of this module.

    Parameters
    ----------
    kernels, part, order
        As of `TreeRows`; the order has the new labels.
    arrived
        Of `arrivals`.
    counts
        ``(labels,)``: training rows of each label, old and new.
    """

    def __init__(
        self, kernels: Kernels, part: Partition, order: Array, arrived: Any, counts: Array
    ) -> None:
        super().__init__(kernels, part, order)
        self._arrived, self._counts = arrived.tocsc(), counts[order]

    def problem(
        self, spec: TreeSpec, shape: TreeShape, block: NodeBlock, key: int,
        others: Array | None = None,
    ) -> NodeProblem:  # fmt: skip
        """Return what new labels are fitted to: all of their parent's old ones are in front."""
        arrived, node = self._arrived, block.node
        others = arrived.indices[slice(*arrived.indptr[node : node + 2])]
        found = super().problem(spec, shape, block, key, others)
        counts = self._counts[slice(*shape.bounds[-2][node : node + 2])]
        rows, costs = found.rows.shape[0], spec.child_costs(counts)[block.start :]
        factor = np.float32(counts.sum() / rows)
        given = np.ones(rows, np.float32) if found.row_weights is None else found.row_weights
        own = np.full(costs.shape, 1 / factor)
        return replace(found, costs=costs, row_weights=factor * given, child_weights=own)


def extend_tree(
    spec: TreeSpec, number: int, tree: Mapping[str, Array], part: Partition, counts: Array,
    kernels: Kernels,
) -> dict[str, Array]:  # fmt: skip
    """Return the arrays of a tree with new labels.

    Parameters
    ----------
    spec
        Of the trees with the new labels.
    number, tree
        Of the tree; its arrays by the names of `daskxml.models.trees.forest.ARRAYS`.
    part
        Rows of unit length; their labels are the old columns, and behind them the new ones.
    counts
        ``(labels,)``: training rows of each label, old and new.
    kernels
        Of the CPU.

    Raises
    ------
    InputError
        If a node would have more labels than can be stored.
    """
    part = replace(part, features=powered(part.features, spec.power_of(number)))
    old = tree["order"].shape[0]
    shape = TreeShape.of(replace(spec, labels=old), tree.get(LEAF_STARTS))
    arrived = arrivals(kernels, shape, tree, part.features, spec.beam)
    parents = choose_parents(part.labels, old, arrived)
    order, leaf_starts = insert_labels(tree["order"], shape.bounds[-2], parents)
    widths, wider = np.diff(shape.bounds[-2]), np.diff(leaf_starts)
    blocks = [
        NodeBlock(shape.levels - 1, node, int(widths[node]), int(wider[node]))
        for node in np.flatnonzero(wider > widths).tolist()
    ]
    rows = ArrivedRows(kernels, part, order, arrived, counts)
    fitted = fit_blocks(rows, spec, TreeShape.of(spec, leaf_starts), blocks, old, number)
    pairs = [*take_apart(shape, tree), *zip(blocks, fitted, strict=True)]
    return {**assemble_tree(order, pairs), LEAF_STARTS: leaf_starts}


def arrivals(
    kernels: Kernels, shape: TreeShape, tree: Mapping[str, Array], x: Csr, beam: int
) -> Any:
    """Return with which probability rows arrive at the leaves' parents.

    Returns
    -------
    scipy.sparse.csr_matrix
        ``(rows, parents)`` float64, without those outside of a row's beam.
    """
    from scipy.sparse import csr_matrix

    parents = shape.bounds[-2].shape[0] - 1
    if parents == 1:
        return csr_matrix(np.ones((x.rows, 1)))
    above = kernels.tree_weights(tree_operand(TreeShape(shape.bounds[:-1]), tree))
    ids, logs = kernels.rank_leaves(above, x, np.arange(x.rows), beam, min(beam, parents))
    row, place = np.nonzero(ids >= 0)
    found = np.exp(logs[row, place], dtype=np.float64)
    return csr_matrix((found, (row, ids[row, place])), shape=(x.rows, parents))


def choose_parents(labels: Csr, old: int, arrived: Any) -> Array:
    """Return the parent of each new label: where its rows arrive with the most probability.

    Parameters
    ----------
    labels
        Of the rows; the columns from ``old`` on are new.
    old
        How many labels there were.
    arrived
        Of `arrivals`.

    Examples
    --------
    >>> from scipy.sparse import csr_matrix
    >>> labels = Csr(np.array([0, 1, 2, 3]), np.array([1, 1, 2], np.int32), None, 3)
    >>> choose_parents(labels, 1, csr_matrix([[0.9, 0.2], [0.1, 0.2], [0.3, 0.4]])).tolist()
    [0, 1]
    """
    sums = to_scipy(labels)[:, old:].T.tocsr() @ arrived
    return np.asarray(sums.argmax(axis=1)).reshape(-1)


def insert_labels(order: Array, leaf_starts: Array, parents: Array) -> tuple[Array, Array]:
    """Put new labels behind the others of their parents; return order and starts of the parents.

    Raises
    ------
    InputError
        If a parent would have more than `MAX_CHILDREN` labels.

    Examples
    --------
    >>> order, starts = insert_labels(np.array([2, 0, 1]), np.array([0, 2, 3]), np.array([1, 0, 0]))
    >>> order.tolist(), starts.tolist()
    ([2, 0, 4, 5, 1, 3], [0, 4, 6])
    """
    by_parent = np.argsort(parents, kind="stable")
    places = leaf_starts[1:][parents[by_parent]]
    added = np.bincount(parents, minlength=leaf_starts.shape[0] - 1)
    starts = leaf_starts + starts_of(added)
    if (widest := int(np.diff(starts).max())) > MAX_CHILDREN:
        raise InputError(f"a node would have {widest:,} labels: train a new model of all labels")
    return np.insert(order, places, order.shape[0] + by_parent), starts
