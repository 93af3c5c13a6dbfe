"""Parsed blocks to shuffled partitions that stay on the workers, as Dask tasks.

Published files are sorted by label or by time, so the training rows are shuffled once: row ``i`` of
all files goes to place ``perm(i)``, a seeded permutation that every task can evaluate for its own
rows. Blocks are split by destination, and the pieces joined::

    block ─▶ split_block ─▶ pick ─▶ join_pieces ─▶ partition

The shuffled order is the same for any number of workers, blocks and partitions. Without a key the
rows keep their order, as test rows do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from distributed import Client, Future

from daskxml.data.ingest import Parsed
from daskxml.data.order import derive_key, shuffled_positions, shuffled_sources
from daskxml.data.rows import concatenate, label_counts, split_rows, take_rows, unit_rows
from daskxml.types import Array, Csr, Partition


@dataclass(frozen=True)
class Shards:
    """Partitions on the workers."""

    futures: list[Future]
    rows: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How parsed rows become partitions; the same for every task of a source.

    Attributes
    ----------
    rows
        Rows of the whole source.
    parts
        Number of partitions.
    shuffle_key
        Key of the permutation; None keeps the order of the files.
    features, labels
        Columns of the model.
    shift
        Subtracted from feature ids.
    normalize
        ``"l2"`` or ``"none"``.
    """

    rows: int
    parts: int
    shuffle_key: int | None
    features: int
    labels: int
    shift: int
    normalize: str

    def bounds(self, part: int) -> tuple[int, int]:
        """Places of partition ``part``: first, and one after the last."""
        return self.rows * part // self.parts, self.rows * (part + 1) // self.parts


def make_shards(client: Client, parsed: Parsed, recipe: Recipe, name: str) -> Shards:
    """Shuffle parsed rows into ``recipe.parts`` partitions that stay on the workers."""
    starts = np.concatenate([[0], np.cumsum(parsed.block_rows)])
    split = [
        client.submit(split_block, block, int(start), recipe, key=f"split-{name}-{i}", pure=False)
        for i, (block, start) in enumerate(zip(parsed.blocks, starts[:-1], strict=True))
    ]
    futures = []
    for part in range(recipe.parts):
        pieces = [
            client.submit(pick, pieces, part, key=f"pick-{name}-{i}-{part}", pure=False)
            for i, pieces in enumerate(split)
        ]
        key = f"join-{name}-{part}"
        futures.append(client.submit(join_pieces, pieces, part, recipe, key=key, pure=False))
    bounds = [recipe.bounds(part) for part in range(recipe.parts)]
    return Shards(futures, tuple(stop - start for start, stop in bounds))


def split_block(block: Partition, start: int, recipe: Recipe) -> list[Partition]:
    """Prepare a block's rows and split them by destination; ``start`` is the first row's number."""
    features, labels = block.features, block.labels
    values = np.array(features.data)  # the block stays as it was: Dask may use it again
    features = Csr(features.indptr, features.indices - recipe.shift, values, recipe.features)
    if recipe.normalize == "l2":
        unit_rows(features)
    labels = replace(labels, columns=recipe.labels)
    places = _places(start, start + block.rows, recipe)
    parts = _part_of(places, recipe)
    return split_rows(Partition(features, labels), parts, recipe.parts)


def _places(start: int, stop: int, recipe: Recipe) -> Array:
    if recipe.shuffle_key is None:
        return np.arange(start, stop)
    return shuffled_positions(recipe.rows, recipe.shuffle_key, start, stop)


def _part_of(places: Array, recipe: Recipe) -> Array:
    stops = np.array([recipe.bounds(part)[1] for part in range(recipe.parts)])
    return np.searchsorted(stops, places, side="right")


def pick(pieces: list[Partition], part: int) -> Partition:
    """Return one of a block's pieces, so that only that one travels."""
    return pieces[part]


def join_pieces(pieces: list[Partition], part: int, recipe: Recipe) -> Partition:
    """Put the rows of a partition into their order.

    The pieces hold them by ascending source row, so a row's rank among the sources says where it
    lies.
    """
    joined = concatenate(pieces)
    if recipe.shuffle_key is None:
        return joined
    sources = shuffled_sources(recipe.rows, recipe.shuffle_key, *recipe.bounds(part))
    ranks = np.empty(len(sources), dtype=np.int64)
    ranks[np.argsort(sources)] = np.arange(len(sources))
    return take_rows(joined, ranks)


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


def shuffle_key(seed: int) -> int:
    """Return the key of the shuffle at ingest."""
    return derive_key(seed, 0x1A6E57)
