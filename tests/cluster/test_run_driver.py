"""A run's driver, without a cluster."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from distributed import Scheduler

from daskxml.cluster import run_driver
from daskxml.cluster.detached import HistoryWriter
from daskxml.cluster.executor import Executor
from daskxml.cluster.fit_driver import FitDriver
from daskxml.cluster.run_driver import RunDriver
from daskxml.cluster.scheduler_plugin import RunSchedulerPlugin
from daskxml.cluster.worker_group import WorkerHandle
from daskxml.cluster.worker_info import Capabilities, WorkerInfo
from daskxml.cluster.worker_plugin import RunWorkerPlugin
from daskxml.config import load_run_config
from daskxml.core.errors import ClusterError
from daskxml.session.commands import (
    CheckpointWritten,
    EndRun,
    MergeReplicas,
    MergeResult,
    StopRequest,
)
from daskxml.session.run_loop import RunLoop
from harness import virtual_executor


class Part:
    """What a session has to close."""

    def __init__(self) -> None:
        self.may_close, self.is_closed = asyncio.Event(), False

    async def close(self) -> None:
        """Close, as soon as it may."""
        await self.may_close.wait()
        self.is_closed = True


def new_driver() -> Any:
    """A driver without a client."""
    client: Any = None
    config = load_run_config({"training": {"epochs": 1}})
    return RunDriver(client, "run", config, {})


def test_who_comes_to_a_lost_workers_address_is_asked_what_it_has() -> None:
    """It may have another version, or no GPU."""
    driver, info = new_driver(), WorkerInfo("0", "tcp://h:1")
    driver.worker_added(info)
    driver.group.capabilities[info.address] = Capabilities()
    driver.worker_removed(info.address)
    assert driver.group.capabilities == {}


def test_a_run_that_is_forgotten_while_it_closes_a_session_closes_all_of_it() -> None:
    async def forget() -> list[bool]:
        driver = new_driver()
        first, second = driver.membership, driver.executor = Part(), Part()
        second.may_close.set()
        closing = asyncio.ensure_future(driver._remove_from_workers())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        first.may_close.set()
        await driver._remove_from_workers()
        return [first.is_closed, second.is_closed]

    assert asyncio.run(forget()) == [True, True]


class Cluster:
    """A session and what executes its commands: a merge ends as soon as one waits for it."""

    def __init__(self, driver: RunDriver, answers: dict[Any, list[Any]]) -> None:
        self.driver, self.answers = driver, answers
        self.handled, self.under_way = list[Any](), list[MergeResult]()
        self.session = self  # of the run loop

    def handle(self, event: Any, now_s: float) -> list[Any]:
        """Note an event, and say what follows from it."""
        self.handled.append(event)
        return self.answers.get(type(event), [])

    def execute(self, command: MergeReplicas) -> None:
        """Begin a merge."""
        self.under_way.append(MergeResult(0))

    async def settle_collective(self) -> None:
        """Wait until it has ended."""
        while self.under_way:
            self.driver.events.put_nowait(self.under_way.pop())


def test_a_merge_that_follows_before_a_loss_ends_before_that_is_handled() -> None:
    """Its result stands although a worker is lost, and the run may end with it."""
    driver = new_driver()
    merge, end = MergeReplicas(1, {}, 0.0), EndRun("target")
    cluster: Any = Cluster(driver, {StopRequest: [merge], MergeResult: [end]})
    driver.events.put_nowait(StopRequest("client gone"))
    assert asyncio.run(driver._settle(cluster, cluster)) == [end]
    assert cluster.handled == [StopRequest("client gone"), MergeResult(0)]


def test_a_model_is_read_where_the_last_merge_is_committed() -> None:
    """A worker that has only its result would give the model of the merge before."""
    plugin, driver, told = RunSchedulerPlugin(), new_driver(), list[Any]()
    holder = driver.group.workers["0"] = WorkerHandle(WorkerInfo("0", "tcp://h:1"), uncommitted=7)

    async def call(worker: WorkerHandle, handler: str, **values: Any) -> bool:
        told.append((worker, handler, values))
        return True

    driver.group.call, plugin.drivers = call, {"run": driver}
    driver.header = lambda reason: Header()
    assert asyncio.run(plugin.holder_of("run"))["address"] == holder.address
    assert told == [(holder, "daskxml_commit", {"generation": 7})]


class Header:
    """What a model's files say of it."""

    def as_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}


def test_a_run_is_resumed_only_when_the_one_before_has_left_its_directory() -> None:
    """It is forgotten, but may still close: workers have not ended what they write."""

    async def resume() -> list[bool]:
        plugin, before = RunSchedulerPlugin(), new_driver()
        closed = asyncio.Event()
        before.run_dir, plugin.drivers, plugin._closing = "run", {}, {before: closed}
        elsewhere = asyncio.ensure_future(plugin._forget_orphans("another"))
        here = asyncio.ensure_future(plugin._forget_orphans("run"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        found = [elsewhere.done(), here.done()]
        closed.set()
        await here
        return found

    assert asyncio.run(resume()) == [True, False]


def test_a_run_of_trees_says_that_it_prepares_workers() -> None:
    async def none_fits(present: object) -> list[WorkerHandle]:
        return []

    client: Any = None
    driver = FitDriver(client, "run", load_run_config("best"), {})
    admission: Any = SimpleNamespace(fit_workers=none_fits, publish_hardware=list)
    driver._admission = admission
    asyncio.run(driver._admit())
    assert driver.event_log.summary()["state"] == "preparing workers"


def test_a_run_that_is_stopped_while_it_loads_leaves_its_workers() -> None:
    async def stop() -> bool:
        plugin, driver, part = RunSchedulerPlugin(), new_driver(), Part()
        driver.is_detached, driver.membership = True, part
        part.may_close.set()
        plugin.drivers, plugin._tasks = {"run": driver}, {}
        await plugin.stop_run("run", "asked")
        return part.is_closed

    assert asyncio.run(stop())


def test_a_worker_that_is_lost_before_it_joins_is_forgotten() -> None:
    """Else who comes to its address would be taken for it."""
    driver, loop = new_driver(), None
    worker = WorkerHandle(WorkerInfo("0", "tcp://h:1"))
    driver.group.candidates[worker.address] = worker
    assert asyncio.run(driver._lose(worker, loop)) == []
    assert driver.group.at(worker.address) is worker  # it was silent, and may come yet
    worker.lost.set()
    assert asyncio.run(driver._lose(worker, loop)) == []
    assert driver.group.at(worker.address) is None


def test_a_worker_sends_the_models_of_runs_that_it_has() -> None:
    """A run that is over here, or not there yet, has a model that nobody takes."""
    plugin, held = RunWorkerPlugin(), SimpleNamespace(host_models=lambda: (7, {}), best=3)
    plugin.queues = {"run": cast("Any", SimpleNamespace(worker=held))}
    assert asyncio.run(plugin.send_models("run")) == {"generation": 7, "best_megabatch": 3}
    assert asyncio.run(plugin.send_models("other")) == {"generation": -1}


def test_a_run_says_that_it_waits_for_workers() -> None:
    driver, asked = new_driver(), list[str]()
    demand = SimpleNamespace(release=lambda: asked.append("released"))

    async def come() -> None:
        waiting = asyncio.create_task(driver._await_workers())
        await asyncio.sleep(0)
        asked.append(driver.event_log.summary()["state"])
        driver.worker_added(WorkerInfo("0", "tcp://h:1"))
        await waiting

    driver.client = SimpleNamespace(submit=lambda *args, **options: demand)
    asyncio.run(come())
    assert asked == ["waiting for workers", "released"]


def test_a_run_to_which_no_worker_comes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = new_driver()
    monkeypatch.setattr(run_driver, "ARRIVAL_TIMEOUT_S", 0.0)
    driver.client = SimpleNamespace(submit=lambda *args, **options: SimpleNamespace(release=list))
    with pytest.raises(ClusterError, match="no worker came within 0 s; start some with"):
        asyncio.run(driver._await_workers())


def test_a_run_is_cancelled_before_it_is_closed() -> None:
    """What it still does while it ends would be beside what removes it from its workers."""

    async def forget() -> list[str]:
        plugin, done = RunSchedulerPlugin(), list[str]()

        async def drive() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                done.append("cancelled")

        plugin._tasks = {"run": asyncio.create_task(drive())}
        await asyncio.sleep(0)
        await plugin._cancel("run")
        return [*done, "closed"]

    assert asyncio.run(forget()) == ["cancelled", "closed"]


@pytest.mark.parametrize("asks", ["read_run", "stop_run", "detach_run", "holder_of"])
def test_a_run_that_is_not_there_is_told(asks: str) -> None:
    plugin = RunSchedulerPlugin()
    plugin.drivers, plugin.owners = {}, {}
    more = {"read_run": (0, 0), "stop_run": ("asked",)}.get(asks, ())
    with pytest.raises(ClusterError, match="no run lost on this scheduler"):
        asyncio.run(getattr(plugin, asks)("lost", *more))


def test_a_scheduler_that_closes_closes_the_client_of_its_runs() -> None:
    """The client, which is on the scheduler's loop, would keep that from ending."""

    async def close() -> list[str]:
        plugin = RunSchedulerPlugin()
        at = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
        async with Scheduler(**at) as scheduler:
            await plugin.start(scheduler)
            scheduler.add_plugin(plugin)
            opened = await plugin._own_client()
            before = opened.status
        return [before, opened.status]

    assert asyncio.run(close()) == ["running", "closed"]


def test_a_best_model_that_nobody_has_is_said_to_be_lost() -> None:
    async def answers(*args: Any) -> dict[str, Any]:
        return {"0": False}

    driver, said, session = new_driver(), list[str](), SimpleNamespace(best=1, generation=2)
    driver.group.workers = {"0": WorkerHandle(WorkerInfo("0", "tcp://127.0.0.1:1"))}
    driver.group.ask_all, driver.group.warn = answers, said.append
    asyncio.run(driver._restore_best(session))
    assert session.best == 0
    assert said == ["the best model, of mega-batch 1, was lost; the last one is stored"]


def test_the_best_model_is_written_by_a_worker_that_has_it() -> None:
    """Who was late when the others kept it is without, and may be the first of them."""
    has_best, asked = {"late": False, "1": True, "2": True}, list[str]()

    async def answers(*args: Any) -> dict[str, Any]:
        return has_best

    async def ask(worker: WorkerHandle, *args: Any) -> None:
        asked.append(worker.name)

    driver, session = new_driver(), SimpleNamespace(best=1, generation=2)
    for name in has_best:
        driver.group.workers[name] = WorkerHandle(WorkerInfo(name, f"tcp://h:{name}"))
    driver.group.ask_all, driver.group.ask = answers, ask
    driver.run_dir, driver.header = "run", lambda reason: Header()
    asyncio.run(driver._restore_best(session))
    asyncio.run(driver._store_model("target"))
    assert asked == ["1"]
    assert list(driver.group.workers) == ["1", "2", "late"]


def test_a_run_that_is_over_before_a_loss_is_handled_ends() -> None:
    """A session that is over says nothing more, so nobody would hear of its end."""
    driver, backend = new_driver(), virtual_executor.executor(megabatches=1, can_checkpoint=True)
    backend.until("checkpoint")
    workers = {n: WorkerHandle(WorkerInfo(n, f"tcp://h:{n}")) for n in backend.workers}
    driver.group.workers |= workers
    data: Any = None
    emit = driver.events.put_nowait
    driver.executor = Executor(driver.group, backend.session, driver.config, data, emit)
    loop = RunLoop(backend.session, driver.executor, cast("Any", None), driver.event_log.event)
    emit(CheckpointWritten())
    workers["b"].lost.set()
    assert asyncio.run(driver._lose(workers["b"], loop)) == [EndRun("megabatches")]


def test_a_run_waits_for_a_worker_that_writes_its_history() -> None:
    there = iter([[], ["a worker"]])
    writer: Any = SimpleNamespace(_infos=lambda: next(there), _refused=0)
    assert asyncio.run(HistoryWriter._next_worker(writer)) == "a worker"
