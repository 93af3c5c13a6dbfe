"""Static proportional batches: sizes fixed by speeds that are measured once, at the start.

Hadjis, Zhang, Mitliagkas and Re, "Omnivore: An Optimizer for Multi-device Deep Learning on CPUs and
GPUs", 2016, as Ma, Rusu, Wu and Sim describe it ("Adaptive Elastic Training for Sparse Deep
Learning on Heterogeneous Multi-GPU Servers", 2021, section 2.3).

======  ==========================  ==============================================
symbol  here                        meaning
======  ==========================  ==============================================
s_i     rows a second of the probe  speed of worker i: batches of equal size, once
b_i     by ``merge``, see below     batch size of worker i, in proportion to s_i
lr_i    ``lr * rows / batch_max``   linear scaling
======  ==========================  ==============================================

``merge = "megabatch"``: replicas step on their own and merge after a mega-batch, weighed by b_i;
the fastest worker's batch is ``batch_max``, and all make the same number of batches. ``"step"``:
gradients are averaged over all rows at every step, as Omnivore does; the b_i sum to ``batch_max``.
The sizes stay as they are, whatever the speeds become: that is the point of the comparison.
Deviations: Omnivore takes speeds from the devices' FLOPS, here they are measured; all are measured
again at the beginning of a mega-batch in which a new worker takes part. A worker lost leaves the
others' proportions alone. A smaller last batch steps at the same rate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from daskxml.core.fields import bounded
from daskxml.strategies.batches import BatchConfig, apportion, split_rows
from daskxml.strategies.gangs import SynchronousStrategy, active
from daskxml.strategies.megabatch import proportional_weights
from daskxml.strategies.protocol import Command, Event, Measured, Merge, WorkDone
from daskxml.strategies.quotas import QuotaStrategy, begin_probe, lease_probes
from daskxml.strategies.state import MegabatchState, WorkerState, present


@dataclass(frozen=True, kw_only=True)
class Config(BatchConfig):
    """Settings of static proportional batches, beside those of `BatchConfig`.

    Attributes
    ----------
    merge
        ``"megabatch"``: replicas merge; ``"step"``: gradients are averaged at every step.
    probe_batches
        Batches of each worker by which its speed is measured.
    """

    merge: Literal["megabatch", "step"] = "megabatch"
    probe_batches: int = bounded(4, low=1)


def proportional_sizes(speeds: Mapping[str, float], batch_max: int) -> dict[str, float]:
    """Return batch sizes in proportion to speeds, ``batch_max`` for the fastest.

    A worker that has not been measured counts as the fastest. No size is above ``batch_max``, for
    which replicas allocate, by a rounding error.

    >>> proportional_sizes({"a": 200.0, "b": 150.0, "c": 0.0}, 64)
    {'a': 64.0, 'b': 48.0, 'c': 64.0}
    """
    fastest = max(speeds.values(), default=0.0) or 1.0
    sizes = {n: batch_max * (speed or fastest) / fastest for n, speed in speeds.items()}
    return {n: min(max(1.0, size), float(batch_max)) for n, size in sizes.items()}


class StaticByMegabatch(QuotaStrategy):
    """``merge = "megabatch"``: a probe of all, then quotas in proportion."""

    config: Config

    def rate(self, worker: WorkerState) -> float:
        """Linear scaling: lr_i = lr b_i / batch_max."""
        return self.config.lr * worker.batch_size / self.config.batch_max / worker.updates_per_batch

    def merge(self, state: MegabatchState, measured: Measured) -> Merge:
        """Weigh replicas by batch size."""
        sizes = {name: worker.batch_size for name, worker in state.members.items()}
        weights = proportional_weights(state.members, sizes)
        return Merge(weights, 0.0, perturbed=False)

    def eligible(self, state: MegabatchState) -> Collection[str]:
        """Return the workers that have been measured, or all before any has."""
        return {n for n, w in state.members.items() if w.rows_per_s} or state.members

    def schedule(self, state: MegabatchState) -> tuple[MegabatchState, tuple[Command, ...]]:
        """Probe first, where a worker is new; then lease from quotas."""
        config = self.config
        is_fresh = state.remaining_rows == state.batches * config.batch_max
        if is_fresh and not all(w.rows_per_s for w in state.members.values()):
            state = begin_probe(state, float(config.batch_max))
        if state.phase == "probe":
            state, probes = lease_probes(state, config.probe_batches, config.lr)
            if any(w.leases for w in present(state.members).values()):
                return state, probes
            state = self._fix_sizes(state)
        return super().schedule(state)

    def _fix_sizes(self, state: MegabatchState) -> MegabatchState:
        speeds = {name: worker.rows_per_s for name, worker in state.members.items()}
        sizes = proportional_sizes(speeds, self.config.batch_max)
        members = {n: replace(w, batch_size=sizes[n]) for n, w in state.members.items()}
        return replace(state, phase="train", members=members)


class StaticByStep(SynchronousStrategy):
    """``merge = "step"``: gangs of synchronous steps, the first of equal batches."""

    config: Config

    def batch_sizes(self, workers: Mapping[str, WorkerState]) -> dict[str, int]:
        """Divide ``batch_max`` in proportion to the speeds; equally until all have one."""
        speeds = {name: worker.speed for name, worker in workers.items()}
        weights = speeds if all(speeds.values()) else dict.fromkeys(speeds, 1.0)
        return apportion(self.config.batch_max, weights)

    def divide_rows(self, state: MegabatchState, sizes: Mapping[str, int]) -> dict[str, int]:
        """Limit the probe to its few batches."""
        if all(worker.speed for worker in active(state).values()):
            return super().divide_rows(state, sizes)
        rows = self.config.probe_batches * sum(sizes.values())
        return split_rows(min(rows, state.remaining_rows), sizes)

    def record(self, state: MegabatchState, event: Event) -> MegabatchState:
        """Return the state updated by an event; a probe's end fixes the speeds."""
        is_probe = not all(worker.speed for worker in active(state).values())
        state = super().record(state, event)
        return fix_speeds(state, event) if isinstance(event, WorkDone) and is_probe else state


def fix_speeds(state: MegabatchState, probe: WorkDone) -> MegabatchState:
    """Record the speeds of a probe's workers; one without rows counts as the fastest."""
    busy = {name: seconds for name, seconds in probe.busy_s.items() if seconds and probe.rows[name]}
    speeds = {name: probe.rows[name] / seconds for name, seconds in busy.items()}
    fastest = max(speeds.values(), default=1.0)
    members = {n: replace(state.members[n], speed=speeds.get(n, fastest)) for n in probe.rows}
    return replace(state, members={**state.members, **members})


class StaticSgd:
    """Makes the state machine that ``merge`` names: `StaticByMegabatch` or `StaticByStep`."""

    def __new__(cls, config: Config) -> Any:
        """Return a strategy, which is no instance of this class."""
        return StaticByStep(config) if config.merge == "step" else StaticByMegabatch(config)

    Config = Config
