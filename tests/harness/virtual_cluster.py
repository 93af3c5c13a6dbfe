"""The smallest executor that a strategy can run on: leases, gangs, and a virtual clock."""

import heapq
import json
from collections import deque
from typing import NamedTuple

from daskxml.strategies.protocol import (
    REPLICA,
    Begin,
    Drain,
    Measure,
    Measured,
    Merge,
    Merged,
    Started,
    Work,
    WorkDone,
    WorkerDevice,
    WorkerJoined,
    WorkerLost,
    WorkRolledBack,
    natural_order,
)


class Lease(NamedTuple):
    """The work of one worker on its own."""

    worker: str
    rows: int
    batch_rows: int
    lr: float


def lease_of(work):
    """Return a lease that was decided."""
    ((worker, part),) = work.parts.items()
    return Lease(worker, part.rows, part.batch_rows, part.lr)


def leases_of(commands):
    """Return decisions that are leases."""
    return [lease_of(command) for command in commands]


class VirtualCluster:
    """Carries out a strategy's commands at given speeds, in rows a second.

    ``pools`` has the threads of those workers that are pools.

    It checks what must hold for any strategy: states are never changed in place, they survive
    JSON, and between two merges exactly the rows of a mega-batch are done by those who merge. Like
    the session it lets a merge be when nothing has been done, undoes the work of all when a
    joint strategy loses a worker, and keeps what a lost worker did where the model is shared.
    """

    def __init__(self, strategy, speeds, norm=1e9, pools=None):
        self.strategy, self.speeds, self.norm = strategy, dict(speeds), norm
        self.devices = {name: WorkerDevice(threads) for name, threads in (pools or {}).items()}
        self.state, self.now_s, self.events = strategy.initial_state(), 0.0, 0
        self.queues: dict[str, deque[Lease]] = {}
        self.ends: list[tuple[float, int, str, Lease]] = []
        self.gang: Work | None = None
        self.done: dict[str, list[Lease]] = {}
        self.merges: list[tuple[dict[str, int], Merge]] = []
        self.merged_rows: list[int] = []
        self.lost_rows = 0  # of leases
        self.collective: Measure | Merge | None = None
        self.leases: list[Lease] = []
        self.gangs: list[Work] = []
        self.is_drained = False
        self.is_idle = True
        for name in speeds:
            self._seat(name)
        self.tell(Started(tuple(speeds), self.devices))
        self._begin()

    def _seat(self, name):
        self.queues[name] = deque()
        self.done.setdefault(name, [])

    def _begin(self):
        self.is_idle = False
        self.tell(Begin())

    def tell(self, event):
        is_checked = self.events < 50 or self.events % 10 == 0  # the checks cost most of the time
        self.events += 1
        before = json.dumps(self.strategy.plain(self.state)) if is_checked else ""
        after, commands = self.strategy.step(self.state, event)
        if is_checked:
            assert json.dumps(self.strategy.plain(self.state)) == before
            assert self.strategy.restore(json.loads(before)) == self.state
        self.state = after
        assert self.strategy.view(after).keys() == self.queues.keys()
        for command in commands:
            self._obey(command)

    def _obey(self, command):
        assert self.collective is None
        assert self.gang is None
        if isinstance(command, Work) and command.is_lease:
            lease = lease_of(command)
            self._check_lease(lease)
            self.leases.append(lease)
            self.queues[lease.worker].append(lease)
            if len(self.queues[lease.worker]) == 1:
                self._run(lease.worker)
        elif isinstance(command, Work):
            self._check_gang(command)
            self.gang = command
            self.gangs.append(command)
        else:
            assert not any(self.queues.values()), "a barrier while leases are out"
            self.collective = command

    def _check_lease(self, lease):
        device = self.device(lease.worker)
        assert 1 <= lease.batch_rows <= self.strategy.max_batch_rows(device)
        assert lease.rows >= 1
        assert lease.batch_rows % max(1, device.pool_threads) == 0  # equal parts for all threads
        assert lease.lr > 0.0

    def device(self, name):
        """Return what a worker steps with."""
        return self.devices.get(name, REPLICA)

    def _check_gang(self, gang):
        assert self.strategy.is_joint
        assert list(gang.parts) == sorted(gang.parts, key=natural_order)
        assert gang.parts.keys() <= self.queues.keys()
        assert sum(share.rows for share in gang.parts.values()) > 0
        for share in gang.parts.values():
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
        elif self.collective is not None:
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
        busy_s = lease.rows / self.speeds[worker]
        self.tell(WorkDone.alone(worker, lease.rows, self.changes(lease), busy_s))

    def changes(self, lease):
        """Return how often a lease changes a model: the threads of a pool one by one."""
        threads = max(1, self.device(lease.worker).pool_threads)
        full, rest = divmod(lease.rows, lease.batch_rows)
        return full * threads + min(rest, threads)

    def _finish_gang(self):
        gang, self.gang = self.gang, None
        shares = gang.parts.items()
        busy_s = {name: share.rows / self.speeds[name] for name, share in shares}
        took_s = max(busy_s.values())
        self.now_s += took_s
        for name, share in shares:
            self.done[name].append(Lease(name, share.rows, share.batch_rows, share.lr))
        self.tell(
            WorkDone(
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
        command, self.collective = self.collective, None
        if not self.rows:
            assert self.is_drained
        elif isinstance(command, Measure):
            self.tell(Measured(dict.fromkeys(self.queues, self.norm), 4))
            return
        else:
            assert command.weights.keys() == self.queues.keys()
            assert self.rows == self.strategy.initial_state().remaining_rows or self.is_drained
            self._check_shares(command)
            self.merges.append((self.updates(), command))
            self.merged_rows.append(self.rows)
        self.done = {name: [] for name in self.queues}
        self.is_drained, self.is_idle = False, True
        self.tell(Merged())

    def _check_shares(self, merge):
        if self.strategy.shares_model:
            changes = {n: sum(map(self.changes, self.done[n])) for n in self.queues}
            if sum(changes.values()):
                shares = {n: count / sum(changes.values()) for n, count in changes.items()}
                assert merge == Merge(shares, 0.0, perturbed=False)

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
        """Take a worker away: its leases, and a merge that is under way.

        What it had done is gone with it, unless the model is shared.
        """
        if self.collective is not None and self.is_drained:
            collective, self.collective = self.collective, None
            self.tell(Drain())  # as the session does: rows that went back are not waited for
            assert self.collective is None, f"{collective} commanded twice"
        self.lost_rows += sum(lease.rows for lease in self.queues.pop(worker))
        if not self.strategy.shares_model:
            del self.done[worker]
        self.collective = None
        if self.strategy.is_joint:
            self.gang = None
            self.done = {name: [] for name in self.queues}
        self.tell(WorkerLost(worker))

    def play(self, script, most=0):
        """Do what a script of (steps, action, number) says after so many steps; yield after each.

        One of "lose", "join", "drain" and "break", where it is possible. Who joins has at most
        ``most`` threads.
        """
        for steps, action, number in script:
            for _ in range(steps):
                self.advance()
            there = sorted(self.queues)
            if action == "lose" and len(there) > 1:
                self.lose(there[number % len(there)])
            elif action == "join" and self.collective is None:
                self.join(str(100 + len(self.speeds)), 0.5 + 40.0 * number, number % (most + 1))
            elif action == "drain" and not self.is_idle and self.collective is None:
                self.drain()
            elif action == "break" and self.gang is not None:
                self.undo()
            yield

    def undo(self):
        """Break a gang although nobody is lost."""
        self.gang = None
        self.done = {name: [] for name in self.queues}
        self.tell(WorkRolledBack())

    def join(self, worker, speed, threads=0):
        """Let a worker come, unless a merge is under way."""
        assert self.collective is None
        self.speeds[worker] = speed
        self.devices[worker] = WorkerDevice(threads)
        self._seat(worker)
        self.tell(WorkerJoined(worker, self.devices[worker]))
