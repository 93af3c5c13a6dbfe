"""Loading a run's data onto its workers, as Dask tasks; no rows pass through the scheduler.

A block of a file is parsed by a task; only a few counts of each block come back. Published files
are sorted by label or by time, so the training rows are shuffled once: row ``i`` of all files moves
to position ``perm(i)``, a seeded permutation that every task can evaluate for its own rows. Blocks
are split by destination, and the pieces joined::

    block ─▶ split_block ─▶ getitem ─▶ join_pieces ─▶ partition

The order is the same for any number of workers, blocks and partitions. Without a shuffle key rows
keep their order, as test rows do. Dask recomputes blocks and partitions that are lost with a worker
by reading the files again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from operator import getitem
from typing import Any

import numpy as np
from distributed import Client, Future, wait

from daskxml.cluster.shared_rows import SharedRows
from daskxml.config import RunConfig
from daskxml.core.arrays import Array, Partition
from daskxml.core.errors import TrainingError
from daskxml.core.work_stats import SHARED, StageRecord
from daskxml.data.blocks import Block, stamp_files
from daskxml.data.formats import read_block
from daskxml.data.parse import Dialect
from daskxml.data.reading import (
    BlockCounts,
    DataSource,
    Facts,
    ReadPlan,
    Recipe,
    count_block,
    have_weights,
    join_pieces,
    matrix_facts,
    plan_source,
    split_block,
    weights_of,
)
from daskxml.data.rows import label_counts
from daskxml.data.weights import row_weights
from daskxml.models.network.spec import Layout
from daskxml.models.trees.search import prepare_trees
from daskxml.session.placement import Placement
from daskxml.session.setup import (
    DataLayout,
    check_labels,
    evaluation_recipe,
    make_source,
    place_rows,
    source_like,
    training_recipe,
)

_OF_METRICS = ("propensity_a", "propensity_b")  # in [data], but not what rows are made of
BLOCK_ROWS = 16_384  # of a task that sums rows for label trees
COPIES, FLOAT_BYTES = 4, 4  # a replica, the global model, the one before it, the next one


@dataclass(frozen=True)
class ScatteredRows:
    """Keys of partitions that the client has put on the workers, instead of files.

    ``weights`` is the key of the array of the training rows' weights, and ``names`` that of the
    names of their columns, if they have any.
    """

    train: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class ParsedBlocks:
    """Blocks on the workers, in the order of the files; ``shift`` is still to be subtracted."""

    blocks: list[Future]
    counts: list[BlockCounts]
    facts: Facts
    shift: int


@dataclass(frozen=True)
class Shards:
    """Partitions on the workers."""

    futures: list[Future]
    rows: tuple[int, ...]

    def blocks(self) -> list[tuple[Future, int, int]]:
        """Return parts of the partitions: partition, first row, row after the last."""
        return [
            (part, start, min(start + BLOCK_ROWS, rows))
            for part, rows in zip(self.futures, self.rows, strict=True)
            for start in range(0, rows, BLOCK_ROWS)
        ]

    def divide(self, parts: int) -> tuple[Shards, Shards]:
        """Return the first ``parts`` and the others."""
        first = Shards(self.futures[:parts], self.rows[:parts])
        return first, Shards(self.futures[parts:], self.rows[parts:])


@dataclass(frozen=True)
class PlacedRows:
    """Rows on the workers, which runs may share.

    Attributes
    ----------
    facts
        Sizes of all training rows.
    train, test
        Partitions on the workers; held-out rows are test rows.
    label_counts
        Future of ``(labels,)`` int64, of the training rows without those held out.
    is_replicated
        Every worker holds every row.
    stages
        How they came there.
    """

    facts: Facts
    train: Shards
    test: Shards
    label_counts: Future
    is_replicated: bool
    stages: tuple[StageRecord, ...] = ()

    @property
    def is_intact(self) -> bool:
        """Whether no partition was cancelled, as ``client.restart()`` does."""
        return not any(each.status in ("cancelled", "error") for each in self.futures())

    def futures(self) -> list[Future]:
        """Return what keeps the rows on the workers."""
        return [*self.train.futures, *self.test.futures, self.label_counts]

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


@dataclass(frozen=True)
class LoadedData:
    """A run's data.

    Attributes
    ----------
    spec
        The model for this data.
    rows
        On the workers.
    label_vectors
        Of `daskxml.models.trees.clustering.find_label_vectors`, as a future; None for models that
        are no trees.
    was_there
        Another run had read the rows.
    """

    spec: Any
    rows: PlacedRows
    label_vectors: Any = None
    was_there: bool = False

    def stages(self) -> tuple[StageRecord, ...]:
        """Return how the rows came to the workers, or that another run had brought them there."""
        stages = self.rows.stages
        if not self.was_there:
            return stages
        return tuple(replace(stage, outcome=SHARED, seconds=0.0) for stage in stages)

    def placement(self) -> Placement:
        """Return a placement with no owners yet."""
        rows = self.rows
        return Placement(rows.is_replicated, rows.train.rows, rows.test.rows)


@dataclass(frozen=True)
class RowHolders:
    """Who holds the rows of a run: the run, and perhaps the client that keeps them.

    Attributes
    ----------
    shared
        The rows of all runs.
    keeper
        Client that keeps the rows after the run; "" if none does.
    """

    shared: SharedRows = field(default_factory=SharedRows)
    keeper: str = ""


async def load(
    client: Client,
    config: RunConfig,
    run: str,
    workers: int,
    scattered: ScatteredRows,
    stored: DataLayout | None,
    holders: RowHolders,
) -> LoadedData:
    """Place the training and the test rows on the workers, unless another run has.

    Parameters
    ----------
    workers
        Their number, which determines the number of partitions.
    scattered
        Rows to use instead of files.
    stored
        The layout of a resumed run, which must not change.
    holders
        Rows of other runs, and who keeps those of this one.

    Raises
    ------
    InputError
        The first problem in the order of the files, training files first.
    TrainingError
        If a worker's memory cannot hold the model.
    """
    name = await _name_rows(client, config, run, scattered)
    rows, was_there = await holders.shared.acquire(
        name,
        [run, holders.keeper] if holders.keeper else [run],
        lambda: _place_rows(client, config, run, workers, scattered, stored),
        lambda rows: rows.fit(stored, workers),
    )
    spec = await _checked_spec(client, config, rows.facts)
    if config.has_strategy:
        return LoadedData(spec, rows, None, was_there)
    parts = rows.train
    found, vectors = prepare_trees(
        parts.futures, rows.label_counts, spec, config.run.seed, parts.blocks(),
        lambda name, *call: client.submit(*call, key=f"tree-{name}-{run}", pure=False),
    )  # fmt: skip
    spec = await found if isinstance(found, Future) else found
    await _wait_for_all([vectors])
    return LoadedData(spec, rows, vectors, was_there)


async def _name_rows(client: Client, config: RunConfig, run: str, scattered: ScatteredRows) -> str:
    """Return a name that is the same for runs with the same rows, in the same partitions.

    Where the files cannot be asked when they changed, that is the run's own name: whatever is
    wrong with them shows when they are read.
    """
    data = config.data
    tests = () if data.validation else data.test
    names = (data.weights, data.feature_names, data.label_names)
    paths = (*data.train, *tests, *filter(None, names))
    stamps = await client.submit(stamp_files, paths, key=f"stamp-{run}", pure=False)
    if stamps is None:
        return run
    section = {key: value for key, value in asdict(data).items() if key not in _OF_METRICS}
    made_of = (section, config.run.seed, config.kind.scales_weights, asdict(scattered), stamps)
    return sha256(json.dumps(made_of).encode()).hexdigest()


async def _place_rows(
    client: Client,
    config: RunConfig,
    run: str,
    workers: int,
    scattered: ScatteredRows,
    stored: DataLayout | None,
) -> PlacedRows:
    """Read all rows, and shuffle them into partitions."""
    data, began_s = config.data, time.monotonic()
    source = make_source(data, data.train)
    train = await _read(client, source, scattered.train, f"train-{run}")
    test = None
    if (data.test or scattered.test) and not data.validation:
        source = source_like(data, data.test, train.facts)
        test = await _read(client, source, scattered.test, f"test-{run}")
    nbytes = train.facts.nbytes + (test.facts.nbytes if test else 0)
    read_s = time.monotonic() - began_s
    layout = stored or place_rows(config, train.facts.rows, nbytes, workers)
    check_labels(train.facts, data.train)
    await _checked_spec(client, config, train.facts)
    recipe = training_recipe(config, train.facts, train.shift, layout.parts)
    weights = await _weights(client, config, scattered.weights, train, run)
    shards = make_shards(client, train, recipe, f"train-{run}", weights)
    shards, tests = shards.divide(recipe.parts)
    if test is not None:
        recipe = evaluation_recipe(config, test.facts, test.shift, layout.parts)
        tests = make_shards(client, test, recipe, f"test-{run}")
    counts = count_labels(client, shards, train.facts.labels, run)
    await _wait_for_all([*shards.futures, *tests.futures, counts])
    shuffle_s = time.monotonic() - began_s - read_s
    blocks = len(train.blocks) + (len(test.blocks) if test else 0)
    rows, pieces = sum(shards.rows) + sum(tests.rows), len(shards.rows) + len(tests.rows)
    whole = StageRecord(name="read", rows=rows, nbytes=nbytes, partitions=blocks, seconds=read_s)
    shuffle = replace(whole, name="shuffle", partitions=pieces, seconds=shuffle_s)
    stages = (shuffle,) if scattered.train else (whole, shuffle)
    return PlacedRows(train.facts, shards, tests, counts, layout.is_replicated, stages)


async def _checked_spec(client: Client, config: RunConfig, facts: Facts) -> Any:
    """Return the model for data of these sizes.

    Raises
    ------
    TrainingError
        If a worker's memory cannot hold it.
    """
    spec = config.model_spec(facts.features, facts.labels)
    if spec.parameter_count:
        await _check_model_fits(client, spec)
    return spec


async def _weights(
    client: Client, config: RunConfig, keys: tuple[str, ...], train: ParsedBlocks, run: str
) -> Future | None:
    """Return the weights of all training rows as a future, if they have any."""
    given: Future | str = Future(keys[0], client=client) if keys else config.data.weights
    if not given and not have_weights(train.counts):
        return None
    if not given:
        own = [
            client.submit(weights_of, block, key=f"own-weights-{run}-{i}", pure=False)
            for i, block in enumerate(train.blocks)
        ]
        given = client.submit(np.concatenate, own, key=f"all-weights-{run}", pure=False)
    weights = client.submit(
        row_weights,
        given,
        train.facts.rows,
        has_mean_one=config.kind.scales_weights,
        key=f"weights-{run}",
        pure=False,
    )
    await _wait_for_all([weights])
    return weights


async def _read(
    client: Client, source: DataSource, keys: tuple[str, ...], name: str
) -> ParsedBlocks:
    if not keys:
        return await parse_source(client, source, name)
    blocks = [Future(key, client=client) for key in keys]
    return await describe_blocks(client, blocks, source, name)


async def parse_source(client: Client, source: DataSource, name: str) -> ParsedBlocks:
    """Read and parse all files of a source, one task per block.

    Raises
    ------
    InputError
        The first problem in the order of the files.
    """
    plan: ReadPlan = await client.submit(plan_source, source, key=f"plan-{name}", pure=False)
    blocks, counts = await _parse(client, plan.blocks, plan.dialect, name)
    shift = plan.find_shift(counts)
    strict = plan.stricter_dialect(counts, shift)
    if strict is not None:
        await _parse(client, plan.blocks, strict, f"check-{name}")  # raises
    facts = plan.facts(counts, shift)
    return ParsedBlocks(blocks, counts, facts, shift)


async def describe_blocks(
    client: Client, blocks: list[Future], source: DataSource, name: str
) -> ParsedBlocks:
    """Describe blocks that are already on the workers, such as a user's matrices.

    Raises
    ------
    InputError
        If they have no rows, or more columns than ``source`` says.
    """
    counts = await _count(client, blocks, name)
    facts = matrix_facts(counts, source)
    return ParsedBlocks(blocks, counts, facts, 0)


async def _parse(
    client: Client, blocks: Sequence[Block], dialect: Dialect, name: str
) -> tuple[list[Future], list[BlockCounts]]:
    parsed = [
        client.submit(read_block, block, dialect, key=f"parse-{name}-{i}", pure=False)
        for i, block in enumerate(blocks)
    ]
    return parsed, await _count(client, parsed, name)


async def _count(client: Client, blocks: list[Future], name: str) -> list[BlockCounts]:
    counts = [
        client.submit(count_block, block, key=f"describe-{name}-{i}", pure=False)
        for i, block in enumerate(blocks)
    ]
    await _wait_for_all(counts)
    return list(await client.gather(counts))


async def _wait_for_all(futures: Sequence[Future]) -> None:
    """Wait until all are computed, without fetching them; raise the first error in the list."""
    if futures:
        with futures[0].client.as_current():  # a user may have another one open
            await wait(futures)
    for future in futures:
        if future.status == "error":
            raise await future.exception()


def make_shards(
    client: Client, parsed: ParsedBlocks, recipe: Recipe, name: str, weights: Future | None = None
) -> Shards:
    """Shuffle parsed rows into ``recipe.pieces`` partitions that stay on the workers."""
    starts = np.concatenate([[0], np.cumsum([block.rows for block in parsed.counts])]).tolist()
    split = [
        client.submit(
            split_block, block, start, recipe, weights, key=f"split-{name}-{i}", pure=False
        )
        for i, (block, start) in enumerate(zip(parsed.blocks, starts[:-1], strict=True))
    ]
    futures = []
    for part in range(recipe.pieces):
        pieces = [
            client.submit(getitem, pieces, part, key=f"pick-{name}-{i}-{part}", pure=False)
            for i, pieces in enumerate(split)
        ]
        key = f"join-{name}-{part}"
        futures.append(client.submit(join_pieces, pieces, part, recipe, key=key, pure=False))
    bounds = [recipe.bounds(part) for part in range(recipe.pieces)]
    return Shards(futures, tuple(stop - start for start, stop in bounds))


def count_labels(client: Client, shards: Shards, labels: int, name: str) -> Future:
    """Return how often each label occurs, ``(labels,)`` int64, as a future."""
    counts = [
        client.submit(_count_labels, part, labels, key=f"count-{name}-{i}", pure=False)
        for i, part in enumerate(shards.futures)
    ]
    return client.submit(_sum, counts, key=f"counts-{name}", pure=False)


def _count_labels(partition: Partition, labels: int) -> Array:
    return label_counts(partition.labels, labels)


def _sum(counts: list[Array]) -> Array:
    return np.sum(counts, axis=0, dtype=np.int64)


async def _check_model_fits(client: Client, spec: Any) -> None:
    """Refuse a model larger than a worker's memory: a wrong number in a header can ask for one."""
    identity = await client.scheduler.identity()
    limits = [worker["memory_limit"] for worker in identity["workers"].values()]
    memory_bytes = min((limit for limit in limits if limit), default=0)
    model_bytes = COPIES * FLOAT_BYTES * Layout(spec).size
    if memory_bytes and model_bytes > memory_bytes:
        raise TrainingError(
            f"a model of {spec.features:,} features, {spec.labels:,} labels and hidden layers "
            f"{list(spec.hidden)} takes {model_bytes / 2**30:,.1f} GiB on each worker, which has "
            f"{memory_bytes / 2**30:,.1f}: correct the data's header, make model.hidden smaller, "
            "or give workers more memory"
        )
