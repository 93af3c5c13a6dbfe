"""The tasks of which label trees are made, as functions, and what a process keeps between them.

::

    vectors ─▶ plan: order of the labels, pieces ─▶ pieces, each fitted on its own ─▶ tree
    trees, rows to evaluate on ─▶ sums of metrics

A task's result depends on its arguments alone, not on the process, nor on the other pieces. So a
piece that is lost is fitted again, and one that was fitted twice counts once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import psutil

from daskxml.core.arrays import Array, Partition, Segment
from daskxml.core.errors import ModelError, TrainingError
from daskxml.core.hardware import free_memory_bytes
from daskxml.data.rows import is_on_disk, slice_csr
from daskxml.data.side_files import label_weights
from daskxml.kernels import Kernels, get_kernels
from daskxml.kernels.operands import FittedBlock
from daskxml.metrics import MetricSums, metric_sums, propensities
from daskxml.models.trees.clustering import order_of_tree
from daskxml.models.trees.forest import Forest, assemble_tree, named_trees, tree_problem
from daskxml.models.trees.nodes import (
    NodeBlock,
    Packed,
    Piece,
    Room,
    TreeRows,
    fit_blocks,
    pack_blocks,
    plan_pieces,
    unpack_blocks,
)
from daskxml.models.trees.spec import TreeShape, TreeSpec

Tree = Mapping[str, Array]  # by the names of `daskxml.models.trees.forest.ARRAYS`
_FOR_BLOCKS = 0.75  # of the free memory
_KEPT_ROWS = 2  # trees whose rows are kept: the next one is begun while the last pieces are fitted


@dataclass(frozen=True)
class FitSettings:
    """What the tasks of a run have in common.

    Attributes
    ----------
    spec
        The trees, with everything chosen that was "auto".
    rows
        Training rows.
    config
        The `daskxml.config.RunConfig`.
    """

    spec: TreeSpec
    rows: int
    config: Any

    @property
    def seed(self) -> int:
        """The run's."""
        return int(self.config.run.seed)

    @property
    def ks(self) -> tuple[int, ...]:
        """Ranks of the metrics."""
        return tuple(self.config.evaluation.k)


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a task is computed: the kernels' device, their threads on a CPU, and the memory."""

    device: str = "cpu"
    threads: int = 1
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TreePlan:
    """How a tree is cut: a value for whoever submits the pieces, made once.

    It depends on the memory that is free, so it may not be made again for pieces of another.

    Attributes
    ----------
    pieces
        Of `daskxml.models.trees.nodes.plan_pieces`.
    needs
        What fitting takes, for the user.
    """

    pieces: tuple[Piece, ...]
    needs: str


class TreeFitter:
    """Fits pieces and ranks rows, in one process.

    Several threads may call it at a time. On a GPU they take turns.

    Parameters
    ----------
    settings, slot
        Of the run, and of the process.
    """

    def __init__(self, settings: FitSettings, slot: Slot) -> None:
        self.settings, self.slot, self.shape = settings, slot, TreeShape.of(settings.spec)
        self._building, self._on_gpu = threading.Lock(), threading.Lock()
        self._rows: dict[int, TreeRows] = {}
        self._tests: dict[int, Partition] = {}  # on the device

    @cached_property
    def _kernels(self) -> Kernels:
        return get_kernels(self.slot.device, self.slot.threads, self.settings.config.gpu.exact)

    @cached_property
    def _forest(self) -> Forest:
        return Forest(self.settings.spec, {}, self._kernels)

    def _turn(self) -> threading.Lock:
        """Return what is held while the device computes: on a CPU, a lock of this call's own."""
        return threading.Lock() if self._kernels.name == "cpu" else self._on_gpu

    def room(self, part: Partition) -> Room | None:
        """Return what is free for a block on each thread, None on a GPU; rows are of training.

        A quarter is left to fitted pieces.
        """
        if self.slot.device == "cuda":
            return None
        x, process = part.features, psutil.Process().memory_info()
        limit = self.slot.memory_bytes or math.inf
        free = min(free_memory_bytes(), limit - process.rss + process.shared)
        held = 16 * part.labels.nonzeros  # of `TreeRows`
        if any(power != 1.0 for power in self.settings.spec.powers) and not is_on_disk(x):
            held += _KEPT_ROWS * 4 * x.nonzeros
        nbytes = _FOR_BLOCKS * (free - held) / self.slot.threads
        return Room(nbytes, x.columns, x.nonzeros / part.rows, copies=not is_on_disk(x))

    def fit(self, part: Partition, counts: Array, order: Array, tree: int, piece: Piece) -> Packed:
        """Return a fitted piece, packed.

        Parameters
        ----------
        part, counts
            The training rows, and how many of them have each label.
        order, tree
            The tree's labels in the order of its leaves, ``(labels,)`` int32, and its number.
        piece
            Of its plan.
        """
        settings = self.settings
        with self._building:
            rows = self._rows_of(part, counts, order, tree)
        with self._turn():
            fitted = fit_blocks(rows, settings.spec, self.shape, piece.blocks, settings.seed, tree)
        return pack_blocks(fitted)

    def _rows_of(self, part: Partition, counts: Array, order: Array, tree: int) -> TreeRows:
        if tree not in self._rows:
            for old in sorted(self._rows)[: len(self._rows) - _KEPT_ROWS + 1]:
                del self._rows[old]  # its rows are freed first
            power, weights = self.settings.spec.power_of(tree), self._label_weights(counts)
            self._rows[tree] = TreeRows(self._kernels, part, order, power, weights)
        return self._rows[tree]

    def _inverse_propensity(self, counts: Array) -> Array:
        data = self.settings.config.data
        return propensities(counts, self.settings.rows, data.propensity_a, data.propensity_b)

    def _label_weights(self, counts: Array) -> Array | None:
        config, inverse = self.settings.config, self._inverse_propensity(counts)
        given, base = config.training.class_weight, config.data.label_base
        return label_weights(given, counts, inverse, base)

    def rank(
        self, trees: Sequence[Tree], counts: Array, shard: int, part: Partition, start: int,
        stop: int,
    ) -> MetricSums:  # fmt: skip
        """Rank labels of rows of a shard by trees; return the sums of their metrics."""
        settings = self.settings
        with self._building:
            kernels, forest = self._kernels, self._forest
            for tree in trees[len(forest) :]:
                forest.add(tree)
            there = self._tests.setdefault(shard, kernels.to_device(part))
        sums, inverse = MetricSums.zero(settings.ks), self._inverse_propensity(counts)
        batch_rows = settings.config.evaluation.batch_rows
        with self._turn():
            for at in range(start, stop, batch_rows):
                end = min(at + batch_rows, stop)
                segment = Segment(there, kernels.to_device(np.arange(at, end)))
                ids, _ = forest.top_k([segment], settings.ks[-1], len(trees))
                truth = slice_csr(part.labels, at, end)
                sums += metric_sums(ids, truth, inverse, settings.ks)
        return sums


def order_tree(settings: FitSettings, vectors: Array, tree: int) -> Array:
    """Return ``(labels,)`` int32, the label at each position of the tree's leaves.

    ``vectors`` are of `find_label_vectors`.
    """
    return order_of_tree(vectors, settings.spec, settings.seed, tree)


def plan_tree(
    here: Callable[[], TreeFitter], part: Partition, counts: Array, order: Array, slots: int,
    on_gpus: bool,
) -> TreePlan:  # fmt: skip
    """Cut a tree into pieces for so many tasks at a time, which fit the memory of this process.

    Other parameters are of `TreeFitter.fit`.
    """
    fitter = here()
    spec, threads, room = fitter.settings.spec, fitter.slot.threads, fitter.room(part)
    pieces = plan_pieces(
        fitter.shape, counts[order], fitter.settings.rows, slots, on_gpus=on_gpus, room=room
    )
    needed = threads * max(piece.nbytes for piece in pieces) / 2**20
    at_once = f"{threads} pieces at a time" if threads > 1 else "a piece at a time"
    return TreePlan(tuple(pieces), (
        f"nodes are fitted by {spec.passes} passes of dual coordinate descent, C = {spec.cost:g}; "
        f"each worker holds all rows, the trees, and {needed:,.0f} MiB for {at_once}"
        f"{', with rows on disk' * is_on_disk(part.features)}"
    ))  # fmt: skip


def fit_piece(here: Callable[[], TreeFitter], *work: Any) -> Packed:
    """Return a fitted piece, packed: by the fitter of the process, see `TreeFitter.fit`."""
    return here().fit(*work)


def rank_block(here: Callable[[], TreeFitter], *work: Any) -> MetricSums:
    """Return the sums of some test rows' metrics: as `fit_piece`, by `TreeFitter.rank`."""
    return here().rank(*work)


def put_together(order: Array, plan: TreePlan, pieces: Sequence[Packed]) -> dict[str, Array]:
    """Return a tree's arrays, from all of its pieces in the order of the plan."""
    blocks: list[tuple[NodeBlock, FittedBlock]] = []
    for planned, packed in zip(plan.pieces, pieces, strict=True):
        blocks += zip(planned.blocks, unpack_blocks(packed), strict=True)
    return assemble_tree(order, blocks)


def stored_row(settings: FitSettings, stored: tuple[Tree, dict[str, Any]]) -> dict[str, Any]:
    """Return the row of the history of a tree that was stored.

    Raises
    ------
    ModelError
        If the tree is of other rows or settings, saying what differs.
    """
    tree, row = stored
    rows, number = row["rows"] // row["megabatch"], row["megabatch"]
    if rows != settings.rows:
        raise ModelError(
            f"the run to continue has {rows:,} training rows, the data {settings.rows:,}: give "
            "the same files and the same data.validation"
        )
    if problem := tree_problem(settings.spec, named_trees([tree])):
        raise ModelError(
            f"tree {number} of the run to go on with: {problem}: leave [model] as it was"
        )
    return row


def stored_tree(stored: tuple[Tree, dict[str, Any]]) -> Tree:
    """Return the arrays of a tree that was stored."""
    return stored[0]


def check_any(trees: Sequence[Any]) -> None:
    """Refuse a run without a whole tree.

    Raises
    ------
    TrainingError
        Saying what to do.
    """
    if not trees:
        raise TrainingError(
            "the run ended before its first tree was complete: give it more minutes"
        )
