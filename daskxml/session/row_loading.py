"""Loading a run's rows by tasks: on the workers of a cluster, or in this process.

A block of a file is parsed by a task; only a few counts of each block come back. Published files
are sorted by label or by time, so the training rows are shuffled once: row ``i`` of all files moves
to position ``perm(i)``, a seeded permutation that every task can evaluate for its own rows. Blocks
are split by destination, and the pieces joined::

    block ─▶ split_block ─▶ getitem ─▶ join_pieces ─▶ partition

The order is the same for any number of workers, blocks and partitions. Without a shuffle key rows
keep their order, as test rows do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from operator import getitem
from typing import Any, Protocol, TypeVar

import numpy as np

from daskxml.config import RunConfig
from daskxml.core.arrays import Array, Partition
from daskxml.core.errors import InputError
from daskxml.core.hardware import free_memory_bytes
from daskxml.core.work_stats import StageRecord
from daskxml.data.blocks import Block
from daskxml.data.formats import read_block
from daskxml.data.parse import Dialect
from daskxml.data.reading import (
    Facts,
    ReadPlan,
    Recipe,
    count_block,
    count_held,
    join_pieces,
    matrix_facts,
    plan_source,
    shuffle_key,
    split_block,
    weights_of,
)
from daskxml.data.rows import is_on_disk, label_counts, on_disk
from daskxml.data.settings import DataSection
from daskxml.data.side_files import row_weights
from daskxml.session.placement import Placement

BLOCK_ROWS = 16_384  # of a task that sums rows

SHARDS_PER_WORKER = 4  # so that shards can follow measured speeds
LABEL_BYTES = 32  # of counts and ids, in one process
Result = TypeVar("Result")


class Tasks(Protocol):
    """Where tasks are executed."""

    def submit(self, name: str, task: Callable[..., Any], *args: Any) -> Any:
        """Return the future of a task, or what it returns where it is executed at once."""

    async def wait(self, futures: Sequence[Any]) -> None:
        """Wait until all are computed; raise the first error in the list."""

    async def fetch(self, futures: Sequence[Any]) -> list[Any]:
        """Return what they hold."""


class TasksHere:
    """Tasks of this process.

    Parameters
    ----------
    memory_bytes
        Of the process; once partitions, and the copies that loading makes of them, have taken a
        quarter of it, others are read from disk.
    """

    def __init__(self, memory_bytes: float = math.inf) -> None:
        self._left_bytes = memory_bytes / 4

    def submit(self, name: str, task: Callable[..., Any], *args: Any) -> Any:
        """Return what a task returns."""
        result = task(*args)
        return result if task is getitem else self._kept(result)  # else counted in its list

    def _kept(self, result: Any) -> Any:
        if isinstance(result, list):
            return [self._kept(each) for each in result]
        if not isinstance(result, Partition):
            return result
        self._left_bytes -= result.nbytes
        is_kept = self._left_bytes >= 0 or is_on_disk(result.features)
        return result if is_kept else on_disk(result)

    async def wait(self, futures: Sequence[Any]) -> None:
        """Do nothing: all are computed."""

    async def fetch(self, futures: Sequence[Any]) -> list[Any]:
        """Return them."""
        return list(futures)


def run_here(work: Coroutine[Any, Any, Result]) -> Result:
    """Return what a coroutine returns that uses `TasksHere`, and so never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for something")


@dataclass(frozen=True)
class DataLayout:
    """How many partitions there are, and whether every worker has them all."""

    is_replicated: bool
    parts: int


@dataclass(frozen=True)
class GivenRows:
    """Rows to use instead of files: blocks, and the weights of all training rows."""

    train: Sequence[Any] = ()
    test: Sequence[Any] = ()
    weights: Any = None


@dataclass(frozen=True)
class ParsedBlocks:
    """Blocks in the order of the files, and the sizes of each and of all."""

    blocks: Sequence[Any]
    counts: list[Facts]
    facts: Facts


@dataclass(frozen=True)
class Shards:
    """Partitions, on a cluster as futures, and how many rows each has."""

    parts: list[Any]
    rows: tuple[int, ...]

    def blocks(self) -> list[tuple[Any, int, int]]:
        """Return parts of the partitions: partition, first row, row after the last."""
        return [
            (part, start, min(start + BLOCK_ROWS, rows))
            for part, rows in zip(self.parts, self.rows, strict=True)
            for start in range(0, rows, BLOCK_ROWS)
        ]

    def divide(self, parts: int) -> tuple[Shards, Shards]:
        """Return the first ``parts`` and the others."""
        first = Shards(self.parts[:parts], self.rows[:parts])
        return first, Shards(self.parts[parts:], self.rows[parts:])


@dataclass(frozen=True)
class Rows:
    """The rows of a run: on the workers of a cluster, or in this process; runs may share them.

    Attributes
    ----------
    facts
        Sizes of all training rows.
    train, test
        Partitions; held-out rows are test rows.
    label_counts
        ``(labels,)`` int64, of the training rows without those held out; on a cluster a future.
    is_replicated
        Every worker holds every row.
    stages
        How they came there.
    checksums
        Of the training partitions.
    """

    facts: Facts
    train: Shards
    test: Shards
    label_counts: Any
    is_replicated: bool
    stages: tuple[StageRecord, ...] = ()
    checksums: tuple[int, ...] = ()

    @property
    def training_rows(self) -> int:
        """Rows that are trained on."""
        return sum(self.train.rows)

    @property
    def row_bytes(self) -> float:
        """Bytes of a typical row."""
        return self.facts.nbytes / self.facts.rows

    def model_spec(self, config: RunConfig) -> Any:
        """Return the model of a run with these rows."""
        return config.model_spec(self.facts.features, self.facts.labels)

    def placement(self) -> Placement:
        """Return a placement with no owners yet."""
        return Placement(self.is_replicated, self.train.rows, self.test.rows)

    @property
    def is_intact(self) -> bool:
        """Whether no partition was cancelled, as ``client.restart()`` does."""
        return not any(each.status in ("cancelled", "error") for each in self.futures())

    def futures(self) -> list[Any]:
        """Return what keeps the rows on the workers."""
        return [*self.train.parts, *self.test.parts, self.label_counts]

    def release(self) -> None:
        """Release the rows, even if this object is still referenced."""
        for future in self.futures():
            future.release()

    def fit(self, stored: DataLayout | None, workers: int) -> bool:
        """Whether a run with this layout, or a new one on so many workers, can use the rows."""
        parts = len(self.train.rows)
        if stored is not None:
            return (self.is_replicated, parts) == (stored.is_replicated, stored.parts)
        return self.is_replicated or parts >= min(workers, sum(self.train.rows))


def place_rows(config: RunConfig, rows: int, nbytes: int, workers: int) -> DataLayout:
    """Decide how ``rows`` training rows are on the workers; ``nbytes`` is of all rows.

    Examples
    --------
    >>> from daskxml.config import load_run_config
    >>> place_rows(load_run_config({"training": {"epochs": 1}}), 1000, 50_000, workers=4)
    DataLayout(is_replicated=True, parts=1)
    """
    data = config.data
    needs_all = config.kind.needs_all_rows
    is_small = nbytes <= data.replicate_budget or needs_all
    is_replicated = data.residency == "replicate" or (data.residency == "auto" and is_small)
    # One partition is the stream as it is; several would be joined, and are in memory twice.
    parts = data.partitions or (1 if is_replicated else workers * SHARDS_PER_WORKER)
    return DataLayout(is_replicated, max(1, min(parts, rows)))


def as_test_rows(data: DataSection, training: Facts) -> DataSection:
    """Return what to read for testing: the test files, with the columns of the training files."""
    names: Any = data.feature_names or training.columns  # names, or the path of a file of them
    return replace(
        data,
        train=data.test,
        feature_names=names,
        features=training.features,
        labels=training.labels,
        feature_base=1 if training.feature_base else 0,
    )


def check_labels(facts: Facts, paths: tuple[str, ...]) -> None:
    """Refuse training rows without any label, and as many labels as only a wrong header has.

    Raises
    ------
    InputError
        If no row has a label, or what is kept of each label exceeds the free memory.
    """
    if not facts.label_nonzeros:
        problem = "no row has a label, so there is nothing to learn; give rows with labels"
    elif LABEL_BYTES * facts.labels > free_memory_bytes():
        problem = f"{facts.labels:,} labels are too many for the free memory: correct their number"
    else:
        return
    raise InputError(problem, ", ".join(paths) or None)


def make_recipe(config: RunConfig, facts: Facts, parts: int, *, is_training: bool) -> Recipe:
    """Return how parsed rows become at most so many partitions.

    Training rows are shuffled, and the last partitions are those of rows that are held out; test
    rows stay in the order of the files.

    Raises
    ------
    InputError
        If there are too few rows to hold out some.
    """
    held_rows = count_held(facts.rows, config.data.validation) if is_training else 0
    return Recipe(
        rows=facts.rows,
        parts=min(parts, facts.rows - held_rows),
        shuffle_key=shuffle_key(config.run.seed) if is_training else None,
        features=facts.features,
        labels=facts.labels,
        shift=facts.shift,
        normalize=config.data.normalize,
        held_rows=held_rows,
        held_parts=min(parts, held_rows),
    )


def submit_each(
    tasks: Tasks, name: str, task: Callable[..., Any], parts: Sequence[Any], *args: Any
) -> list[Any]:
    """Submit a task for each part, under this name and the part's number."""
    return [tasks.submit(f"{name}-{i}", task, part, *args) for i, part in enumerate(parts)]


async def load_partitions(
    tasks: Tasks, config: RunConfig, run: str, workers: int, given: GivenRows,
    stored: DataLayout | None,
) -> Rows:  # fmt: skip
    """Read all rows, and shuffle them into partitions.

    Parameters
    ----------
    run
        Part of the tasks' names.
    workers
        Their number, which determines the number of partitions.
    stored
        The layout of a resumed run, which must not change.

    Raises
    ------
    InputError
        The first problem in the order of the files, training files first.
    """
    data, began_s = config.data, time.monotonic()
    train = await _read(tasks, data, given.train, f"train-{run}")
    test = None
    if (data.test or given.test) and not data.validation:
        source = as_test_rows(data, train.facts)
        test = await _read(tasks, source, given.test, f"test-{run}")
    nbytes = train.facts.nbytes + (test.facts.nbytes if test else 0)
    read_s = time.monotonic() - began_s
    layout = stored or place_rows(config, train.facts.rows, nbytes, workers)
    check_labels(train.facts, data.train)
    recipe = make_recipe(config, train.facts, layout.parts, is_training=True)
    weights = await _weights(tasks, config, given.weights, train, run)
    shards = make_shards(tasks, train, recipe, f"train-{run}", weights)
    shards, tests = shards.divide(recipe.parts)
    if test is not None:
        recipe = make_recipe(config, test.facts, layout.parts, is_training=False)
        tests = make_shards(tasks, test, recipe, f"test-{run}")
    counts = count_labels(tasks, shards, train.facts.labels, run)
    await tasks.wait([*shards.parts, *tests.parts, counts])
    shuffle_s = time.monotonic() - began_s - read_s
    blocks = len(train.blocks) + (len(test.blocks) if test else 0)
    rows, pieces = sum(shards.rows) + sum(tests.rows), len(shards.rows) + len(tests.rows)
    whole = StageRecord(name="read", rows=rows, nbytes=nbytes, partitions=blocks, seconds=read_s)
    shuffle = replace(whole, name="shuffle", partitions=pieces, seconds=shuffle_s)
    stages = (shuffle,) if given.train else (whole, shuffle)
    return Rows(train.facts, shards, tests, counts, layout.is_replicated, stages)


async def _weights(
    tasks: Tasks, config: RunConfig, given: Any, train: ParsedBlocks, run: str
) -> Any:
    """Return the weights of all training rows as a future, if they have any."""
    given = given if given is not None else config.data.weights or None
    if given is None and train.facts.has_weights:
        own = submit_each(tasks, f"own-weights-{run}", weights_of, train.blocks)
        given = tasks.submit(f"all-weights-{run}", np.concatenate, own)
    if given is None:
        return None
    check = partial(row_weights, has_mean_one=config.kind.scales_weights)
    weights = tasks.submit(f"weights-{run}", check, given, train.facts.rows)
    await tasks.wait([weights])
    return weights


async def _read(tasks: Tasks, data: DataSection, blocks: Sequence[Any], name: str) -> ParsedBlocks:
    """Read files, or describe blocks that are there already, such as a user's matrices."""
    if not blocks:
        return await parse_files(tasks, data, name)
    counts = await _count(tasks, blocks, name)
    return ParsedBlocks(blocks, counts, matrix_facts(counts, data))


async def parse_files(tasks: Tasks, data: DataSection, name: str) -> ParsedBlocks:
    """Read and parse all training files, one task per block.

    Raises
    ------
    InputError
        The first problem in the order of the files.
    """
    plan: ReadPlan
    (plan,) = await tasks.fetch([tasks.submit(f"plan-{name}", plan_source, data)])
    blocks, counts = await _parse(tasks, plan.blocks, plan.dialect, name)
    facts = plan.facts(counts)
    if (strict := plan.stricter_dialect(counts, facts)) is not None:
        await _parse(tasks, plan.blocks, strict, f"check-{name}")  # raises
    return ParsedBlocks(blocks, counts, facts)


async def _parse(
    tasks: Tasks, blocks: Sequence[Block], dialect: Dialect, name: str
) -> tuple[list[Any], list[Facts]]:
    parsed = submit_each(tasks, f"parse-{name}", read_block, blocks, dialect)
    return parsed, await _count(tasks, parsed, name)


async def _count(tasks: Tasks, blocks: Sequence[Any], name: str) -> list[Facts]:
    counts = submit_each(tasks, f"describe-{name}", count_block, blocks)
    await tasks.wait(counts)
    return await tasks.fetch(counts)


def make_shards(
    tasks: Tasks, parsed: ParsedBlocks, recipe: Recipe, name: str, weights: Any = None
) -> Shards:
    """Shuffle parsed rows into ``recipe.pieces`` partitions."""
    edges = np.concatenate([[0], np.cumsum([block.rows for block in parsed.counts])]).tolist()
    split = [
        tasks.submit(f"split-{name}-{i}", split_block, block, *bounds, recipe, weights)
        for i, (block, bounds) in enumerate(zip(parsed.blocks, pairwise(edges), strict=True))
    ]
    futures = []
    for part in range(recipe.pieces):
        pieces = submit_each(tasks, f"pick-{name}-{part}", getitem, split, part)
        futures.append(tasks.submit(f"join-{name}-{part}", join_pieces, pieces, part, recipe))
    bounds = [recipe.bounds(part) for part in range(recipe.pieces)]
    return Shards(futures, tuple(stop - start for start, stop in bounds))


def count_labels(tasks: Tasks, shards: Shards, labels: int, name: str) -> Any:
    """Return how often each label occurs, ``(labels,)`` int64, as a future."""
    counts = submit_each(tasks, f"count-{name}", _count_labels, shards.parts, labels)
    return tasks.submit(f"counts-{name}", _sum, counts)


def _count_labels(partition: Partition, labels: int) -> Array:
    return label_counts(partition.labels, labels)


def _sum(counts: list[Array]) -> Array:
    return np.sum(counts, axis=0, dtype=np.int64)
