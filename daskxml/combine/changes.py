"""One way in for every rule by which vectors of several ranks become one."""

from __future__ import annotations

from collections.abc import Sequence

from daskxml.combine.adasum import Segment
from daskxml.combine.adasum_linear import adasum_linear
from daskxml.combine.adasum_tree import adasum_tree
from daskxml.combine.config import CombineConfig
from daskxml.combine.hierarchy import hierarchical
from daskxml.combine.kernels import CombineKernels
from daskxml.combine.messages import Program
from daskxml.combine.ring import ring_all_reduce
from daskxml.types import Array


def combine_changes(
    rank: int,
    hosts: Sequence[str],
    x: Array,
    weights: Sequence[float],
    segments: Sequence[Segment],
    kernels: CombineKernels,
    config: CombineConfig,
    rule: str,
    work: Array | None = None,
) -> Program[dict[str, float]]:
    """Make every rank's ``x`` what the rule makes of all of them, the same bits everywhere.

    Parameters
    ----------
    rank
        This rank's place, ``0 .. n - 1``.
    hosts
        The machine of every rank ``(n,)``.
    x
        ``(size,)`` float32: this rank's gradient or change, overwritten.
    weights
        The weight of every rank in the mean ``(n,)``. The sum and Adasum do not read them, but for
        the mean inside machines of hierarchical Adasum.
    segments
        The layers of ``x``, ascending: name, start, stop.
    kernels
        The arithmetic.
    config
        Adasum's order, transfer, and what workers of one machine do among themselves.
    rule
        ``mean``: ``sum_i weights[i] * x_i``; ``sum``: ``sum_i x_i``; ``adasum``.
    work
        ``(size,)`` float32, overwritten by Adasum; allocated where it is missing.

    Returns
    -------
    dict
        For Adasum: the orthogonality of every layer that is not zero. Else empty.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.combine.lockstep import run_together
    >>> from daskxml.ops.naive import NaiveKernels
    >>> x = np.array([[1, 1], [3, 3]], "f4")
    >>> run_together([combine_changes(r, ["here"] * 2, x[r], [0.5, 0.5], [("all", 0, 2)],
    ...     NaiveKernels(), CombineConfig(), "mean") for r in range(2)])
    [{}, {}]
    >>> x[0]
    array([2., 2.], dtype=float32)
    """
    if rule == "adasum":
        found = yield from _adasum(rank, hosts, x, weights, segments, kernels, config, work)
        return found
    weight = weights[rank] if rule == "mean" else 1.0
    transfer = config.transfer if config.transfer == "bfloat16" else "float32"
    yield from ring_all_reduce(rank, len(hosts), x, x, weight, kernels, transfer=transfer)
    return {}


def _adasum(
    rank: int,
    hosts: Sequence[str],
    x: Array,
    weights: Sequence[float],
    segments: Sequence[Segment],
    kernels: CombineKernels,
    config: CombineConfig,
    work: Array | None,
) -> Program[dict[str, float]]:
    ranks, machines = len(hosts), len(set(hosts))
    if machines == ranks or (machines == 1 and config.inside == "adasum"):
        combine = adasum_tree if config.order == "tree" else adasum_linear
        return combine(rank, ranks, x, segments, kernels, config.transfer, work)
    return hierarchical(rank, hosts, x, segments, kernels, config, weights, work)
