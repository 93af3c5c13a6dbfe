"""A Dask cluster on a virtual clock: the run driver is real, its client and the workers are not.

Time jumps to the next event that is due, so seconds of waiting cost nothing, and a run that would
wait forever raises `Stuck`. Workers answer, die and come back as a `Script` says.
"""

from __future__ import annotations

import asyncio
import pickle
import random
import selectors
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from daskxml.cluster import run_driver
from daskxml.cluster.data_loading import LoadedData
from daskxml.cluster.run_driver import RunDriver
from daskxml.cluster.worker_info import Capabilities, WorkerInfo
from daskxml.config import load_run_config
from daskxml.core.errors import ClusterError
from daskxml.core.work_stats import WorkStats
from daskxml.metrics import MetricSums
from daskxml.session.commands import EvaluationResult, WorkResult
from daskxml.session.row_loading import Rows, Shards
from daskxml.transport.communicator import ProgramResult
from harness.virtual_executor import rows_of

ROWS = (200, 200)  # of two training shards
TEST_ROWS = (40, 40)
LONGEST_S = 1_000.0  # of virtual time; no run takes nearly as long


class Stuck(Exception):  # noqa: N818 - the finding of a test
    """No event is due any more, and the run is not over."""


class _Selector(selectors.DefaultSelector):
    """Advances the clock instead of waiting."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.now_s += LONGEST_S if timeout is None else max(0.0, timeout)
        if self.now_s >= LONGEST_S:
            raise Stuck
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while every task waits."""

    def __init__(self) -> None:
        super().__init__(_Selector())

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._selector.now_s

    def close(self) -> None:
        """Cancel what is left, and close the loop."""
        self.set_exception_handler(lambda *_: None)
        self._selector.now_s = 0.0
        for _ in range(20):
            if left := asyncio.all_tasks(self):
                for task in left:
                    task.cancel()
                self.run_until_complete(asyncio.wait(left, timeout=1.0))
        super().close()


class Signal:
    """Wakes tasks that wait for a condition."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        """Let all of them check their condition."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, is_met: Callable[[], bool]) -> None:
        """Wait until a condition is met."""
        while not is_met():
            self._waiting.append(asyncio.get_running_loop().create_future())
            await self._waiting[-1]


class Script:
    """What happens to a cluster; here nothing, and everything takes no time."""

    async def before(self, dask: VirtualDask, worker: FakeWorker, step: str) -> None:
        """Run before each step of a worker: a task, a message handler, or a part of one."""

    def delay_s(self) -> float:
        """Return how long an answer is on its way."""
        return 0.0


class Chance(Script):
    """Random delays, deaths and restarts."""

    def __init__(self, seed: int, kills: int, kill_chance: float, same_address: float) -> None:
        self.rng, self.kills = random.Random(seed), kills
        self.kill_chance, self.same_address = kill_chance, same_address

    async def before(self, dask: VirtualDask, worker: FakeWorker, step: str) -> None:
        if self.kills and self.rng.random() < self.kill_chance:
            alive = [it for it in dask.workers.values() if not it.is_dead]
            count = min(len(alive), self.rng.choice([1, 1, 1, 2, 2, 3]), self.kills)
            self.kills -= count
            for victim in self.rng.sample(alive, count):
                dask.start(self._restart(dask, victim))
        if delay_s := self.delay_s():
            await asyncio.sleep(delay_s)
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(0)

    def delay_s(self) -> float:
        return self.rng.choice([0.0, 0.0, 0.001, 0.01, 0.1, 1.0]) * self.rng.random()

    async def _restart(self, dask: VirtualDask, worker: FakeWorker) -> None:
        """Kill a worker, which the scheduler notices a while later, and start it again."""
        if worker.is_dead:
            return
        worker.die()
        await asyncio.sleep(self.rng.choice([0.0, 0.0, 0.001, 0.1, 2.5]) * self.rng.random())
        dask.lose(worker)
        await asyncio.sleep(self.rng.choice([0.0, 0.01, 1.0, 5.0]) * (0.5 + self.rng.random()))
        is_same = self.rng.random() < self.same_address
        dask.add_worker(worker.name, worker.address if is_same else None)


class FakeMember:
    """A worker's part in one session: its lease queue, and the rows that its replica has seen."""

    def __init__(self) -> None:
        self.turn, self.generation, self.is_closed = 0, 0, False
        self.rows: Counter[Any] = Counter()  # since the last merge
        self._leases: dict[int, Any] = {}
        self._changed = Signal()

    def put(self, lease: Any) -> None:
        """Add a lease."""
        self._leases[lease[0]] = lease
        self._changed.notify()

    async def take(self) -> Any:
        """Wait for the next lease; None if the session is over."""
        await self._changed.until(lambda: self.is_closed or self.turn in self._leases)
        self.turn += 1
        return None if self.is_closed else self._leases.pop(self.turn - 1)

    def close(self) -> None:
        """End the leases that wait."""
        self.is_closed = True
        self._changed.notify()

    def commit(self, generation: int) -> Counter[Any]:
        """Return the rows that this worker brought to a merge."""
        self.generation = generation
        rows, self.rows = self.rows, Counter()
        return rows


class FakeCollective:
    """A merge or a gang: begins when all take part, fails when one does."""

    def __init__(self, addresses: tuple[str, ...], is_unreachable: bool) -> None:
        self.addresses, self.is_unreachable = addresses, is_unreachable
        self.present: set[str] = set()
        self.changed = Signal()

    @property
    def is_complete(self) -> bool:
        """Whether all take part."""
        return self.present == set(self.addresses)

    def break_up(self) -> None:
        """Let it fail for all."""
        self.is_unreachable = True
        self.changed.notify()


class FakeWorker:
    """A worker process; its methods have the names of the tasks and the message handlers."""

    def __init__(self, dask: VirtualDask, name: str, address: str) -> None:
        self.dask, self.name, self.address, self.is_dead = dask, name, address, False
        self._member: FakeMember | None = None
        self._thread = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._collectives: set[int] = set()  # that it takes part in
        self._next, self._aborted = 0, -1  # the least number not refused; the last one aborted
        self._ended = Signal()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Do something until it is done or the process dies."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def die(self) -> None:
        """End the process; the scheduler does not know yet."""
        self.is_dead = True
        for task in self._tasks:
            task.cancel()
        for collective in self.dask.collectives.values():
            if self.address in collective.addresses:
                collective.break_up()

    async def run(self, task: str, args: tuple[Any, ...]) -> Any:
        """Run a task in the only thread, unless it is one that leaves it while it waits."""
        if task in ("execute_leases", "run_gang"):
            return await self._run(task, args)
        async with self._thread:
            return await self._run(task, args)

    async def _run(self, task: str, args: tuple[Any, ...]) -> Any:
        await self.dask.script.before(self.dask, self, task)
        return await getattr(self, task)(*args)

    async def answer(self, handler: str, values: dict[str, Any]) -> Any:
        """Answer a message."""
        await self.dask.script.before(self.dask, self, handler)
        return await getattr(self, handler)(**values)

    @property
    def member(self) -> FakeMember:
        """Its part in the session."""
        if self._member is None:
            raise ClusterError("the run is not on this worker")
        return self._member

    # ----------------------------------------------------------------- tasks

    async def probe_process(self) -> Capabilities:
        return Capabilities(cores=64)

    async def create_worker(self, run: str, settings: Any, handles: Any) -> Any:
        self._member = FakeMember()
        return 100.0, "", None

    async def remove_worker(self, run: str, run_dir: str | None) -> None:
        if self._member is not None:
            self._member.close()
        self._member, self._next = None, 0

    async def load_checkpoint(self, run: str, path: str, generation: int, number: Any) -> None:
        self.member.generation = generation

    async def copy_model(self, run: str, donor: str, rebases: bool) -> tuple[int, bool]:
        giver = self.dask.alive(donor)
        if giver is None:
            raise OSError("cannot connect")
        await self.dask.script.before(self.dask, giver, "send_models")
        if giver.is_dead:
            raise OSError("the connection broke")
        generation = -1 if giver._member is None else giver.member.generation
        self.member.generation = generation
        if not rebases:
            self.member.rows = Counter()
        return generation, True

    async def execute_leases(self, run: str, process: str) -> None:
        member = self.member
        while (lease := await member.take()) is not None:
            _, command, generation = lease
            self._commit(generation)
            await self.dask.script.before(self.dask, self, "lease")
            if member.is_closed:
                return
            for batch in command.batches[0]:
                member.rows.update(rows_of(batch))
            norm, rows = self.dask.rng.choice([1.0, None]), command.rows_of(0)
            work = WorkStats(rows, 1, 1.0, rows, busy_s=0.01)
            self.dask.driver.lease_reported(WorkResult(command.number, (work,), norm))

    async def bring_lease(self, run: str, lease: bytes, *fetched: Any) -> None:
        self.member.put(pickle.loads(lease))

    async def run_gang(self, peers: Any, command: Any, rank: int, *fetched: Any) -> WorkStats:
        member = self.member
        if command.begins or command.rewinds:
            member.rows = Counter()
        await self._take_part(peers)
        for batch in command.batches[rank]:
            member.rows.update(rows_of(batch))
        rows = command.rows_of(rank)
        return WorkStats(rows, len(command.batches[rank]), 1.0, rows, busy_s=0.01)

    async def _take_part(self, peers: Any) -> None:
        number, collective = peers.id.number, self.dask.collective(peers)
        if number < self._next or number <= self._aborted:
            raise ClusterError("the collective is over here")
        self._next = number + 1
        self._collectives.add(number)
        collective.present.add(self.address)
        collective.changed.notify()

        def has_failed() -> bool:
            return collective.is_unreachable or number <= self._aborted

        try:
            await collective.changed.until(lambda: collective.is_complete or has_failed())
            if not has_failed():
                await self.dask.script.before(self.dask, self, "collective")
            # A worker may have all that it needs when another one fails.
            if has_failed() and (not collective.is_complete or self.dask.rng.random() < 0.9):
                collective.break_up()
                await self.dask.script.before(self.dask, self, "failure")
                raise ClusterError("a peer is gone")
        finally:
            self._collectives.discard(number)
            self._ended.notify()

    async def evaluate_pieces(self, run: str, command: Any, *fetched: Any) -> EvaluationResult:
        rows = sum(stop - start for _, start, stop in command.pieces)
        sums = MetricSums.zero(self.dask.driver.session.rules.config.evaluation.k)
        return EvaluationResult(command.number, replace(sums, rows=rows))

    async def store_checkpoint(self, run: str, run_dir: str, megabatch: int, *rest: Any) -> str:
        return f"checkpoint-{megabatch}"

    async def store_local(self, *args: Any) -> bool:
        return self.dask.has_local_state

    async def _do_nothing(self, *args: Any) -> None:
        pass

    hold_rows = drop_local = store_model = _do_nothing

    # -------------------------------------------------------------- messages

    async def daskxml_norm(self) -> float:
        return 1.0

    async def daskxml_lease(self, lease: Any) -> None:
        if self._member is not None:
            self._member.put(pickle.loads(lease))

    async def daskxml_merge(self, merge: bytes, rank: int) -> bytes:
        peers, command = pickle.loads(merge)
        self._commit(command.generation - 1)
        await self._take_part(peers)
        return pickle.dumps(ProgramResult(result={}, busy_s=0.0, sent_bytes=1))

    async def daskxml_commit(self, generation: int) -> int:
        self._commit(generation)
        return 0

    def _commit(self, generation: int) -> None:
        if self.member.generation < generation:
            rows = self.member.commit(generation)
            self.dask.committed(generation, self._next, self.name, rows)

    async def daskxml_abort(self, number: int) -> bool:
        self._aborted = max(self._aborted, number)
        for older in [it for it in self._collectives if it <= number]:
            self.dask.collectives[older].changed.notify()
        await self._ended.until(lambda: all(it > number for it in self._collectives))
        return True

    async def daskxml_close(self) -> bool:
        if self._member is not None:
            self._member.close()
        return True


class FakeFuture:
    """A future of Dask's client; that of a dead worker's task stays pending until its release."""

    def __init__(self, key: str, answer: asyncio.Future[Any]) -> None:
        self.key, self._answer = key, answer

    async def result(self) -> Any:
        return await asyncio.shield(self._answer)

    async def exception(self) -> Any:
        return self._answer.exception()

    def release(self) -> None:
        self._answer.cancel()


class VirtualDask:
    """The scheduler's workers, and Dask's client to the driver of one run.

    Attributes
    ----------
    workers
        By address, those that the scheduler has not lost.
    merged
        By generation: the number of the last collective that it was committed after, and the rows
        that each worker brought to it.
    """

    driver: RunDriver

    def __init__(self, script: Script, seed: int, has_local_state: bool) -> None:
        self.script, self.rng, self.has_local_state = script, random.Random(seed), has_local_state
        self.workers: dict[str, FakeWorker] = {}
        self.collectives: dict[int, FakeCollective] = {}
        self.merged: dict[int, tuple[int, dict[str, Counter[Any]]]] = {}
        self.log: list[str] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ports = iter(range(10_000, 100_000))

    # ------------------------------------------------------- what scripts do

    def add_worker(self, name: str, address: str | None = None) -> FakeWorker:
        """Let a worker come, at a new address or at an old one."""
        address = address or f"tcp://10.0.0.1:{next(self._ports)}"
        self._note(f"added {name} {address}")
        worker = self.workers[address] = FakeWorker(self, name, address)
        self.driver.worker_added(WorkerInfo(name, address))
        return worker

    def kill(self, name: str) -> str:
        """Let a worker die, which the scheduler notices at once; return its address."""
        worker = next(it for it in self.workers.values() if it.name == name)
        worker.die()
        self.lose(worker)
        return worker.address

    def lose(self, worker: FakeWorker) -> None:
        """Let the scheduler notice that a worker is dead."""
        self._note(f"lost {worker.name} {worker.address}")
        del self.workers[worker.address]
        self.driver.worker_removed(worker.address)

    def start(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        """Start a task that no worker does."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _note(self, text: str) -> None:
        self.log.append(f"{asyncio.get_running_loop().time():.4f} s: {text}")

    # ------------------------------------------------------- what workers do

    def alive(self, address: str) -> FakeWorker | None:
        """Return the worker at an address, if there is one."""
        worker = self.workers.get(address)
        return None if worker is None or worker.is_dead else worker

    def collective(self, peers: Any) -> FakeCollective:
        """Return a collective, which is new to the first that takes part."""
        if peers.id.number not in self.collectives:
            is_unreachable = any(self.alive(address) is None for address in peers.addresses)
            self.collectives[peers.id.number] = FakeCollective(peers.addresses, is_unreachable)
        return self.collectives[peers.id.number]

    def committed(self, generation: int, number: int, name: str, rows: Counter[Any]) -> None:
        """Note what a worker brought to a merge; a run that restarts merges it again."""
        last, _ = self.merged.get(generation, (-1, {}))
        if number > last:
            self.merged[generation] = number, {}
        self.merged[generation][1][name] = rows

    # --------------------------------------------------------- Dask's client

    def submit(
        self, task: Any, *args: Any, key: str = "", workers: Any = (), **_: Any
    ) -> FakeFuture:
        """Start a task; one for no worker in particular is done."""
        answer = asyncio.get_running_loop().create_future()
        if not workers:
            answer.set_result(True)
        elif worker := self.alive(workers[0]):
            self.start(self._work(worker, worker.run(task.__name__, args), answer))
        return FakeFuture(key, answer)

    async def _work(self, worker: FakeWorker, work: Any, answer: Any) -> None:
        task = worker.start(work)
        await asyncio.wait({task})
        await asyncio.sleep(self.script.delay_s())
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or answer.done():
            return
        if error is not None:
            answer.set_exception(error)
            answer.exception()
        else:
            answer.set_result(task.result())

    def send_lease(self, address: str, message: dict[str, Any]) -> None:
        """Send a lease to a worker, and do not wait for it."""
        if worker := self.alive(address):
            worker.start(worker.answer(message["op"], {"lease": message["lease"]}))

    def rpc(self, address: str) -> Any:
        """Return what sends messages to a worker."""
        return _Rpc(self, address)

    async def send(self, address: str, handler: str, values: dict[str, Any]) -> Any:
        """Send a message to a worker; return its answer."""
        worker = self.alive(address)
        if worker is not None:
            task = worker.start(worker.answer(handler, values))
            await asyncio.wait({task})
            if not task.cancelled():
                return task.result()
        await asyncio.sleep(self.script.delay_s())
        raise OSError("the connection broke")


class _Rpc:
    def __init__(self, dask: VirtualDask, address: str) -> None:
        self._dask, self._address = dask, address

    def __getattr__(self, handler: str) -> Any:
        return lambda run, **values: self._dask.send(self._address, handler, values)


def train(
    script: Script,
    strategy: str,
    *,
    workers: int = 3,
    is_replicated: bool = True,
    seed: int = 0,
    has_local_state: bool = False,
    **training: Any,
) -> VirtualDask:
    """Train to the end of a run; raise `Stuck` if it has none."""
    values = {
        "training": training or {"megabatches": 4},
        "strategy": {"name": strategy, "batch_max": 8, "megabatch_batches": 10},
        "checkpoint": {"every": 2},
        "model": {"hidden": [4]},
        "cluster": {"threads": 1},
    }
    config = load_run_config(values)
    dask = VirtualDask(script, seed, has_local_state)

    async def load(*args: Any) -> LoadedData:
        futures = [SimpleNamespace(release=lambda: None) for _ in range(5)]
        facts: Any = SimpleNamespace(
            rows=sum(ROWS), nonzeros=4 * sum(ROWS), feature_base=0, columns=()
        )
        train, test = Shards(futures[:2], ROWS), Shards(futures[2:4], TEST_ROWS)
        spec = config.model_spec(50, 20)
        return LoadedData(spec, Rows(facts, train, test, futures[4], is_replicated))

    async def drive() -> None:
        dask.driver = RunDriver(dask, "run", config, {}, "run-dir")
        dask.driver.group.send = dask.send_lease
        for number in range(workers):
            dask.add_worker(str(number))
        await dask.driver.drive()

    loop = VirtualLoop()
    clock = SimpleNamespace(monotonic=loop.time)
    try:
        with mock.patch.multiple(run_driver, load=load, time=clock):
            loop.run_until_complete(drive())
    except Stuck as stuck:
        stuck.add_note("\n".join(dask.log))
        raise
    finally:
        loop.close()
    return dask


def check(dask: VirtualDask) -> None:
    """Check that a run ended well, and that its history has every row that was merged, once."""
    ended = dask.driver.event_log.events[-1]
    assert ended["reason"] != "error", (ended["error"], ended["details"])
    seen: Counter[Any] = Counter()
    for row in dask.driver.session.history:
        recorded = {
            name: Counter(rows_of(span for lease in worker["leases"] for span in lease))
            for name, worker in row["workers"].items()
        }
        for rows in recorded.values():
            seen += rows
        assert seen.total() == row["rows"]
        for name, rows in dask.merged[row["megabatch"]][1].items():
            assert rows == recorded[name], f"merge {row['megabatch']}, worker {name}"
    assert max(seen.values(), default=1) == 1
