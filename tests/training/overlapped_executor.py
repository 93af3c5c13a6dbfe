"""The virtual executor, for sessions whose merges travel while workers go on."""

from __future__ import annotations

from collections import Counter

from virtual_executor import Task, VirtualExecutor

from daskxml.strategies.adaptive_sgd import AdaptiveSgd, Config
from daskxml.strategies.elastic import Config as ElasticConfig
from daskxml.strategies.elastic import ElasticSgd
from daskxml.training.orders import LeaseOrder, MergeOrder, MergeReport
from daskxml.training.overlap import OverlappedSession
from daskxml.training.placement import Placement
from daskxml.training.session import Limits

STRATEGIES = {
    "adaptive-sgd": lambda: AdaptiveSgd(Config(batch_max=8, megabatch_batches=8)),
    "elastic": lambda: ElasticSgd(ElasticConfig(batch_max=8, megabatch_batches=8)),
}


def overlapped(
    stored=None, *, strategy="adaptive-sgd", is_replicated=True, tests=(20, 10), **limits
):
    """A session over 200 training rows in two parts."""
    where = Placement(is_replicated, (120, 80), tests)
    machine = STRATEGIES[strategy]()
    return OverlappedSession(machine, Limits(**{"ks": (1,), **limits}), where, 100, stored)


class OverlappedExecutor(VirtualExecutor):
    """Merges take ``merge_s``; snapshots and what was done before a correction are counted."""

    def __init__(self, session, speeds, merge_s=0.5, **values):
        self.merge_s, self.sealed, self.sealed_for = merge_s, {}, 0
        self.since: Counter[str] = Counter()  # batches of each worker since its snapshot
        super().__init__(session, speeds, **values)

    def carry_out(self, orders):
        for order in orders:
            if isinstance(order, MergeOrder) and order.overlaps:
                self._snapshot(order)
            super().carry_out([order])

    def _snapshot(self, order):
        assert not [task for task in self.tasks if isinstance(task.order, MergeOrder)]
        assert order.weights.keys() <= self.workers.keys()
        if self.sealed_for != order.generation:
            assert order.weights.keys() == self.workers.keys()
            assert not self.tasks, "a snapshot while something is under way"
            self.sealed = {name: replica.rows for name, replica in self.workers.items()}
            for replica in self.workers.values():
                replica.rows = Counter()
            self.sealed_for, self.since = order.generation, Counter()

    def _start(self, order, worker, end_s):
        is_travelling = isinstance(order, MergeOrder) and order.overlaps
        end_s = self.now_s + self.merge_s if is_travelling else end_s
        self.tasks.append(Task(order, worker, end_s))

    def _finish(self, task):
        match task.order:
            case MergeOrder(weights=weights, overlaps=True):
                self.merged.append(sum((self.sealed.pop(name) for name in weights), Counter()))
                assert not self.sealed
                corrected = {name: self.since[name] for name in weights}
                return MergeReport(1000 * len(weights), corrected=corrected)
            case LeaseOrder(worker=name, batches=batches):
                self.since[name] += len(batches)
        return super()._finish(task)

    def lose(self, name):
        """Take a worker with all that it does; a merge under way is undone for all."""
        self.sealed.pop(name, None)
        super().lose(name)

    def join(self, name, speed=50.0, threads=0):
        """Let a worker come, where a runtime may."""
        assert self.session.may_join
        super().join(name, speed, threads)

    @property
    def travelling(self):
        """Whether a merge is under way beside leases, or is waited for."""
        return any(isinstance(t.order, MergeOrder) and t.order.overlaps for t in self.tasks)
