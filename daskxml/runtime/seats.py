"""The members of runs on a worker, whose turn it is, and the messages that a worker answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from distributed import Worker, WorkerPlugin, get_worker, secede
from distributed.protocol import to_serialize
from distributed.utils import offload

from daskxml.errors import ClusterError
from daskxml.runtime.performing import Performed
from daskxml.runtime.port import Port, RoundKey, RoundPlan
from daskxml.runtime.remote import HANDLE, PULL, PUSH, RemoteStore
from daskxml.training.member import Member
from daskxml.training.merging import merge_program
from daskxml.training.orders import MergeOrder, Notes
from daskxml.training.run_dir import RunDir
from daskxml.training.shared import LocalStore, SharedModel
from daskxml.types import Array

TOPIC = "daskxml"
PLUGIN = "daskxml"


class Seat:
    """A member on this worker, whose turn it is, and where it pulls from and pushes to."""

    def __init__(self, member: Member, store: RemoteStore | None = None) -> None:
        self.member, self.store = member, store
        self.pushed: dict[str, int] = {}  # by who pushes: the number of the last one
        self.turn = threading.Condition()
        self.next_lease = 0  # snapshots take their turns among the leases
        self.is_closed = self._is_working = False
        self._pauses = 0  # how many wait for a batch to end before the next one begins
        self._batches = self._corrected_after = 0  # since the snapshot

    def take_turn(self, number: int) -> None:
        """Wait until all leases before ``number`` are done.

        A lease may be started before the one that it must follow, whose rows are still on their
        way: then it leaves its place in the worker's thread pool to that one.
        """
        with self.turn:
            is_early = self.next_lease != number
        if is_early:
            secede()
        self._await_turn(number)

    def _await_turn(self, number: int) -> None:
        with self.turn:
            self._wait(lambda: self.next_lease == number and not self._pauses)
            self._is_working = True

    def _wait(self, is_due: Callable[[], bool]) -> None:
        self.turn.wait_for(lambda: self.is_closed or is_due())
        if self.is_closed:
            raise ClusterError("the run is over on this worker")

    def end_turn(self) -> None:
        """Let the next lease begin."""
        with self.turn:
            self.next_lease += 1
            self._is_working = False
            self.turn.notify_all()

    def take_snapshot(self, number: int, order: MergeOrder) -> None:
        """Take the replica's snapshot for a merge, in its turn; nothing if that is over."""
        if self.next_lease > number:
            return
        self._await_turn(number)
        try:
            self.member.take_snapshot(order)
            self._batches = 0
        finally:
            self.end_turn()

    def rest(self, batches: int) -> None:
        """Count batches of a lease, and let a merge be committed before the next one."""
        with self.turn:
            self._batches += batches
            if self._pauses:
                self._is_working = False
                self.turn.notify_all()
                self.turn.wait_for(lambda: self.is_closed or not self._pauses)
                self._is_working = True

    def commit(self, generation: int) -> int:
        """Commit a merge between two batches; return how many were done since the snapshot."""
        with self._between_batches():
            if self.member.generation != generation:  # not told twice
                self._corrected_after = self._batches
            self.member.commit(generation)
            return self._corrected_after

    @contextmanager
    def _between_batches(self) -> Iterator[None]:
        with self.turn:
            self._pauses += 1
            try:
                self._wait(lambda: not self._is_working)
                yield
            finally:
                self._pauses -= 1
                self.turn.notify_all()

    def close(self) -> None:
        """Wake and refuse whoever waits; nobody finds the shared model here any more."""
        with self.turn:
            self.is_closed = True
            self.turn.notify_all()
        if self.store is not None:
            self.store.close()
        self.member.close()


@dataclass
class Kept:
    """What this worker keeps of a run that nobody follows.

    Attributes
    ----------
    place
        The run's directory, which this worker writes to.
    model
        Parameters and label counts of a run that is over.
    """

    place: RunDir | None = None
    model: tuple[dict[str, Array], Array] | None = None

    def close(self) -> None:
        """Unlock the directory."""
        if self.place is not None:
            self.place.hand_over()


class MembersPlugin(WorkerPlugin):
    """Owns a worker's members and its port for merges and gangs."""

    name = PLUGIN
    idempotent = True  # sent for every run; the first one stays

    def setup(self, worker: Worker) -> None:
        """Open the port, and answer the scheduler and workers that join."""
        self.seats: dict[str, Seat] = {}
        self.kept: dict[str, Kept] = {}  # by run
        self.port = Port(worker)
        worker.handlers |= self.handlers()

    def handlers(self) -> dict[str, Any]:
        """Return the messages that a worker answers at once, whatever tasks it runs."""
        return {
            "daskxml_models": self.send_models,
            "daskxml_norm": self.measure,
            "daskxml_merge": self.merge,
            "daskxml_commit": self.commit,
            "daskxml_abort": self.abort,
            "daskxml_close": self.close,
            HANDLE: self.hand_on,
            PULL: self.pull,
            PUSH: self.push,
        }

    async def teardown(self, worker: Worker) -> None:
        """Close everything."""
        for seat in self.seats.values():
            seat.close()
        for kept in self.kept.values():
            kept.close()
        for name in self.handlers():
            worker.handlers.pop(name, None)
        await self.port.close()

    def seat_of(self, run: str) -> Seat:
        """Return the worker's seat in a run.

        Raises
        ------
        ClusterError
            If it has none.
        """
        if run not in self.seats:
            raise ClusterError(f"run {run} is not on this worker")
        return self.seats[run]

    async def measure(self, run: str) -> float:
        """Return the squared norm of the replica."""
        norm: float = await offload(self.seats[run].member.squared_norm)
        return norm

    async def merge(
        self, run: str, plan: RoundPlan, order: MergeOrder, rank: int
    ) -> dict[str, Any]:
        """Take part in a merge; see `take_part`."""
        return {"performed": to_serialize(await self.take_part(plan, order, rank))}

    async def take_part(self, plan: RoundPlan, order: MergeOrder, rank: int) -> Performed[Notes]:
        """Take part in a merge, into ``scratch``."""
        program = merge_program(self.seat_of(plan.run).member, order, rank, plan.hosts)
        key = RoundKey(run=plan.run, number=plan.number, what=f"merge {order.generation}")
        follows = plan.follows
        (done,) = await self.port.perform(key, plan.addresses, {rank: program}, follows=follows)
        return done

    async def commit(self, run: str, generation: int) -> int:
        """Make the merged model the global one; see `Seat.commit`.

        It may wait for a batch, so it is in no thread that others wait for.
        """
        return await asyncio.to_thread(self.seats[run].commit, generation)

    async def abort(self, run: str, number: int) -> bool:
        """Make this worker's part in a merge or a gang fail now; answers when it has ended."""
        await self.port.abort(run, number)
        return True

    async def close(self, run: str) -> bool:
        """End what a run still does here; `worker.stand_up` forgets it, in its turn."""
        if run in self.seats:
            self.seats[run].close()
        return True

    # --------------------------------------------- the model that all share

    async def hand_on(self, run: str) -> dict[str, Any]:
        """Tell a worker on this machine where the shared model is."""
        handle = self.seats[run].member.shared_handle if run in self.seats else None
        return {"handle": None if handle is None else asdict(handle)}

    async def pull(self, run: str) -> dict[str, Any]:
        """Give the shared model to a worker on another machine."""
        shared = self._shared(run)
        if shared is None:
            return {"is_here": False}
        return {"is_here": True, "model": to_serialize(await offload(shared.flat.copy))}

    async def push(self, run: str, delta: Array, pusher: str, number: int) -> dict[str, Any]:
        """Add to the shared model what a worker on another machine has changed.

        The same push may come twice, where the connection breaks before the answer is there.
        """
        shared = self._shared(run)
        if shared is None:
            return {"is_here": False}
        pushed = self.seats[run].pushed
        if pushed.get(pusher, 0) < number:
            pushed[pusher] = number
            await offload(LocalStore(shared).push, delta)
        return {"is_here": True}

    def _shared(self, run: str) -> SharedModel | None:
        return self.seats[run].member.shared if run in self.seats else None

    async def send_models(self, run: str) -> dict[str, Any]:
        """Give the global model to a worker that joins."""
        if run not in self.seats:
            return {"generation": -1}
        generation, models = self.seats[run].member.host_models()
        return {"generation": generation, **{n: to_serialize(m) for n, m in models.items()}}


def members_plugin() -> MembersPlugin:
    """Return the plugin of the worker whose task this is."""
    plugin: MembersPlugin = get_worker().plugins[PLUGIN]
    return plugin


def seat_of(run: str) -> Seat:
    """Return the seat in a run of the worker whose task this is."""
    return members_plugin().seat_of(run)
