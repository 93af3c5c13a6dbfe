"""One run under faults, from its first start over every resumption to its end."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import itertools
import json
import os
import random
import sys
import tempfile
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from daskxml.api import on_cluster as trainings
from daskxml.api import runs
from daskxml.api.on_cluster import launch
from daskxml.api.run import Run
from daskxml.api.train import train
from daskxml.cluster import fit_driver, membership, run_driver, worker_plugin, worker_tasks
from daskxml.cluster.data_loading import LoadedData
from daskxml.cluster.event_log import revive
from daskxml.cluster.run_driver import RunDriver
from daskxml.config import RunConfig, load_run_config
from daskxml.core.errors import DaskxmlError, ModelError
from daskxml.models.trees import nodes
from daskxml.records import run_dir as run_dirs
from daskxml.records.run_dir import RunDir
from daskxml.session.row_loading import Rows, Shards
from daskxml.transport import endpoint, handshake
from daskxml.transport.channels import shared_memory, shm_arrays
from daskxml.worker import batch_runner, replica
from daskxml.worker.shared_model import SharedModel
from daskxml.worker.training_worker import TrainingWorker
from harness.faults import clients, counting, machines, sockets
from harness.faults.clients import User
from harness.faults.counting import (
    FACTS,
    LABELS,
    ROWS,
    TEST,
    TRAIN,
    label_vectors,
    partition,
)
from harness.faults.disk import Disk, virtual_disk
from harness.faults.invariants import TreeTruth, Truth, Violated, require
from harness.faults.loop import Process, Stuck, VirtualLoop, virtual_time
from harness.faults.machines import NOTICE_S, Cluster, Scheduler, Value, Worker
from harness.faults.schedule import TREES, WHOLE, Case, Fault

STARTS = 12  # of one run, at most
LONGEST_START_S = 300.0  # of virtual time, from a start to the run's end; a run takes some seconds
SETTLE_S = 200.0  # after which nothing of a run that is over may be left
# Errors with which a run may end, and how many faults of which kind that takes; it then goes on
# from its last checkpoint.
LAWFUL = {
    "every worker was lost before the model was": {"kill": 1, "kill all": 1},
    "no worker came within": {"kill": 1, "kill all": 1, "suspend": 1},
    "no worker has some of the labels": {"kill": 2, "kill all": 1},
    "no worker is there to write": {"kill": 1, "kill all": 1, "suspend": 1},
    "choose a folder that they share": {"interrupt": 2},  # the directory, which its user removes
    "before its first tree was complete": {"stop": 1, "interrupt": 1, "client": 1},
    "stopped before the first mega-batch": {"stop": 1},
    "the scheduler does not answer any more": {"scheduler": 1},
    "a run is under way in this directory": {"client": 1},  # which a worker has locked
    "of another client writes there": {"client": 1},  # which the scheduler takes to be alive
    "on this scheduler": {"stop": 1, "attach": 1},  # no such run any more
    "free space": {"full": 1},
    "cannot be made": {"full": 1},
    "cannot be written": {"full": 1},
    "does not answer": {"freeze": 1, "suspend": 1, "broken": 3},  # connections, in a row
}
WITHOUT_WORKERS = ("join", "full", "clock", "attach", "interrupt", "client", "freeze client")
STOPPED = ("error", "stop", "interrupt", "client gone", "left")  # ends after which it is resumed
_FOLDER = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
_names = itertools.count()


@dataclass(frozen=True)
class Outcome:
    """What came of a case.

    Attributes
    ----------
    problem
        The invariant that was violated; "" for none.
    digest
        Of all that happened, in order: equal for equal cases.
    happened
        The last steps.
    steps, virtual_s, starts, merges
        Sizes of the run.
    """

    problem: str
    digest: str
    happened: tuple[str, ...]
    steps: int
    virtual_s: float
    starts: int
    merges: int


class Simulation:
    """A case under way."""

    def __init__(self, case: Case, loop: VirtualLoop, folder: Path) -> None:
        self.case, self.loop, self.root = case, loop, folder
        self.rng = random.Random(f"noise {case.seed}")
        self.cluster = Cluster(loop, self.rng, self.step, case)
        self.disk: Disk
        self.steps = self.starts = 0
        self.happened: deque[str] = deque(maxlen=60)
        self.run_dir = folder / "run"
        self._digest = hashlib.sha256()
        self._faults = deque(case.faults)
        self._armed: dict[Fault, int] = {}  # the step that each has waited for
        self._struck = Counter[str]()  # kinds of faults so far
        self._names, self._users = itertools.count(case.workers), itertools.count()
        self.owner: User
        self.visitors: list[User] = []
        self._lost_power, self._has_lost_disk = asyncio.Event(), False
        self._resumes_at_once = self._has_resumed = False
        self._problem: Exception | None = None
        self.config = config_of(case)
        self._keep_account()

    # ------------------------------------------------------------------- steps

    def step(self, what: str, process: Process) -> None:
        """Count a step, let faults happen that are due, and check the invariants."""
        self.steps += 1
        line = f"{self.loop.now_s:.6f} s {process}: {what}"
        self._digest.update(line.encode())
        self.happened.append(f"{self.steps}: {line}")
        for fault in self._due(what):
            self._faults.remove(fault)
            self._armed.pop(fault, None)
            self.happened.append(f"!! {fault}")
            self._strike(fault, process)
        if process is self.cluster.scheduler is not None:
            self._check()

    def _check(self) -> None:
        runs = self.cluster.scheduler.plugin.drivers.values()
        try:
            under_way = [run.run for run in runs if not run.event_log.is_over]
            require(len(under_way) <= 1, f"runs {under_way} are under way in one directory")
            self.truth.check()
        except Violated as problem:
            self._problem = self._problem or problem
            self._lost_power.set()

    def committed(self, trained: TrainingWorker) -> None:
        """Check what a worker has committed."""
        worker = machines.get_worker()
        if worker.is_dead or self.cluster.driver is None:
            return
        try:
            self.truth.committed(worker, trained)
        except Violated as problem:
            self._problem = self._problem or problem
            self._lost_power.set()

    def _due(self, what: str) -> list[Fault]:
        for fault in itertools.takewhile(lambda it: it.at <= self.steps, self._faults):
            if what.startswith(fault.when):
                self._armed.setdefault(fault, self.steps)
        armed = self._armed
        return [it for it in self._faults if it in armed and armed[it] + it.lag <= self.steps]

    def _strike(self, fault: Fault, here: Process) -> None:
        cluster, living = self.cluster, self.cluster.living()
        if cluster.scheduler is None or not (living or fault.kind in WITHOUT_WORKERS):
            return
        kind, is_here = fault.kind.removesuffix(" here"), fault.kind.endswith(" here")
        self._struck[kind] += 1
        worker = living[fault.pick % len(living)] if living else None
        if is_here and here in living:
            worker = here
        match kind:
            case "kill":
                self._kill(worker, fault)
            case "kill all":
                for each in living:
                    self._kill(each, fault)
            case "freeze" if not worker.is_frozen:
                worker.is_frozen = True
                self._later(fault.amount, worker.thaw, self.loop)
            case "slow":
                cluster.slow[worker.name] = 0.05 * fault.amount
            case "cut" | "early":  # which break a connection under a message
                self._struck["broken"] += 1
                (cluster.cuts if kind == "cut" else cluster.early)[worker.name] = 1
            case "break":
                worker.files.cut()
                for comm in list(worker.comms):
                    comm.abort()
            case "join":
                self._later(0.0, self._join)
            case "full":
                self.disk.is_full = True
                self._later(fault.amount, setattr, self.disk, "is_full", False)
            case "slow disk":
                self.disk.flush_s = min(fault.amount, 2.5)
            case "clock":
                self.loop.wall_offset_s += 3600.0 if fault.same_address else -3600.0
            case "suspend":
                self.loop.now_s += fault.amount
            case "power":
                self._lose_power()
            case "scheduler":
                self._lose_scheduler()
            case "stop" | "attach" if cluster.driver is not None:
                self.visitors.append(self._user(partial(_visit, kind, cluster.driver.run)))
            case "interrupt":
                self.owner.interrupt()
            case "client":
                self._kill_client(fault)
            case "freeze client":
                self.owner.is_frozen = True
                self._later(fault.amount, self.owner.thaw, self.loop)

    def _later(self, seconds: float, action: Any, *args: Any) -> None:
        self.loop.call_later(seconds, action, *args, context=self.cluster.context)

    def _join(self) -> None:
        if self.cluster.scheduler is not None:
            self.cluster.add(str(next(self._names)), rows_per_s=self._speed())

    def _speed(self) -> float:
        return self.rng.choice([100.0, 400.0, 800.0])

    def _kill(self, worker: Worker, fault: Fault) -> None:
        if worker.is_dead:
            return
        cluster = self.cluster
        cluster.die(worker)
        noticed_s = max(0.0, worker.stream_s - self.loop.now_s) + min(fault.amount, 2.5)
        self._later(noticed_s, cluster.lose, worker)
        returns_s = fault.returns_s
        if returns_s < 0.0 and not cluster.living():
            returns_s = 5.0
        if returns_s >= 0.0:
            address = worker.address if fault.same_address else ""
            is_other = fault.same_address and fault.pick == 3  # `dask worker --name`
            name = str(next(self._names)) if is_other else worker.name
            self._later(noticed_s + returns_s, self._revive, name, address, cluster.scheduler)

    def _revive(self, name: str, address: str, scheduler: Process) -> None:
        if self.cluster.scheduler is scheduler:
            self.cluster.add(name, address, self._speed())

    def _kill_client(self, fault: Fault) -> None:
        user, scheduler = self.owner, self.cluster.scheduler
        if not user.ended.done():
            self._resumes_at_once = fault.same_address
            user.die()

            def lose() -> None:
                scheduler.clients.remove(user.id)
                scheduler.plugin.remove_client(scheduler, user.id)

            noticed_s = min(fault.amount, NOTICE_S)
            self.loop.call_later(noticed_s, lose, context=scheduler.context)

    def _lose_power(self) -> None:
        for user in (self.owner, *self.visitors):
            user.die()
        self._lose_scheduler()
        self._has_lost_disk = True

    def _lose_scheduler(self) -> None:
        self._check()
        for worker in self.cluster.everyone:
            self.cluster.die(worker)
        self.cluster.end_scheduler()
        self._has_lost_disk = False
        self._lost_power.set()

    # --------------------------------------------------------------------- run

    async def run(self) -> None:
        """Start the run, and resume it until it has ended well."""
        checkpoint: str | None = None
        for _ in range(STARTS):
            self.starts += 1
            ended = await self._start(checkpoint)
            with self.disk.idle():
                if ended == "ended":
                    return
                self.truth.check_directory(self.run_dir, self.config.to_toml())
                try:
                    checkpoint = RunDir.open(None, self.run_dir).checkpoint
                except ModelError:  # there is none yet
                    checkpoint = None
                    self._new_directory()
        raise Violated(f"the run has not ended after {STARTS} starts")

    def _new_directory(self) -> None:
        self.run_dir = self.root / f"run{self.starts}"
        self._keep_account()

    def _keep_account(self) -> None:
        kind = TreeTruth if self.case.strategy == TREES else Truth
        self.truth = kind(self.cluster, self.config.run.seed, self.case.is_replicated)

    async def _start(self, checkpoint: str | None) -> str:
        """Start a scheduler, workers and a user with the run; return how it ended."""
        cluster, self._has_resumed = self.cluster, False
        self._lost_power.clear()
        self.disk.is_full, self.disk.flush_s = False, 0.0
        cluster.slow, cluster.cuts, cluster.early = {}, {}, {}
        await cluster.start_scheduler(self._begin)
        for number in range(self.case.workers):
            cluster.add(str(number), rows_per_s=self._speed())
        place = {"out": self.run_dir} if checkpoint is None else {"resume": self.run_dir}
        work = partial(train if self.case.follows else launch, self.config, **place)
        self.owner, self.visitors = self._user(work), []
        over = self.loop.create_task(self._until_over(cluster.scheduler))
        power = asyncio.ensure_future(self._lost_power.wait())
        done = asyncio.FIRST_COMPLETED
        await asyncio.wait({over, power}, timeout=LONGEST_START_S, return_when=done)
        power.cancel()
        if self._problem is not None:
            raise self._problem
        require(over.done() or self._lost_power.is_set(), "the run makes no progress")
        if self._lost_power.is_set():
            await self._leave()
            if self._has_lost_disk:
                self.disk.lose_power(self.rng)
            return "power"
        over.result()
        ended = await self._end()
        for worker in cluster.everyone:
            cluster.die(worker)
        cluster.end_scheduler()
        return ended

    def _user(self, work: Callable[..., Any]) -> User:
        return User(self.cluster, f"user {next(self._users)}", work)

    def new_name(self) -> str:
        """Return the name of a run: another one for each start, and each user that resumes it."""
        return f"run{self.starts}-{len(self.visitors)}"

    def _begin(self, driver: RunDriver) -> None:
        """Note the run that a scheduler has begun."""
        self.cluster.driver = driver
        with self.disk.idle():
            self.truth.begin(driver, driver.checkpoint)

    async def _until_over(self, scheduler: Scheduler) -> None:
        """Wait until the user has left the run, and the run is over."""
        await self.owner.ended
        while self._resumes_at_once and self.owner.is_dead and self._resume():
            await self.owner.ended
        while self.owner.is_dead and self.owner.id in scheduler.plugin.owners.values():
            await asyncio.sleep(NOTICE_S)
        tasks = scheduler.plugin._tasks
        while under_way := [task for task in tasks.values() if not task.done()]:
            await asyncio.wait(under_way)
        for task in tasks.values():
            task.result()

    def _resume(self) -> bool:
        """Let another user resume the run of one that died, on this scheduler, if it can be."""
        with self.disk.idle():
            try:
                RunDir.open(None, self.run_dir)
            except ModelError:  # there is no checkpoint yet
                return False
        self.visitors.append(self.owner)
        work = train if self.case.follows else launch
        self.owner = self._user(partial(work, self.config, resume=self.run_dir))
        self._resumes_at_once, self._has_resumed = False, True
        return True

    async def _leave(self) -> None:
        """Let all users see that there is no scheduler any more."""
        for user in (self.owner, *self.visitors):
            await user.ended
            self._judge(user)

    async def _end(self) -> str:
        cluster, scheduler, driver = self.cluster, self.cluster.scheduler, self.cluster.driver
        self._faults.clear()
        self.truth.check()
        events = [] if driver is None else driver.event_log.events
        ended = next((it for it in events if it["kind"] == "ended"), {"reason": "left"})
        reason, is_whole = ended["reason"], True
        if self.case.follows:  # then its user writes the history
            is_whole = not self.owner.is_dead and self.owner.error is None
        if reason == "error":
            self._require_lawful(str(revive(ended["error"])), ended["details"])
        elif reason != "left" and is_whole:
            with self.disk.idle():
                self.truth.check_end(driver, self.run_dir)
                if reason == "epochs" and self.case.strategy not in WHOLE:
                    self.truth.check_epochs(self.case.epochs)
        for run in [*scheduler.plugin.drivers]:
            forget = scheduler.plugin.forget_run(run)
            close = self.loop.create_task(forget, context=scheduler.context)
            await asyncio.wait({close}, timeout=SETTLE_S)
            require(close.done(), "the run is not forgotten in time")
            close.result()
        await self._leave()
        await asyncio.sleep(SETTLE_S)
        for worker in list(cluster.workers.values()):
            if worker.is_dead:
                cluster.lose(worker)
        self.truth.check_nothing_left(self.run_dir)
        require(not scheduler.plugin.drivers, "the scheduler keeps the run")
        failures = [it for it in self.loop.failures if "never retrieved" not in it["message"]]
        require(not failures, f"an exception nobody handles: {failures[:1]}")
        return "ended" if is_whole and reason not in STOPPED else reason

    def _judge(self, user: User) -> None:
        """Check what a user has got: a result, or an error that the faults explain."""
        error = user.error
        if isinstance(error, DaskxmlError):
            self._require_lawful(str(error), "")
        elif isinstance(error, KeyboardInterrupt):
            require(self._struck["interrupt"] > 0, "nobody has pressed Ctrl-C")
        elif error is not None:
            trace = "".join(traceback.format_exception(error))
            raise Violated(f"a user gets a traceback\n{trace}")
        elif isinstance(user.result, Run):
            rows = [json.dumps(row) for row in user.result.history]
            missing = f"{len(rows)} of {len(self.truth.rows)} rows, or others"
            is_whole = self.truth.is_history(rows, may_be_old=self._has_resumed)
            require(is_whole, f"the result of a run has {missing}")

    def _require_lawful(self, text: str, details: str) -> None:
        least = [kinds for words, kinds in LAWFUL.items() if words in text]
        is_lawful = any(self._struck[it] >= n for kinds in least for it, n in kinds.items())
        require(is_lawful, f"the run failed: {text}\n{details}")

    @property
    def digest(self) -> str:
        """See `Outcome`."""
        return self._digest.hexdigest()


def _visit(kind: str, run: str, **where: Any) -> Any:
    """Follow a run, or stop it, as the handle does that a user has of it."""
    told: Any = {"run": run, "name": "", "strategy": "", "state": "", "begun_at_s": 0.0}
    handle = runs.RunHandle(**told, is_over=False, is_detached=True, client=where.pop("client"))
    return handle.stop() if kind == "stop" else handle.follow(**where)


def config_of(case: Case) -> RunConfig:
    """Return the run file of a case."""
    return _config(
        case.strategy, case.quorum, case.epochs, case.checkpoint_every, case.rule, case.grace
    )


@cache
def _config(
    strategy: str, quorum: bool, epochs: int, checkpoint_every: int, rule: str, grace: float
) -> RunConfig:
    rules: dict[str, Any] = {"name": strategy, "batch_max": 4, "megabatch_batches": 4}
    model: dict[str, Any] = {"hidden": [1]}
    if strategy == TREES:
        rules = {}
        model = {"kind": "trees", "passes": 1, "cost": 1.0, "value_power": 1.0, "leaf_labels": 2}
    return load_run_config(
        {
            "data": {"train": [clients.ROWS]},
            "training": {"trees" if strategy == TREES else "epochs": epochs},
            "strategy": rules,
            "combine": {"rule": rule, "quorum": 0.6 if quorum else 1.0, "grace": grace},
            "checkpoint": {"every": checkpoint_every, "keep": 2},
            "evaluation": {"k": [1]},
            "model": model,
            "cluster": {"threads": 1},
        }
    )


def _loader(is_replicated: bool) -> Any:
    """Return what stands for the loading of files: rows that are on the workers already."""

    async def load(client: Any, config: Any, *args: Any) -> LoadedData:
        train = [partition(0, TRAIN[0]), partition(TRAIN[0], TRAIN[1])]
        test = [partition(0, rows) for rows in TEST]
        counts = Value(np.full(LABELS, ROWS // LABELS, np.int64))
        shards = [Shards([Value(it) for it in them], tuple(it.rows for it in them))
                  for them in (train, test)]  # fmt: skip
        rows = Rows(FACTS, *shards, counts, is_replicated)
        is_tree = config.model.kind == "trees"
        vectors = Value(label_vectors()) if is_tree else None
        return LoadedData(config.model_spec(ROWS, LABELS), rows, vectors)

    return load


@contextmanager
def _seams(simulation: Simulation) -> Any:
    """Put the cluster's code on virtual machines."""
    case, commit = simulation.case, TrainingWorker.commit

    def noted(trained: TrainingWorker, generation: int) -> None:
        before = trained.generation
        commit(trained, generation)
        if trained.generation != before:
            simulation.committed(trained)

    with ExitStack() as stack:
        for module, names in (
            (run_driver, {"load": _loader(case.is_replicated)}),
            (membership, {"probe_process": machines.probe}),
            (worker_plugin, {"get_worker": machines.get_worker,
                             "offload": asyncio.to_thread,
                             "telling_of_compilation": lambda _: nullcontext()}),
            (worker_tasks, {"get_worker": machines.get_worker, "secede": machines.secede,
                            "shared_zeros": sockets.shared_zeros}),
            (handshake, {"connect": simulation.cluster.connect, "TCP": machines.TcpComm}),
            (shared_memory, {"select": sockets.VirtualSelect(), "INLINE_BYTES": 16,
                             "shared_zeros": sockets.shared_zeros}),
            (endpoint, {"select": sockets.VirtualSelect()}),
            (shm_arrays, {"_forget": sockets.forget_array}),
            (SharedModel, {"__init__": sockets.note_shared}),
            (TrainingWorker, {"commit": noted}),
            (batch_runner, {"Replica": counting.CountingReplica}),
            (replica, {"Mlp": counting.NoNetwork, "takes_row_steps": lambda *_: False}),
            (nodes, {"TreeRows": counting.tree_rows, "fit_blocks": counting.fit_slowly}),
            (fit_driver, {"get_worker": machines.get_worker}),
            (runs, {"running_cluster": lambda client, _: nullcontext(client),
                    "defer_signals": nullcontext}),  # signals are none of this process
            (trainings, {"connection": lambda client, *_: nullcontext(client),
                         "_new_name": simulation.new_name}),
            (run_dirs, {"describe": lambda: {"machine": "virtual"},
                        "lock_folder": machines.lock}),
        ):  # fmt: skip
            stack.enter_context(mock.patch.multiple(module, **names))
        yield


def simulate(case: Case, kind: Callable[..., Simulation] = Simulation) -> Outcome:
    """Run a case to its end; what its dead processes have left open is dropped.

    Nothing is collected while it runs, as that would close what dead processes have left, and
    afterwards only what it has made.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        hook = mock.patch.object(sys, "unraisablehook", return_value=None)
        with hook, warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # coroutines that dead processes had
            outcome = _simulate(case, kind)
            gc.collect()
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
    return outcome


def _simulate(case: Case, kind: Callable[..., Simulation]) -> Outcome:
    loop, folder = VirtualLoop(), _FOLDER / f"simulated-faults-{os.getpid()}-{next(_names)}"
    problem = ""
    simulation = kind(case, loop, folder)
    with (
        virtual_time(loop),
        virtual_disk(folder, lambda what: simulation.step(what, machines.PROCESS.get())) as disk,
        _seams(simulation),
    ):
        simulation.disk = disk
        try:
            loop.run_until_complete(simulation.run())
        except (Violated, Stuck, DaskxmlError) as found:
            problem = f"{type(found).__name__}: {found}"
        finally:
            ended_s = loop.now_s
            with disk.idle():
                loop.stop_everything()
                for worker in simulation.cluster.everyone:
                    worker.files.close()
    return Outcome(
        problem, simulation.digest, tuple(simulation.happened), simulation.steps, ended_s,
        simulation.starts, len(simulation.truth.rows),
    )  # fmt: skip
