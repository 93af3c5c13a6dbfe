"""What the tasks of a pipeline's stages do with a partition, on a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import cloudpickle
import numpy as np
from dask.sizeof import sizeof

from daskxml.core.arrays import Csr, Partition
from daskxml.core.errors import InputError
from daskxml.data.rows import matrix_partition, take_rows, to_scipy
from daskxml.metrics import MetricSums
from daskxml.models.rows import evaluate_partitions
from daskxml.models.trained import Model

Function = Callable[..., Any]


def call_on(partition: Any, pickled: bytes, values: Sequence[Any], settings: Any) -> Any:
    """Call a user's function with a partition as a pair; return a partition of what it gives.

    It comes as bytes of cloudpickle: Dask would name its module, which workers may not have.
    """
    return as_partition(cloudpickle.loads(pickled)(*as_pair(partition), *values, **settings))


def as_pair(partition: Any) -> tuple[Any, Any]:
    """Return a partition as users see it: rows are SciPy's matrices, which share its memory."""
    if isinstance(partition, Partition):
        return to_scipy(partition.features), to_scipy(partition.labels)
    return partition


def as_partition(pair: Any) -> Any:
    """Check what a user gives as a partition; two matrices become a `Partition`.

    Raises
    ------
    InputError
        If it is no pair, or its parts differ in their rows.
    """
    if isinstance(pair, Partition):
        return pair
    if not (isinstance(pair, tuple) and len(pair) == 2):
        raise InputError(f"a {type(pair).__name__} is no partition: give a pair (X, Y)")
    X, Y = pair
    if hasattr(X, "shape") and hasattr(Y, "shape"):
        return matrix_partition(X, Y)
    if _count(X) != _count(Y):
        raise InputError(f"X has {_count(X)} rows but Y has {_count(Y)}")
    return pair


def _count(part: Any) -> int:
    return int(part.shape[0]) if hasattr(part, "shape") else len(part)


def measure(partition: Any) -> tuple[int, int]:
    """Return the rows and the bytes of a partition."""
    if isinstance(partition, Partition):
        return partition.rows, partition.nbytes
    return _count(partition[1]), sizeof(partition[0]) + sizeof(partition[1])


def align_block(block: Partition, shift: int, features: int, labels: int) -> Partition:
    """Return a parsed block with the columns of the whole source.

    Raises
    ------
    InputError
        If it has weights, which would be lost in the next stage.
    """
    if block.weights is not None:
        raise InputError(
            "a column 'sample_weight': a pipeline has no weights of rows: leave it out, or give "
            "the files to daskxml.train"
        )
    found = block.features
    ids = found.indices - np.int32(shift) if shift else found.indices
    return Partition(
        Csr(found.indptr, ids, found.data, features), replace(block.labels, columns=labels)
    )


def choose_rows(numbered: tuple[int, Any], share: float, seed: int, held: bool) -> Any:
    """Return the rows of a partition, with its number, that are held out, or the others."""
    number, partition = numbered
    rows, _ = measure(partition)
    is_held = np.random.default_rng([seed, number]).random(rows) < share
    chosen = np.flatnonzero(is_held == held)
    if isinstance(partition, Partition):
        return take_rows(partition, chosen)
    return tuple(
        part[chosen] if hasattr(part, "shape") else [part[i] for i in chosen] for part in partition
    )


def find_in(partition: Any, each: Function, settings: Mapping[str, Any]) -> Any:
    """Return what a user's function finds in a partition."""
    return each(*as_pair(partition), **settings)


def count_labels(X: Any, Y: Any) -> Any:
    """Return how many rows have each label."""
    return np.bincount(Y.indices, minlength=Y.shape[1])


def without_rare(X: Any, Y: Any, counts: Any, least: int) -> tuple[Any, Any]:
    """Return rows without the labels that are counted less often."""
    kept = Y.copy()
    kept.data = kept.data * (counts[kept.indices] >= least)
    kept.eliminate_zeros()
    return X, kept


def score(partition: Partition, model: Model, k: Sequence[int]) -> MetricSums:
    """Return a model's sums of metrics on a partition."""
    return evaluate_partitions(model, [partition], k)
