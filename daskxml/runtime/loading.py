"""The data of a run on its workers: read, placed, counted."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from distributed import Client, Future

from daskxml.config import RunConfig
from daskxml.data import ingest, shuffle
from daskxml.data.ingest import Facts, Parsed, Source
from daskxml.data.shuffle import Recipe, Shards
from daskxml.errors import InputError, TrainingError
from daskxml.model.parameters import Layout
from daskxml.model.spec import ModelSpec
from daskxml.training.placement import Placement

COPIES, FLOAT_BYTES = 4, 4  # a replica, the global model, the one before it, the next one
SHARDS_PER_WORKER = 4  # so that shards can follow measured speeds


@dataclass(frozen=True)
class LoadedData:
    """What a run knows of its data, and the futures that hold it.

    Attributes
    ----------
    spec
        The model for this data.
    facts, test_facts
        Sizes; the latter is None without test rows.
    train, test
        Partitions on the workers.
    label_counts
        Future of ``(labels,)`` int64.
    is_replicated
        Every worker is to hold every row.
    """

    spec: ModelSpec
    facts: Facts
    test_facts: Facts | None
    train: Shards
    test: Shards
    label_counts: Future
    is_replicated: bool

    def placement(self) -> Placement:
        """Return a placement with no owners yet."""
        return Placement(self.is_replicated, self.train.rows, self.test.rows)


@dataclass(frozen=True)
class Given:
    """Keys of partitions that the client has put on the workers, instead of files."""

    train: tuple[str, ...] = ()
    test: tuple[str, ...] = ()


async def load(
    client: Client, config: RunConfig, run: str, workers: int, given: Given, stored: Placed | None
) -> LoadedData:
    """Read the training and the test rows and place them as partitions on the workers.

    Parameters
    ----------
    workers
        How many there are, for the number of partitions.
    given
        What takes the place of files.
    stored
        How a run that goes on had placed its rows, which must not change.

    Raises
    ------
    InputError
        The first problem in the order of the files, training files first.
    TrainingError
        If a worker's memory cannot hold the model.
    """
    data = config.data
    source = _source(config, data.train)
    train = await _parsed(client, source, given.train, f"train-{run}")
    test = None
    if data.test or given.test:
        known = dataclasses.replace(
            _source(config, data.test),
            features=train.facts.features,
            labels=train.facts.labels,
            feature_base=train.facts.feature_base,
        )
        test = await _parsed(client, known, given.test, f"test-{run}")
    placed = stored or _place(config, train, test, workers)
    if not train.facts.label_nonzeros:
        raise InputError(
            "no row has a label, so there is nothing to learn; give rows with labels",
            ", ".join(data.train) or None,
        )
    spec = config.model_spec(train.facts.features, train.facts.labels)
    await _check_model_fits(client, spec)
    key = shuffle.shuffle_key(config.run.seed)
    shards = _shards(client, train, spec, config, placed.parts, key, f"train-{run}")
    tests = Shards([], ())
    if test is not None:
        tests = _shards(client, test, spec, config, placed.parts, None, f"test-{run}")
    counts = shuffle.count_labels(client, shards, spec.labels, run)
    await ingest.settle([*shards.futures, *tests.futures, counts])
    test_facts = test.facts if test else None
    return LoadedData(spec, train.facts, test_facts, shards, tests, counts, placed.is_replicated)


async def _parsed(client: Client, source: Source, keys: tuple[str, ...], name: str) -> Parsed:
    if not keys:
        return await ingest.parse_source(client, source, name)
    blocks = [Future(key, client=client) for key in keys]
    return await ingest.describe_blocks(client, blocks, source, name)


async def _check_model_fits(client: Client, spec: ModelSpec) -> None:
    """Refuse a model that would make the workers die: one number too many in a header does."""
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


@dataclass(frozen=True)
class Placed:
    """How many partitions there are, and whether every worker has them all."""

    is_replicated: bool
    parts: int


def _source(config: RunConfig, paths: tuple[str, ...]) -> Source:
    data = config.data
    return Source(
        paths=paths,
        format=data.format,
        feature_base=data.feature_base,
        label_base=data.label_base,
        features=data.features,
        labels=data.labels,
        normalize=data.normalize,
        block_bytes=data.block_bytes,
    )


def _place(config: RunConfig, train: Parsed, test: Parsed | None, workers: int) -> Placed:
    data = config.data
    nbytes = train.facts.nbytes + (test.facts.nbytes if test else 0)
    is_replicated = data.residency == "replicate" or (
        data.residency == "auto" and nbytes <= data.replicate_budget
    )
    # One partition is the stream as it is; several would be joined, and lie in memory twice.
    parts = data.partitions or (1 if is_replicated else workers * SHARDS_PER_WORKER)
    return Placed(is_replicated, max(1, min(parts, train.facts.rows)))


def _shards(
    client: Client,
    parsed: Parsed,
    spec: ModelSpec,
    config: RunConfig,
    parts: int,
    key: int | None,
    name: str,
) -> Shards:
    recipe = Recipe(
        rows=parsed.facts.rows,
        parts=min(parts, parsed.facts.rows),
        shuffle_key=key,
        features=spec.features,
        labels=spec.labels,
        shift=parsed.shift,
        normalize=config.data.normalize,
    )
    return shuffle.make_shards(client, parsed, recipe, name)
