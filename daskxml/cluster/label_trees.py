"""What label trees need to know of the rows, by Dask tasks: vectors of the labels, how to fit.

::

    rows of a part ─▶ label sums ─▶ vectors ─▶ feature sums ─▶ projection ─▶ label sums ─▶ vectors
    the order of the first tree ─▶ some labels ─▶ their rows of each part ─▶ rate and passes

Sums are exact, so that the trees are the same for any number of workers and parts. Only arrays with
a row for each label or feature travel, and none passes through the client or the scheduler.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from distributed import Client, Future

from daskxml.core.arrays import Array, Partition
from daskxml.data.rows import slice_rows
from daskxml.models.trees import search
from daskxml.models.trees.clustering import (
    feature_sums,
    label_sums,
    label_vectors,
    order_of_tree,
    projection_of,
    random_projection,
)
from daskxml.models.trees.search import sample_labels, sample_rows
from daskxml.models.trees.spec import TreeSpec

BLOCK_ROWS = 16_384  # of a task over rows
_ADDED = 4  # sums of blocks that a worker holds to add them up: each may have half a gigabyte


def find_label_vectors(
    client: Client, parts: Sequence[Future], rows: Sequence[int], spec: TreeSpec, seed: int,
    run: str,
) -> Future:  # fmt: skip
    """Return a vector for each label, ``(labels, dimensions)`` float32, as a future.

    Parameters
    ----------
    parts, rows
        Partitions of the training rows, and how many each has.
    seed
        The run's.
    """

    def submit(name: str, function: Callable[..., Any], *args: Any) -> Future:
        key = f"tree-{name}-{run}"
        return client.submit(function, *args, key=key, pure=False)

    def summed(name: str, function: Callable[..., Any], operand: Future) -> Future:
        def total(first: int, stop: int) -> Future:
            """Sum over some blocks; they are submitted depth first, so that few sums wait."""
            if stop - first == 1:
                return submit(f"{name}-{first}", _of_rows, function, *blocks[first], operand)
            cuts = sorted({first + (stop - first) * i // _ADDED for i in range(_ADDED + 1)})
            sums = [total(*cut) for cut in itertools.pairwise(cuts)]
            return submit(f"{name}-{first}-{stop}", _sum, sums)

        return total(0, len(blocks))

    blocks = [
        (part, start)
        for part, count in zip(parts, rows, strict=True)
        for start in range(0, count, BLOCK_ROWS)
    ]

    projection = submit("random", random_projection, spec.features, seed)
    vectors = submit("vectors-0", label_vectors, summed("first-labels", label_sums, projection))
    projection = submit("projection", projection_of, summed("features", feature_sums, vectors))
    return submit("vectors", label_vectors, summed("labels", label_sums, projection))


def choose_fit(
    client: Client, parts: Sequence[Future], counts: Future, vectors: Future, spec: TreeSpec,
    seed: int, run: str,
) -> Future:  # fmt: skip
    """Return the description with what is "auto" chosen on held-out rows, as a future.

    Parameters
    ----------
    parts, counts
        Partitions of the training rows, and ``(labels,)``, rows with each label.
    vectors
        Of `find_label_vectors`.
    """

    def submit(name: str, function: Callable[..., Any], *args: Any) -> Future:
        return client.submit(function, *args, key=f"tree-{name}-{run}", pure=False)

    order = submit("order", order_of_tree, vectors, spec, seed, 0)
    labels = submit("sample", sample_labels, order, counts, spec)
    samples = [
        submit(f"sample-{number}", sample_rows, part, labels) for number, part in enumerate(parts)
    ]
    return submit("fit", search.choose_fit, samples, spec, seed)


def _of_rows(
    function: Callable[[Partition, Array], Array], part: Partition, start: int, operand: Array
) -> Array:
    """Call a function with a block of a partition's rows."""
    return function(slice_rows(part, start, min(start + BLOCK_ROWS, part.rows)), operand)


def _sum(arrays: Sequence[Array]) -> Array:
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total
