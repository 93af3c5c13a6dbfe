"""A few trees as one model: named arrays in a file, and the ranking of labels by their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from daskxml.core.arrays import Array, Csr, Segment
from daskxml.kernels import Kernels
from daskxml.kernels.tree import FittedBlock, TreeArrays, TreeWeights
from daskxml.models.rankings import candidates
from daskxml.models.trees.nodes import NodeBlock, join_blocks, powered
from daskxml.models.trees.shape import TreeShape
from daskxml.models.trees.spec import TreeSpec

ARRAYS = {  # of a tree, with their dtypes
    "order": "int32",
    "bias": "float32",
    "node_starts": "int64",
    "features": "int32",
    "chunk_starts": "int64",
    "children": "uint16",
    "weights": "float32",
}


def assemble_tree(
    order: Array, shape: TreeShape, blocks: Sequence[tuple[NodeBlock, FittedBlock]]
) -> dict[str, Array]:
    """Return a tree's arrays by the names of `ARRAYS`, from all of its blocks in any order."""
    by_node: dict[tuple[int, int], list[tuple[NodeBlock, FittedBlock]]] = {}
    for block, fitted in blocks:
        by_node.setdefault((block.level, block.node), []).append((block, fitted))
    joined: list[FittedBlock] = []
    for level in range(shape.levels):
        nodes = range(shape.bounds[level].shape[0] - 1)
        joined += [join_blocks(by_node[level, node]) for node in nodes]
    chunks = [fitted.features.shape[0] for fitted in joined]
    return {
        "order": order,
        "bias": np.concatenate([fitted.bias for fitted in joined]),
        "node_starts": np.concatenate([[0], np.cumsum(chunks)]).astype(np.int64),
        "features": np.concatenate([fitted.features for fitted in joined]),
        "chunk_starts": _starts(np.concatenate([fitted.counts for fitted in joined])),
        "children": np.concatenate([fitted.children for fitted in joined]),
        "weights": np.concatenate([fitted.weights for fitted in joined]),
    }


def _starts(counts: Array) -> Array:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


class Forest:
    """Trees that rank labels together.

    Parameters
    ----------
    spec
        Sizes, beam, and the powers of the trees' rows.
    parameters
        ``tree0.order`` and so on, see `ARRAYS`.
    kernels
        Of the device.
    """

    def __init__(self, spec: TreeSpec, parameters: Mapping[str, Array], kernels: Kernels) -> None:
        self.spec, self._kernels = spec, kernels
        self.trees: list[TreeWeights] = []
        self._orders: list[Array] = []
        for tree in range(count_trees(parameters)):
            self.add({name: parameters[f"tree{tree}.{name}"] for name in ARRAYS})

    def add(self, tree: Mapping[str, Array]) -> None:
        """Add a tree, by the names of `ARRAYS`."""
        shape = TreeShape.of(self.spec)
        starts = [shape.child_starts(level) for level in range(shape.levels)]
        child_starts = 1 + _starts(np.concatenate([np.diff(of_level) for of_level in starts]))
        arrays = {name: array for name, array in tree.items() if name != "order"}
        packed = TreeArrays(levels=shape.levels, child_starts=child_starts, **arrays)
        self._orders.append(tree["order"])
        self.trees.append(self._kernels.tree_weights(packed))

    def copy(self) -> Forest:
        """Return a forest of the same trees, to which others can be added."""
        other = Forest(self.spec, {}, self._kernels)
        other.trees, other._orders = [*self.trees], [*self._orders]
        return other

    def top_k(self, segments: Sequence[Segment], k: int) -> tuple[Array, Array]:
        """Rank labels of rows of unit length.

        Returns
        -------
        ids
            ``(rows, k)`` int32, descending by score; where the beam holds fewer, -1.
        scores
            ``(rows, k)`` float32 probabilities.
        """
        found = [self._top_k(segment, k) for segment in segments]
        return np.concatenate([ids for ids, _ in found]), np.concatenate([s for _, s in found])

    def _top_k(self, segment: Segment, k: int) -> tuple[Array, Array]:
        x, rows = segment.partition.features, segment.rows
        if not self.trees:  # the run was stopped before the first one was complete
            return np.full((rows.shape[0], k), -1, np.int32), np.zeros(
                (rows.shape[0], k), np.float32
            )
        several = len(self.trees) > 1
        count = candidates(k, self.spec.labels) if several else min(self.spec.labels, k)
        ids = np.empty((len(self.trees), rows.shape[0], count), np.int32)
        scores = np.empty(ids.shape, np.float32)
        seen: dict[float, Csr] = {}
        for tree, weights in enumerate(self.trees):
            power = self.spec.power_of(tree)
            if power not in seen:
                seen[power] = x
                if power != 1.0:
                    rows_of_tree = powered(self._kernels.to_host(x), power)
                    seen[power] = self._kernels.to_device(rows_of_tree)
            leaves, log_scores = self._kernels.rank_leaves(
                weights, seen[power], rows, self.spec.beam, count
            )
            ids[tree] = np.where(leaves >= 0, self._orders[tree][leaves], -1)
            np.exp(log_scores, out=scores[tree])
        if not several:
            return ids[0], scores[0]
        shares = np.full(len(self.trees), 1.0 / len(self.trees), np.float32)
        return self._kernels.average_rankings(ids, scores, shares, min(k, self.spec.labels))


def count_trees(parameters: Mapping[str, Array]) -> int:
    """Return the number of trees in a model's arrays."""
    return sum(name.endswith(".order") for name in parameters)


def tree_problem(spec: TreeSpec, arrays: Mapping[str, Array]) -> str:
    """Return what is wrong with the arrays of trees, "" if nothing is: kernels trust them.

    Examples
    --------
    >>> tree_problem(TreeSpec(features=2, labels=3), {})
    'there is no tree'
    """
    trees = count_trees(arrays)
    names = {f"tree{tree}.{name}" for tree in range(trees) for name in ARRAYS}
    found = {name for name in arrays if name.startswith("tree")}
    if not trees:
        return "there is no tree"
    if names != found:
        return f"arrays {sorted(names ^ found)} are missing or too many"
    shape = TreeShape.of(spec)
    widths = np.concatenate([np.diff(shape.child_starts(n)) for n in range(shape.levels)])
    for tree in range(trees):
        own = {name: arrays[f"tree{tree}.{name}"] for name in ARRAYS}
        for name, dtype in ARRAYS.items():
            if len(own[name].shape) != 1 or own[name].dtype != dtype:
                return f"array tree{tree}.{name} is not one row of {dtype}"
        if not _is_consistent(spec, widths, **own):
            return f"the arrays of tree {tree} contradict each other"
    return ""


def _is_consistent(
    spec: TreeSpec, widths: Array, order: Array, bias: Array, node_starts: Array, features: Array,
    chunk_starts: Array, children: Array, weights: Array,
) -> bool:  # fmt: skip
    """Whether every index of a tree's arrays is within its bounds."""
    if not (
        _are_starts(node_starts, widths.shape[0], features.shape[0])
        and _are_starts(chunk_starts, features.shape[0], weights.shape[0])
        and children.shape == weights.shape
        and bias.shape[0] == widths.sum()
        and np.array_equal(np.sort(order), np.arange(spec.labels))
    ):
        return False
    of_node = np.repeat(widths, np.diff(node_starts))
    of_chunk = np.repeat(of_node, np.diff(chunk_starts))
    is_inside = features.shape[0] == 0 or 0 <= features.min() <= features.max() < spec.features
    return bool(is_inside and (children < of_chunk).all())


def _are_starts(starts: Array, count: int, total: int) -> bool:
    """Whether ``starts`` cuts ``total`` items into ``count`` runs."""
    return bool(
        starts.shape[0] == count + 1
        and starts[0] == 0
        and starts[-1] == total
        and (starts[:-1] <= starts[1:]).all()  # a difference could overflow
    )
