"""Weighted merging of replicas with momentum: line 11 of Algorithm 2 of Ma et al.

"Adaptive Elastic Training for Sparse Deep Learning on Heterogeneous Multi-GPU Servers", 2021
(section 3.3, normalized model merging):

    w' = sum_i alpha_i * w_i + gamma * (w - w_p)

with ``w_i`` the replicas, ``alpha_i`` their weights, ``w`` and ``w_p`` the present and the
previous global model. This is the plain form, for one process that holds every replica; the
ring between workers gives the same bits, because both add in the order of ``ring_order``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from daskxml.combine.ring_order import adding_order, partition_bounds
from daskxml.types import Array


class MergeKernels(Protocol):
    """What merging needs from the kernels: element by element, on flat float32 arrays.

    An element's result must not depend on where in the array it lies, and calls on disjoint
    outputs may come from several threads at once.
    """

    def scale(self, out: Array, x: Array, factor: float) -> None:
        """Write ``factor * x`` into ``out``; both ``(size,)`` float32."""

    def add_scaled(self, out: Array, x: Array, factor: float) -> None:
        """Add ``factor * x`` to ``out``; both ``(size,)`` float32."""

    def momentum(self, out: Array, current: Array, previous: Array, gamma: float) -> None:
        """Add ``gamma * (current - previous)`` to ``out``; all ``(size,)`` float32."""


def merge_weighted(
    out: Array,
    replicas: Sequence[Array],
    weights: Sequence[float],
    global_: Array,
    previous: Array,
    gamma: float,
    kernels: MergeKernels,
) -> None:
    """Write the merged model into ``out``.

    Parameters
    ----------
    out
        ``(size,)`` float32, overwritten; shares no memory with the others.
    replicas
        One ``(size,)`` float32 array per worker, in the order of their ranks; at least one.
    weights
        One factor per replica, in the same order.
    global_, previous
        ``(size,)`` float32: the global models of the last merge and the one before.
    gamma
        Momentum; at 0 the global models are not read.
    kernels
        The arithmetic.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.ops.naive import NaiveKernels
    >>> out, ones = np.empty(3, "f4"), np.ones(3, "f4")
    >>> merge_weighted(
    ...     out, [ones, 3 * ones], [0.5, 0.5], 2 * ones, ones, 0.9, NaiveKernels()
    ... )
    >>> out
    array([2.9, 2.9, 2.9], dtype=float32)
    """
    ranks = len(replicas)
    for partition, (start, stop) in enumerate(partition_bounds(out.shape[0], ranks)):
        part = slice(start, stop)
        first, *others = adding_order(partition, ranks)
        kernels.scale(out[part], replicas[first][part], weights[first])
        for rank in others:
            kernels.add_scaled(out[part], replicas[rank][part], weights[rank])
        if gamma:
            kernels.momentum(out[part], global_[part], previous[part], gamma)
