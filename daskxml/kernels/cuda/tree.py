# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""Label trees on a GPU: many nodes are fitted in one launch, and a warp leads a row down the tree.

One node's rows come one after the other, so a node keeps a GPU busy no better than a core does:
what makes it fast is the number of problems that are fitted at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from daskxml.core.arrays import Array, Csr, starts_of
from daskxml.kernels import operands
from daskxml.kernels.cuda.device import NULL, grid
from daskxml.kernels.cuda.sparse import CudaSparse, values_or_null
from daskxml.kernels.operands import FittedBlock, NodeProblem, TreeArrays, TreeWeights

_TILE = 32  # children of a problem that one block fits
_ROW_THREADS, _THREADS = 128, 256
_MOST_PROBLEMS = 1 << 15  # fitted together: the second size of a grid has 16 bits
_MOST_PLACES = 1 << 30  # of a problem's features: all are marked at once
_ROW_FACTS = np.dtype(
    [("start", "i8"), ("masks", "i8"), ("size", "i4"), ("norm", "f4"), ("weight", "f4"), ("", "i4")]
)
_ROW_BLOCKS = 2048  # that rank rows: more than run at the same time


class CudaTree(CudaSparse):
    """The part of `daskxml.kernels.Kernels` on label trees, for a GPU."""

    def fit_nodes(
        self, x: Csr, problems: Iterable[NodeProblem], passes: int, smallest: float
    ) -> list[FittedBlock]:
        """As many together as half of the free memory holds."""
        fitted: list[FittedBlock] = []
        for group in self._groups(x, problems, passes):
            fitted += _Group(self, x, group, passes).fit(smallest)
        return fitted

    def _groups(
        self, x: Csr, problems: Iterable[NodeProblem], passes: int
    ) -> Iterator[list[NodeProblem]]:
        group: list[NodeProblem] = []
        budget, used = self._device.free_bytes() // 2, 0
        most = min(_MOST_PROBLEMS, max(1, _MOST_PLACES // x.columns))
        starts = self.host_copy(x.indptr)
        for problem in problems:
            nbytes = _problem_bytes(problem, starts, x.columns, passes)
            if group and (used + nbytes > budget or len(group) == most):
                yield group
                group, used = [], 0
            group.append(problem)
            used += nbytes
        if group:
            yield group

    def tree_weights(self, arrays: TreeArrays) -> TreeWeights:
        device, chunks = self._device, int(arrays.features.shape[0])
        there = operands.relocate(arrays, lambda array: device.upload(np.ascontiguousarray(array)))
        places = 1 << (chunks * 3 // 2).bit_length()
        table = device.empty((places, 2), "uint64")
        self._each("fill_uint64", 2 * places, table, np.uint64(2**64 - 1))
        nodes = np.int64(arrays.node_starts.shape[0] - 1)
        device.launch(
            "fill_table", *grid(chunks), table, there.node_starts, nodes, there.features,
            there.chunk_starts, np.int64(chunks), np.uint64(places - 1),
        )  # fmt: skip
        return TreeWeights(there, table, int(np.diff(arrays.child_starts).max()))

    def rank_leaves(
        self, tree: TreeWeights, x: Csr, rows: Array, beam: int, count: int
    ) -> tuple[Array, Array]:
        device, arrays, size = self._device, tree.arrays, int(rows.shape[0])
        blocks = min(_ROW_BLOCKS, -(-size // 4))
        warps = 4 * blocks
        ids, scores = device.empty((size, count), "int32"), device.empty((size, count), "float32")
        room = device.empty(warps * (tree.widest + 2 * beam), "float32")
        held = device.empty(warps * 2 * beam, "int32")
        nodes = int(arrays.child_starts.shape[0]) - 1
        device.launch(
            "rank_leaves", (blocks,), (_ROW_THREADS,), ids, scores, room, held, np.int32(beam),
            np.int32(arrays.levels), np.int32(tree.widest), np.int32(count),
            x.indptr, x.indices, values_or_null(x), self.to_device(rows), np.int64(size),
            arrays.child_starts, np.int64(nodes), arrays.bias, arrays.children, arrays.weights,
            tree.table, np.uint64(tree.table.shape[0] - 1),
        )  # fmt: skip
        return device.download(ids), device.download(scores)

    def average_rankings(
        self, ids: Array, scores: Array, shares: Array, count: int
    ) -> tuple[Array, Array]:
        device, (models, rows, candidates) = self._device, ids.shape
        out = device.empty((rows, count), "int32"), device.empty((rows, count), "float32")
        there = [self.to_device(array) for array in (ids, scores, shares)]
        device.launch(
            "average_rankings", *grid(rows), *out, *there, np.int32(models), np.int64(rows),
            np.int32(candidates), np.int32(count),
        )  # fmt: skip
        return device.download(out[0]), device.download(out[1])


class _Group:
    """Problems that are fitted together, and their arrays on the device.

    The children of a problem are cut into *tiles* of 32. A tile has a weight for each column, a
    feature that occurs in the problem's rows, and each child: ``(columns, 32)``.
    """

    def __init__(
        self, kernels: CudaTree, x: Csr, problems: Sequence[NodeProblem], passes: int
    ) -> None:
        self._kernels, self._device = kernels, kernels._device
        self._x, self._problems, self._passes = x, problems, passes
        self._rows = np.array([problem.rows.shape[0] for problem in problems], np.int64)
        self._children = np.array([problem.children.columns for problem in problems], np.int64)
        self._tiles = -(-self._children // _TILE)
        self._child_starts = starts_of(self._children)

    def fit(self, smallest: float) -> list[FittedBlock]:
        if not self._rows.any():
            return [_without_rows(width) for width in self._children.tolist()]
        device = self._device
        entries, facts = self._gather()
        masks = self._masks(facts)
        self._weight_starts = starts_of(self._columns * self._tiles)
        weights = device.empty((int(self._weight_starts[-1]), _TILE), "float32")
        device.clear(weights)
        biases = device.empty(int(self._child_starts[-1]), "float32")
        self._launch(weights, biases, facts, entries, masks)
        return self._pruned(weights, device.download(biases), np.float32(smallest))

    def _gather(self) -> tuple[Array, Array]:
        """Find the columns of every problem; return its rows' entries and facts."""
        device, x, count = self._device, self._x, len(self._problems)
        rows = np.concatenate([problem.rows for problem in self._problems])
        problem_of = np.repeat(np.arange(count, dtype=np.int32), self._rows)
        facts = self._row_facts(rows)
        of_rows = device.upload(rows), device.upload(problem_of)
        features, blocks = np.int64(x.columns), (int(rows.shape[0]),)
        column_of, found = device.empty((count, x.columns), "int32"), device.empty(count, "int32")
        device.clear(column_of)
        launch = device.launch
        launch(
            "mark_columns", blocks, (_ROW_THREADS,), column_of, x.indptr, x.indices, *of_rows,
            features,
        )  # fmt: skip
        launch("number_columns", (count,), (_THREADS,), column_of, found, features)
        self._columns = device.download(found).astype(np.int64)
        self._column_starts = starts_of(self._columns)
        self._names = device.empty(int(self._column_starts[-1]), "int32")
        launch(
            "name_columns", (min(64, -(-x.columns // _THREADS)), count), (_THREADS,),
            self._names, column_of, device.upload(self._column_starts), features,
        )  # fmt: skip
        entries = device.empty(int(facts["size"].sum()), "uint64")
        there = device.upload(facts.view(np.int64))
        launch(
            "gather_entries", blocks, (_ROW_THREADS,), entries, there, column_of, x.indptr,
            x.indices, values_or_null(x), *of_rows, features,
        )  # fmt: skip
        return entries, there

    def _row_facts(self, rows: Array) -> Array:
        """What is fetched of every row, but for the norm; see ``RowFacts`` in the source."""
        x_starts = self._kernels.host_copy(self._x.indptr)
        facts = np.zeros(rows.shape[0], _ROW_FACTS)
        facts["size"] = x_starts[rows + 1] - x_starts[rows]
        facts["start"] = starts_of(facts["size"])[:-1]
        facts["masks"] = starts_of(np.repeat(self._tiles, self._rows))[:-1]
        weights = _given([problem.row_weights for problem in self._problems], self._rows)
        facts["weight"] = 1.0 if weights is None else weights
        return facts

    def _masks(self, facts: Array) -> Array:
        """Return of every row a word for each tile: the children that are its own."""
        device, own = self._device, [problem.children for problem in self._problems]
        masks = device.empty(int((self._rows * self._tiles).sum()), "uint32")
        device.clear(masks)
        lengths = np.concatenate([np.diff(children.indptr) for children in own])
        row_of = np.repeat(np.arange(lengths.shape[0], dtype=np.int32), lengths)
        children = np.concatenate([children.indices for children in own])
        device.launch(
            "mask_children", *grid(row_of.shape[0]), masks, facts, device.upload(row_of),
            device.upload(children), np.int64(row_of.shape[0]),
        )  # fmt: skip
        return masks

    def _launch(
        self, weights: Array, biases: Array, facts: Array, entries: Array, masks: Array
    ) -> None:
        device, dual_starts = self._device, starts_of(self._rows * self._tiles)
        tiles = [
            (number, tile)
            for number in np.argsort(-self._rows, kind="stable").tolist()  # the longest first
            for tile in range(int(self._tiles[number]))
            if self._rows[number]
        ]
        numbers, places = np.array(tiles, np.int64).T
        starts = np.stack([
            self._weight_starts[numbers] + places * self._columns[numbers],
            dual_starts[numbers] + places * self._rows[numbers],
        ], axis=1)  # fmt: skip
        dual = device.empty((int(dual_starts[-1]), _TILE), "float32")
        device.clear(dual)
        orders = np.concatenate([_orders(problem, self._passes) for problem in self._problems])
        diagonal = np.float32(0.5) / np.concatenate([problem.costs for problem in self._problems])
        child_weights = _given([p.child_weights for p in self._problems], self._children)
        device.launch(
            "fit_nodes", (len(tiles),), (_ROW_THREADS,), weights, biases, dual,
            device.upload(np.array(tiles, np.int32)), device.upload(starts),
            device.upload(starts_of(self._rows)), device.upload(self._child_starts), facts, entries,
            masks, device.upload(orders),
            NULL if child_weights is None else device.upload(child_weights),
            device.upload(diagonal), np.int32(self._passes),
        )  # fmt: skip

    def _pruned(self, weights: Array, biases: Array, smallest: np.float32) -> list[FittedBlock]:
        """Copy the weights that are kept to the host."""
        device, starts = self._device, self._column_starts
        there = [
            device.upload(array) for array in (starts, self._child_starts, self._weight_starts)
        ]
        blocks = min(64, -(-int(self._columns.max()) // (_THREADS // 32))), len(self._problems)
        offsets = device.empty(int(starts[-1]) + 1, "int32")
        device.launch("count_kept", blocks, (_THREADS,), offsets, weights, *there, smallest)
        self._kernels._scan(device.empty, offsets, int(starts[-1]))
        ends = device.download(offsets)
        out = device.empty(int(ends[-1]), "uint16"), device.empty(int(ends[-1]), "float32")
        device.launch("write_kept", blocks, (_THREADS,), *out, offsets, weights, *there, smallest)
        children, values = (device.download(array) for array in out)
        names = device.download(self._names)
        fitted = []
        for number, width in enumerate(self._children.tolist()):
            if not self._rows[number]:
                fitted.append(_without_rows(width))
                continue
            first = int(self._child_starts[number])
            own = slice(int(starts[number]), int(starts[number + 1]))
            sizes = np.diff(ends[own.start : own.stop + 1])
            kept = slice(int(ends[own.start]), int(ends[own.stop]))
            is_kept = sizes > 0
            block = biases[first : first + width], names[own][is_kept], sizes[is_kept]
            fitted.append(FittedBlock(*block, children[kept], values[kept]))
        return fitted


def _problem_bytes(problem: NodeProblem, starts: Array, features: int, passes: int) -> int:
    """Memory of a problem on the device; each entry of its rows counts as a column, up to all."""
    rows, tiles = int(problem.rows.shape[0]), -(-problem.children.columns // _TILE)
    entries = int((starts[problem.rows + 1] - starts[problem.rows]).sum())
    columns = min(features, entries)
    words = features + 2 * entries + (tiles * _TILE + 2) * columns
    words += (12 + passes + tiles + tiles * _TILE) * rows + 2 * problem.children.nonzeros
    return 4 * words


def _without_rows(children: int) -> FittedBlock:
    names, numbers = np.empty(0, np.int32), np.empty(0, np.uint16)
    bias = np.full(children, operands.NO_ROWS_BIAS, np.float32)
    return FittedBlock(bias, names, names, numbers, np.empty(0, np.float32))


def _orders(problem: NodeProblem, passes: int) -> Array:
    from daskxml.kernels.cpu.tree import row_orders  # imports Numba: no other kernel does

    return row_orders(problem.rows.shape[0], np.uint64(problem.key), passes).reshape(-1)


def _given(weights: Sequence[Array | None], sizes: Array) -> Array | None:
    """All weights as one array; None where there are none."""
    if all(own is None for own in weights):
        return None
    pairs = zip(weights, sizes.tolist(), strict=True)
    return np.concatenate([np.ones(n, np.float32) if own is None else own for own, n in pairs])
