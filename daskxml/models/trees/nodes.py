"""The rows of a node, the scores that are fitted to them, and the pieces into which a tree is cut.

Scores of different children do not depend on each other: a piece of work is any set of *blocks*,
each a range of the children of one node. So a tree is trained without a merge, and a piece that is
lost is simply fitted again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from daskxml.core.arrays import Array, Csr, Partition, starts_of
from daskxml.core.errors import TrainingError
from daskxml.data.order import derive_key
from daskxml.data.rows import empty_array, from_scipy, is_on_disk, to_scipy, unit_rows
from daskxml.kernels import Kernels
from daskxml.kernels.operands import FittedBlock, NodeProblem
from daskxml.models.trees.spec import TreeShape, TreeSpec

_NODE_ORDER = 3  # keeps the random choices of a run apart
_ROW_CHILDREN = 50  # reading a row of a block takes about as long as scoring so many children
_MEAN_WIDTH = 48  # of a node's blocks, at least, in children: each reads the node's rows again
_CUTS = 8  # of all work, for each task at a time: no block has much more
_SHARES, _SHARES_OF_GPUS = 4, 2  # a piece is one of so many, for each task at a time, of the rest
_OTHERS = 0.5  # other rows that a node sees, for each row with a label below it
_SHARE_ABOVE = 0.6 ** (1 / 3)  # what remains of (1 - z)^3 above the leaves' parents is .6 of it
_ROW_BYTES = 56  # of a row of a node, beside its values: numbers, labels, order
_VECTOR = 8  # children whose weights are padded to a whole vector
_LEAST_SHARE = 1 / 400  # of all work: smaller blocks are fitted together


class NodeBlock(NamedTuple):
    """Children ``start`` to ``stop`` of a node, counted within the node."""

    level: int
    node: int
    start: int
    stop: int


class Room(NamedTuple):
    """The memory for each block that is fitted on a CPU at a time.

    Attributes
    ----------
    nbytes
        So much.
    features, row_nonzeros
        Of the rows: columns, and stored values of a row on average.
    copies
        Whether memory holds copies of a node's rows; else a file does.
    """

    nbytes: float = 2.0**62
    features: int = 0
    row_nonzeros: float = 0.0
    copies: bool = True

    def taken(self, rows: int, children: int) -> float:
        """Return what a block takes: its rows, and for each child dual variables and weights.

        Examples
        --------
        >>> room = Room(features=1000, row_nonzeros=10)
        >>> room.taken(100_000, 8) / room.taken(100_000, 0)
        1.23764705...
        """
        columns = min(self.features, rows * self.row_nonzeros)
        row_bytes = _ROW_BYTES + 8 * self.row_nonzeros * self.copies
        return rows * row_bytes + 4 * children * (rows + columns)

    def children(self, rows: int) -> int:
        """Return how many children of a node fit.

        Raises
        ------
        TrainingError
            If not even a few do.
        """
        own = self.taken(rows, 0)
        most = (self.nbytes - own) // (self.taken(rows, _VECTOR) - own + 1) * _VECTOR
        if most <= 0:
            needed, given = self.taken(rows, _VECTOR) / 2**20, max(0.0, self.nbytes) / 2**20
            raise TrainingError(
                f"a node of {rows:,} rows needs {needed:,.1f} MiB, each thread has {given:,.1f}: "
                "raise [cluster] memory_limit or take fewer [cluster] threads"
            )
        return int(most)


@dataclass(frozen=True, slots=True)
class Piece:
    """Blocks that are fitted together.

    ``work`` is the products of a pass over their nodes' rows, up to a factor; ``nbytes`` what the
    largest block takes, see `Room`.
    """

    blocks: tuple[NodeBlock, ...]
    work: float
    nbytes: float

    @property
    def key(self) -> tuple[int, ...]:
        """What distinguishes it; see `daskxml.models.fitting.Plan`."""
        return self.blocks[0]


Packed = tuple[Array, ...]  # fitted blocks, see `pack_blocks`


class TreeRows:
    """Training rows as one tree sees them: values raised to its power, labels in its order.

    Parameters
    ----------
    kernels
        Of the device on which nodes are fitted.
    part
        The rows on the host, scaled to unit length.
    order
        ``(labels,)``: the label at every position, see `daskxml.models.trees.clustering`.
    power
        Values are raised to it, and rows scaled to unit length again.
    label_weights
        ``(labels,)``: what a row counts where a label is its own; None: 1.
    """

    def __init__(
        self, kernels: Kernels, part: Partition, order: Array, power: float = 1.0,
        label_weights: Array | None = None,
    ) -> None:  # fmt: skip
        self.kernels, self.weights = kernels, part.weights
        self.features = kernels.to_device(powered(part.features, power))
        self._label_weights = None if label_weights is None else label_weights[order]
        by_position = to_scipy(part.labels)[:, order].tocsc()
        self._starts, self._rows = by_position.indptr, by_position.indices
        self._before = self._starts  # of each position: what the rows with labels before it count
        if part.weights is not None:
            sums = np.cumsum(part.weights[self._rows], dtype=np.float64)
            self._before = np.concatenate([[0.0], sums])[self._starts]

    def problem(
        self, spec: TreeSpec, shape: TreeShape, block: NodeBlock, key: int,
        others: Array | None = None,
    ) -> NodeProblem:  # fmt: skip
        """Return what the children of a block are fitted to; ``key`` gives the order of rows.

        ``others`` are rows that have perhaps no label below the node, and count as well; None: a
        random sample. By them a node learns to score rows low that arrive by mistake.
        """
        from scipy.sparse import csr_matrix

        low, high = shape.bounds[block.level][block.node : block.node + 2]
        first, end = shape.child_starts(block.level)[block.node : block.node + 2]
        of_node = shape.bounds[block.level + 1][first : end + 1]
        bounds = of_node[block.start : block.stop + 1]
        of_labels = self._rows[self._starts[low] : self._starts[high]]
        rows = np.unique(of_labels)
        if others is None:
            drawn = np.random.default_rng(key).random(int(_OTHERS * rows.shape[0]))
            others = self._rows[(drawn * self._rows.shape[0]).astype(np.int64)]
        rows = np.union1d(rows, others)
        own = self._rows[self._starts[bounds[0]] : self._starts[bounds[-1]]]
        lengths = np.diff(self._starts[bounds])
        columns = np.repeat(np.arange(bounds.shape[0] - 1), lengths)
        ones, numbers = np.ones(own.shape[0], np.float32), np.searchsorted(rows, own)
        matrix = csr_matrix((ones, (numbers, columns)), shape=(rows.shape[0], bounds.shape[0] - 1))
        return NodeProblem(
            rows=rows.astype(np.int64),
            children=from_scipy(matrix, ones=True),
            key=key,
            costs=spec.child_costs(np.diff(self._before[of_node]))[block.start : block.stop],
            row_weights=None if self.weights is None else self.weights[rows],
            child_weights=self._child_weights(shape, block),
        )

    def _child_weights(self, shape: TreeShape, block: NodeBlock) -> Array | None:
        """What the rows with each of the block's children count: of labels alone."""
        if self._label_weights is None or block.level < shape.levels - 1:
            return None
        first = shape.bounds[block.level][block.node]
        return self._label_weights[first + block.start : first + block.stop]


def powered(features: Csr, power: float) -> Csr:
    """Raise values to a power, with their sign, and scale the rows to unit length again.

    Examples
    --------
    >>> row = Csr(np.array([0, 2]), np.array([0, 1], np.int32), np.float32([0.6, 0.8]), 2)
    >>> powered(row, 1.0) is row, powered(row, 2.0).data.round(3)
    (True, array([0.49 , 0.872], dtype=float32))
    """
    if power == 1.0:
        return features
    values = np.ones(features.nonzeros, np.float32) if features.data is None else features.data
    raised = empty_array(values.shape[0], np.float32, in_file=is_on_disk(features))
    np.power(np.abs(values, out=raised), np.float32(power), out=raised)
    np.copysign(raised, values, out=raised)
    return unit_rows(Csr(features.indptr, features.indices, raised, features.columns))


def plan_pieces(
    shape: TreeShape, position_rows: Array, rows: int, slots: int, *, on_gpus: bool = False,
    room: Room | None = None,
) -> list[Piece]:  # fmt: skip
    """Cut a tree into pieces for so many tasks at a time.

    Pieces come in the order in which they are to begin, the largest first: whoever is free takes
    the next one, so that a slow worker fits fewer, and what comes last is short. Only a node whose
    work is more than a share of all is cut, as each of its blocks reads the node's rows again.

    Parameters
    ----------
    shape
        The tree's shape.
    position_rows
        ``(labels,)``: rows with the label at each position.
    rows
        Training rows.
    slots
        Tasks that are computed at the same time.
    on_gpus
        Whether pieces are to hold many blocks, which a GPU fits together.
    room
        For each block; None: without bounds.

    Examples
    --------
    >>> shape = TreeShape.of(TreeSpec(features=1, labels=4, leaf_labels=2))
    >>> for piece in plan_pieces(shape, np.array([5, 5, 10, 10]), rows=30, slots=1):
    ...     print([tuple(block) for block in piece.blocks], piece.work)
    [(0, 0, 0, 2)] 1561.0
    [(1, 1, 0, 2)] 1561.0
    [(1, 0, 0, 2)] 781.0
    """
    found = _blocks(shape, position_rows, rows, _CUTS * slots, room or Room())
    blocks = sorted(found, key=lambda each: (-each[0], each[1]))
    whole = left = sum(work for work, *_ in blocks)
    shares = slots * (_SHARES_OF_GPUS if on_gpus else _SHARES)
    pieces: list[list[tuple[float, NodeBlock, float]]] = []
    share = 0.0
    for each in blocks:
        work = each[0]
        if not pieces or work > share:
            share = max(left / shares, whole * _LEAST_SHARE)
            pieces.append([])
        pieces[-1].append(each)
        share, left = share - work, left - work
    columns = (zip(*piece, strict=True) for piece in pieces)
    return [Piece(blocks, sum(works), max(sizes)) for works, blocks, sizes in columns]


def whole_nodes(shape: TreeShape) -> list[NodeBlock]:
    """Return a block for each node of a tree."""
    widths = [np.diff(shape.child_starts(level)).tolist() for level in range(shape.levels)]
    return [
        NodeBlock(level, node, 0, width)
        for level, of_level in enumerate(widths)
        for node, width in enumerate(of_level)
    ]


def _blocks(
    shape: TreeShape, position_rows: Array, rows: int, cut: int, room: Room
) -> Iterator[tuple[float, NodeBlock, float]]:
    """Yield work, block and memory: no work is much more than one of ``cut`` equal shares."""
    node_rows = _node_rows(shape, position_rows, rows)
    widths = [np.diff(shape.child_starts(level)) for level in range(shape.levels)]
    works = [_work(*pair) for pair in zip(node_rows, widths, strict=True)]
    share = sum(work.sum() for work in works) / cut
    for level, work in enumerate(works):
        for node, width in enumerate(widths[level].tolist()):
            parts = min(width // _MEAN_WIDTH, math.ceil(work[node] / share))
            own = int(node_rows[level][node])
            cuts, most = _cuts(width, max(1, parts)), room.children(own)
            if cuts[1] > most:
                cuts = [*range(0, width, most), width]
            for start, stop in itertools.pairwise(cuts):
                block = NodeBlock(level, node, start, stop)
                yield float(_work(own, stop - start)), block, room.taken(own, stop - start)


def _cuts(width: int, parts: int) -> list[int]:
    """Cut children into parts, each smaller than the one before: those that come last are short.

    Examples
    --------
    >>> _cuts(60, 3)
    [0, 30, 50, 60]
    """
    shares = starts_of(np.arange(parts, 0, -1))
    return (width * shares // shares[-1]).tolist()


def _node_rows(shape: TreeShape, position_rows: Array, rows: int) -> list[Array]:
    """The rows that each node sees, by level; one with several labels below counts as several."""
    ends = (1 + _OTHERS) * starts_of(position_rows)
    return [np.minimum(np.diff(ends[bounds]), rows) for bounds in shape.bounds[:-1]]


def _work(rows: Any, children: Any) -> Any:
    """The products of a pass over a block's rows, up to a factor; empty blocks have some, too."""
    return rows * (children + _ROW_CHILDREN) + 1.0


def fit_blocks(
    rows: TreeRows,
    spec: TreeSpec,
    shape: TreeShape,
    blocks: Sequence[NodeBlock],
    seed: int,
    tree: int,
) -> list[FittedBlock]:
    """Fit the scores of blocks: the same bits whichever blocks are fitted together.

    Scores above the leaves' parents are drawn towards 1, at which they cost a label nothing.
    """
    keys = (derive_key(seed, _NODE_ORDER, tree, block.level, block.node) for block in blocks)
    problems = (rows.problem(spec, shape, *each) for each in zip(blocks, keys, strict=True))
    fitted = rows.kernels.fit_nodes(rows.features, problems, spec.passes, spec.smallest_weight)
    is_last = (block.level == shape.levels - 1 for block in blocks)
    shares = (np.float32(1.0 if last else _SHARE_ABOVE) for last in is_last)
    return [
        found._replace(
            bias=share * found.bias + (1 - share),
            children=found.children + np.uint16(block.start),
            weights=share * found.weights,
        )
        for block, found, share in zip(blocks, fitted, shares, strict=True)
    ]


def pack_blocks(blocks: Sequence[FittedBlock]) -> Packed:
    """Return a few arrays instead of many: lengths, and those of all blocks in a row.

    Examples
    --------
    >>> one = FittedBlock(np.float32([0.5]), *(np.empty(0, kind) for kind in 'iiHf'))
    >>> unpack_blocks(pack_blocks([one, one]))[1].bias
    array([0.5], dtype=float32)
    """
    fields = list(zip(*blocks, strict=True))
    lengths = np.array([[len(array) for array in field] for field in fields])
    return lengths, *(np.concatenate(field) for field in fields)


def unpack_blocks(packed: Packed) -> list[FittedBlock]:
    """Return the inverse of `pack_blocks`."""
    lengths, *fields = packed
    pairs = zip(fields, lengths, strict=True)
    cut = [np.split(field, np.cumsum(each[:-1])) for field, each in pairs]
    return [FittedBlock(*arrays) for arrays in zip(*cut, strict=True)]


def join_blocks(blocks: Sequence[FittedBlock]) -> FittedBlock:
    """Join the blocks of one node, which are in the order of their children."""
    if len(blocks) == 1:
        return blocks[0]
    _, bias, features, counts, children, weights = pack_blocks(blocks)
    each = np.repeat(features, counts)
    by_feature = np.argsort(each, kind="stable")
    names, lengths = np.unique(each, return_counts=True)
    return FittedBlock(
        bias, names.astype(np.int32), lengths.astype(np.int32), children[by_feature],
        weights[by_feature],
    )  # fmt: skip
