"""A replica with a parameter for each row of the data, which counts how often it was trained on.

Workers, pools, merges, gangs, checkpoints and optimizers are the product's; a step adds 1 to the
parameters of its rows, in the place of a gradient. So a merged model shows which rows went into it,
of which worker and with which weight. Label trees are fitted as ever, each node once for all runs;
they only take virtual time beside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from daskxml.core.arrays import Array, Csr, Partition, Segment
from daskxml.core.work_stats import WorkStats
from daskxml.data.reading import Facts
from daskxml.data.rows import concatenate
from daskxml.kernels import get_kernels
from daskxml.models.trees.clustering import order_of_tree
from daskxml.models.trees.forest import assemble_tree
from daskxml.models.trees.nodes import NodeBlock, TreeRows, fit_blocks, whole_nodes
from daskxml.models.trees.spec import TreeShape, TreeSpec
from daskxml.worker.replica import Replica
from harness.faults.loop import PROCESS, pause

TRAIN, TEST, LABELS = (18, 12), (3, 2), 6  # rows of each shard
ROWS = sum(TRAIN)
FACTS = Facts(
    rows=ROWS, features=ROWS, labels=LABELS, nonzeros=ROWS, label_nonzeros=ROWS, nbytes=0,
    feature_base=0,
)  # fmt: skip


def partition(first: int, rows: int) -> Partition:
    """Return rows whose only feature is their number."""
    indptr = np.arange(rows + 1, dtype=np.int64)
    numbers = np.arange(first, first + rows, dtype=np.int32)
    features = Csr(indptr, numbers % ROWS, np.ones(rows, np.float32), ROWS)
    return Partition(features, Csr(indptr, numbers % LABELS, None, LABELS))


class NoNetwork:
    """What a replica has that counts, in the place of a network."""

    nbytes = 0

    def __init__(self, *args: Any) -> None:
        self.output = SimpleNamespace(label_weights=None)

    def reserve(self, max_batch_rows: int) -> None:
        """Reserve nothing."""


class CountingReplica(Replica):
    """Counts rows; a step takes virtual time."""

    def twin(self, kernels: Any, max_batch_rows: int, logits_budget_bytes: int) -> Replica:
        """Return what a thread of a pool counts by."""
        return CountingReplica(
            self.spec, self._optimizer_config, kernels, max_batch_rows=max_batch_rows,
            logits_budget_bytes=logits_budget_bytes, flat=self.flat, partner=self,
        )  # fmt: skip

    def step(self, batch: Sequence[Segment], lr: float, key: int) -> WorkStats:
        """Add 1 to the parameters of the batch's rows; a rate of 0 changes nothing."""
        numbers = _numbers(batch)
        self._work(len(numbers))
        if lr:
            np.add.at(self.flat, numbers, 1.0)
        return WorkStats(len(numbers), 1, 0.5 * len(numbers), len(numbers), LABELS)

    def gradient(self, batch: Sequence[Segment], buffer: Any, key: int) -> WorkStats:
        """Subtract 1 from the gradient of the batch's rows."""
        numbers = _numbers(batch)
        self._work(len(numbers))
        np.add.at(buffer.flat, numbers, -1.0)
        return WorkStats(len(numbers), 1, 0.5 * len(numbers), len(numbers), LABELS)

    def top_k(self, segments: Sequence[Segment], k: int) -> tuple[Array, Array]:
        """Rank labels from one on that depends on the row and its parameter."""
        numbers = _numbers(segments)
        self._work(len(numbers))
        ids = (best_label(self.flat, numbers)[:, None] + np.arange(k)) % LABELS
        return ids.astype(np.int32), np.zeros(ids.shape, np.float32)

    def _work(self, rows: int) -> None:
        work(rows)


def best_label(flat: Array, numbers: Array) -> Array:
    """Return the label that a model ranks first for each row, so that metrics show the model."""
    return (numbers + np.floor(7.0 * flat[numbers]).astype(np.int64)) % LABELS


def precision(flat: Array) -> float:
    """Return P@1 of a model over all test rows."""
    numbers = np.concatenate([np.arange(rows) for rows in TEST])
    return float(np.mean(best_label(flat, numbers) == numbers % LABELS))


def work(rows: int) -> None:
    """Let the time pass that a worker takes for so many rows."""
    process: Any = PROCESS.get()
    process.work(rows)
    pause(rows / process.rows_per_s)


def _numbers(batch: Sequence[Segment]) -> Array:
    parts = [segment.partition.features.indices[segment.rows] for segment in batch]
    return np.concatenate(parts)


# ------------------------------------------------------------------------- other models


@cache
def label_vectors() -> Array:
    """Return the vectors of the labels, ``(labels, 3)`` float32."""
    return np.random.default_rng(0).standard_normal((LABELS, 3), dtype=np.float32)


@cache
def whole_tree(spec: TreeSpec, seed: int, tree: int) -> dict[str, Array]:
    """Return a tree of all rows, fitted here node by node."""
    part = concatenate([partition(0, TRAIN[0]), partition(TRAIN[0], TRAIN[1])])
    shape, order = TreeShape.of(spec), order_of_tree(label_vectors(), spec, seed, tree)
    rows, blocks = TreeRows(get_kernels("cpu", 1), part, order), whole_nodes(shape)
    fitted = fit_blocks(rows, spec, shape, blocks, seed, tree)
    return assemble_tree(order, list(zip(blocks, fitted, strict=True)))


_tree_rows: dict[bytes, TreeRows] = {}
_fitted: dict[tuple[int, NodeBlock], Any] = {}


def tree_rows(kernels: Any, part: Partition, order: Array, *rest: Any) -> TreeRows:
    """Return rows as a tree sees them, which are the same in all runs."""
    key = order.tobytes()
    if key not in _tree_rows:
        _tree_rows[key] = TreeRows(get_kernels("cpu", 1), part, order, *rest)
    return _tree_rows[key]


def fit_slowly(
    rows: TreeRows, spec: Any, shape: Any, blocks: Iterable[NodeBlock], seed: int, tree: int
) -> list[Any]:
    """Fit blocks, which takes virtual time."""
    found = []
    for block in blocks:
        work(4)
        if (tree, block) not in _fitted:
            (_fitted[tree, block],) = fit_blocks(rows, spec, shape, [block], seed, tree)
        found.append(_fitted[tree, block])
    return found
