"""A few trees as one model: named arrays in a file, and the ranking of labels by their mean.

Most weights are small and add little to any score: they can be dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from daskxml.core.arrays import Array, Csr, Segment, starts_of
from daskxml.kernels import Kernels
from daskxml.kernels.operands import FittedBlock, TreeArrays, TreeWeights
from daskxml.models.protocol import joined_arrays, split_arrays
from daskxml.models.rankings import candidates
from daskxml.models.trees.nodes import NodeBlock, join_blocks, powered, unpack_blocks, whole_nodes
from daskxml.models.trees.spec import TreeShape, TreeSpec

ARRAYS = {  # of a tree, with their dtypes
    "order": "int32",
    "bias": "float32",
    "node_starts": "int64",
    "features": "int32",
    "chunk_starts": "int64",
    "children": "uint16",
    "weights": "float32",
}
LEAF_STARTS = "leaf_starts"  # int64, of a tree with labels that came later: see `TreeShape.of`


def assemble_tree(
    order: Array, blocks: Sequence[tuple[NodeBlock, FittedBlock]]
) -> dict[str, Array]:
    """Return a tree's arrays by the names of `ARRAYS`, from all of its blocks in any order."""
    ordered = sorted(blocks, key=lambda pair: pair[0])
    nodes = itertools.groupby(ordered, key=lambda pair: (pair[0].level, pair[0].node))
    joined = [join_blocks([fitted for _, fitted in node]) for _, node in nodes]
    chunks = [fitted.features.shape[0] for fitted in joined]
    return {
        "order": order,
        "bias": np.concatenate([fitted.bias for fitted in joined]),
        "node_starts": starts_of(chunks),
        "features": np.concatenate([fitted.features for fitted in joined]),
        "chunk_starts": starts_of(np.concatenate([fitted.counts for fitted in joined])),
        "children": np.concatenate([fitted.children for fitted in joined]),
        "weights": np.concatenate([fitted.weights for fitted in joined]),
    }


def take_apart(shape: TreeShape, tree: Mapping[str, Array]) -> list[tuple[NodeBlock, FittedBlock]]:
    """Return a tree's nodes, of which `assemble_tree` makes the same tree; nothing is copied."""
    nodes, starts = whole_nodes(shape), tree["chunk_starts"]
    chunks, weights = np.diff(tree["node_starts"]), np.diff(starts[tree["node_starts"]])
    lengths = np.array([[node.stop for node in nodes], chunks, chunks, weights, weights])
    counts = np.diff(starts).astype(np.int32)
    fields = tree["bias"], tree["features"], counts, tree["children"], tree["weights"]
    return list(zip(nodes, unpack_blocks((lengths, *fields)), strict=True))


def tree_operand(shape: TreeShape, tree: Mapping[str, Array]) -> TreeArrays:
    """Return a tree as kernels take it, or its upper levels alone where the shape has no more."""
    widths = [np.diff(shape.child_starts(level)) for level in range(shape.levels)]
    child_starts = 1 + starts_of(np.concatenate(widths))
    arrays = {name: tree[name] for name in ARRAYS if name != "order"}
    arrays["node_starts"] = arrays["node_starts"][: child_starts.shape[0]]
    return TreeArrays(levels=shape.levels, child_starts=child_starts, **arrays)


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
        self._trees: list[tuple[Array, TreeWeights]] = []  # with the order of the labels
        for tree in split_arrays(parameters, "tree"):
            self.add(tree)

    def add(self, tree: Mapping[str, Array]) -> None:
        """Add a tree, by the names of `ARRAYS`."""
        shape = TreeShape.of(self.spec, tree.get(LEAF_STARTS))
        self._trees.append((tree["order"], self._kernels.tree_weights(tree_operand(shape, tree))))

    def __len__(self) -> int:
        return len(self._trees)

    def top_k(
        self, segments: Sequence[Segment], k: int, first: int | None = None
    ) -> tuple[Array, Array]:
        """Rank labels of rows of unit length, by all trees or by the first ones, so many.

        Returns
        -------
        ids
            ``(rows, k)`` int32, descending by score; where the beam holds fewer, -1.
        scores
            ``(rows, k)`` float32 probabilities.
        """
        trees = self._trees[:first]
        found = [self._top_k(trees, segment, k) for segment in segments]
        return np.concatenate([ids for ids, _ in found]), np.concatenate([s for _, s in found])

    def _top_k(
        self, trees: Sequence[tuple[Array, TreeWeights]], segment: Segment, k: int
    ) -> tuple[Array, Array]:
        most = min(k, self.spec.labels)
        if len(trees) == 1:
            return next(self._rankings(trees, segment, most))
        rankings = self._rankings(trees, segment, candidates(k, self.spec.labels))
        ids, scores = (np.stack(found) for found in zip(*rankings, strict=True))
        shares = np.full(len(trees), 1.0 / len(trees), np.float32)
        return self._kernels.average_rankings(ids, scores, shares, most)

    def probabilities(self, segments: Sequence[Segment]) -> Array:
        """Return the mean of the trees for all labels; see `Ranker.probabilities`."""
        rows = sum(segment.rows.shape[0] for segment in segments)
        out, start = np.zeros((rows, self.spec.labels)), 0
        for segment in segments:
            part = out[start : start + segment.rows.shape[0]]
            for ids, scores in self._rankings(self._trees, segment, self.spec.labels):
                row, place = np.nonzero(ids >= 0)
                part[row, ids[row, place]] += scores[row, place] / len(self._trees)
            start += part.shape[0]
        return out

    def _rankings(
        self, trees: Sequence[tuple[Array, TreeWeights]], segment: Segment, count: int
    ) -> Iterator[tuple[Array, Array]]:
        """Yield each tree's own best labels, ``(rows, count)``, and their probabilities."""
        x, seen = segment.partition.features, dict[float, Csr]()
        for tree, (order, weights) in enumerate(trees):
            power = self.spec.power_of(tree)
            if power not in seen:
                seen[power] = x
                if power != 1.0:
                    rows_of_tree = powered(self._kernels.to_host(x), power)
                    seen[power] = self._kernels.to_device(rows_of_tree)
            leaves, log_scores = self._kernels.rank_leaves(
                weights, seen[power], segment.rows, self.spec.beam, count
            )
            yield np.where(leaves >= 0, order[leaves], -1), np.exp(log_scores)


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
    found -= {f"tree{tree}.{LEAF_STARTS}" for tree in range(trees)}
    if names != found:
        return f"arrays {sorted(names ^ found)} are missing or too many"
    for tree, own in enumerate(split_arrays(arrays, "tree")):
        for name, array in own.items():
            dtype = ARRAYS.get(name, "int64")
            if len(array.shape) != 1 or array.dtype != dtype:
                return f"array tree{tree}.{name} is not one row of {dtype}"
        if not _is_consistent(spec, **own):
            return f"the arrays of tree {tree} contradict each other"
    return ""


def _is_consistent(
    spec: TreeSpec, order: Array, bias: Array, node_starts: Array, features: Array,
    chunk_starts: Array, children: Array, weights: Array, leaf_starts: Array | None = None,
) -> bool:  # fmt: skip
    """Whether every index of a tree's arrays is within its bounds."""
    starts = np.array([0, spec.labels]) if leaf_starts is None else leaf_starts
    parents = starts.shape[0] - 1
    is_power = parents > 0 and not parents & (parents - 1)
    if not is_power or not _are_starts(starts, parents, spec.labels) or not np.diff(starts).all():
        return False
    shape = TreeShape.of(spec, leaf_starts)
    widths = np.concatenate([np.diff(shape.child_starts(n)) for n in range(shape.levels)])
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


def smallest_kept(arrays: Mapping[str, Array], share: float) -> float:
    """Return the smallest weight that stays if the smaller ones hold a share of all squares.

    Parameters
    ----------
    arrays
        Of trees.
    share
        Of the sum of the weights' squares, in [0, 1): the smallest weights with no more of it go.

    Examples
    --------
    >>> arrays = {"tree0.order": np.arange(2), "tree0.weights": np.float32([0.9, -0.1, 0.2, 0.4])}
    >>> [round(smallest_kept(arrays, share), 3) for share in (0.0, 0.02, 0.06)]
    [0.1, 0.2, 0.4]
    """
    weights = [tree["weights"] for tree in split_arrays(arrays, "tree")]
    sizes = np.sort(np.abs(np.concatenate([*weights, np.empty(0, np.float32)])))
    if not sizes.any():
        return 0.0
    sums = np.cumsum(np.square(sizes, dtype=np.float64))
    return float(sizes[np.searchsorted(sums, share * sums[-1], side="right")])


def pruned(arrays: Mapping[str, Array], smallest: float) -> dict[str, Array]:
    """Return the arrays of trees without the weights whose magnitude is below ``smallest``.

    Examples
    --------
    >>> tree = {"order": np.arange(2), "bias": np.zeros(2), "node_starts": np.array([0, 2]),
    ...         "features": np.array([3, 5]), "chunk_starts": np.array([0, 1, 3]),
    ...         "children": np.array([1, 0, 1]), "weights": np.array([0.1, 0.2, -0.9])}
    >>> small = pruned({f"tree0.{name}": array for name, array in tree.items()}, 0.15)
    >>> [small[f"tree0.{name}"].tolist() for name in ("features", "chunk_starts", "weights")]
    [[5], [0, 2], [0.2, -0.9]]
    """
    trees = split_arrays(arrays, "tree")
    for tree in trees:
        is_kept = np.abs(tree["weights"]) >= smallest
        kept_before = starts_of(is_kept)
        ends = kept_before[tree["chunk_starts"]]  # of the chunks, counted in weights that are kept
        has_some = np.diff(ends) > 0
        chunks_before = starts_of(has_some)
        small = {
            "node_starts": chunks_before[tree["node_starts"]],
            "features": tree["features"][has_some],
            "chunk_starts": np.concatenate([[0], ends[1:][has_some]]),
            "children": tree["children"][is_kept],
            "weights": tree["weights"][is_kept],
        }
        tree |= {name: each.astype(tree[name].dtype, copy=False) for name, each in small.items()}
    return joined_arrays(trees, "tree")
