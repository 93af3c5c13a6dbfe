"""The parameter server of a gang: one model that gradients are pushed to and pulled from.

It runs in the process of the first rank, beside that rank's own part, with a model and an optimizer
of its own. Synchronous (`Central`) it applies one combined gradient a step; asynchronous it applies
each when it comes, and lets a worker go on while it is no more than so many batches ahead of the
slowest (stale synchronous parallel: Ho et al., "More Effective Distributed ML via a Stale
Synchronous Parallel Parameter Server", NIPS 2013).
"""

from __future__ import annotations

import numpy as np

from daskxml.combine.messages import Flush, Program, Receive, ReceiveAny, Send
from daskxml.strategies.schemes import Asynchronous
from daskxml.training.member import Member
from daskxml.training.orders import GangOrder
from daskxml.training.programs import PartResult, mean_weights, step_rate
from daskxml.types import Array


def server_program(member: Member, order: GangOrder) -> Program[PartResult]:
    """Return the server's part in a gang; its rank is the one behind the last worker's.

    Parameters
    ----------
    member
        That of the first rank, in whose process the server runs.
    """
    server = _Server(member, order)
    if isinstance(order.scheme, Asynchronous):
        return (yield from server.serve_each(order.scheme.staleness))
    return (yield from server.serve_all())


class _Server:
    """The model that a gang's workers share, and the optimizer that changes it."""

    def __init__(self, member: Member, order: GangOrder) -> None:
        self.member, self.order, self.kernels = member, order, member.kernels
        self.ranks = len(order.workers)
        self.center, self.inbox = member.array("center"), member.array("inbox")
        self.optimizer = member.server_optimizer
        if order.rewinds:
            self.optimizer.reset()
        if order.begins:
            self.kernels.copy(self.center, member.current)

    def serve_all(self) -> Program[PartResult]:
        """Answer every rank at every step, once all gradients are there; added in their order."""
        total = self.member.array("total")
        for step in range(self.order.steps):
            self.kernels.fill(total, 0.0)
            for rank, weight in enumerate(self._weights(step)):
                yield Receive(rank, self.inbox)
                self.kernels.add_scaled(total, self.inbox, weight)
            self._apply(total, step_rate(self.member, self.order, step))
            for rank in range(self.ranks):
                yield Send(rank, self.center)
            yield Flush()
        return PartResult()

    def _weights(self, step: int) -> list[float]:
        is_sum = self.member.settings.rule == "sum"
        return [1.0] * self.ranks if is_sum else mean_weights(self.order, step)

    def serve_each(self, staleness: int) -> Program[PartResult]:
        """Answer whoever comes, unless it is too far ahead of the slowest that still works."""
        result = PartResult()
        left = [len(batches) for batches in self.order.batches]
        done, seen = [0] * self.ranks, [0] * self.ranks  # batches; versions of the model
        version = 0
        for rank in range(self.ranks):
            yield Receive(rank, np.zeros(1))
        waiting = set(range(self.ranks))
        while True:
            slowest = min((done[r] for r in range(self.ranks) if left[r]), default=0)
            for rank in sorted(waiting):
                if left[rank] and (staleness < 0 or done[rank] - slowest <= staleness):
                    yield Send(rank, self.center)
                    seen[rank] = version
                    waiting.remove(rank)
            yield Flush()
            if not any(left):
                return result
            rank = yield ReceiveAny(self.inbox)
            result.note("staleness", version - seen[rank])
            self._apply(self.inbox, self._rate(rank, done[rank]))
            version, done[rank], left[rank] = version + 1, done[rank] + 1, left[rank] - 1
            waiting.add(rank)

    def _rate(self, rank: int, batch: int) -> float:
        return self.member.scheduled(self.order.lrs[rank], self.order.batches[rank][batch])

    def _apply(self, gradient: Array, rate: float) -> None:
        self.optimizer.begin_step()
        self.optimizer.apply(self.member.layout.views(gradient), rate)
