"""Static proportional batches: sizes fixed by speeds that are measured once, at the start.

Hadjis, Zhang, Mitliagkas and Re, "Omnivore: An Optimizer for Multi-device Deep Learning on CPUs and
GPUs", 2016, as Ma, Rusu, Wu and Sim describe it ("Adaptive Elastic Training for Sparse Deep
Learning on Heterogeneous Multi-GPU Servers", 2021, section 2.3).

=======  ===========================  =====================================================
symbol   here                         meaning
=======  ===========================  =====================================================
s_i      rows a second of the probe   speed of worker i: batches of equal size, once
b_i      by ``merge``, see below      batch size of worker i, in proportion to s_i
lr_i     ``lr * rows / batch_max``    linear scaling
=======  ===========================  =====================================================

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
from typing import Literal

from daskxml.fields import bounded
from daskxml.strategies import gangs, megabatch
from daskxml.strategies.batches import BatchConfig, apportion, deal_rows
from daskxml.strategies.protocol import Command, Event, GangDone, Measured, Merge, Strategy
from daskxml.strategies.quotas import QuotaStrategy, begin_probe, lease_probes, shared_weights
from daskxml.strategies.schemes import Mirrored, Scheme


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

    Who has not been measured counts as the fastest.

    >>> proportional_sizes({"a": 200.0, "b": 150.0, "c": 0.0}, 64)
    {'a': 64.0, 'b': 48.0, 'c': 64.0}
    """
    fastest = max(speeds.values(), default=0.0) or 1.0
    return {n: max(1.0, batch_max * (speed or fastest) / fastest) for n, speed in speeds.items()}


class StaticByMegabatch(QuotaStrategy):
    """``merge = "megabatch"``: a probe of all, then quotas in proportion."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config

    def rate(self, member: megabatch.Member) -> float:
        """Linear scaling: lr_i = lr b_i / batch_max."""
        return self.config.lr * member.batch_size / self.config.batch_max / member.parts

    def merge(self, members: Mapping[str, megabatch.Member], measured: Measured) -> Merge:
        """Weigh replicas by batch size."""
        weights = shared_weights(members, {name: m.batch_size for name, m in members.items()})
        return Merge(weights, 0.0, perturbed=False)

    def takers(self, state: megabatch.State) -> Collection[str]:
        """Leave out who has not been measured, unless nobody has."""
        return {n for n, m in state.members.items() if m.rows_per_s} or state.members

    def go_on(self, state: megabatch.State) -> tuple[megabatch.State, tuple[Command, ...]]:
        """Probe first, where anybody is new; then lease from quotas."""
        config = self.config
        is_fresh = state.remaining_rows == config.megabatch_rows
        if is_fresh and not all(m.rows_per_s for m in state.members.values()):
            state = begin_probe(state, float(config.batch_max))
        if state.phase == "probe":
            state, probes = lease_probes(state, config.probe_batches, config.lr)
            if any(member.leases for member in state.members.values()):
                return state, probes
            state = self._fix_sizes(state)
        return super().go_on(state)

    def _fix_sizes(self, state: megabatch.State) -> megabatch.State:
        speeds = {name: member.rows_per_s for name, member in state.members.items()}
        sizes = proportional_sizes(speeds, self.config.batch_max)
        members = {n: replace(m, batch_size=sizes[n]) for n, m in state.members.items()}
        return replace(state, phase="train", members=members)


class StaticByStep(gangs.GangStrategy):
    """``merge = "step"``: gangs of synchronous steps, the first of equal batches."""

    shares_optimizer = True
    rules: tuple[str, ...] = ("mean", "sum", "adasum")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config

    def scheme(self, state: gangs.State) -> Scheme:
        """Let all-reduce average the gradients of all."""
        return Mirrored()

    def batch_sizes(self, members: Mapping[str, gangs.Member]) -> dict[str, int]:
        """Divide ``batch_max`` in proportion to the speeds; equally until all have one."""
        speeds = {name: member.speed for name, member in members.items()}
        weights = speeds if all(speeds.values()) else dict.fromkeys(speeds, 1.0)
        return apportion(self.config.batch_max, weights)

    def deal(self, state: gangs.State, sizes: Mapping[str, int]) -> dict[str, int]:
        """Give the probe its few batches."""
        if all(member.speed for member in state.active.values()):
            return super().deal(state, sizes)
        rows = self.config.probe_batches * sum(sizes.values())
        return deal_rows(min(rows, state.remaining_rows), sizes)

    def step(self, state: gangs.State, event: Event) -> tuple[gangs.State, tuple[Command, ...]]:
        """Return the state after ``event``, and what is to be done."""
        is_probe = not all(member.speed for member in state.active.values())
        if isinstance(event, GangDone) and is_probe:
            state = fix_speeds(state, event)
        return super().step(state, event)


def fix_speeds(state: gangs.State, probe: GangDone) -> gangs.State:
    """Take the speeds of the workers of a probe; who had no rows counts as the fastest."""
    busy = {name: seconds for name, seconds in probe.busy_s.items() if seconds and probe.rows[name]}
    speeds = {name: probe.rows[name] / seconds for name, seconds in busy.items()}
    fastest = max(speeds.values(), default=1.0)
    members = {n: replace(state.members[n], speed=speeds.get(n, fastest)) for n in probe.rows}
    return replace(state, members={**state.members, **members})


class StaticSgd:
    """The state machine that ``merge`` chooses: `StaticByMegabatch` or `StaticByStep`."""

    keeps_replicas = averages = shares_model = False
    rules: tuple[str, ...] = ("mean", "sum", "adasum")

    def __init__(self, config: Config) -> None:
        by_step = config.merge == "step"
        machine: Strategy = StaticByStep(config) if by_step else StaticByMegabatch(config)
        self.is_joint, self.shares_optimizer = machine.is_joint, machine.shares_optimizer
        self.initial_state, self.max_batch_rows = machine.initial_state, machine.max_batch_rows
        self.step, self.view = machine.step, machine.view
        self.plain, self.restore = machine.plain, machine.restore

    Config = Config  # at the end, where it hides nothing
