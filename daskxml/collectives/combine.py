"""The rules by which models and gradients of workers are combined: the ``[combine]`` section.

The mean and the sum are ring all-reduces. Adasum runs among all workers, or hierarchically (Maleki
et al. 2021, section 4.2.2): a reduce-scatter inside each machine, Adasum between machines on the
parts, and at the end an all-gather inside each machine. Their implementation takes the dot products
of a layer part by part; here they are of whole layers, because all ranks of the machines that
exchange sum up theirs. Machines may have different numbers of workers. Every part of the result
is sent from its machine to each other one once.

Merges that are linear in the models have a factor for each model. Algorithm 2 of Ma et al.,
"Adaptive Elastic Training for Sparse Deep Learning on Heterogeneous Multi-GPU Servers", 2021
(section 3.3, normalized model merging), with ``w_i`` the replicas, ``alpha_i`` their weights, ``w``
and ``w_p`` the present and the previous global model, is

    w' = sum_i alpha_i * w_i + gamma * (w - w_p)

The outer optimizer of DiLoCo (Douillard et al., "DiLoCo: Distributed Low-Communication Training of
Language Models", 2023) applies Nesterov momentum to the merged change. With weights that sum to 1,
``lr`` its rate and ``mu`` its momentum, it is

    x' = w + lr * (sum_i alpha_i * w_i - w)        (x starts as w)
    w' = x' + mu * (x' - x)

Both have the form ``sum_i a_i * replica_i + b * current + c * previous``, so that one ring
all-reduce computes either. The outer optimizer is Nesterov's method in its first form, in which
``w`` is the point where gradients are taken. PyTorch's ``SGD(nesterov=True)`` gives the same
sequence of ``w`` on the gradients ``w - sum_i alpha_i * w_i``: its buffer is ``(x - x') / lr`` and
its first step has no momentum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from daskxml.collectives.adasum import Tree, Vector, balanced, chain
from daskxml.collectives.adasum_linear import adasum_linear
from daskxml.collectives.adasum_tree import adasum_tree
from daskxml.collectives.messages import Program
from daskxml.collectives.ring import all_reduce
from daskxml.core.arrays import Array
from daskxml.core.fields import Checked, bounded
from daskxml.kernels import Kernels

Rule = Literal["auto", "mean", "sum", "adasum"]


@dataclass(frozen=True, kw_only=True)
class CombineConfig(Checked):
    """The rule by which arrays of several workers become one.

    Attributes
    ----------
    rule
        ``mean``: with the strategy's weights; ``sum``: without weights (gradients, and what local
        steps changed); ``adasum``: Maleki et al., "Scaling Distributed Training with Adaptive
        Summation", 2021, layer by layer; ``auto``: what the strategy's paper does.
    order
        Of Adasum: ``tree`` (recursive vector halving, its Algorithm 1) or ``linear``.
    inside
        The rule among workers of one machine, before Adasum runs between machines: ``adasum``,
        ``mean`` or ``sum`` (hierarchical all-reduce, section 4.2.2).
    transfer
        ``bfloat16`` halves the bytes that models, gradients and changes of them take between
        workers; ``float16``, scaled to the range of each message, does so for Adasum only.
    outer
        ``nesterov``: the merged change of a mega-batch is a gradient for an outer optimizer with
        Nesterov momentum (DiLoCo), instead of the strategy's own momentum.
    outer_lr, outer_momentum
        Of the outer optimizer.
    quorum, grace
        The share of the workers that a merge needs, and how many seconds it then waits for the
        others; see `daskxml.strategies.quorum`. 1 waits for all; "auto" is .75 where replicas are
        merged, else 1, and a grace until the others are overdue (`daskxml.session.grace`).

    Examples
    --------
    >>> CombineConfig(rule="adasum").order
    'tree'
    """

    rule: Rule = "auto"
    order: Literal["tree", "linear"] = "tree"
    inside: Literal["adasum", "mean", "sum"] = "adasum"
    transfer: Literal["float32", "float16", "bfloat16"] = "float32"
    outer: Literal["none", "nesterov"] = "none"
    outer_lr: float = bounded(0.7, above=0)
    outer_momentum: float = bounded(0.9, low=0, below=1)
    quorum: float | Literal["auto"] = bounded("auto", above=0, high=1, words=("auto",))
    grace: float | Literal["auto"] = bounded("auto", low=0.01, words=("auto",))


def combine_changes(
    own: Vector, hosts: Sequence[str], weights: Sequence[float], config: CombineConfig, rule: str
) -> Program[dict[str, float]]:
    """Replace every rank's ``x`` by the combination of all of them, the same bits everywhere.

    Parameters
    ----------
    own
        This rank's gradient or change. Sums and means are not sent as float16.
    hosts
        The machine of every rank ``(n,)``.
    weights
        The weight of every rank in the mean ``(n,)``. The sum ignores them, and so does Adasum but
        for the mean inside machines.
    config
        Adasum's order, and the rule inside machines.
    rule
        ``mean``: ``sum_i weights[i] * x_i``; ``sum``: ``sum_i x_i``; ``adasum``.

    Returns
    -------
    dict
        For Adasum: the orthogonality of every layer that is not zero. Else empty.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.local.clock import run_together
    >>> from daskxml.kernels import get_kernels
    >>> x = np.array([[1, 1], [3, 3]], "f4")
    >>> own = [Vector(r, x[r], [("all", 0, 2)], get_kernels("cpu", 1)) for r in range(2)]
    >>> run_together([combine_changes(vector, ["here"] * 2, [0.5, 0.5], CombineConfig(), "mean")
    ...     for vector in own])
    [{}, {}]
    >>> x[0]
    array([2., 2.], dtype=float32)
    """
    ranks, machines = len(hosts), len(set(hosts))
    if rule != "adasum":
        transfer = "float32" if own.transfer == "float16" else own.transfer
        weight = weights[own.rank] if rule == "mean" else 1.0
        yield from all_reduce(own.rank, ranks, own.x, own.x, weight, own.kernels, transfer=transfer)
        return {}
    if machines == ranks or (machines == 1 and config.inside == "adasum"):
        adasum = adasum_tree if config.order == "tree" else adasum_linear
        return (yield from adasum(own, ranks))
    return (yield from hierarchical(own, hosts, config, weights))


def hierarchical(
    own: Vector, hosts: Sequence[str], config: CombineConfig, weights: Sequence[float] | None = None
) -> Program[dict[str, float]]:
    """Combine vectors inside machines as ``config.inside`` says, between them by Adasum.

    Parameters
    ----------
    own
        This rank's vector. Its ``transfer`` applies to messages between machines, or to all where
        there is but one machine, with Adasum inside.
    hosts
        The machine of every rank.
    config
        ``inside``, and ``order`` (of machines, and of workers where Adasum runs inside as well).
    weights
        For ``inside = "mean"``: the weight of every rank in its machine's mean, relative to the
        others there; equal by default, and where all of a machine's are 0.

    Returns
    -------
    dict
        As of `adasum_tree`.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.local.clock import run_together
    >>> from daskxml.kernels import get_kernels
    >>> x, config = np.array([[1, 0], [3, 0], [0, 5]], "f4"), CombineConfig(inside="mean")
    >>> own = [Vector(r, x[r], [("layer", 0, 2)], get_kernels("cpu", 1)) for r in range(3)]
    >>> run_together([hierarchical(vector, ["here", "here", "there"], config) for vector in own])[0]
    {'layer': 1.0}
    >>> x[1]
    array([2., 5.], dtype=float32)
    """
    machines = _machines(hosts)
    if config.inside == "mean":
        own.kernels.scale(own.x, own.x, _share(own.rank, machines, weights or [1.0] * len(hosts)))
    tree, units = _tree(machines, config), machines
    if config.inside == "adasum" and len(machines) == 1:
        units = tuple((one,) for one in machines[0])
    return (yield from adasum_tree(own, len(hosts), tree, units))


def _machines(hosts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each machine, in the order of their first ranks."""
    machines: dict[str, tuple[int, ...]] = {}
    for rank, host in enumerate(hosts):
        machines[host] = (*machines.get(host, ()), rank)
    return tuple(machines.values())


def _tree(machines: Sequence[Sequence[int]], config: CombineConfig) -> Tree:
    order = balanced if config.order == "tree" else chain
    inside = order if config.inside == "adasum" else balanced
    return order([inside(machine, config.inside == "adasum") for machine in machines])


def _share(rank: int, machines: Sequence[Sequence[int]], weights: Sequence[float]) -> float:
    machine = next(machine for machine in machines if rank in machine)
    whole = sum(weights[one] for one in machine)
    return weights[rank] / whole if whole else 1.0 / len(machine)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeFactors:
    """``merged = sum_i replicas[i] * replica_i + current * w + previous * p``.

    Attributes
    ----------
    replicas
        A factor for every replica, in the order of their ranks.
    current
        Of the global model.
    previous
        Of ``p``: the global model before ``w`` (momentum), or ``x`` (outer optimizer).
    """

    replicas: tuple[float, ...]
    current: float
    previous: float


def merge_factors(config: CombineConfig, weights: Sequence[float], momentum: float) -> MergeFactors:
    """Return the factors of replicas and global models in a merge by the mean.

    By Algorithm 2, line 11, ``sum_i alpha_i w_i + gamma (w - w_p)``; or by the outer optimizer, for
    weights that sum to 1.

    Parameters
    ----------
    config
        Whether there is an outer optimizer, which replaces ``momentum``.
    weights
        Of the replicas, in the order of their ranks.
    momentum
        Of the global model.

    Examples
    --------
    >>> merge_factors(CombineConfig(), [0.5, 0.5], 0.9)
    MergeFactors(replicas=(0.5, 0.5), current=0.9, previous=-0.9)
    >>> outer = CombineConfig(outer="nesterov", outer_lr=1.0, outer_momentum=0.5)
    >>> merge_factors(outer, [0.25, 0.75], 0.0)
    MergeFactors(replicas=(0.375, 1.125), current=0.0, previous=-0.5)
    """
    if config.outer == "none":
        return MergeFactors(replicas=tuple(weights), current=momentum, previous=-momentum)
    lr, mu = config.outer_lr, config.outer_momentum
    replicas = tuple((1.0 + mu) * lr * weight for weight in weights)
    return MergeFactors(replicas=replicas, current=(1.0 + mu) * (1.0 - lr), previous=-mu)


def outer_memory(previous: Array, merged: Array, mu: float, kernels: Kernels) -> None:
    """Update the outer optimizer's state after a merge.

    Parameters
    ----------
    previous
        ``(size,)`` float32: ``x``, overwritten with ``x' = (w' + mu * x) / (1 + mu)``.
    merged
        ``(size,)`` float32: the merged model ``w'``.
    mu
        The outer optimizer's momentum.

    Examples
    --------
    >>> import numpy as np
    >>> from daskxml.kernels import get_kernels
    >>> x = np.zeros(1, "f4")
    >>> outer_memory(x, np.full(1, 3, "f4"), 0.5, get_kernels("cpu", 1))
    >>> x
    array([2.], dtype=float32)
    """
    kernels.axpby(previous, merged, 1.0 / (1.0 + mu), previous, mu / (1.0 + mu))
