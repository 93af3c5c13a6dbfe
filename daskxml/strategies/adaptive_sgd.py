"""Adaptive SGD: dynamic scheduling, batch size scaling and normalized merging.

Ma, Rusu, Wu and Sim, "Adaptive Elastic Training for Sparse Deep Learning on Heterogeneous
Multi-GPU Servers", 2021; Algorithms 1 and 2.

============  ===============================  ==============================================
symbol        here                             meaning
============  ===============================  ==============================================
b_i           ``WorkerState.batch_size``       batch size of worker i, kept as a real number
lr_i          ``config.lr * b_i / batch_max``  learning rate of worker i (linear scaling)
u_i           ``WorkerState.updates``          model updates of worker i since the last merge
b_min, b_max  ``batch_min``, ``batch_max``     bounds of the batch size
beta          ``beta``                         slope of the paper's scaling rule
alpha_i       ``Merge.weights``                merging weight of replica i
pert_thr      ``perturbation_threshold``       replicas below this norm count as regularized
delta         ``perturbation``                 by how much the extreme weights are perturbed
gamma         ``momentum``                     momentum of the global model
============  ===============================  ==============================================

Deviations from the paper, each an option: batch sizes are scaled by a damped and clamped rule
(``rule = "damped"``), since the paper's rule skips every step that would leave the bounds and so
freezes or oscillates on few workers; perturbed weights are normalized again, since otherwise the
model grows with every merge (``renormalize``); "L2-norm per parameter" is read as the root mean
square (``norm = "rms"``). A worker that came in the middle of a mega-batch is left out of scaling,
its count of updates says nothing of its speed. Pools of CPU threads, which the paper has none of,
have bounds of their own (rows a thread), begin at the lower one, and are compared with the mean of
the replicas alone: one that cannot keep up would drive these to their upper bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from daskxml.core.errors import ConfigError
from daskxml.core.fields import bounded
from daskxml.strategies.batches import BoundedConfig
from daskxml.strategies.megabatch import MegabatchState, MegabatchStrategy, WorkerState
from daskxml.strategies.protocol import Measured, Merge, natural_order

Sizes = Mapping[str, float]
Updates = Mapping[str, int]
NO_POOLS: Mapping[str, int] = {}


@dataclass(frozen=True, kw_only=True)
class Config(BoundedConfig):
    """Settings of Adaptive SGD, beside those of `BoundedConfig`.

    Attributes
    ----------
    batch_initial
        First batch size of a replica; 0 stands for ``batch_max`` (section 5.2.2).
    beta
        Slope of ``rule = "paper"``; 0 stands for half a worker's least batch size.
    rule
        ``"damped"``: b (u / mean u)^1/2, clamped; ``"paper"``: Algorithm 1 as printed.
    scale_every
        Mega-batches between two scalings (section 3.2), which count the last one's updates.
    weighting
        ``"paper"``: Algorithm 2; ``"rows"``: by updates times batch size (section 3.3).
    momentum, perturbation, perturbation_threshold
        gamma, delta and pert_thr of Algorithm 2.
    norm
        ``"rms"``: ``||w|| / sqrt(|w|)``; ``"literal"``: ``||w|| / |w|``.
    renormalize
        Divide perturbed weights by their sum.
    """

    batch_initial: int = bounded(0, low=0)
    beta: float = bounded(0.0, low=0)
    rule: Literal["damped", "paper"] = "damped"
    scale_every: int = bounded(1, low=1)
    weighting: Literal["paper", "rows"] = "paper"
    momentum: float = bounded(0.9, low=0, below=1)
    perturbation: float = bounded(0.1, low=0, below=1)
    perturbation_threshold: float = bounded(0.1, low=0)
    norm: Literal["rms", "literal"] = "rms"
    renormalize: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.bounds
        first = self.batch_initial or high
        if not low <= first <= high:
            problem = f"batch_initial = {first}: must be from {low} to {high}"
            raise ConfigError(problem, "batch_initial")

    def first_size(self, pool_threads: int) -> int:
        """Return the batch size of a new worker: a pool's is its least, for it may be slow."""
        given = 0 if pool_threads else self.batch_initial
        return given or super().first_size(pool_threads)


def scale_batch_sizes(
    sizes: Sizes, updates: Updates, config: Config, threads: Mapping[str, int] = NO_POOLS
) -> dict[str, float]:
    """Algorithm 1: larger batches for workers that made more updates than the mean.

    ``threads`` has those of the pools.

    Examples
    --------
    >>> config = Config(batch_max=64, batch_min=8, beta=4.0, rule="paper")
    >>> scale_batch_sizes({"a": 32.0, "b": 32.0}, {"a": 6, "b": 2}, config)
    {'a': 40.0, 'b': 24.0}
    """
    paced = [u for w, u in updates.items() if w not in threads] or list(updates.values())
    mean = sum(paced) / max(1, len(paced))
    bounds = {worker: config.bounds_of(threads.get(worker, 0)) for worker in sizes}
    if mean == 0.0:
        return dict(sizes)
    if config.rule == "damped":
        damped = {w: size * math.sqrt(updates[w] / mean) for w, size in sizes.items()}
        return {w: min(max(size, bounds[w][0]), bounds[w][1]) for w, size in damped.items()}
    scaled = {
        w: size + (config.beta or bounds[w][0] / 2.0) * (updates[w] - mean)
        for w, size in sizes.items()
    }
    return {w: s if bounds[w][0] <= s <= bounds[w][1] else sizes[w] for w, s in scaled.items()}


def normalized_weights(sizes: Sizes, updates: Updates, weighting: str = "paper") -> Sizes:
    """Algorithm 2, lines 1 to 6: by batch size where all updates are equal, else by updates.

    >>> normalized_weights({"a": 30.0, "b": 10.0}, {"a": 5, "b": 5})
    {'a': 0.75, 'b': 0.25}
    """
    shares: Sizes = updates
    if len(set(updates.values())) == 1:
        shares = sizes
    elif weighting == "rows":
        shares = {worker: updates[worker] * size for worker, size in sizes.items()}
    total = sum(shares.values())
    return {worker: share / total for worker, share in shares.items()}


def perturb_weights(weights: Sizes, updates: Updates, config: Config) -> Sizes:
    """Algorithm 2, lines 8 and 9: more weight to the most updated replica, less to the least.

    >>> perturb_weights({"a": 0.5, "b": 0.5}, {"a": 3, "b": 2}, Config(renormalize=False))
    {'a': 0.55, 'b': 0.45}
    """
    order = sorted(updates, key=natural_order)
    most, least = max(order, key=updates.__getitem__), min(order, key=updates.__getitem__)
    perturbed = dict(weights)
    perturbed[most] *= 1.0 + config.perturbation
    perturbed[least] *= 1.0 - config.perturbation
    total = sum(perturbed.values()) if config.renormalize else 1.0
    return {worker: weight / total for worker, weight in perturbed.items()}


def are_regularized(measured: Measured, config: Config) -> bool:
    """Algorithm 2, line 7: whether every replica's norm per parameter is below the threshold.

    >>> are_regularized(Measured({"a": 1.0}, parameters=400), Config(perturbation_threshold=0.06))
    True
    """
    count = measured.parameters
    divisor = math.sqrt(count) if config.norm == "rms" else float(count)
    largest = math.sqrt(max(measured.squared_norms.values()))
    return largest / divisor < config.perturbation_threshold


class AdaptiveSgd(MegabatchStrategy):
    """The state machine; see `daskxml.strategies.protocol` for the life of a mega-batch."""

    config: Config

    def rate(self, worker: WorkerState) -> float:
        """Linear scaling: lr_i = lr b_i / b_max, for a pool with the rows of one thread."""
        return self.config.lr * worker.batch_size / self.config.batch_max / worker.updates_per_batch

    def scale(self, state: MegabatchState) -> dict[str, float]:
        """Algorithm 1, for the workers that were there from the beginning."""
        if (state.merges + 1) % self.config.scale_every:
            return {}
        steady = {name: w for name, w in state.members.items() if not w.came_late}
        sizes = {name: w.batch_size for name, w in steady.items()}
        updates = {name: w.updates for name, w in steady.items()}
        pools = {name: w.pool_threads for name, w in steady.items() if w.pool_threads}
        return scale_batch_sizes(sizes, updates, self.config, pools)

    def merge(self, workers: Mapping[str, WorkerState], measured: Measured) -> Merge:
        """Algorithm 2, up to the sum itself."""
        updates = {name: w.updates for name, w in workers.items()}
        sizes = {name: w.batch_size for name, w in workers.items()}
        weights = normalized_weights(sizes, updates, self.config.weighting)
        perturbed = len(set(updates.values())) > 1 and are_regularized(measured, self.config)
        if perturbed:
            weights = perturb_weights(weights, updates, self.config)
        return Merge(weights, self.config.momentum, perturbed)

    Config = Config  # at the end, where it hides nothing
