"""Adaptive SGD: dynamic scheduling, batch size scaling and normalized merging.

Ma, Rusu, Wu and Sim, "Adaptive Elastic Training for Sparse Deep Learning on Heterogeneous
Multi-GPU Servers", 2021; Algorithms 1 and 2.

=============  ===============================  ==================================================
symbol         here                             meaning
=============  ===============================  ==================================================
b_i            ``Member.batch_size``            batch size of worker i, kept as a real number
lr_i           ``config.lr * b_i / batch_max``  learning rate of worker i (linear scaling)
u_i            ``Member.updates``               model updates of worker i since the last merge
b_min, b_max   ``batch_min``, ``batch_max``     bounds of the batch size
beta           ``beta``                         slope of the paper's scaling rule
alpha_i        ``Merge.weights``                merging weight of replica i
pert_thr       ``perturbation_threshold``       replicas below this norm count as regularized
delta          ``perturbation``                 by how much the extreme weights are perturbed
gamma          ``momentum``                     momentum of the global model
=============  ===============================  ==================================================

Deviations from the paper, each an option: batch sizes are scaled by a damped and clamped rule
(``rule = "damped"``), since the paper's rule skips every step that would leave the bounds and so
freezes or oscillates on few workers; perturbed weights are normalized again, since otherwise the
model grows with every merge (``renormalize``); "L2-norm per parameter" is read as the root mean
square (``norm = "rms"``). A worker that came in the middle of a mega-batch is left out of scaling,
its count of updates says nothing of its speed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from daskxml.errors import ConfigError
from daskxml.strategies import megabatch
from daskxml.strategies.megabatch import Member, State, natural_order
from daskxml.strategies.protocol import (
    Begin,
    Command,
    Drain,
    Event,
    LeaseDone,
    Measured,
    Merge,
    Merged,
    Started,
    WorkerJoined,
    WorkerLost,
    WorkerView,
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of Adaptive SGD.

    Attributes
    ----------
    lr
        Learning rate at ``batch_max`` rows; smaller batches step proportionally less.
    batch_max, batch_min
        Bounds of the batch size; ``batch_min = 0`` stands for ``batch_max / 8`` (section 5.1).
    batch_initial
        First batch size; 0 stands for ``batch_max`` (section 5.2.2, "Initial batch size").
    beta
        Slope of ``rule = "paper"``; 0 stands for ``batch_min / 2``.
    megabatch_batches
        Rows between two merges, in batches of ``batch_max``.
    rule
        ``"damped"``: b (u / mean u)^1/2, clamped; ``"paper"``: Algorithm 1 as printed.
    momentum, perturbation, perturbation_threshold
        gamma, delta and pert_thr of Algorithm 2.
    norm
        ``"rms"``: ||w|| / sqrt(|w|); ``"literal"``: ||w|| / |w|.
    renormalize
        Divide perturbed weights by their sum.
    """

    lr: float = 1.0
    batch_max: int = 256
    batch_min: int = 0
    batch_initial: int = 0
    beta: float = 0.0
    megabatch_batches: int = 100
    rule: str = "damped"
    momentum: float = 0.9
    perturbation: float = 0.1
    perturbation_threshold: float = 0.1
    norm: str = "rms"
    renormalize: bool = True

    def __post_init__(self) -> None:
        low, high = self.bounds
        _check("strategy.lr", self.lr, 0.0 < self.lr < math.inf, "a positive number")
        _check("strategy.batch_max", high, high >= 1, "at least 1")
        _check("strategy.batch_min", low, 1 <= low <= high, f"1 to batch_max = {high}")
        first = self.first_batch_size
        _check("strategy.batch_initial", first, low <= first <= high, f"{low} to {high}")
        _check("strategy.beta", self.beta, 0.0 <= self.beta < math.inf, "at least 0")
        count = self.megabatch_batches
        _check("strategy.megabatch_batches", count, count >= 1, "at least 1")
        _check("strategy.rule", self.rule, self.rule in ("damped", "paper"), "'damped' or 'paper'")
        _check("strategy.momentum", self.momentum, 0.0 <= self.momentum < 1.0, "0 to below 1")
        delta = self.perturbation
        _check("strategy.perturbation", delta, 0.0 <= delta < 1.0, "0 to below 1")
        threshold = self.perturbation_threshold
        _check("strategy.perturbation_threshold", threshold, threshold >= 0.0, "at least 0")
        _check("strategy.norm", self.norm, self.norm in ("rms", "literal"), "'rms' or 'literal'")

    @property
    def bounds(self) -> tuple[int, int]:
        """``(b_min, b_max)``."""
        return self.batch_min or max(1, self.batch_max // 8), self.batch_max

    @property
    def first_batch_size(self) -> int:
        """The batch size that every worker starts with."""
        return self.batch_initial or self.batch_max

    @property
    def megabatch_rows(self) -> int:
        """Rows between two merges."""
        return self.megabatch_batches * self.batch_max


def _check(name: str, value: object, is_valid: bool, allowed: str) -> None:
    if not is_valid:
        raise ConfigError(f"{name} = {value!r} is out of range; allowed: {allowed}")


def scale_batch_sizes(
    batch_sizes: Mapping[str, float], updates: Mapping[str, int], config: Config
) -> dict[str, float]:
    """Algorithm 1: larger batches for workers that made more updates than the mean.

    Examples
    --------
    >>> config = Config(batch_max=64, batch_min=8, batch_initial=32, beta=4.0, rule="paper")
    >>> scale_batch_sizes({"a": 32.0, "b": 32.0}, {"a": 6, "b": 2}, config)
    {'a': 40.0, 'b': 24.0}
    """
    low, high = config.bounds
    mean = sum(updates.values()) / len(updates)
    if mean == 0.0:
        return dict(batch_sizes)
    if config.rule == "damped":
        return {
            worker: min(max(size * math.sqrt(updates[worker] / mean), low), high)
            for worker, size in batch_sizes.items()
        }
    beta = config.beta or low / 2.0
    scaled = {w: size + beta * (updates[w] - mean) for w, size in batch_sizes.items()}
    return {w: scaled[w] if low <= scaled[w] <= high else batch_sizes[w] for w in scaled}


def normalized_weights(
    batch_sizes: Mapping[str, float], updates: Mapping[str, int]
) -> dict[str, float]:
    """Algorithm 2, lines 1 to 6: by batch size where all updates are equal, else by updates."""
    shares: Mapping[str, float] = batch_sizes if len(set(updates.values())) == 1 else updates
    total = sum(shares.values())
    return {worker: share / total for worker, share in shares.items()}


def perturb_weights(
    weights: Mapping[str, float], updates: Mapping[str, int], config: Config
) -> dict[str, float]:
    """Algorithm 2, lines 8 and 9: more weight to the most updated replica, less to the least.

    Examples
    --------
    >>> config = Config(renormalize=False)
    >>> perturb_weights({"a": 0.75, "b": 0.25}, {"a": 3, "b": 1}, config)
    {'a': 0.8250000000000001, 'b': 0.225}
    """
    order = sorted(updates, key=natural_order)
    most, least = max(order, key=updates.__getitem__), min(order, key=updates.__getitem__)
    perturbed = dict(weights)
    perturbed[most] *= 1.0 + config.perturbation
    perturbed[least] *= 1.0 - config.perturbation
    total = sum(perturbed.values()) if config.renormalize else 1.0
    return {worker: weight / total for worker, weight in perturbed.items()}


def are_regularized(measured: Measured, config: Config) -> bool:
    """Algorithm 2, line 7: whether every replica's norm per parameter is below the threshold."""
    count = measured.parameters
    divisor = math.sqrt(count) if config.norm == "rms" else float(count)
    largest = math.sqrt(max(measured.squared_norms.values()))
    return largest / divisor < config.perturbation_threshold


class AdaptiveSgd:
    """The state machine; see `daskxml.strategies.protocol` for the life of a mega-batch."""

    Config = Config

    def __init__(self, config: Config) -> None:
        self.config = config

    def initial_state(self) -> State:
        """Return the state before any worker is known."""
        return State(remaining_rows=self.config.megabatch_rows)

    def max_batch_rows(self) -> int:
        """Return b_max."""
        return self.config.batch_max

    def step(self, state: State, event: Event) -> tuple[State, tuple[Command, ...]]:
        """Return the state after ``event``, and what is to be done."""
        state = self._hear(state, event)
        if isinstance(event, Measured) and state.phase == "measure":
            return replace(state, phase="merge"), (self._merge(state, event),)
        return megabatch.lease_out(state, self._lr) if state.phase == "train" else (state, ())

    def view(self, state: State) -> dict[str, WorkerView]:
        """Return batch size, rate and throughput of every worker."""
        return {
            name: WorkerView(m.batch_rows, self._lr(m), m.rows_per_s)
            for name, m in state.members.items()
        }

    plain = staticmethod(megabatch.plain)
    restore = staticmethod(megabatch.restore)

    def _hear(self, state: State, event: Event) -> State:
        first = float(self.config.first_batch_size)
        match event:
            case Started(workers):
                members = {n: state.members.get(n, Member(batch_size=first)) for n in workers}
                return replace(state, members=members)
            case Begin():
                return replace(state, phase="train")
            case WorkerJoined(worker):
                return megabatch.admit(state, worker, first)
            case WorkerLost(worker):
                return megabatch.dismiss(state, worker)
            case LeaseDone():
                return megabatch.count(state, event)
            case Merged():
                return self._scale(state)
            case Drain():
                return replace(state, is_draining=True)
        return state

    def _scale(self, state: State) -> State:
        steady = {name: m for name, m in state.members.items() if not m.came_late}
        sizes = {name: m.batch_size for name, m in steady.items()}
        updates = {name: m.updates for name, m in steady.items()}
        sizes = scale_batch_sizes(sizes, updates, self.config) if steady else sizes
        return megabatch.next_megabatch(sizes, state, self.config.megabatch_rows)

    def _merge(self, state: State, measured: Measured) -> Merge:
        sizes = {name: m.batch_size for name, m in state.members.items()}
        updates = {name: m.updates for name, m in state.members.items()}
        weights = normalized_weights(sizes, updates)
        perturbed = len(set(updates.values())) > 1 and are_regularized(measured, self.config)
        if perturbed:
            weights = perturb_weights(weights, updates, self.config)
        return Merge(weights, self.config.momentum, perturbed)

    def _lr(self, member: Member) -> float:
        return self.config.lr * member.batch_size / self.config.batch_max
