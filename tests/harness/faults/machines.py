"""Scheduler and workers, the network between them, and Dask's client as the run driver sees it.

A worker here is what the product puts on a Dask worker (its plugin, its communicator, its tasks)
and the little that the product uses of Dask's: slots for tasks, message handlers, comms,
`log_event`. The scheduler is the product's plugin and its runs. What Dask guarantees holds: one
connection keeps its order, one task runs at a time beside those that have seceded, a lost worker is
noticed after all that it had sent. Nothing else is promised.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from distributed.comm import CommClosedError
from distributed.protocol import Serialize

from daskxml.cluster.scheduler_plugin import RunSchedulerPlugin
from daskxml.cluster.worker_info import POOL, Capabilities, WorkerInfo
from daskxml.cluster.worker_plugin import PLUGIN, TOPIC, RunWorkerPlugin
from daskxml.core.files import lock_folder
from daskxml.models.fitting import by_fitter
from daskxml.strategies.protocol import WorkerDevice
from harness.faults.loop import PROCESS, Process, VirtualLoop, VirtualThread, this_thread
from harness.faults.sockets import Files, VirtualSocket

NOTICE_S = 2.5  # the most until the scheduler notices a lost worker


def probe() -> Capabilities:
    """Return the capabilities of a worker."""
    return Capabilities(cores=64)


def get_worker() -> Worker:
    """Return the worker on which the caller runs."""
    process = PROCESS.get()
    assert isinstance(process, Worker)
    return process


def lock(folder: Path, busy: str) -> IO[str]:
    """Lock a folder until it is unlocked, or the process dies."""
    file, process = lock_folder(folder, busy), PROCESS.get()
    if process is not None:
        process.locks.append(file)
    return file


def secede() -> None:
    """Let another task begin beside this thread."""
    thread = this_thread()
    assert thread is not None
    if thread.slot is not None:
        slot, thread.slot = thread.slot, None
        slot()


def plain(message: Any) -> Any:
    """Return a message as it arrives: without the marks for serialization."""
    if isinstance(message, Serialize):
        return message.data
    return {k: plain(v) for k, v in message.items()} if isinstance(message, dict) else message


class Comm:
    """One end of a connection.

    Over ``tcp`` it has a socket as well, which the product takes out of it.
    """

    socket: VirtualSocket

    def __init__(self, cluster: Cluster, owner: Process, peer_address: str) -> None:
        self._cluster, self.owner, self.peer_address = cluster, owner, peer_address
        self.handshake_options: dict[str, Any] = {}
        self.peer: Comm
        self.is_closed = False
        self._inbox: deque[Any] = deque()
        self._reader: asyncio.Future[Any] | None = None
        self._sent_s = 0.0

    @property
    def stream(self) -> Any:
        """What stands for Tornado's stream: it holds the socket."""
        if self.is_closed:
            return None
        return SimpleNamespace(socket=self.socket, writing=lambda: False)

    async def read(self) -> Any:
        """Wait for the next message."""
        while not self._inbox:
            if self.is_closed:
                raise CommClosedError("the connection is closed")
            self._reader = self._cluster.loop.create_future()
            await self._reader
        message = self._inbox.popleft()
        if message is _END:
            self.is_closed = True
            raise CommClosedError("the other end has closed the connection")
        return message

    async def write(self, message: Any) -> int:
        """Send a message."""
        if self.is_closed:
            raise CommClosedError("the connection is closed")
        self._send(plain(message))
        return 1

    async def close(self) -> None:
        """Close the connection; what was sent arrives."""
        self.abort()

    def abort(self) -> None:
        """Close the connection, or lose it with the process."""
        if not self.is_closed:
            self.is_closed = True
            self._send(_END)
            self._wake()
        self.owner.comms.pop(self, None)

    def _send(self, message: Any) -> None:
        loop = self._cluster.loop
        self._sent_s = max(self._sent_s, loop.now_s + self._cluster.delay_s(self.owner))
        loop.call_at(self._sent_s, self.peer.receive, message, context=self._cluster.context)

    def receive(self, message: Any) -> None:
        """Take what has arrived."""
        self._cluster.step("message", self.owner)
        self._inbox.append(message)
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


_END = object()


class TcpComm(Comm):
    """One end of a connection over plain TCP."""

    def abort(self) -> None:
        """Close the connection, and its socket unless that was taken."""
        super().abort()
        if not self.socket.is_taken:
            self.socket.close()


class Task:
    """A task of Dask, which is its own future."""

    def __init__(self, key: str, work: Callable[..., Any], args: tuple[Any, ...], priority: int):
        self.key, self.work, self.args, self.priority = key, work, args, priority
        # Of a function, or of a method of the process's fitter.
        self.name = args[1] if work is by_fitter else work.__name__
        self.address = ""  # where it must run, or shall if that worker lives
        self.is_loose = False  # it may run elsewhere
        self.scheduler: Scheduler | None = None
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.is_released = False

    async def result(self) -> Any:
        """Wait for the result."""
        return await asyncio.shield(self.answer)

    async def exception(self) -> Any:
        """Return the exception."""
        return self.answer.exception()

    @property
    def status(self) -> str:
        """The state, in Dask's words."""
        if self.answer.cancelled():
            return "cancelled"
        if not self.answer.done():
            return "pending"
        return "finished" if self.answer.exception() is None else "error"

    def release(self) -> None:
        """Want the result no more."""
        self.is_released = True
        self.answer.cancel()


class Value:
    """A future of something that lies on the workers."""

    status = "finished"

    def __init__(self, value: Any) -> None:
        self.value, self.is_released = value, False

    def release(self) -> None:
        """Want it no more."""
        self.is_released = True


class Worker(Process):
    """A worker process."""

    memory_manager = SimpleNamespace(memory_limit=0, memory_pause_fraction=0.0)

    def __init__(
        self, cluster: Cluster, name: str, address: str, rows_per_s: float, pool_threads: int
    ) -> None:
        super().__init__(name)
        self.cluster, self.address, self.rows_per_s = cluster, address, rows_per_s
        self.id = f"Worker-{len(cluster.everyone)}"
        self.info = WorkerInfo(name, address, WorkerDevice(pool_threads))
        self.files = Files()
        self.handlers: dict[str, Any] = {}
        self.stream_handlers: dict[str, Any] = {}
        self.connection_args: dict[str, Any] = {}
        self.loop = SimpleNamespace(asyncio_loop=cluster.loop)
        self.comms: dict[Comm, None] = {}
        self.queue: list[Task] = []
        self.running: dict[Task, None] = {}
        self.slots = cluster.slots
        self.died = cluster.loop.create_future()
        self.stream_s = 0.0  # when what it has sent to the scheduler arrives
        self.told_s = 0.0  # when what the scheduler has sent to it does
        self.plugin = RunWorkerPlugin()
        self.plugins = {PLUGIN: self.plugin}
        self.context.run(self.plugin.setup, self)

    def work(self, rows: int) -> None:
        """Note that a batch begins."""
        self.cluster.step("batch", self)

    def rpc(self, address: str) -> Any:
        """Return what sends messages to another worker."""
        return Rpc(self.cluster, self, address)

    @property
    def scheduler(self) -> SchedulerRpc:
        """What sends messages to the scheduler."""
        return SchedulerRpc(self.cluster, self)

    def log_event(self, topic: str, message: Any) -> None:
        """Send an event to the scheduler."""
        self.cluster.report(self, self.cluster.logged, message)

    def start(self, work: Any) -> Any:
        """Start a coroutine in this process."""
        return self.cluster.loop.create_task(work, context=self.context)

    # ---------------------------------------------------------------- tasks

    def submit(self, task: Task) -> None:
        """Queue a task; Dask starts those that come together in any order."""
        self.queue.append(task)
        self.cluster.loop.call_soon(self._begin, context=self.context)

    def _begin(self) -> None:
        while self.slots and self.queue:
            task = self.cluster.pick_task(self.queue)
            self.queue.remove(task)
            if not task.is_released:
                self.slots -= 1
                self.running[task] = None
                self._run(task)

    def _run(self, task: Task) -> None:
        self.cluster.step(task.name, self)
        if self.is_dead:
            return
        args = [_resolved(arg) for arg in task.args]
        if inspect.iscoroutinefunction(task.work):
            done = self.start(task.work(*args))
            done.add_done_callback(lambda it: self._async_done(task, it), context=self.context)
            return
        thread = VirtualThread(
            self.cluster.loop,
            lambda: task.work(*args),
            lambda result, error: self._done(task, result, error, thread.slot),
        )
        thread.slot = self._free

    def _async_done(self, task: Task, it: asyncio.Task[Any]) -> None:
        if it.cancelled():
            self._done(task, None, ConnectionAbortedError("cancelled"), self._free)
        else:
            error = it.exception()
            self._done(task, None if error else it.result(), error, self._free)

    def _free(self) -> None:
        self.slots += 1
        self._begin()

    def _done(self, task: Task, result: Any, error: Any, free: Any) -> None:
        self.running.pop(task, None)
        self.cluster.report(self, self.cluster.task_done, self, task, result, error)
        if free is not None:
            free()


def _resolved(arg: Any) -> Any:
    if isinstance(arg, Value):
        return arg.value
    if isinstance(arg, Task):
        return arg.answer.result()
    if isinstance(arg, dict):
        return {key: _resolved(it) for key, it in arg.items()}
    return [_resolved(it) for it in arg] if isinstance(arg, list) else arg


async def wait(tasks: Sequence[Task]) -> None:
    """Wait for tasks, without their results."""
    await asyncio.wait([asyncio.ensure_future(asyncio.shield(task.answer)) for task in tasks])


class WorkerState:
    """What the scheduler knows of a worker."""

    nthreads = 1
    processing = has_what = ()

    def __init__(self, worker: Worker, resources: dict[str, float]) -> None:
        self._worker, self.resources = worker, resources
        self.name, self.address, self.server_id = worker.info.name, worker.address, worker.id
        self._heard_s = time.time()

    @property
    def last_seen(self) -> float:
        """When it was heard of last."""
        if not (self._worker.is_frozen or self._worker.is_dead):
            self._heard_s = time.time()
        return self._heard_s


class Rpc:
    """Calls the message handlers of a worker."""

    def __init__(self, cluster: Cluster, sender: Process, address: str) -> None:
        self._call = cluster.call, sender, address

    def __getattr__(self, handler: str) -> Any:
        call, sender, address = self._call
        return lambda **values: call(sender, address, handler, plain(values))


class SchedulerRpc:
    """Calls the message handlers of the scheduler."""

    address = "tls://10.0.0.1:8786"

    def __init__(self, cluster: Cluster, sender: Process) -> None:
        self._call = cluster.ask_scheduler, sender

    def __getattr__(self, handler: str) -> Any:
        ask, sender = self._call
        return lambda **values: ask(sender, handler, values)


class Scheduler(Process):
    """The scheduler's process, and what its plugin uses of Dask's."""

    security = None

    def __init__(self, cluster: Cluster) -> None:
        super().__init__("scheduler")
        self.worker_send, self.restart_workers = cluster.tell, cluster.restart
        self.handlers: dict[str, Any] = {}
        self.workers: dict[str, Any] = {}
        self.clients: set[str] = set()
        self.plugin = RunSchedulerPlugin()
        self.died = cluster.loop.create_future()


class Cluster:
    """The scheduler and its workers; it is also the client of the scheduler's plugin.

    Attributes
    ----------
    step
        Called with what happens next, and the process in which it does.
    slots, machines, transport, pools
        Of the `harness.faults.schedule.Case`.
    scheduler
        None while there is none.
    driver
        That of the scheduler's run, also when this is over; None before.
    """

    def __init__(
        self, loop: VirtualLoop, rng: Any, step: Callable[[str, Process], None], case: Any
    ) -> None:
        self.loop, self.rng, self.step, self.slots = loop, rng, step, case.slots
        self.machines, self.transport, self.pools = case.machines, case.transport, case.pools
        self.context = Process("network").context
        self.scheduler: Scheduler | None = None
        self.driver: Any = None
        self.workers: dict[str, Worker] = {}  # by address: those that the scheduler knows
        self.everyone: list[Worker] = []
        self.waiting: dict[Task, None] = {}  # for a worker at their address
        self.held: dict[Worker, list[Task]] = {}  # whose results each worker alone has
        self.slow: dict[str, float] = {}  # by the name of a process, seconds
        self.cuts: dict[str, int] = {}  # by name: messages whose answer is lost
        self.early: dict[str, int] = {}  # by name: messages that break the connection
        self.has_lost = False  # a worker, since the last start
        self.tasks: dict[Task, None] = {}  # that the scheduler has been given, and are not done
        self._ports = iter(range(10_000, 100_000))

    # ----------------------------------------------------------------- workers

    def add(self, name: str, address: str = "", rows_per_s: float = 400.0) -> Worker:
        """Let a worker come."""
        machine = 1 + int(name) % self.machines
        address = address or f"{self.transport}://10.0.0.{machine}:{next(self._ports)}"
        worker = Worker(self, name, address, rows_per_s, 2 * (int(name) < self.pools))
        self.workers[address] = worker
        self.everyone.append(worker)
        scheduler, resources = self.scheduler, {POOL: float(worker.info.device.pool_threads)}
        scheduler.workers[address] = WorkerState(worker, resources)
        scheduler.context.run(scheduler.plugin.add_worker, scheduler, address)
        for task in [it for it in self.waiting if it.address == address]:
            del self.waiting[task]
            worker.submit(task)
        return worker

    def alive(self, address: str) -> Worker | None:
        """Return the worker at an address, if there is one."""
        worker = self.workers.get(address)
        return None if worker is None or worker.is_dead else worker

    def living(self) -> list[Worker]:
        """Return the workers that are not dead, by their names."""
        return sorted((it for it in self.workers.values() if not it.is_dead), key=_by_name)

    def die(self, worker: Worker) -> None:
        """End a process; the scheduler does not know yet."""
        if worker.is_dead:
            return
        self.has_lost = True
        worker.die()
        for comm in list(worker.comms):
            comm.abort()
        worker.files.close()
        worker.died.set_result(None)

    def lose(self, worker: Worker) -> None:
        """Let the scheduler notice that a worker is dead."""
        if self.workers.get(worker.address) is not worker:
            return
        del self.workers[worker.address]
        again = [it for it in self.held.pop(worker, ()) if not it.is_released]
        for task in [*worker.queue, *worker.running, *again]:
            if task.address and not task.is_loose and not task.is_released:
                self.waiting[task] = None
            elif not task.is_released:
                self._place(task)
        if (scheduler := self.scheduler) is not None:
            del scheduler.workers[worker.address]
            remove = partial(scheduler.plugin.remove_worker, stimulus_id="lost")
            scheduler.context.run(remove, scheduler, worker.address)

    async def restart(self, addresses: Sequence[str], **_: Any) -> None:
        """Have workers killed and started again, as their nannies do."""
        for address in addresses:
            self.loop.call_soon(self._restart, self.workers[address], context=self.context)

    def _restart(self, worker: Worker) -> None:
        self.die(worker)
        self.lose(worker)
        self.add(worker.name, "", worker.rows_per_s)

    async def start_scheduler(self, watcher: Callable[[Any], None]) -> None:
        """Start a scheduler; ``watcher`` is called with the driver of its run."""
        scheduler = self.scheduler = Scheduler(self)
        plugin = scheduler.plugin
        await self.loop.create_task(plugin.start(scheduler), context=scheduler.context)
        plugin._client = self
        plugin.watchers.append(watcher)

    def end_scheduler(self) -> None:
        """End the scheduler with everything that it knows."""
        if (scheduler := self.scheduler) is not None:
            scheduler.die()
            scheduler.died.set_result(None)
        self.scheduler = self.driver = None
        self.workers, self.waiting, self.held, self.tasks = {}, {}, {}, {}

    # ----------------------------------------------------------------- network

    def delay_s(self, process: Process) -> float:
        """Return how long a message of a process is on its way."""
        usual = self.rng.choice([0.0, 0.0005, 0.002, 0.02]) * self.rng.random()
        return float(usual + self.slow.get(process.name, 0.0))

    def report(self, worker: Worker, action: Callable[..., None], *args: Any) -> None:
        """Let something arrive at the scheduler after all that this worker sent before."""
        worker.stream_s = max(worker.stream_s, self.loop.now_s + self.delay_s(worker))
        if (scheduler := self.scheduler) is not None:
            self.loop.call_at(worker.stream_s, action, *args, context=scheduler.context)

    def tell(self, address: str, message: dict[str, Any]) -> None:
        """Send a message to a worker, which arrives after all that were sent to it before."""
        worker = self.workers[address]
        worker.told_s = max(worker.told_s, self.loop.now_s + self.delay_s(self.scheduler))
        self.loop.call_at(worker.told_s, self._told, worker, message, context=worker.context)

    def _told(self, worker: Worker, message: dict[str, Any]) -> None:
        values = plain(message)
        operation = values.pop("op")
        self.step(operation, worker)
        if not worker.is_dead and operation in worker.stream_handlers:
            worker.stream_handlers[operation](**values)

    def logged(self, message: Any) -> None:
        """Pass on an event of a worker."""
        self.step("report", scheduler := self.scheduler)
        if not scheduler.is_dead:
            scheduler.plugin.log_event(TOPIC, message)

    async def ask_scheduler(self, sender: Process, handler: str, values: dict[str, Any]) -> Any:
        """Send a message to the scheduler, and wait for the answer."""
        await asyncio.sleep(self.delay_s(sender))
        scheduler = self.scheduler
        if scheduler is None:
            raise OSError("cannot connect")
        self.step(handler, scheduler)
        if scheduler.is_dead:
            raise CommClosedError("the connection broke")
        work = self.loop.create_task(
            scheduler.handlers[handler](**values), context=scheduler.context
        )
        await asyncio.wait({work, scheduler.died}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(self.delay_s(scheduler))
        if scheduler.is_dead or work.cancelled():
            raise CommClosedError("the connection broke")
        return work.result()

    async def call(
        self, sender: Process, address: str, handler: str, values: Mapping[str, Any]
    ) -> Any:
        """Send a message, and wait for the answer."""
        await asyncio.sleep(self.delay_s(sender))
        target = self.alive(address)
        if target is None:
            raise OSError("cannot connect")
        self.step(handler, target)
        if target.is_dead or handler not in target.handlers:
            raise CommClosedError("the connection broke")
        work = target.start(target.handlers[handler](**values))
        if self.early.pop(target.name, 0):
            raise CommClosedError("the connection broke while the message was handled")
        await asyncio.wait({work, target.died}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(self.delay_s(target))
        if not work.done() or work.cancelled():
            raise CommClosedError("the connection broke")
        if self.cuts.get(target.name, 0) > 0:
            self.cuts[target.name] -= 1
            raise CommClosedError("the connection broke before the answer")
        return plain(work.result())

    async def connect(self, address: str, timeout: float = 5.0, **_: Any) -> Comm:
        """Open a connection from the worker on which the caller runs."""
        owner = get_worker()
        await asyncio.sleep(self.delay_s(owner))
        target = self.alive(address)
        if target is None:
            raise OSError(f"cannot connect to {address}")
        if target.is_frozen:  # the system accepts, nobody reads
            await asyncio.sleep(timeout)
            raise OSError(f"{address} does not answer")
        kind = TcpComm if self.transport == "tcp" else Comm
        here, there = kind(self, owner, address), kind(self, target, owner.address)
        if self.transport == "tcp":
            ends = zip((here, there), (owner, target), socket.socketpair(), strict=True)
            for comm, process, end in ends:
                delay_s = partial(self.delay_s, process)
                comm.socket = VirtualSocket(end, delay_s, process.files)
        here.peer, there.peer = there, here
        owner.comms[here] = target.comms[there] = None
        target.start(_serve(target, there))
        return here

    # ----------------------------------------------------------- Dask's client

    def as_current(self) -> Any:
        """Do nothing: tasks do not ask for the client."""
        return nullcontext()

    async def register_plugin(self, plugin: Any) -> None:
        """Do nothing: workers have the plugin."""

    async def run(self, *work: Any, **_: Any) -> dict[str, Capabilities]:
        """Return the capabilities of all workers, which is all that is ever asked for so."""
        await asyncio.sleep(self.delay_s(self.scheduler))
        return {worker.address: probe() for worker in self.living()}

    def rpc(self, address: str) -> Rpc:
        """Return what sends messages from the scheduler."""
        return Rpc(self, self.scheduler, address)

    def submit(
        self, work: Any, *args: Any, key: str = "", workers: Sequence[str] = (), priority: int = 0,
        allow_other_workers: bool = False, **_: Any,
    ) -> Task:  # fmt: skip
        """Start a task, on one worker or on any.

        One that may run elsewhere is computed again where its worker is lost with the result.
        """
        task = Task(key, work, args, priority)
        task.scheduler = self.scheduler
        task.is_loose = allow_other_workers or len(workers) > 1
        task.address = workers[0] if workers else ""
        self.tasks[task] = None
        task.answer.add_done_callback(lambda _: self.tasks.pop(task, None))
        context = self.scheduler.context
        self.loop.call_later(self.delay_s(self.scheduler), self._place, task, context=context)
        return task

    def _place(self, task: Task) -> None:
        if task.is_released or task.scheduler is not self.scheduler:  # which died with its tasks
            return
        for needed in _tasks_in(task.args):
            if not needed.answer.done():
                needed.answer.add_done_callback(lambda _: self._place(task))
                return
            if needed.answer.cancelled():
                return
        there = self.alive(task.address)
        if not task.address or (task.is_loose and there is None):
            able = [it for it in self.living() if not it.is_frozen]
            if able:
                self.rng.choice(able).submit(task)
            else:
                self.loop.call_later(0.25, self._place, task)
        elif there is not None:  # after the messages to it that were sent before
            there.told_s = max(there.told_s, self.loop.now_s)
            context = task.scheduler.context  # that of a worker ends with it
            self.loop.call_at(there.told_s, self._hand_over, task, there, context=context)
        else:
            self.waiting[task] = None

    def _hand_over(self, task: Task, there: Worker) -> None:
        """Give a task to a worker, or to another if that one was lost before it came."""
        if self.workers.get(there.address) is there:
            there.submit(task)
        else:
            self._place(task)

    def pick_task(self, queue: list[Task]) -> Task:
        """Return the task that a worker starts next: mostly by priority."""
        if self.rng.random() < 0.3:
            return queue[self.rng.randrange(len(queue))]
        return max(queue, key=lambda task: task.priority)

    def task_done(
        self, worker: Worker, task: Task, result: Any, error: BaseException | None
    ) -> None:
        """Note the end of a task."""
        self.step("done", scheduler := self.scheduler)
        if scheduler.is_dead or task.is_released:
            return
        if error is None:
            if not task.answer.done():
                task.answer.set_result(result)
            if task.is_loose:
                self.held.setdefault(worker, []).append(task)
            spans = [{"action": "compute", "start": 0.0, "stop": 0.25}]
            facts = {"worker": worker.address, "startstops": spans}
            scheduler.plugin.transition(task.key, "processing", "memory", **facts)
            return
        if task.answer.done():
            return
        task.answer.set_exception(error)
        task.answer.exception()
        scheduler.plugin.transition(task.key, "processing", "erred")


async def _serve(worker: Worker, comm: Comm) -> None:
    with suppress(OSError):
        message = dict(await comm.read())
        handler, _ = worker.handlers.get(message.pop("op")), message.pop("reply")
        if handler is None:
            comm.abort()
            return
        await handler(comm=comm, **message)
    comm.abort()


def _tasks_in(args: Any) -> list[Task]:
    found: list[Task] = []
    for arg in args:
        parts = arg.values() if isinstance(arg, dict) else arg if type(arg) is list else ()
        found += [arg] if isinstance(arg, Task) else _tasks_in(parts)
    return found


def _by_name(worker: Worker) -> str:
    return worker.name
