"""The data of a run on its workers: read, placed, counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distributed import Client, Future

from daskxml.config import RunConfig
from daskxml.data import ingest, shuffle
from daskxml.data.ingest import Parsed
from daskxml.data.reading import Facts, Source
from daskxml.data.shuffle import Shards
from daskxml.errors import TrainingError
from daskxml.model.parameters import Layout
from daskxml.model.spec import ModelSpec
from daskxml.runtime.machines import Arrival
from daskxml.training.limits import plain_limits
from daskxml.training.placement import Placement
from daskxml.training.sources import (
    Placed,
    check_labels,
    evaluation_recipe,
    make_source,
    place_rows,
    source_like,
    training_recipe,
)

COPIES, FLOAT_BYTES = 4, 4  # a replica, the global model, the one before it, the next one


@dataclass(frozen=True)
class LoadedData:
    """What a run knows of its data, and the futures that hold it.

    Attributes
    ----------
    spec
        The model for this data.
    facts
        Sizes of all training rows.
    train, test
        Partitions on the workers; the latter are the held-out rows where some are.
    label_counts
        Future of ``(labels,)`` int64, of the rows that are trained on.
    is_replicated
        Every worker is to hold every row.
    """

    spec: ModelSpec
    facts: Facts
    train: Shards
    test: Shards
    label_counts: Future
    is_replicated: bool

    @property
    def row_nonzeros(self) -> int:
        """Features of a typical row."""
        return max(1, self.facts.nonzeros // self.facts.rows)

    def release(self) -> None:
        """Let the workers forget the rows, whoever still refers to this."""
        for future in (*self.train.futures, *self.test.futures, self.label_counts):
            future.release()

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
    train = await _parsed(client, make_source(data, data.train), given.train, f"train-{run}")
    test = None
    if (data.test or given.test) and not data.validation:
        known = source_like(data, data.test, train.facts)
        test = await _parsed(client, known, given.test, f"test-{run}")
    nbytes = train.facts.nbytes + (test.facts.nbytes if test else 0)
    placed = stored or place_rows(config, train.facts.rows, nbytes, workers)
    check_labels(train.facts, data.train)
    spec = config.model_spec(train.facts.features, train.facts.labels)
    await _check_model_fits(client, spec)
    recipe = training_recipe(config, train.facts, train.shift, placed.parts)
    shards = shuffle.make_shards(client, train, recipe, f"train-{run}")
    shards, tests = shards.divide(recipe.parts)
    if test is not None:
        recipe = evaluation_recipe(config, test.facts, test.shift, placed.parts)
        tests = shuffle.make_shards(client, test, recipe, f"test-{run}")
    counts = shuffle.count_labels(client, shards, spec.labels, run)
    await ingest.settle([*shards.futures, *tests.futures, counts])
    return LoadedData(spec, train.facts, shards, tests, counts, placed.is_replicated)


def describe(config: RunConfig, data: LoadedData, arrivals: Sequence[Arrival]) -> dict[str, Any]:
    """Return what a run tells when its rows are loaded: sizes, and who is there."""
    placement = data.placement()
    return {
        "strategy": config.strategy_name,
        "rows": sum(placement.train_rows),
        "test_rows": sum(placement.test_rows),
        "tested_on": "validation" if config.data.validation else "test",
        "features": data.facts.features,
        "labels": data.facts.labels,
        "parameters": Layout(data.spec).count,
        "residency": "replicate" if data.is_replicated else "shard",
        "workers": sorted(arrival.name for arrival in arrivals),
        "limits": plain_limits(config.training),
        "pools": {it.name: it.device.pool_threads for it in arrivals if it.device.is_pool},
    }


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
