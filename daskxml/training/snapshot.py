"""A replica as a merge takes it, and the guess of the merged model that training goes on from.

While a merge travels (`daskxml.training.overlap`) its result is not known, but a part of it is: the
momentum of the global model, or the outer optimizer's, follows from what every worker has. So a
worker goes on from what the merge would give if all replicas were like its own,

    v_i = a s_i + b w + c x

with ``s_i`` the snapshot, ``w`` and ``x`` the global model and what a merge remembers, and the
factors of a merge by the mean (``a = 1, b = momentum, c = -momentum``; others for an outer
optimizer). Without momentum that is the replica as it is. When the merged model ``m`` is there,
the replica is corrected by ``m - v_i``. After Kale, Douillard and Donchev, "Eager Updates for
Overlapped Communication and Computation in DiLoCo", 2025, who use each worker's own change in the
same way.
"""

from __future__ import annotations

from daskxml.combine import CombineConfig, merge_factors
from daskxml.ops import Kernels
from daskxml.training.orders import MergeOrder
from daskxml.types import Array


class Snapshot:
    """Takes snapshots and corrects by them; all arrays are ``(size,)`` float32.

    Parameters
    ----------
    config
        Whether there is an outer optimizer.

    Attributes
    ----------
    generation
        The merge that the last one was taken for; -1: none was.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.ops import get_kernels
    >>> flat, kept, merged, current, previous = np.float32([[5], [0], [4], [3], [1]])
    >>> snapshot = Snapshot(CombineConfig(), get_kernels("cpu", 1))
    >>> order = MergeOrder(generation=1, weights={"a": 0.5, "b": 0.5}, momentum=0.5, overlaps=True)
    >>> snapshot.take(order, kept, flat, current, previous)
    >>> kept, flat  # the replica goes on with the momentum that is known
    (array([5.], dtype=float32), array([6.], dtype=float32))
    >>> flat += 1  # a step
    >>> snapshot.correct(flat, kept, merged, current, previous)
    >>> flat  # the merged model, and that step
    array([5.], dtype=float32)
    """

    def __init__(self, config: CombineConfig, kernels: Kernels) -> None:
        self._config, self._kernels = config, kernels
        self.generation = -1
        self._factors = merge_factors(config, [1.0], 0.0)

    def take(
        self, order: MergeOrder, kept: Array, flat: Array, current: Array, previous: Array
    ) -> None:
        """Copy a replica into ``kept``, and move it to where the merge would be with it alone."""
        self.generation = order.generation
        factors = self._factors = merge_factors(self._config, [1.0], order.momentum)
        self._kernels.copy(kept, flat)
        if factors.current or factors.previous:
            self._kernels.scale(flat, flat, factors.replicas[0])
            self._kernels.add_two(flat, current, factors.current, previous, factors.previous)

    def correct(
        self, flat: Array, kept: Array, merged: Array, current: Array, previous: Array
    ) -> None:
        """Add to a replica what the merged model differs from that; models are those of `take`."""
        factors = self._factors
        self._kernels.add_two(flat, merged, 1.0, kept, -factors.replicas[0])
        if factors.current or factors.previous:
            self._kernels.add_two(flat, current, -factors.current, previous, -factors.previous)
