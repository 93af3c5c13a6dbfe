"""What a worker does in a merge, as a program of messages: every replica's model into one.

The merged model is left in the member's scratch model; committing it is another step, taken only
when all workers have it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from daskxml.combine import combine_changes, merge_factors, ring_all_reduce
from daskxml.combine.messages import Flush, Program, Receive, Send
from daskxml.errors import TrainingError
from daskxml.training.member import Member
from daskxml.training.orders import MergeOrder, Notes
from daskxml.training.programs import segments_of
from daskxml.types import Array


def merge_program(
    member: Member, order: MergeOrder, rank: int, hosts: tuple[str, ...]
) -> Program[Notes]:
    """Return one rank's part in a merge; ranks are in the order of ``order.weights``.

    Parameters
    ----------
    member
        Whose replica it is.
    hosts
        The machine of every rank.

    Raises
    ------
    TrainingError
        If nobody is on the machine of a model that all share.
    """
    if member.settings.shares_model:
        return (yield from _take_down(member, rank, hosts))
    merge = _Merge(member, order, rank, hosts)
    notes: Notes = {}
    if merge.is_of_changes:
        notes = yield from merge.combine_changes()
    else:
        yield from merge.combine_models()
    if member.settings.averages:
        yield from merge.spread(member.array("center before"), member.array("memory"))
    if member.settings.on_merge == "average":
        yield from merge.average_optimizer()
    return notes


def _take_down(member: Member, rank: int, hosts: tuple[str, ...]) -> Program[Notes]:
    """Copy the model that all share, now that nobody works; the first rank there sends it on."""
    home = member.settings.home
    if home not in hosts:
        raise TrainingError(f"the shared model is gone: no worker is left on {home}")
    giver = hosts.index(home)
    if member.settings.is_at_home and member.shared is not None:
        member.kernels.copy(member.scratch, member.kernels.to_device(member.shared.flat))
    else:
        yield Receive(giver, member.scratch)
    if rank == giver:
        for other in (other for other, host in enumerate(hosts) if host != home):
            yield Send(other, member.scratch)
        yield Flush()
    return {}


class _Merge:
    def __init__(
        self, member: Member, order: MergeOrder, rank: int, hosts: tuple[str, ...]
    ) -> None:
        self.member, self.order, self.rank, self.hosts = member, order, rank, hosts
        self.kernels = member.kernels
        self.weights = list(order.weights.values())
        self.rule = member.settings.rule

    @property
    def is_of_changes(self) -> bool:
        """Whether what the replicas changed is combined, not the replicas themselves.

        Joint strategies have one model, whose weight is 1: there is nothing left to combine.
        """
        return self.rule != "mean" and not self.member.settings.is_joint

    def combine_models(self) -> Program[None]:
        """``sum_i a_i w_i + b w + c (what a merge remembers)``."""
        member, combine = self.member, self.member.settings.combine
        factors = merge_factors(combine, self.weights, self.order.momentum)
        yield from self._ring(
            member.scratch,
            member.merge_source(),
            factors.replicas[self.rank],
            self._adding(factors.current, factors.previous),
            "bfloat16" if combine.transfer == "bfloat16" else "float32",
        )

    def _adding(self, current: float, previous: float) -> Callable[[slice], None] | None:
        """Add the global models' share to a piece of the scratch model."""
        if not (current or previous):
            return None
        member = self.member

        def finish(piece: slice) -> None:
            out = member.scratch[piece]
            if current == -previous:
                self.kernels.momentum(out, member.current[piece], member.previous[piece], current)
            else:
                self.kernels.add_two(
                    out, member.current[piece], current, member.previous[piece], previous
                )

        return finish

    def combine_changes(self) -> Program[Notes]:
        """``w + rule(w_i - w) + momentum (w - w before)``, the rule being Adasum or the sum."""
        member, kernels = self.member, self.kernels
        change = member.array("change")
        kernels.weigh_two(change, member.merge_source(), 1.0, member.current, -1.0)
        found = yield from combine_changes(
            self.rank,
            self.hosts,
            change,
            self.weights,
            segments_of(member),
            kernels,
            member.settings.combine,
            self.rule,
            member.scratch,
        )
        kernels.weigh_two(member.scratch, member.current, 1.0, change, 1.0)
        finish = self._adding(self.order.momentum, -self.order.momentum)
        if finish is not None:
            finish(slice(None))
        named = {f"orthogonality/{layer}": (value, 1) for layer, value in found.items()}
        return named if self.rank == 0 else {}

    def spread(self, source: Array, out: Array) -> Program[None]:
        """Give everybody the array of whoever has the weight 1."""
        yield from self._ring(out, source, self.weights[self.rank])

    def average_optimizer(self) -> Program[None]:
        """Average the optimizers' state with the weights, their counts of steps as well."""
        member = self.member
        share = self.weights[self.rank] / sum(self.weights)
        out = member.array("change")
        for name, array in sorted(member.replica.optimizer.state().items()):
            if name == "steps":
                yield from self._average_steps(array, share)
                continue
            yield from self._ring(out, array, share)
            self.kernels.copy(array, out)

    def _average_steps(self, steps: Array, share: float) -> Program[None]:
        counted = self.kernels.zeros(16)
        mean = self.kernels.zeros(16)
        counted[0] = float(steps[0])
        yield from self._ring(mean, counted, share)
        steps[0] = int(np.rint(float(mean[0])))

    def _ring(
        self,
        out: Array,
        term: Array,
        weight: float,
        finish: Callable[[slice], None] | None = None,
        transfer: str = "float32",
    ) -> Program[None]:
        ranks, kernels = len(self.weights), self.kernels
        yield from ring_all_reduce(
            self.rank, ranks, out, term, weight, kernels, finish, transfer=transfer
        )
