"""The label trees of a run, found by Dask tasks: sums over rows, then an order a tree.

::

    rows of a part ─▶ label sums ─▶ vectors ─▶ feature sums ─▶ projection ─▶ label sums ─▶ vectors
    vectors ─▶ the order of the labels, one task a tree

Sums are exact, so that the trees are the same for any number of workers and parts. Only arrays with
a row for each label or feature travel, and none passes through the client or the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from distributed import Client, Future

from daskxml.core.arrays import Array, Partition
from daskxml.data.rows import slice_rows
from daskxml.model.tree.clustering import (
    feature_sums,
    label_sums,
    label_vectors,
    order_labels,
    projection_of,
    random_projection,
    tree_seed,
)
from daskxml.model.tree.spec import TreeSpec

BLOCK_ROWS = 16_384  # of a task over rows


def find_label_orders(
    client: Client, parts: Sequence[Future], rows: Sequence[int], spec: TreeSpec, trees: int,
    seed: int, run: str,
) -> Future:  # fmt: skip
    """Return the labels in the order of each tree's leaves, ``(trees, labels)`` int32, as a future.

    Parameters
    ----------
    parts, rows
        Partitions of the training rows, and how many each has.
    trees, seed
        How many, and the run's seed.
    """

    def submit(name: str, function: Callable[..., Any], *args: Any) -> Future:
        key = f"tree-{name}-{run}"
        return client.submit(function, *args, key=key, pure=False)

    def summed(name: str, function: Callable[..., Any], operand: Future) -> Future:
        blocks = [
            submit(f"{name}-{number}-{start}", _of_rows, function, part, start, operand)
            for number, (part, count) in enumerate(zip(parts, rows, strict=True))
            for start in range(0, count, BLOCK_ROWS)
        ]
        return submit(name, _sum, blocks)

    projection = submit("random", random_projection, spec.features, seed)
    vectors = submit("vectors-0", label_vectors, summed("labels-0", label_sums, projection))
    projection = submit("projection", projection_of, summed("features", feature_sums, vectors))
    vectors = submit("vectors", label_vectors, summed("labels", label_sums, projection))
    orders = [
        submit(f"order-{tree}", order_labels, vectors, spec, tree_seed(seed, tree))
        for tree in range(trees)
    ]
    return submit("orders", np.stack, orders)


def _of_rows(
    function: Callable[[Partition, Array], Array], part: Partition, start: int, operand: Array
) -> Array:
    """Call a function with a block of a partition's rows."""
    return function(slice_rows(part, start, min(start + BLOCK_ROWS, part.rows)), operand)


def _sum(arrays: Sequence[Array]) -> Array:
    total: Array = np.sum(arrays, axis=0)
    return total
