"""The smallest executor that a strategy can run on: leases, gangs, and a virtual clock."""

from __future__ import annotations

import copy
import heapq
import json
from collections import deque

from daskxml.strategies.megabatch import natural_order
from daskxml.strategies.protocol import (
    Begin,
    Drain,
    Gang,
    GangDone,
    Lease,
    LeaseDone,
    Measure,
    Measured,
    Merge,
    Merged,
    Started,
    Undone,
    WorkerJoined,
    WorkerLost,
)


class VirtualCluster:
    """Carries out a strategy's commands at given speeds, in rows a second.

    It checks what must hold for any strategy: states are never changed in place, they survive
    JSON, and between two merges exactly the rows of a mega-batch are done by those who merge. Like
    the session it lets a merge be when nothing has been done, and undoes the work of all when a
    joint strategy loses a worker.
    """

    def __init__(self, strategy, speeds, norm=1e9):
        self.strategy, self.speeds, self.norm = strategy, dict(speeds), norm
        self.state, self.now_s = strategy.initial_state(), 0.0
        self.queues: dict[str, deque[Lease]] = {}
        self.ends: list[tuple[float, int, str, Lease]] = []
        self.gang: Gang | None = None
        self.done: dict[str, list[Lease]] = {}
        self.merges: list[tuple[dict[str, int], Merge]] = []
        self.barrier: Measure | Merge | None = None
        self.leases: list[Lease] = []
        self.gangs: list[Gang] = []
        self.is_drained = False
        self.is_idle = True
        for name in speeds:
            self._seat(name)
        self.tell(Started(tuple(speeds)))
        self._begin()

    def _seat(self, name):
        self.queues[name], self.done[name] = deque(), []

    def _begin(self):
        self.is_idle = False
        self.tell(Begin())

    def tell(self, event):
        before, plain = copy.deepcopy(self.state), self.strategy.plain(self.state)
        assert self.strategy.restore(json.loads(json.dumps(plain))) == self.state
        after, commands = self.strategy.step(self.state, event)
        assert self.state == before
        self.state = after
        assert self.strategy.view(after).keys() == self.queues.keys()
        for command in commands:
            self._obey(command)

    def _obey(self, command):
        assert self.barrier is None
        assert self.gang is None
        if isinstance(command, Lease):
            self.leases.append(command)
            self.queues[command.worker].append(command)
            if len(self.queues[command.worker]) == 1:
                self._run(command.worker)
        elif isinstance(command, Gang):
            self._check_gang(command)
            self.gang = command
            self.gangs.append(command)
        else:
            assert not any(self.queues.values()), "a barrier while leases are out"
            self.barrier = command

    def _check_gang(self, gang):
        assert self.strategy.is_joint
        assert list(gang.shares) == sorted(gang.shares, key=natural_order)
        assert gang.shares.keys() <= self.queues.keys()
        assert sum(share.rows for share in gang.shares.values()) > 0
        for share in gang.shares.values():
            assert share.rows >= 0
            assert 1 <= share.batch_rows <= self.strategy.max_batch_rows()
            assert share.lr > 0.0

    def _run(self, worker):
        lease = self.queues[worker][0]
        end_s = self.now_s + lease.rows / self.speeds[worker]
        heapq.heappush(self.ends, (end_s, len(self.leases), worker, lease))

    def advance(self):
        """Let the next thing happen."""
        if self.is_idle:
            self._begin()
        elif self.barrier is not None:
            self._pass_barrier()
        elif self.gang is not None:
            self._finish_gang()
        else:
            self._finish_lease()

    def _finish_lease(self):
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

    def _finish_gang(self):
        gang, self.gang = self.gang, None
        shares = gang.shares.items()
        busy_s = {name: share.rows / self.speeds[name] for name, share in shares}
        took_s = max(busy_s.values())
        self.now_s += took_s
        for name, share in shares:
            self.done[name].append(Lease(name, share.rows, share.batch_rows, share.lr))
        self.tell(
            GangDone(
                took_s=took_s,
                rows={name: share.rows for name, share in shares},
                updates={name: -(-share.rows // share.batch_rows) for name, share in shares},
                busy_s=busy_s,
            )
        )

    @property
    def rows(self):
        """Rows done since the last merge."""
        return sum(lease.rows for leases in self.done.values() for lease in leases)

    def _pass_barrier(self):
        command, self.barrier = self.barrier, None
        if not self.rows:
            assert self.is_drained
        elif isinstance(command, Measure):
            self.tell(Measured(dict.fromkeys(self.queues, self.norm), 4))
            return
        else:
            assert command.weights.keys() == self.queues.keys()
            assert self.rows == self.strategy.initial_state().remaining_rows or self.is_drained
            self.merges.append((self.updates(), command))
        self.done = {name: [] for name in self.queues}
        self.is_drained, self.is_idle = False, True
        self.tell(Merged())

    def updates(self):
        """Return how many batches each worker has done since the last merge."""
        return {
            name: sum(-(-lease.rows // lease.batch_rows) for lease in leases)
            for name, leases in self.done.items()
        }

    def run(self, merges):
        """Go on until so many merges are done and the next mega-batch is under way."""
        while len(self.merges) < merges or self.is_idle:
            self.advance()

    def until(self, phase):
        """Go on until the strategy is in a phase."""
        while self.state.phase != phase:
            self.advance()

    def drain(self):
        """Ask for the next merge soon."""
        self.is_drained = True
        self.tell(Drain())

    def lose(self, worker):
        """Take a worker away: its leases, done or not, and a merge that is under way."""
        if self.barrier is not None and self.is_drained:
            barrier, self.barrier = self.barrier, None
            self.tell(Drain())  # as the session does: rows that went back are not waited for
            assert self.barrier is None, f"{barrier} commanded twice"
        del self.queues[worker], self.done[worker]
        self.barrier = None
        if self.strategy.is_joint:
            self.gang = None
            self.done = {name: [] for name in self.queues}
        self.tell(WorkerLost(worker))

    def undo(self):
        """Break a gang although nobody is lost."""
        self.gang = None
        self.done = {name: [] for name in self.queues}
        self.tell(Undone())

    def join(self, worker, speed):
        """Let a worker come, unless a merge is under way."""
        assert self.barrier is None
        self.speeds[worker] = speed
        self._seat(worker)
        self.tell(WorkerJoined(worker))
