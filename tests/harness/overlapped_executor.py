"""The virtual executor, for sessions whose merges overlap with training."""

from __future__ import annotations

from collections import Counter

from daskxml.session.commands import MergeReplicas, MergeResult, RunWork
from daskxml.session.overlapped import OverlappedSession
from daskxml.session.placement import Placement
from daskxml.session.stopping import StoppingRules
from daskxml.strategies.adaptive_sgd import AdaptiveSgd, Config
from daskxml.strategies.elastic import Config as ElasticConfig
from daskxml.strategies.elastic import ElasticSgd
from harness.virtual_executor import Task, VirtualExecutor

STRATEGIES = {
    "adaptive-sgd": lambda: AdaptiveSgd(Config(batch_max=8, megabatch_batches=8)),
    "elastic": lambda: ElasticSgd(ElasticConfig(batch_max=8, megabatch_batches=8)),
}


def overlapped(
    stored=None, *, strategy="adaptive-sgd", is_replicated=True, tests=(20, 10), **limits
):
    """A session over 200 training rows in two parts."""
    placement = Placement(is_replicated, (120, 80), tests)
    rules = StoppingRules(**{"ks": (1,), **limits})
    return OverlappedSession(STRATEGIES[strategy](), rules, placement, 100, stored)


class OverlappedExecutor(VirtualExecutor):
    """Merges take ``merge_s``; snapshots and what was done before a correction are counted."""

    def __init__(self, session, speeds, merge_s=0.5, **values):
        self.merge_s, self.sealed, self.sealed_for = merge_s, {}, 0
        self.since: Counter[str] = Counter()  # batches of each worker since its snapshot
        super().__init__(session, speeds, **values)

    def execute(self, commands):
        for command in commands:
            if isinstance(command, MergeReplicas) and command.overlaps:
                self._snapshot(command)
            super().execute([command])

    def _snapshot(self, command):
        assert not [task for task in self.tasks if isinstance(task.command, MergeReplicas)]
        assert command.weights.keys() <= self.workers.keys()
        if self.sealed_for != command.generation:
            assert command.weights.keys() == self.workers.keys()
            assert not self.tasks, "a snapshot while something is under way"
            self.sealed = {name: replica.rows for name, replica in self.workers.items()}
            for replica in self.workers.values():
                replica.rows = Counter()
            self.sealed_for, self.since = command.generation, Counter()

    def _start(self, command, worker, end_s):
        is_overlapping = isinstance(command, MergeReplicas) and command.overlaps
        end_s = self.now_s + self.merge_s if is_overlapping else end_s
        self.tasks.append(Task(command, worker, end_s))

    def _finish(self, task):
        match task.command:
            case MergeReplicas(weights=weights, overlaps=True):
                self.merged.append(sum((self.sealed.pop(name) for name in weights), Counter()))
                assert not self.sealed
                corrected = {name: self.since[name] for name in weights}
                return MergeResult(1000 * len(weights), corrected=corrected)
            case RunWork(workers=(name,), batches=(batches,)):
                self.since[name] += len(batches)
        return super()._finish(task)

    def lose(self, name):
        """Lose a worker and its tasks; a merge under way is undone for all."""
        self.sealed.pop(name, None)
        super().lose(name)

    def join(self, name, speed=50.0, threads=0):
        """Let a worker join, in a stage where a backend may."""
        assert self.session.may_join
        super().join(name, speed, threads)

    @property
    def is_merging(self):
        """Whether a merge is under way beside leases, or is waited for."""
        return any(isinstance(t.command, MergeReplicas) and t.command.overlaps for t in self.tasks)
