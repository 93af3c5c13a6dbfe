"""The rows of a run in this process, read once and shared by all of its workers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from daskxml.config import RunConfig
from daskxml.config.sections import VECTORIZE
from daskxml.core.arrays import Array, Partition
from daskxml.core.errors import ConfigError
from daskxml.core.hardware import free_memory_bytes, usable_cores
from daskxml.data.reading import Facts
from daskxml.data.rows import concatenate
from daskxml.models.trees.search import prepare_trees
from daskxml.models.trees.spec import TreeSpec
from daskxml.session.documents import vectorize_files, with_text_stage
from daskxml.session.placement import Placement
from daskxml.session.row_loading import GivenRows, TasksHere, load_partitions, run_here
from daskxml.session.setup import ColumnNames, DataLayout

Given = Any  # an object with `partitions()`, as `daskxml.Matrices` has


@dataclass(frozen=True)
class Rows:
    """The rows of a run.

    Attributes
    ----------
    facts
        Sizes of all training rows.
    train, test
        Partitions; the latter are the held-out rows where some are.
    label_counts
        ``(labels,)`` int64, of the rows that are trained on.
    is_replicated
        Every worker holds every row.
    label_vectors
        Of trees, see `daskxml.models.trees.clustering.find_label_vectors`; None for other models.
    tree_spec
        Of trees, with what was "auto" chosen on held-out rows; None for other models.
    """

    facts: Facts
    train: tuple[Partition, ...]
    test: tuple[Partition, ...]
    label_counts: Array
    is_replicated: bool
    label_vectors: Array | None = None
    tree_spec: TreeSpec | None = None

    def model_spec(self, config: RunConfig) -> Any:
        """Return the model of a run with these rows."""
        return self.tree_spec or config.model_spec(self.facts.features, self.facts.labels)

    @property
    def row_bytes(self) -> float:
        """Bytes of a typical row."""
        return self.facts.nbytes / self.facts.rows

    def placement(self) -> Placement:
        """Return a placement with no owners yet."""
        train, test = (tuple(p.rows for p in parts) for parts in (self.train, self.test))
        return Placement(self.is_replicated, train, test)


@dataclass(frozen=True)
class Blocks:
    """Rows that were read already."""

    parts: list[Partition]
    sample_weight = None

    def partitions(self) -> list[Partition]:
        """Return them."""
        return self.parts


def read_rows(
    config: RunConfig,
    workers: int,
    train: Given | None = None,
    test: Given | None = None,
    placed: DataLayout | None = None,
) -> Rows:
    """Read the rows that a run file names, in the order and the partitions of a cluster.

    Parameters
    ----------
    workers
        How many there are, for the number of partitions.
    train, test
        Matrices that replace files.
    placed
        The layout of a run that continues.

    Raises
    ------
    InputError
        The first problem in the order of the files, training files first.
    """
    given = GivenRows(
        train=() if train is None else train.partitions(),
        test=() if test is None else test.partitions(),
        weights=None if train is None else train.sample_weight,
    )
    tasks = TasksHere(config.cluster.memory_bytes or free_memory_bytes())
    here = run_here(load_partitions(tasks, config, "", workers, given, placed))
    parts = tuple(here.train.futures), tuple(here.test.futures)
    rows = Rows(here.facts, *parts, here.label_counts, here.is_replicated)
    return prepared(rows, config)


def prepared(rows: Rows, config: RunConfig) -> Rows:
    """Return the rows with what label trees need to know of them, if the model is of that kind."""
    spec = config.model_spec(rows.facts.features, rows.facts.labels)
    if config.has_strategy:
        return rows
    threads = config.cluster.threads_on(usable_cores(), 1)
    blocks = [
        (part, part.rows * place // threads, part.rows * (place + 1) // threads)
        for part in rows.train
        for place in range(threads)
    ]
    with ThreadPoolExecutor(threads) as pool:

        def submit(name: str, function: Callable[..., Any], *args: Any) -> Future[Any]:
            return pool.submit(lambda: function(*map(_value, args)))  # all it waits for came before

        counts, seed = rows.label_counts, config.run.seed
        found = prepare_trees(rows.train, counts, spec, seed, blocks, submit, threads)
        spec, vectors = map(_value, found)
    return replace(rows, label_vectors=vectors, tree_spec=spec)


def _value(given: Any) -> Any:
    """Return the results of futures in place of these."""
    if isinstance(given, list):
        return [_value(each) for each in given]
    return given.result() if isinstance(given, Future) else given


def share_rows(rows: Rows) -> Rows:
    """Return rows that workers can hold without a copy for each: one stream where replicated."""
    if not rows.is_replicated or len(rows.train) == 1:
        return rows
    return replace(rows, train=(concatenate(rows.train),))


def load_rows(
    config: RunConfig,
    workers: int,
    train: Given | Rows | None = None,
    test: Given | None = None,
    *,
    placed: DataLayout | None = None,
) -> tuple[RunConfig, Rows, ColumnNames]:
    """Read the rows of a run: return the run file for them, the rows, and their columns' names.

    Parameters
    ----------
    train, test
        Matrices instead of files, or all rows as they were read before.

    Raises
    ------
    ConfigError
        If stages of the run file are functions, which are for workers of a cluster.
    """
    config = with_text_stage(config, config.data.train if train is None else ())
    if stages := config.pipeline.stages:
        if set(stages) != {VECTORIZE} or train or test:
            need = "need a cluster: call daskxml.train without workers=0"
            raise ConfigError(f"[pipeline] stages {need}")
        *parts, names = vectorize_files(config)
        train, test = map(Blocks, parts)
    else:
        names = ColumnNames.read(config.data)
    config = names.sized(config)
    if isinstance(train, Rows):
        return config, train, names
    return config, read_rows(config, workers, train, test, placed=placed), names
