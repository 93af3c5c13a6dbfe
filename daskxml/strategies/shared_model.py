"""The bookkeeping that strategies share whose workers all update one model.

Replicas (a GPU, or a process that stands for one) copy the model for every batch and add their
change to it; the threads of pools update it in place. So nothing is merged: at the end of a
mega-batch, when nobody works, the model is evaluated as it stands. A lost worker takes its leases
under way with it, and nothing else.

The papers' coordinator sends one batch a message. A message costs milliseconds on a cluster, so a
lease is a short time's worth of batches of the current size, and one waits at the worker's door
while another runs; ``lease_s = 0`` is one batch, and none waits. Who is slow gets no batch at the
end of a mega-batch that others could do sooner (`daskxml.strategies.dispatch`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from daskxml.fields import bounded
from daskxml.strategies.batches import BatchConfig
from daskxml.strategies.dispatch import IN_FLIGHT, LONGEST_LEASE_S, SHORTEST_LEASE_S, Pace
from daskxml.strategies.megabatch import NOT_MEASURED, MegabatchStrategy, is_finished, lease_out
from daskxml.strategies.members import Member, State
from daskxml.strategies.protocol import Command, LeaseDone, Measured, Merge


@dataclass(frozen=True, kw_only=True)
class SharedConfig(BatchConfig):
    """What the run file of any strategy with a shared model says, beside `BatchConfig`.

    Attributes
    ----------
    lease_s
        Seconds of work in a lease, at least one batch; 0: one batch, the papers' message.
    scaling
        ``"linear"``: an update's rate is in proportion to its rows (Ma et al., section VI-B);
        ``"none"``: it is ``lr`` for any size, and small batches, which are many, count for more.
    """

    lease_s: float = bounded(SHORTEST_LEASE_S, low=0, high=LONGEST_LEASE_S)
    scaling: Literal["linear", "none"] = "linear"

    @property
    def pace(self) -> Pace:
        """How much a worker is given at once."""
        return Pace(self.lease_s, IN_FLIGHT if self.lease_s else 1)


def update_shares(members: Mapping[str, Member]) -> dict[str, float]:
    """Return each worker's share of the updates; equal ones where there are none.

    Examples
    --------
    >>> members = {"gpu": Member(batch_size=64, updates=1), "cpu": Member(batch_size=1, updates=3)}
    >>> update_shares(members)
    {'gpu': 0.25, 'cpu': 0.75}
    """
    total = sum(member.updates for member in members.values())
    if not total:
        return dict.fromkeys(members, 1.0 / len(members))
    return {name: member.updates / total for name, member in members.items()}


class SharedModelStrategy(MegabatchStrategy):
    """A strategy with a shared model but for its batch sizes, which a subclass or its config adds.

    Parameters
    ----------
    config
        Batches, rate and leases.
    """

    shares_model = True
    rules: tuple[str, ...] = ("mean",)

    def __init__(self, config: SharedConfig) -> None:
        super().__init__(config)
        self._shared = config

    def rate(self, member: Member) -> float:
        """Return ``lr``, or scale it with the rows of an update: a batch, or a thread's part."""
        if self._shared.scaling == "none":
            return self._shared.lr
        return self._shared.lr * (member.batch_rows / member.parts) / self._shared.batch_max

    def count_updates(self, member: Member, done: LeaseDone) -> int:
        """Count every update of the model, also each thread's of a pool."""
        return done.updates

    def merge(self, members: Mapping[str, Member], measured: Measured) -> Merge:
        """Tell of the shares of the updates."""
        return Merge(update_shares(members), 0.0, perturbed=False)

    def go_on(self, state: State) -> tuple[State, tuple[Command, ...]]:
        """Lease what should be leased; once everything is back, let the model be looked at."""
        state, leases = lease_out(state, self.rate, self._shared.pace)
        if is_finished(state):
            return replace(state, phase="merge"), (self.merge(state.members, NOT_MEASURED),)
        return state, leases
