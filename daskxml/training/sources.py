"""How a run file's data is read, divided and placed, wherever that is done."""

from __future__ import annotations

from dataclasses import dataclass, replace

from daskxml.config import DataSection, RunConfig
from daskxml.data.partitions import Recipe, count_held, shuffle_key
from daskxml.data.reading import Facts, Source
from daskxml.errors import InputError

SHARDS_PER_WORKER = 4  # so that shards can follow measured speeds


@dataclass(frozen=True)
class Placed:
    """How many partitions there are, and whether every worker has them all."""

    is_replicated: bool
    parts: int


def place_rows(config: RunConfig, rows: int, nbytes: int, workers: int) -> Placed:
    """Decide how ``rows`` training rows lie on the workers; ``nbytes`` is of all rows.

    Examples
    --------
    >>> from daskxml.config import load_run_config
    >>> place_rows(load_run_config({"training": {"epochs": 1}}), 1000, 50_000, workers=4)
    Placed(is_replicated=True, parts=1)
    """
    data = config.data
    is_replicated = data.residency == "replicate" or (
        data.residency == "auto" and nbytes <= data.replicate_budget
    )
    # One partition is the stream as it is; several would be joined, and lie in memory twice.
    parts = data.partitions or (1 if is_replicated else workers * SHARDS_PER_WORKER)
    return Placed(is_replicated, max(1, min(parts, rows)))


def make_source(data: DataSection, paths: tuple[str, ...]) -> Source:
    """Return how the training files are read."""
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


def source_like(data: DataSection, paths: tuple[str, ...], training: Facts) -> Source:
    """Return how the test files are read: as the training files turned out to be."""
    return replace(
        make_source(data, paths),
        features=training.features,
        labels=training.labels,
        feature_base=training.feature_base,
    )


def check_labels(facts: Facts, paths: tuple[str, ...]) -> None:
    """Refuse rows that teach nothing.

    Raises
    ------
    InputError
        If no row has a label.
    """
    if not facts.label_nonzeros:
        raise InputError(
            "no row has a label, so there is nothing to learn; give rows with labels",
            ", ".join(paths) or None,
        )


def training_recipe(config: RunConfig, facts: Facts, shift: int, parts: int) -> Recipe:
    """Return how parsed training rows become partitions, the last of them held out.

    Parameters
    ----------
    parts
        Partitions wanted, of either kind.

    Raises
    ------
    InputError
        If there are too few rows to hold out some.
    """
    held_rows = count_held(facts.rows, config.data.validation)
    return Recipe(
        rows=facts.rows,
        parts=min(parts, facts.rows - held_rows),
        shuffle_key=shuffle_key(config.run.seed),
        features=facts.features,
        labels=facts.labels,
        shift=shift,
        normalize=config.data.normalize,
        held_rows=held_rows,
        held_parts=min(parts, held_rows),
    )


def evaluation_recipe(config: RunConfig, facts: Facts, shift: int, parts: int) -> Recipe:
    """Return how parsed test rows become partitions, in the order of the files."""
    return Recipe(
        rows=facts.rows,
        parts=min(parts, facts.rows),
        shuffle_key=None,
        features=facts.features,
        labels=facts.labels,
        shift=shift,
        normalize=config.data.normalize,
    )
