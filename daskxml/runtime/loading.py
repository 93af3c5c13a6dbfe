"""The data of a run on its workers: read, placed, counted."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from distributed import Client, Future

from daskxml.config import RunConfig
from daskxml.data import ingest, shuffle
from daskxml.data.ingest import Facts, Parsed, Source
from daskxml.data.shuffle import Recipe, Shards
from daskxml.model.spec import ModelSpec
from daskxml.training.placement import Placement

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


async def load(
    client: Client, config: RunConfig, run: str, workers: int, stored: Placed | None
) -> LoadedData:
    """Read the training and the test rows and place them as partitions on the workers.

    Parameters
    ----------
    workers
        How many there are, for the number of partitions.
    stored
        How a run that goes on had placed its rows, which must not change.

    Raises
    ------
    InputError
        The first problem in the order of the files, training files first.
    """
    data = config.data
    source = _source(config, data.train)
    train = await ingest.parse_source(client, source, f"train-{run}")
    test = None
    if data.test:
        known = dataclasses.replace(
            _source(config, data.test),
            features=train.facts.features,
            labels=train.facts.labels,
            feature_base=train.facts.feature_base,
        )
        test = await ingest.parse_source(client, known, f"test-{run}")
    placed = stored or _place(config, train, test, workers)
    spec = config.model_spec(train.facts.features, train.facts.labels)
    key = shuffle.shuffle_key(config.run.seed)
    shards = _shards(client, train, spec, config, placed.parts, key, f"train-{run}")
    tests = Shards([], ())
    if test is not None:
        tests = _shards(client, test, spec, config, placed.parts, None, f"test-{run}")
    counts = shuffle.count_labels(client, shards, spec.labels, run)
    await ingest.settle([*shards.futures, *tests.futures, counts])
    test_facts = test.facts if test else None
    return LoadedData(spec, train.facts, test_facts, shards, tests, counts, placed.is_replicated)


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
    parts = data.partitions or workers * (1 if is_replicated else SHARDS_PER_WORKER)
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
