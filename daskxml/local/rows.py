"""The rows of a run in this process, read once and shared by all of its workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from daskxml.config import RunConfig
from daskxml.core.hardware import free_memory_bytes
from daskxml.data.rows import concatenate
from daskxml.session.documents import has_texts, vectorize_files
from daskxml.session.row_loading import (
    DataLayout,
    GivenRows,
    Rows,
    Shards,
    TasksHere,
    load_partitions,
    run_here,
)
from daskxml.session.setup import ColumnNames

Given = Any  # an object with `partitions()`, as `daskxml.Matrices` has


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
    return _loaded(config, workers, given, placed)


def _loaded(config: RunConfig, workers: int, given: GivenRows, placed: DataLayout | None) -> Rows:
    tasks = TasksHere(config.cluster.memory_bytes or free_memory_bytes())
    return run_here(load_partitions(tasks, config, "", workers, given, placed))


def share_rows(rows: Rows) -> Rows:
    """Return rows that workers can hold without a copy for each: one stream where replicated."""
    if not rows.is_replicated or len(rows.train.parts) == 1:
        return rows
    whole = concatenate(rows.train.parts)
    return replace(rows, train=Shards([whole], (whole.rows,)))


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
    pairs = (("train", train), ("test", test))
    if has_texts(config, [name for name, rows in pairs if rows is not None]):
        *parts, names = vectorize_files(config)
        config = names.sized(config)
        return config, _loaded(config, workers, GivenRows(*parts), placed), names
    names = ColumnNames.read(config.data)
    config = names.sized(config)
    if isinstance(train, Rows):
        return config, train, names
    return config, read_rows(config, workers, train, test, placed=placed), names
