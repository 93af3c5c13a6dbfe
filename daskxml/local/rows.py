"""The rows of a run in this process, read once and shared by all of its workers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from daskxml.config import RunConfig
from daskxml.core.arrays import Array, Partition
from daskxml.core.errors import ConfigError
from daskxml.core.hardware import free_memory_bytes
from daskxml.data.reading import Facts
from daskxml.data.rows import concatenate
from daskxml.session.documents import NOT_ALIKE, has_texts, vectorize_files
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
    """

    facts: Facts
    train: tuple[Partition, ...]
    test: tuple[Partition, ...]
    label_counts: Array
    is_replicated: bool

    def model_spec(self, config: RunConfig) -> Any:
        """Return the model of a run with these rows."""
        return config.model_spec(self.facts.features, self.facts.labels)

    @property
    def training_rows(self) -> int:
        """Rows that are trained on."""
        return sum(part.rows for part in self.train)

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
    return Rows(here.facts, *parts, here.label_counts, here.is_replicated)


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
        If training rows are documents, and test rows are none.
    """
    if has_texts(config, config.data.train if train is None else ()):
        if test is not None:
            raise ConfigError(NOT_ALIKE)
        *parts, names = vectorize_files(config)
        train, test = map(Blocks, parts)
    else:
        names = ColumnNames.read(config.data)
    config = names.sized(config)
    if isinstance(train, Rows):
        return config, train, names
    return config, read_rows(config, workers, train, test, placed=placed), names
