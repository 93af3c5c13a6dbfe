"""Text files to shuffled partitions on the workers, as Dask tasks; nothing large passes the caller.

The way of a row::

    plan_blocks ─▶ parse ─▶ split by destination ─▶ join ─▶ partition, persisted on a worker
                     └▶ describe (a few numbers, to the caller)

Published files are sorted by label or by time, so the training rows are shuffled once: row ``i`` of
all files goes to place ``perm(i)``, a seeded permutation that every task can evaluate for its own
rows. The shuffled order is therefore the same for any number of workers, blocks and partitions.
Test rows keep their order. A partition that is lost with its worker is read again by Dask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from distributed import Client, Future, wait

from daskxml.data.blocks import Block, Header, plan_blocks, read_header
from daskxml.data.faults import Dialect
from daskxml.data.order import derive_key, shuffled_positions, shuffled_sources
from daskxml.data.parse import detect_feature_base, parse_block
from daskxml.data.rows import concatenate, label_counts, split_rows, take_rows, unit_rows
from daskxml.errors import InputError
from daskxml.types import Array, Csr, Partition


@dataclass(frozen=True, kw_only=True)
class Source:
    """What to read and how; zeros and ``"auto"`` are found out from the data.

    Attributes
    ----------
    paths
        Files, globs or URLs.
    format
        ``"xml"`` (with a header), ``"libsvm"`` (without) or ``"auto"``.
    feature_base, label_base
        The least id that may occur: 0, 1, or "auto" for features.
    features, labels
        Columns, where the user gave them.
    normalize
        ``"l2"`` or ``"none"``.
    block_bytes
        Text read by one task.
    """

    paths: tuple[str, ...]
    format: str = "auto"
    feature_base: int | str = "auto"
    label_base: int = 0
    features: int = 0
    labels: int = 0
    normalize: str = "l2"
    block_bytes: int = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers that describe a parsed block."""

    rows: int
    nonzeros: int
    label_nonzeros: int
    nbytes: int
    least: int
    features: int
    labels: int


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a data set once it is read: sizes in rows, columns, entries and bytes."""

    rows: int
    features: int
    labels: int
    nonzeros: int
    label_nonzeros: int
    nbytes: int
    feature_base: int


@dataclass(frozen=True)
class Parsed:
    """Blocks on the workers, in the order of the files; ``shift`` is still to be subtracted."""

    blocks: list[Future]
    block_rows: list[int]
    facts: Facts
    shift: int


@dataclass(frozen=True)
class Shards:
    """Partitions on the workers."""

    futures: list[Future]
    rows: tuple[int, ...]


def describe(partition: Partition) -> Numbers:
    """Return the numbers that the caller needs of a parsed block."""
    ids = partition.features.indices
    return Numbers(
        partition.rows,
        partition.features.nonzeros,
        partition.labels.nonzeros,
        partition.nbytes,
        int(ids.min()) if len(ids) else -1,
        partition.features.columns,
        partition.labels.columns,
    )


async def parse_source(client: Client, source: Source, name: str) -> Parsed:
    """Read and parse all files of a source, a block a task.

    Raises
    ------
    InputError
        The first problem in the order of the files.
    """
    blocks, headers = await client.submit(_plan, source, key=f"plan-{name}", pure=False)
    dialect = _dialect(source, headers)
    parsed, numbers = await _parse(client, blocks, dialect, name)
    _check_rows(blocks, numbers, headers)
    shift = 0
    if not headers and source.feature_base == "auto":
        shift = detect_feature_base(min((n.least for n in numbers if n.least >= 0), default=None))
        if source.features and max(n.features for n in numbers) - shift > source.features:
            strict = replace(dialect, features=source.features, feature_base=shift)
            await _parse(client, blocks, strict, f"check-{name}")  # names the file and the line
    facts = _facts(dialect, numbers, source.features, shift)
    if not facts.rows:
        raise InputError("no rows in the file; give one with data", ", ".join(source.paths))
    return Parsed(parsed, [n.rows for n in numbers], facts, shift)


async def _parse(
    client: Client, blocks: Sequence[Block], dialect: Dialect, name: str
) -> tuple[list[Future], list[Numbers]]:
    parsed = [
        client.submit(parse_block, block, dialect, key=f"parse-{name}-{i}", pure=False)
        for i, block in enumerate(blocks)
    ]
    numbers = [
        client.submit(describe, block, key=f"describe-{name}-{i}", pure=False)
        for i, block in enumerate(parsed)
    ]
    return parsed, await gather_in_order(client, numbers)


async def gather_in_order(client: Client, futures: Sequence[Future]) -> list[Any]:
    """Return all results, or raise the error of the first future in the list that failed."""
    await settle(futures)
    return list(await client.gather(list(futures)))


async def settle(futures: Sequence[Future]) -> None:
    """Wait until all are computed, and leave them where they are; raise the first error."""
    await wait(futures)
    for future in futures:
        if future.status == "error":
            raise await future.exception()


def _plan(source: Source) -> tuple[list[Block], dict[str, Header]]:
    blocks = plan_blocks(source.paths, source.block_bytes)
    paths = list(dict.fromkeys(block.path for block in blocks))
    if source.format == "libsvm":
        return blocks, {}
    read = {path: read_header(path) for path in paths}
    headers = {path: header for path, header in read.items() if header is not None}
    missing = [path for path in paths if path not in headers]
    if missing and (headers or source.format == "xml"):
        problem = "no header 'rows features labels' on the first line, as the other files have"
        raise InputError(problem if headers else problem.split(",")[0], missing[0], 1)
    return blocks, headers


def _dialect(source: Source, headers: dict[str, Header]) -> Dialect:
    """What the parser checks ids against; a base still to be found out is read as zero."""
    is_open = not headers and source.feature_base == "auto"
    features = source.features or max((h.features for h in headers.values()), default=0)
    labels = source.labels or max((h.labels for h in headers.values()), default=0)
    return Dialect(
        features=None if is_open else features or None,
        labels=labels or None,
        feature_base=0 if headers or is_open else int(source.feature_base),
        label_base=0 if headers else source.label_base,
    )


def _check_rows(
    blocks: Sequence[Block], numbers: Sequence[Numbers], headers: dict[str, Header]
) -> None:
    found = dict.fromkeys(headers, 0)
    for block, number in zip(blocks, numbers, strict=True):
        if block.path in found:
            found[block.path] += number.rows
    for path, header in headers.items():
        if found[path] != header.rows:
            problem = f"the header says {header.rows} rows but the file has {found[path]}"
            raise InputError(f"{problem}: it is cut off, or the header is wrong", path, 1)


def _facts(dialect: Dialect, numbers: Sequence[Numbers], features: int, shift: int) -> Facts:
    return Facts(
        rows=sum(n.rows for n in numbers),
        features=features or max(n.features for n in numbers) - shift,
        labels=max(n.labels for n in numbers),
        nonzeros=sum(n.nonzeros for n in numbers),
        label_nonzeros=sum(n.label_nonzeros for n in numbers),
        nbytes=sum(n.nbytes for n in numbers),
        feature_base=shift or dialect.feature_base,
    )


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
