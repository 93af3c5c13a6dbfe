"""Merging and Adasum's orthogonality, slow and obvious, for one process with all vectors."""

from collections.abc import Sequence

import numpy as np

from daskxml.collectives.adasum import ParameterSpan, norm_ratios
from daskxml.collectives.ring import partition_bounds
from daskxml.core.arrays import Array
from daskxml.kernels import Kernels


def adding_order(partition: int, ranks: int) -> list[int]:
    """Return the ranks in the order in which they add their terms to a partition of the ring."""
    return [(partition + turn) % ranks for turn in range(ranks)]


def merge_weighted(
    out: Array,
    replicas: Sequence[Array],
    weights: Sequence[float],
    current: Array,
    previous: Array,
    gamma: float,
    kernels: Kernels,
) -> None:
    """Write ``sum_i weights[i] * replicas[i] + gamma * (current - previous)`` into ``out``.

    Line 11 of Algorithm 2 of Ma et al. 2021, with the bits of the ring: terms are added in its
    order. All arrays are ``(size,)`` float32; at ``gamma`` 0 the global models are not read.
    """
    ranks = len(replicas)
    for partition, (start, stop) in enumerate(partition_bounds(out.shape[0], ranks)):
        part = slice(start, stop)
        first, *others = adding_order(partition, ranks)
        kernels.scale(out[part], replicas[first][part], weights[first])
        for rank in others:
            kernels.add_scaled(out[part], replicas[rank][part], weights[rank])
        if gamma:
            kernels.momentum(out[part], current[part], previous[part], gamma)


def orthogonality(
    vectors: Sequence[Array], combined: Array, spans: Sequence[ParameterSpan]
) -> dict[str, float]:
    """Return ``||Adasum(g)||^2 / sum_i ||g_i||^2`` of every layer that is not zero.

    Examples
    --------
    >>> orthogonality([np.ones(2), np.ones(2)], np.ones(2), [("all", 0, 2)])
    {'all': 0.5}
    """
    whole, part = (
        np.array([np.sum(np.square(rows[..., a:b], dtype=np.float64)) for _, a, b in spans])
        for rows in (np.asarray(vectors), combined)
    )
    return norm_ratios([name for name, _, _ in spans], part, whole)
