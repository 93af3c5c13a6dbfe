"""A replica's snapshot for a merge, and the guess of the merged model that training uses meanwhile.

During a merge (`daskxml.session.overlapped`) its result is unknown, except for the momentum of the
global model, or the outer optimizer's, which follows from arrays of every worker. So a worker
continues from the result that the merge would have if all replicas were equal to its own,

    v_i = a s_i + b w + c x

with ``s_i`` the snapshot, ``w`` the global model, ``x`` the one before it or the outer memory, and
the factors of a merge by the mean (``a = 1, b = momentum, c = -momentum``; others for an outer
optimizer). Without momentum that is the replica as it is. When the merged model ``m`` is there,
the replica is corrected by ``m - v_i``. After Kale, Douillard and Donchev, "Eager Updates for
Overlapped Communication and Computation in DiLoCo", 2025, who use each worker's own change in the
same way.
"""

from __future__ import annotations

from daskxml.collectives.combine import CombineConfig, merge_factors
from daskxml.core.arrays import Array
from daskxml.kernels import Kernels
from daskxml.session.commands import MergeReplicas


class Snapshot:
    """Takes snapshots and corrects replicas; all arrays are ``(size,)`` float32.

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
    >>> from daskxml.kernels import get_kernels
    >>> flat, kept, merged, current, previous = np.float32([[5], [0], [4], [3], [1]])
    >>> snapshot = Snapshot(CombineConfig(), get_kernels("cpu", 1))
    >>> command = MergeReplicas(generation=1, weights={"a": 0.5, "b": 0.5}, momentum=0.5,
    ... overlaps=True)
    >>> snapshot.take(command, kept, flat, current, previous)
    >>> kept, flat  # the replica continues with the momentum that is known
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
        self, command: MergeReplicas, kept: Array, flat: Array, current: Array, previous: Array
    ) -> None:
        """Copy a replica into ``kept``, and set it to the guess of the merged model."""
        self.generation = command.generation
        factors = self._factors = merge_factors(self._config, [1.0], command.momentum)
        self._kernels.copy(kept, flat)
        if factors.current or factors.previous:
            self._kernels.scale(flat, flat, factors.replicas[0])
            self._kernels.add_two(flat, current, factors.current, previous, factors.previous)

    def correct(
        self, flat: Array, kept: Array, merged: Array, current: Array, previous: Array
    ) -> None:
        """Add the merged model minus the guess to a replica; models are those of `take`."""
        factors = self._factors
        self._kernels.add_two(flat, merged, 1.0, kept, -factors.replicas[0])
        if factors.current or factors.previous:
            self._kernels.add_two(flat, current, -factors.current, previous, -factors.previous)
