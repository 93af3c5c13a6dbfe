"""The smallest executor that a strategy can run on: queues of leases and a virtual clock."""

from __future__ import annotations

import copy
import heapq
import json
from collections import deque

from daskxml.strategies.protocol import (
    Begin,
    Lease,
    LeaseDone,
    Measure,
    Measured,
    Merge,
    Merged,
    Started,
    WorkerJoined,
    WorkerLost,
)


class VirtualCluster:
    """Carries out a strategy's commands at given speeds, in rows a second.

    It checks what must hold for any strategy: states are never changed in place, they survive
    JSON, and between two merges exactly the rows of a mega-batch are done by those who merge.
    """

    def __init__(self, strategy, speeds, norm=1e9):
        self.strategy, self.speeds, self.norm = strategy, dict(speeds), norm
        self.state, self.now_s = strategy.initial_state(), 0.0
        self.queues: dict[str, deque[Lease]] = {}
        self.ends: list[tuple[float, int, str, Lease]] = []
        self.done: dict[str, list[Lease]] = {}
        self.merges: list[tuple[dict[str, int], Merge]] = []
        self.barrier: Measure | Merge | None = None
        self.leases: list[Lease] = []
        self.is_drained = False
        for name in speeds:
            self._seat(name)
        self.tell(Started(tuple(speeds)))
        self.tell(Begin())

    def _seat(self, name):
        self.queues[name], self.done[name] = deque(), []

    def tell(self, event):
        before, plain = copy.deepcopy(self.state), self.strategy.plain(self.state)
        assert self.strategy.restore(json.loads(json.dumps(plain))) == self.state
        after, commands = self.strategy.step(self.state, event)
        assert self.state == before
        self.state = after
        for command in commands:
            self._obey(command)

    def _obey(self, command):
        if isinstance(command, Lease):
            assert self.barrier is None
            self.leases.append(command)
            self.queues[command.worker].append(command)
            if len(self.queues[command.worker]) == 1:
                self._run(command.worker)
        else:
            assert not any(self.queues.values()), "a barrier while leases are out"
            self.barrier = command

    def _run(self, worker):
        lease = self.queues[worker][0]
        end_s = self.now_s + lease.rows / self.speeds[worker]
        heapq.heappush(self.ends, (end_s, len(self.leases), worker, lease))

    def advance(self):
        """Let the next thing happen."""
        if self.barrier is not None:
            self._pass_barrier()
            return
        while True:
            assert self.ends, f"deadlock: {self.state}"
            end_s, _, worker, lease = heapq.heappop(self.ends)
            if self.queues.get(worker) and self.queues[worker][0] is lease:
                break  # else its worker has been lost
        self.now_s = end_s
        self.queues[worker].popleft()
        if self.queues[worker]:
            self._run(worker)
        self.done[worker].append(lease)
        updates = -(-lease.rows // lease.batch_rows)
        self.tell(LeaseDone(worker, lease.rows, updates, lease.rows / self.speeds[worker]))

    def _pass_barrier(self):
        command, self.barrier = self.barrier, None
        if isinstance(command, Measure):
            self.tell(Measured(dict.fromkeys(self.queues, self.norm), 4))
            return
        assert command.weights.keys() == self.queues.keys()
        rows = sum(lease.rows for leases in self.done.values() for lease in leases)
        assert rows == self.strategy.initial_state().remaining_rows or self.is_drained
        self.merges.append((self.updates(), command))
        self.done = {name: [] for name in self.queues}
        self.is_drained = False
        self.tell(Merged())
        self.tell(Begin())

    def updates(self):
        """Return how many batches each worker has done since the last merge."""
        return {
            name: sum(-(-lease.rows // lease.batch_rows) for lease in leases)
            for name, leases in self.done.items()
        }

    def run(self, merges):
        """Go on until so many merges are done."""
        while len(self.merges) < merges:
            self.advance()

    def lose(self, worker):
        """Take a worker away: its leases, done or not, and a merge that is under way."""
        del self.queues[worker], self.done[worker]
        self.barrier = None
        self.tell(WorkerLost(worker))

    def join(self, worker, speed):
        """Let a worker come, unless a merge is under way."""
        self.speeds[worker] = speed
        self._seat(worker)
        self.tell(WorkerJoined(worker))
