"""Workers of one machine first combine among themselves, then machines by Adasum.

Maleki et al. 2021, section 4.2.2: a reduce-scatter inside each machine, Adasum between machines on
the parts, and at the end an all-gather inside each machine. Their implementation takes the dot
products of a layer part by part; here they are of whole layers, because all ranks of the machines
that meet add up theirs. Machines may have different numbers of workers. Every part of the result
crosses from its machine to each other one once.
"""

from __future__ import annotations

from collections.abc import Sequence

from daskxml.combine.adasum import Segment
from daskxml.combine.adasum_tree import PIECE_FLOATS, combine_along
from daskxml.combine.config import CombineConfig
from daskxml.combine.joins import Tree, balanced, chain
from daskxml.combine.kernels import CombineKernels
from daskxml.combine.messages import Program
from daskxml.types import Array


def hierarchical(
    rank: int,
    hosts: Sequence[str],
    x: Array,
    segments: Sequence[Segment],
    kernels: CombineKernels,
    config: CombineConfig,
    weights: Sequence[float] | None = None,
    work: Array | None = None,
    piece_size: int = PIECE_FLOATS,
) -> Program[dict[str, float]]:
    """Combine ``x`` inside machines as ``config.inside`` says, between them by Adasum.

    Parameters
    ----------
    rank
        This rank's place.
    hosts
        The machine of every rank.
    x
        ``(size,)`` float32: this rank's vector, overwritten with the result.
    segments, kernels, work, piece_size
        As for `adasum_tree`, and so is what is returned.
    config
        ``inside``, ``order`` (of machines, and of workers where Adasum runs inside as well), and
        ``transfer``, which is for what goes from one machine to another. With Adasum inside one
        machine only, it is for everything.
    weights
        For ``inside = "mean"``: the weight of every rank in its machine's mean, relative to the
        others there; equal by default, and where all of a machine's are 0.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.combine.lockstep import run_together
    >>> from daskxml.ops.naive import NaiveKernels
    >>> x = np.array([[1, 0], [3, 0], [0, 5]], "f4")
    >>> run_together([hierarchical(r, ["here", "here", "there"], x[r], [("layer", 0, 2)],
    ...     NaiveKernels(), CombineConfig(inside="mean")) for r in range(3)])[0]
    {'layer': 1.0}
    >>> x[1]
    array([2., 5.], dtype=float32)
    """
    machines = _machines(hosts)
    if config.inside == "mean":
        kernels.scale(x, x, _share(rank, machines, weights or [1.0] * len(hosts)))
    tree, units = _tree(machines, config), machines
    if config.inside == "adasum" and len(machines) == 1:
        units = tuple((one,) for one in machines[0])
    transfer = config.transfer
    return (
        yield from combine_along(
            tree, units, rank, x, segments, kernels, transfer, work, piece_size
        )
    )


def _machines(hosts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each machine, in the order of their first ranks."""
    machines: dict[str, tuple[int, ...]] = {}
    for rank, host in enumerate(hosts):
        machines[host] = (*machines.get(host, ()), rank)
    return tuple(machines.values())


def _tree(machines: Sequence[Sequence[int]], config: CombineConfig) -> Tree:
    join = balanced if config.order == "tree" else chain
    inside = join if config.inside == "adasum" else balanced
    return join([inside(machine, config.inside == "adasum") for machine in machines])


def _share(rank: int, machines: Sequence[Sequence[int]], weights: Sequence[float]) -> float:
    machine = next(machine for machine in machines if rank in machine)
    whole = sum(weights[one] for one in machine)
    return weights[rank] / whole if whole else 1.0 / len(machine)
