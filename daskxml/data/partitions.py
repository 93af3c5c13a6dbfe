"""Parsed blocks to shuffled partitions: what each piece of the work does to rows.

Pure parts of `daskxml.data.shuffle`, which runs them as tasks on a cluster, and of `shuffle_here`,
which runs them in this process. Both give the same partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from daskxml.data.order import derive_key, shuffled_positions, shuffled_sources
from daskxml.data.rows import concatenate, split_rows, take_rows, unit_rows
from daskxml.errors import InputError
from daskxml.types import Array, Csr, Partition


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How parsed rows become partitions; the same for every task of a source.

    Attributes
    ----------
    rows
        Rows of the whole source.
    parts
        Number of partitions that are trained on, or tested with.
    shuffle_key
        Key of the permutation; None keeps the order of the files.
    features, labels
        Columns of the model.
    shift
        Subtracted from feature ids.
    normalize
        ``"l2"`` or ``"none"``.
    held_rows, held_parts
        The last rows of the order are held out: they become partitions of their own, which follow
        the others.

    Examples
    --------
    >>> recipe = Recipe(rows=10, parts=2, shuffle_key=None, features=1, labels=1, shift=0,
    ...                 normalize="none", held_rows=2, held_parts=1)
    >>> [recipe.bounds(part) for part in range(recipe.pieces)]
    [(0, 4), (4, 8), (8, 10)]
    """

    rows: int
    parts: int
    shuffle_key: int | None
    features: int
    labels: int
    shift: int
    normalize: str
    held_rows: int = 0
    held_parts: int = 0

    @property
    def pieces(self) -> int:
        """All partitions."""
        return self.parts + self.held_parts

    def bounds(self, part: int) -> tuple[int, int]:
        """Places of partition ``part``: first, and one after the last."""
        kept = self.rows - self.held_rows
        if part < self.parts:
            return kept * part // self.parts, kept * (part + 1) // self.parts
        part -= self.parts
        first = kept + self.held_rows * part // self.held_parts
        return first, kept + self.held_rows * (part + 1) // self.held_parts


def count_held(rows: int, share: float) -> int:
    """Return how many of the training rows a share is: at least one of each kind, or none.

    Raises
    ------
    InputError
        If there is only one row to divide.

    Examples
    --------
    >>> count_held(100, 0.25), count_held(100, 0.001), count_held(100, 0.0)
    (25, 1, 0)
    """
    if share == 0.0:
        return 0
    if rows < 2:
        raise InputError("one row cannot be divided: set data.validation = 0")
    return min(max(1, int(rows * share)), rows - 1)


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
    return split_rows(Partition(features, labels), parts, recipe.pieces)


def _places(start: int, stop: int, recipe: Recipe) -> Array:
    if recipe.shuffle_key is None:
        return np.arange(start, stop)
    return shuffled_positions(recipe.rows, recipe.shuffle_key, start, stop)


def _part_of(places: Array, recipe: Recipe) -> Array:
    stops = np.array([recipe.bounds(part)[1] for part in range(recipe.pieces)])
    return np.searchsorted(stops, places, side="right")


def pick(pieces: list[Partition], part: int) -> Partition:
    """Return one of a block's pieces, so that only that one travels."""
    return pieces[part]


def join_pieces(pieces: Sequence[Partition], part: int, recipe: Recipe) -> Partition:
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


def shuffle_key(seed: int) -> int:
    """Return the key of the shuffle at ingest."""
    return derive_key(seed, 0x1A6E57)


def shuffle_here(blocks: Sequence[Partition], recipe: Recipe) -> list[Partition]:
    """Shuffle parsed blocks into partitions in this process; see `Recipe`."""
    split, start = [], 0
    for block in blocks:
        split.append(split_block(block, start, recipe))
        start += block.rows
    parts = range(recipe.pieces)
    return [join_pieces([pieces[part] for pieces in split], part, recipe) for part in parts]
