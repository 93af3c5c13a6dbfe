"""Parsed blocks to shuffled partitions that stay on the workers, as Dask tasks.

Published files are sorted by label or by time, so the training rows are shuffled once: row ``i`` of
all files goes to place ``perm(i)``, a seeded permutation that every task can evaluate for its own
rows. Blocks are split by destination, and the pieces joined::

    block ─▶ split_block ─▶ pick ─▶ join_pieces ─▶ partition

The shuffled order is the same for any number of workers, blocks and partitions. Without a key the
rows keep their order, as test rows do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from distributed import Client, Future

from daskxml.data.ingest import Parsed
from daskxml.data.partitions import Recipe, join_pieces, pick, shuffle_key, split_block
from daskxml.data.rows import label_counts
from daskxml.types import Array, Partition

__all__ = [
    "Recipe",
    "Shards",
    "count_labels",
    "join_pieces",
    "make_shards",
    "shuffle_key",
    "split_block",
]


@dataclass(frozen=True)
class Shards:
    """Partitions on the workers."""

    futures: list[Future]
    rows: tuple[int, ...]

    def divide(self, parts: int) -> tuple[Shards, Shards]:
        """Return the first ``parts`` and the others."""
        first = Shards(self.futures[:parts], self.rows[:parts])
        return first, Shards(self.futures[parts:], self.rows[parts:])


def make_shards(client: Client, parsed: Parsed, recipe: Recipe, name: str) -> Shards:
    """Shuffle parsed rows into ``recipe.pieces`` partitions that stay on the workers."""
    starts = np.concatenate([[0], np.cumsum(parsed.block_rows)])
    split = [
        client.submit(split_block, block, int(start), recipe, key=f"split-{name}-{i}", pure=False)
        for i, (block, start) in enumerate(zip(parsed.blocks, starts[:-1], strict=True))
    ]
    futures = []
    for part in range(recipe.pieces):
        pieces = [
            client.submit(pick, pieces, part, key=f"pick-{name}-{i}-{part}", pure=False)
            for i, pieces in enumerate(split)
        ]
        key = f"join-{name}-{part}"
        futures.append(client.submit(join_pieces, pieces, part, recipe, key=key, pure=False))
    bounds = [recipe.bounds(part) for part in range(recipe.pieces)]
    return Shards(futures, tuple(stop - start for start, stop in bounds))


def count_labels(client: Client, shards: Shards, labels: int, name: str) -> Future:
    """Return how often each label occurs, ``(labels,)`` int64, as a future."""
    counts = [
        client.submit(_labels_of, part, labels, key=f"count-{name}-{i}", pure=False)
        for i, part in enumerate(shards.futures)
    ]
    return client.submit(_sum, counts, key=f"counts-{name}", pure=False)


def _labels_of(partition: Partition, labels: int) -> Array:
    return label_counts(partition.labels, labels)


def _sum(counts: list[Array]) -> Array:
    return np.sum(counts, axis=0, dtype=np.int64)
