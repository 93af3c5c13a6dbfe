"""The worker plugin: a Dask worker's part in every run, and the messages that it answers.

A run's leases are executed in the order of their turns, in one task.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
from contextlib import ExitStack
from typing import Any, cast
from weakref import WeakValueDictionary

from distributed import Worker, WorkerPlugin, get_worker
from distributed.protocol import to_serialize
from distributed.utils import offload

from daskxml.collectives.messages import ProgramResult
from daskxml.core.errors import ClusterError
from daskxml.core.work_stats import Means
from daskxml.kernels.registry import telling_of_compilation
from daskxml.models.fitting import Fitter
from daskxml.models.trained import WholeModel
from daskxml.records.run_dir import RunDir
from daskxml.session.commands import MergeReplicas, RunWork
from daskxml.transport.communicator import Communicator, ProcessGroup
from daskxml.transport.handshake import CollectiveId
from daskxml.worker.merge_program import merge_program
from daskxml.worker.resident_rows import Fetched
from daskxml.worker.training_worker import TrainingWorker

TOPIC = "daskxml"
PLUGIN = "daskxml"
LEASE = "daskxml_lease"
Merged = asyncio.Future[list[ProgramResult[Means]]]
Lease = tuple[int, RunWork, int]  # its turn, the work, and the merge that it follows


class LeaseQueue:
    """The leases that a run's `TrainingWorker` is given, in the order of their turns.

    Attributes
    ----------
    worker
        Executes leases.
    evaluation
        Held while the replica is the global model; Dask may start the task of a lost worker's
        pieces beside that of this worker's own.
    """

    def __init__(self, worker: TrainingWorker) -> None:
        self.worker = worker
        self.changed, self.evaluation = threading.Condition(), threading.Semaphore()
        self._leases: dict[int, tuple[Lease, Fetched]] = {}  # by turn
        self._taken, self.is_closed = 0, False

    def put(self, lease: Lease, fetched: Fetched) -> None:
        """Add a lease; one whose rows are fetched may come after later ones."""
        with self.changed:
            self._leases[lease[0]] = lease, fetched
            self.changed.notify_all()

    def take(self) -> tuple[Lease, Fetched] | None:
        """Wait for the next lease; None once the run is over here."""
        with self.changed:
            self.changed.wait_for(lambda: self.is_closed or self._taken in self._leases)
            if self.is_closed:
                return None
            self._taken += 1
            return self._leases.pop(self._taken - 1)

    def report(self, message: dict[str, Any]) -> None:
        """Report a lease, unless the run is over here: its next session has leases of that number.

        So all reports are sent before the answer to whoever removes the queue.
        """
        with self.changed:
            if not self.is_closed:
                get_worker().log_event(TOPIC, message)

    def close(self) -> None:
        """End what waits for leases, and close the worker with its shared model."""
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()
        self.worker.close()


class RunWorkerPlugin(WorkerPlugin):
    """A worker's part in every run, and its communicator for merges and gangs."""

    name = PLUGIN
    idempotent = True  # sent for every run; the first one stays

    def setup(self, worker: Worker) -> None:
        """Open the communicator, and register the message handlers."""
        self.queues: dict[str, LeaseQueue] = {}  # by run
        # For as long as somebody holds one, by run and by a run's directory.
        self._removals = WeakValueDictionary[str, threading.Event]()
        self._writers = WeakValueDictionary[str | None, threading.Semaphore]()
        self._lock = threading.Lock()
        # Of detached runs: the directories that this worker writes, and the models of those that
        # are over.
        self.directories: dict[str, RunDir] = {}
        self.models: dict[str, WholeModel] = {}
        self.fitters: dict[str, Fitter] = {}  # by run, of those in tasks
        # The last merge of each run: its result may be asked for twice.
        self._merges: dict[str, tuple[CollectiveId, Merged]] = {}
        self.communicator = Communicator(worker)
        self._open = ExitStack()
        event = {"compiling": worker.address}
        self._open.enter_context(telling_of_compilation(lambda: worker.log_event(TOPIC, event)))
        worker.handlers |= self.handlers()
        worker.stream_handlers[LEASE] = self.add_lease

    def handlers(self) -> dict[str, Any]:
        """Return the handlers of messages, which are answered while tasks run."""
        return {
            "daskxml_models": self.send_models,
            "daskxml_here": self.is_here,
            "daskxml_norm": self.measure,
            "daskxml_merge": self.merge,
            "daskxml_commit": self.commit,
            "daskxml_abort": self.abort,
            "daskxml_close": self.close,
        }

    async def teardown(self, worker: Worker) -> None:
        """Close everything."""
        self._open.close()
        for queue in self.queues.values():
            queue.close()
        for directory in self.directories.values():
            directory.unlock()
        for name in self.handlers():
            worker.handlers.pop(name, None)
        await self.communicator.close()

    def removal(self, run: str) -> threading.Event:
        """Return what is set when a run is removed, for a worker that is being created for it."""
        with self._lock:
            return self._removals.setdefault(run, threading.Event())

    def add_queue(self, run: str, queue: LeaseQueue, removal: threading.Event) -> None:
        """Keep the queue of a worker that was created before this removal of the run.

        Raises
        ------
        ClusterError
            If the run was removed meanwhile: its next session may have a queue here already.
        """
        with self._lock:
            if not removal.is_set():
                self.queues[run] = queue
                return
        queue.close()
        raise ClusterError("the run is over on this worker")

    def remove_queue(self, run: str) -> None:
        """Close a run's queue, and let a worker that is being created for it not be kept."""
        with self._lock:
            self._removals.pop(run, threading.Event()).set()
            queue = self.queues.pop(run, None)
            self._merges.pop(run, None)
        if queue is not None:
            queue.close()

    def writing(self, run_dir: str | None) -> threading.Semaphore:
        """Return what a task holds that writes to a run's directory."""
        with self._lock:
            return self._writers.setdefault(run_dir, threading.Semaphore())

    def await_writing(self, run_dir: str | None) -> None:
        """Wait for a task that writes there: its thread goes on although the run is given up."""
        with self.writing(run_dir):
            pass

    def queue_of(self, run: str) -> LeaseQueue:
        """Return the lease queue of a run.

        Raises
        ------
        ClusterError
            If the run is not on this worker.
        """
        if run not in self.queues:
            raise ClusterError(f"run {run} is not on this worker")
        return self.queues[run]

    def add_lease(self, run: str, lease: bytes, fetched: Fetched | None = None) -> None:
        """Let a lease, pickled, be executed, unless the run is over here."""
        if run in self.queues:
            self.queues[run].put(pickle.loads(lease), fetched or {})

    async def is_here(self, run: str) -> bool:
        """Give a sign of life."""
        return True

    async def measure(self, run: str) -> float:
        """Return the squared norm of the replica."""
        return float(await offload(self.queues[run].worker.squared_norm))

    async def merge(self, run: str, merge: bytes, rank: int) -> bytes:
        """Take part in a merge, whose result is left in ``scratch``; return what it took, pickled.

        Its group and command come pickled, twice if the connection breaks before it is answered.
        """
        peers: ProcessGroup
        command: MergeReplicas
        peers, command = pickle.loads(merge)
        last, result = self._merges.get(run, (None, None))
        if result is None or last != peers.id:
            worker = self.queue_of(run).worker
            program = merge_program(worker, command, rank, peers.hosts, peers.piece_floats)
            part = self.communicator.run_programs(peers, {rank: program})
            self._merges[run] = peers.id, (result := asyncio.ensure_future(part))
        (own,) = await asyncio.shield(result)
        return pickle.dumps(own)

    async def commit(self, run: str, generation: int) -> bool:
        """Make the merged model the global one."""
        await offload(self.queues[run].worker.commit, generation)
        return True

    async def abort(self, run: str, number: int) -> bool:
        """Make this worker's part in a merge or a gang fail; return when it has ended."""
        await self.communicator.abort(run, number)
        return True

    async def close(self, run: str) -> bool:
        """End what a run still does here; `worker_tasks.remove_worker` removes it later."""
        if run in self.queues:
            self.queues[run].close()
        return True

    async def send_models(self, run: str) -> dict[str, Any]:
        """Send the global model to a worker that joins."""
        if run not in self.queues:
            return {"generation": -1}
        worker = self.queues[run].worker
        generation, models = worker.host_models()
        numbers = {"generation": generation, "best_megabatch": worker.best}
        return numbers | {name: to_serialize(model) for name, model in models.items()}


def worker_plugin() -> RunWorkerPlugin:
    """Return the plugin of the Dask worker that this task runs on."""
    return cast("RunWorkerPlugin", get_worker().plugins[PLUGIN])


def queue_of(run: str) -> LeaseQueue:
    """Return the lease queue of a run on the Dask worker that this task runs on."""
    return worker_plugin().queue_of(run)


def run_worker(run: str) -> TrainingWorker:
    """Return the worker of a run in the Dask worker that this task runs on."""
    return queue_of(run).worker
