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
beta          ``beta``                         slope of the printed scaling rule
alpha_i       ``Merge.weights``                merging weight of replica i
pert_thr      ``perturbation_threshold``       replicas below this norm count as regularized
delta         ``perturbation``                 by how much the extreme weights are perturbed
gamma         ``momentum``                     momentum of the global model
============  ===============================  ==============================================

Deviations from the paper, each an option: batch sizes follow the workers' measured speeds (``rule =
"speed"``), since the printed rule skips every step that would leave the bounds and so freezes or
oscillates (`daskxml.strategies.batch_rules` has all rules); leases are longer than a batch
(``dispatch = "lease"``); perturbed weights are normalized again, since otherwise the model grows
with every merge (``renormalize``; docs/algorithms/adaptive-sgd.md works it out); the norm that
bounds perturbation is compared with that at the first merge and not divided by the number of
parameters, which made it a matter of the model's width (``norm = "growth"``); where all updates are
equal, no replica is the most updated one and none is perturbed (``perturb_equal``: as printed,
where the first worker is then both r and s, and has (1 + delta) (1 - delta) times its weight; the
authors' published code leaves the weights as they are); a batch of fewer rows than the worker's
others, as there may be one at the end of a mega-batch, steps at a rate in proportion to its rows
and is that part of an update in u_i, and counts that differ by less than one are equal (``parts =
"scaled"``; as printed every batch is an update). A single worker is never perturbed. A worker that
came in the middle of a mega-batch is left out of scaling. Pools of CPU threads, which the paper has
none of, have bounds of their own (rows a thread), begin at the lower one, and are compared with the
replicas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from daskxml.core.fields import bounded
from daskxml.strategies.batch_rules import Pace, Paces, as_printed, by_speed, in_proportion
from daskxml.strategies.batches import BoundedConfig
from daskxml.strategies.dispatch import BY_SHARES, ONE_BATCH, LeasePolicy
from daskxml.strategies.megabatch import Strategy
from daskxml.strategies.protocol import (
    Event,
    Measured,
    Merge,
    Started,
    WorkerDevice,
    WorkerView,
    natural_order,
)
from daskxml.strategies.state import MegabatchState, WorkerState

WARM_S = 0.1  # seconds of work that the warm-up of a worker counts as
Sizes = Mapping[str, float]
Updates = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Config(BoundedConfig):
    """Settings of Adaptive SGD, beside those of `BoundedConfig`.

    Attributes
    ----------
    batch_initial
        First batch size of a replica; 0 stands for ``batch_max`` (section 5.2.2).
    beta
        Slope of ``rule = "paper"``; 0 stands for half a worker's least batch.
    rule
        How sizes are scaled; see `daskxml.strategies.batch_rules`.
    dispatch
        ``"lease"``: batches are leased by the second, and the last rows in shares, so that all end
        together; ``"batch"``: one at a time, to whoever is free, as in the paper.
    scale_every
        Mega-batches between two scalings (section 3.2), which count the last one's updates.
    weighting
        ``"paper"``: Algorithm 2; ``"rows"``: by updates times batch size (section 3.3).
    momentum, perturbation, perturbation_threshold
        gamma, delta and pert_thr of Algorithm 2.
    norm
        What must be below pert_thr: ``"growth"``, ``||w||`` over its largest value at the first
        merge; ``"literal"``, as printed, ``||w|| / |w|``; ``"rms"``, ``||w|| / sqrt(|w|)``.
    renormalize
        Divide perturbed weights by their sum.
    perturb_equal
        Perturb where all updates are equal, too.
    parts
        A batch of fewer rows than the worker's others: ``"scaled"``, it steps at a rate in
        proportion to its rows, and is that part of an update; ``"whole"``, as printed, it is an
        update like all others.
    """

    batch_initial: int = bounded(0, low=0)
    beta: float = bounded(0.0, low=0)
    rule: Literal["speed", "proportional", "paper"] = "speed"
    dispatch: Literal["lease", "batch"] = "lease"
    scale_every: int = bounded(1, low=1)
    weighting: Literal["paper", "rows"] = "paper"
    momentum: float = bounded(0.9, low=0, below=1)
    perturbation: float = bounded(0.1, low=0, below=1)
    perturbation_threshold: float = bounded(2.0, low=0)
    norm: Literal["growth", "rms", "literal"] = "growth"
    renormalize: bool = True
    perturb_equal: bool = False
    parts: Literal["scaled", "whole"] = "scaled"

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.bounds
        if not low <= (self.batch_initial or high) <= high:
            raise self.refusal("batch_initial", f"must be from {low} to {high}")

    def first_size(self, pool_threads: int) -> int:
        """Return the batch size of a new worker: a pool's is its least, for it may be slow."""
        given = 0 if pool_threads else self.batch_initial
        return given or super().first_size(pool_threads)


def scale_batch_sizes(paces: Paces, config: Config) -> dict[str, Pace]:
    """Algorithm 1, or the rule in its place: larger batches for faster workers.

    Examples
    --------
    >>> config = Config(batch_max=64, batch_min=8, beta=4.0, rule="paper")
    >>> pace = Pace(size=32.0, low=8, high=64, updates=6)
    >>> sized = scale_batch_sizes({"a": pace, "b": replace(pace, updates=2)}, config)
    >>> sized["a"].size, sized["b"].size
    (40.0, 24.0)
    """
    match config.rule:
        case "speed":
            return by_speed(paces)
        case "proportional":
            return in_proportion(paces)
    return as_printed(paces, config.beta)


def are_equal(updates: Updates) -> bool:
    """Whether all counts are equal, as far as whole batches can be: they differ by less than one.

    >>> are_equal({"a": 25.0, "b": 25.4}), are_equal({"a": 25, "b": 26})
    (True, False)
    """
    return max(updates.values()) - min(updates.values()) < 1.0


def normalized_weights(sizes: Sizes, updates: Updates, weighting: str = "paper") -> Sizes:
    """Algorithm 2, lines 1 to 6: by batch size where all updates are equal, else by updates.

    >>> normalized_weights({"a": 30.0, "b": 10.0}, {"a": 5, "b": 5})
    {'a': 0.75, 'b': 0.25}
    """
    shares: Sizes = updates
    if are_equal(updates):
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


def are_regularized(measured: Measured, first_norm: float, config: Config) -> bool:
    """Algorithm 2, line 7: whether every replica's norm is below the threshold.

    ``first_norm`` is the largest at the first merge.

    >>> measured = Measured({"a": 1.0, "b": 9.0}, parameters=400)
    >>> are_regularized(measured, 2.0, Config(perturbation_threshold=1.6))
    True
    >>> are_regularized(measured, 2.0, Config(norm="rms", perturbation_threshold=0.1))
    False
    """
    divisors = {
        "growth": first_norm or 1.0,
        "rms": math.sqrt(measured.parameters),
        "literal": float(measured.parameters),
    }
    return measured.largest_norm < config.perturbation_threshold * divisors[config.norm]


def _with_paces(state: MegabatchState, paces: Paces) -> MegabatchState:
    members = {
        n: replace(state.members[n], batch_size=pace.size, evidence=pace.evidence, speed=pace.speed)
        for n, pace in paces.items()
    }
    return replace(state, members={**state.members, **members})


class AdaptiveSgd(Strategy):
    """The state machine; see `daskxml.strategies.protocol` for the life of a mega-batch."""

    needs_norms = True

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.scales_parts = config.parts == "scaled"

    def rate(self, worker: WorkerState) -> float:
        """Linear scaling: lr_i = lr b_i / b_max, for a pool with the rows of one thread."""
        return self.config.lr * worker.batch_size / self.config.batch_max / worker.updates_per_batch

    def policy(self, state: MegabatchState) -> LeasePolicy:
        """Lease by shares, or batch by batch."""
        return ONE_BATCH if self.config.dispatch == "batch" else BY_SHARES

    def count_updates(self, worker: WorkerState, rows: int, updates: int) -> float:
        """Count batches, a smaller one as its share of a full one where parts are scaled."""
        if self.scales_parts:
            return rows / worker.batch_rows
        return super().count_updates(worker, rows, updates)

    def scale(self, state: MegabatchState) -> MegabatchState:
        """Algorithm 1, for the workers that were there from the beginning."""
        if (state.merges + 1) % self.config.scale_every:
            return state
        paces = {n: self._pace(w) for n, w in state.members.items() if not w.came_late}
        return _with_paces(state, scale_batch_sizes(paces, self.config))

    def record(self, state: MegabatchState, event: Event) -> MegabatchState:
        """Take the speeds of the warm-up as a first observation."""
        state = super().record(state, event)
        known = {n: w for n, w in state.members.items() if w.rows_per_s}
        if isinstance(event, Started) and self.config.rule == "speed" and len(known) > 1:
            paces = {
                n: replace(
                    self._pace(w), updates=WARM_S * w.rows_per_s / w.batch_rows, busy_s=WARM_S
                )
                for n, w in known.items()
                if not w.evidence.seen
            }
            return _with_paces(state, by_speed(paces))
        return state

    def _new_worker(self, device: WorkerDevice) -> WorkerState:
        # the warm-up of a pool is with larger batches than those that it begins with
        speed = 0.0 if device.is_pool else device.rows_per_s
        return replace(super()._new_worker(device), rows_per_s=speed)

    def _pace(self, worker: WorkerState) -> Pace:
        low, high = self.config.bounds_of(worker.pool_threads)
        return Pace(
            size=worker.batch_size, low=low, high=high, updates=worker.updates,
            busy_s=worker.busy_s, is_pool=worker.pool_threads > 0, evidence=worker.evidence,
        )  # fmt: skip

    def merge(self, state: MegabatchState, measured: Measured) -> Merge:
        """Algorithm 2, up to the sum itself."""
        config, workers = self.config, state.members
        updates = {name: w.updates for name, w in workers.items()}
        sizes = {name: w.batch_size for name, w in workers.items()}
        weights = normalized_weights(sizes, updates, config.weighting)
        is_tie = len(workers) == 1 or (are_equal(updates) and not config.perturb_equal)
        regularized = are_regularized(measured, state.first_norm, config)
        if regularized and not is_tie:
            weights = perturb_weights(weights, updates, config)
        return Merge(weights, config.momentum, regularized and not is_tie, regularized)

    def view(self, state: MegabatchState) -> dict[str, WorkerView]:
        """Return what the history has of every worker, with its real batch size and u_i."""
        members = state.members
        return {
            name: replace(view, batch_size=members[name].batch_size, counted=members[name].updates)
            for name, view in super().view(state).items()
        }
