"""Fits the pieces of label trees; `daskxml.models.fitting` has the tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial

import psutil

from daskxml.core.arrays import Array, Partition
from daskxml.core.hardware import free_memory_bytes
from daskxml.data.rows import is_on_disk
from daskxml.data.side_files import label_weights
from daskxml.kernels.operands import FittedBlock
from daskxml.models.fitting import FitSettings, Fitter, Member, Plan, Ranking, Slot
from daskxml.models.trees import nodes
from daskxml.models.trees.clustering import order_of_tree
from daskxml.models.trees.forest import Forest, assemble_tree
from daskxml.models.trees.spec import TreeShape

_FOR_BLOCKS = 0.75  # of the free memory
_KEPT_ROWS = 2  # trees whose rows are kept: the next one is begun while the last pieces are fitted


class TreeFitter(Fitter):
    """Fits pieces of trees, and ranks rows by trees."""

    def __init__(self, settings: FitSettings, slot: Slot) -> None:
        super().__init__(settings, slot)
        self.shape = TreeShape.of(settings.spec)
        self._rows: dict[int, nodes.TreeRows] = {}

    @cached_property
    def _forest(self) -> Forest:
        return Forest(self.settings.spec, {}, self.kernels)

    def put_together(self, order: Array, plan: Plan, pieces: Sequence[nodes.Packed]) -> Member:
        """Return a tree's arrays."""
        blocks: list[tuple[nodes.NodeBlock, FittedBlock]] = []
        for planned, packed in zip(plan.pieces, pieces, strict=True):
            blocks += zip(planned.blocks, nodes.unpack_blocks(packed), strict=True)
        return assemble_tree(order, blocks)

    def room(self, part: Partition) -> nodes.Room | None:
        """Return what is free for a block on each thread, None on a GPU; rows are of training.

        A quarter is left to fitted pieces.
        """
        if self.slot.device == "cuda":
            return None
        x, process = part.features, psutil.Process().memory_info()
        limit = self.slot.memory_bytes or math.inf
        free = min(free_memory_bytes(), limit - process.rss + process.shared)
        held = 16 * part.labels.nonzeros  # of `TreeRows`
        powers = map(self.settings.spec.power_of, range(len(self.settings.spec.powers)))
        if any(power != 1.0 for power in powers) and not is_on_disk(x):
            held += _KEPT_ROWS * 4 * x.nonzeros
        nbytes = _FOR_BLOCKS * (free - held) / self.slot.threads
        return nodes.Room(nbytes, x.columns, x.nonzeros / part.rows, copies=not is_on_disk(x))

    def fit(
        self, part: Partition, counts: Array, order: Array, tree: int, piece: nodes.Piece
    ) -> nodes.Packed:
        """Return a fitted piece, packed; the order is of the tree's leaves, ``(labels,)`` int32."""
        spec, seed = self.settings.spec, self.settings.config.run.seed
        with self.building:
            rows = self._rows_of(part, counts, order, tree)
        with self.turn():
            fitted = nodes.fit_blocks(rows, spec, self.shape, piece.blocks, seed, tree)
        return nodes.pack_blocks(fitted)

    def _rows_of(self, part: Partition, counts: Array, order: Array, tree: int) -> nodes.TreeRows:
        if tree not in self._rows:
            for old in sorted(self._rows)[: len(self._rows) - _KEPT_ROWS + 1]:
                del self._rows[old]  # its rows are freed first
            power, weights = self.settings.spec.power_of(tree), self._label_weights(counts)
            self._rows[tree] = nodes.TreeRows(self.kernels, part, order, power, weights)
        return self._rows[tree]

    def _label_weights(self, counts: Array) -> Array | None:
        config, inverse = self.settings.config, self.inverse_propensity(counts)
        given, base = config.training.class_weight, config.data.label_base
        return label_weights(given, counts, inverse, base)

    def ranking(self, members: Sequence[Member]) -> Ranking:
        """Return what ranks labels by the first trees; those that are known are kept."""
        for tree in members[len(self._forest) :]:
            self._forest.add(tree)
        return partial(self._forest.top_k, first=len(members))

    def order(self, prepared: Array, number: int) -> Array:
        """Return ``(labels,)`` int32, the label at each position of the tree's leaves."""
        return order_of_tree(prepared, self.settings.spec, self.settings.config.run.seed, number)

    def plan(self, part: Partition, counts: Array, order: Array, slots: int, on_gpus: bool) -> Plan:
        """Cut a tree into pieces; see `Fitter.plan`."""
        spec, threads, room = self.settings.spec, self.slot.threads, self.room(part)
        pieces = nodes.plan_pieces(
            self.shape, counts[order], self.settings.rows, slots, on_gpus=on_gpus, room=room
        )
        needed = threads * max(piece.nbytes for piece in pieces) / 2**20
        at_once = f"{threads} pieces at a time" if threads > 1 else "a piece at a time"
        whole = (replace(piece, work=spec.passes * piece.work) for piece in pieces)
        return Plan(tuple(whole), (
            f"nodes are fitted by {spec.passes} passes of dual coordinate descent, "
            f"C = {spec.cost:g}; each worker holds all rows, the trees, and {needed:,.0f} MiB for "
            f"{at_once}{', with rows on disk' * is_on_disk(part.features)}"
        ))  # fmt: skip
