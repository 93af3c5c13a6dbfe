"""Losses and restarts in any order: the session learns of each, and the run ends.

The cluster is made up and its clock virtual (`harness.virtual_dask`): nothing here waits, and a run
that would wait forever raises `Stuck`.
"""

import asyncio
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from daskxml.cluster import worker_plugin
from daskxml.cluster.collectives import Collectives
from daskxml.cluster.executor import Executor
from daskxml.cluster.membership import Membership
from daskxml.cluster.run_driver import RunDriver
from daskxml.cluster.worker_group import WorkerGroup, WorkerHandle
from daskxml.cluster.worker_info import WorkerInfo
from daskxml.cluster.worker_plugin import RunWorkerPlugin
from daskxml.config import load_run_config
from daskxml.core.errors import ClusterError, TrainingError
from daskxml.strategies.protocol import Measure, Measured, Rebase
from harness.virtual_dask import Chance, FakeWorker, Script, VirtualDask, check, train


async def until(is_met: Callable[[], Any]) -> None:
    """Let other tasks go on until a condition is met."""
    for _ in range(10_000):
        if is_met():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition was never met")


def lost_workers(dask: VirtualDask) -> list[str]:
    """Return the losses in a run's history."""
    events = [event for row in dask.driver.session.history for event in row["events"]]
    return [event["worker"] for event in events if event["kind"] == "lost"]


class BackTooSoon(Script):
    """Workers 0 and 1 die in the first collective; 1 is back before its loss has been handled.

    Worker 2 ends its part late: it may be in the middle of a long sum.
    """

    def __init__(self, at_same_address: bool) -> None:
        self.at_same_address, self.is_over = at_same_address, False

    async def before(self, dask: VirtualDask, worker: FakeWorker, step: str) -> None:
        if step == "collective" and worker.name == "2" and not self.is_over:
            self.is_over = True
            dask.kill("0")
            address = dask.kill("1")
            dask.add_worker("1", address if self.at_same_address else None)
        if step == "daskxml_abort":
            membership = dask.driver.membership
            assert membership is not None
            await until(lambda: membership._ready)


@pytest.mark.parametrize("strategy", ["adaptive-sgd", "elastic", "static"])
def test_a_worker_is_back_before_its_loss_is_handled(strategy: str) -> None:
    """It must not take the lost one's name: the session would never learn of that loss."""
    dask = train(BackTooSoon(at_same_address=False), strategy)
    check(dask)
    assert lost_workers(dask) == ["0", "1"]
    assert "1" in dask.driver.session.history[-1]["workers"]


@pytest.mark.parametrize("strategy", ["adaptive-sgd", "mirrored"])
def test_a_worker_is_back_at_its_old_address(strategy: str) -> None:
    """As with ``--worker-port``: it is not mistaken for the one that is lost."""
    dask = train(BackTooSoon(at_same_address=True), strategy)
    check(dask)
    assert lost_workers(dask) == ["0", "1"]
    assert "1" in dask.driver.session.history[-1]["workers"]


def test_a_lost_worker_hides_none_at_its_address() -> None:
    """The group still has a worker whose loss waits to be handled."""
    client: Any = None
    group, address = WorkerGroup(client, "run"), "tcp://10.0.0.1:10000"
    group.workers = {name: WorkerHandle(WorkerInfo(name, address)) for name in ("0", "1")}
    group.workers["0"].lost.set()
    assert group.at(address) is group.workers["1"]


def test_a_worker_arrives_while_a_session_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the next session makes it a member, else its turns would begin anew in the middle."""
    created: list[str] = []

    class LostAlone(Script):
        async def before(self, dask: VirtualDask, worker: FakeWorker, step: str) -> None:
            if step == "collective" and worker.address.endswith(":10000"):
                dask.kill("0")
            if step == "create_worker" and worker.address.endswith(":10001"):
                created.append(worker.address)

    close = Executor.close

    async def close_late(self: Executor) -> None:
        await close(self)
        dask: Any = self.group.client
        if not dask.workers:
            dask.add_worker("0")

    monkeypatch.setattr(Executor, "close", close_late)
    check(train(LostAlone(), "adaptive-sgd", workers=1))
    assert len(created) == 1


def test_a_session_ends_while_a_worker_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks run beside that one where a process has several threads."""
    plugin, closed = RunWorkerPlugin(), list[Any]()
    monkeypatch.setattr(worker_plugin, "Communicator", lambda worker: None)
    plugin.setup(
        cast("Any", SimpleNamespace(handlers={}, stream_handlers={}, address="", log_event=print))
    )
    removal = plugin.removal("run")  # where the old session's worker begins
    old: Any = SimpleNamespace(close=lambda: closed.append(old))
    new: Any = SimpleNamespace()
    plugin.remove_queue("run")
    plugin.add_queue("run", new, plugin.removal("run"))
    with pytest.raises(ClusterError, match="over on this worker"):
        plugin.add_queue("run", old, removal)
    assert plugin.queue_of("run") is new
    assert closed == [old]


def test_a_worker_that_closes_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Closing:
        def __init__(self, worker: Any) -> None:
            pass

        async def close(self) -> None:
            closed.append("communicator")

    monkeypatch.setattr(worker_plugin, "Communicator", Closing)
    plugin, worker = RunWorkerPlugin(), SimpleNamespace(handlers={}, stream_handlers={}, address="")
    plugin.setup(cast("Any", worker))
    assert "daskxml_merge" in worker.handlers
    queue: Any = SimpleNamespace(close=lambda: closed.append("queue"))
    plugin.add_queue("run", queue, plugin.removal("run"))
    asyncio.run(plugin.teardown(cast("Any", worker)))
    assert closed == ["queue", "communicator"]
    assert worker.handlers == {}


def test_the_timeline_has_each_workers_leases() -> None:
    under_way = set()

    class Watched(Script):
        async def before(self, dask: VirtualDask, worker: FakeWorker, step: str) -> None:
            if step == "lease":
                recent = dask.driver.group.timeline.recent(math.inf)
                under_way.update(work.worker for work in recent if work.what == "lease")

    dask = train(Watched(), "adaptive-sgd", workers=2)
    check(dask)
    timeline = dask.driver.group.timeline
    done = {work.worker for work in timeline.done if work.what == "lease"}
    assert done == under_way == {"0", "1"}
    assert timeline.recent(math.inf) == []


def test_why_a_worker_could_not_be_created_is_said() -> None:
    class Refused(Script):
        async def before(self, dask: VirtualDask, worker: FakeWorker, step: str) -> None:
            if step == "create_worker" and worker.name == "1":
                raise TrainingError("too little memory for worker 1")

    ended = train(Refused(), "adaptive-sgd", workers=2).driver.event_log.events[-1]
    error = {"type": "TrainingError", "args": ["too little memory for worker 1"]}
    assert (ended["reason"], ended["error"]) == ("error", error)


def test_a_worker_joins_without_another_event() -> None:
    class SecondWorker(Script):
        async def before(self, dask: VirtualDask, worker: FakeWorker, step: str) -> None:
            if step == "lease" and worker.name == "0" and len(dask.workers) == 1:
                dask.add_worker("1")
                await until(lambda: "1" in dask.driver.session.workers)

    dask = train(SecondWorker(), "adaptive-sgd", workers=1)
    check(dask)
    assert sorted(dask.driver.session.history[0]["workers"]) == ["0", "1"]


def test_a_stop_is_kept_over_a_restart() -> None:
    """The session that was asked to end has lost its worker, and the next one ends instead."""

    class StoppedAndLost(Script):
        is_over = False

        async def before(self, dask: VirtualDask, worker: FakeWorker, step: str) -> None:
            if step == "lease" and not self.is_over:
                self.is_over = True
                dask.driver.stop("asked")
                dask.kill("0")
                dask.add_worker("0")

    dask = train(StoppedAndLost(), "adaptive-sgd", workers=1)
    check(dask)
    assert dask.driver.event_log.events[-1]["reason"] == "asked"
    assert len(dask.driver.session.history) == 1


def test_a_norm_of_before_a_rebase_is_measured_anew() -> None:
    """What a late worker is sent changes its replica; the norm of its last lease is another's."""

    async def rebase() -> Any:
        dask: Any = VirtualDask(Script(), seed=0, has_local_state=False)
        config = load_run_config({"training": {"epochs": 1}})
        group = (driver := RunDriver(dask, "run", config, {})).group
        dask.driver = driver
        for name in ("0", "late"):
            worker = dask.add_worker(name)
            await worker.create_worker("run", None, None)
            info = WorkerInfo(name, worker.address)
            group.workers[name] = WorkerHandle(info, squared_norm=4.0)
        session, donors = SimpleNamespace(generation=0), [group.workers["0"]]
        executor: Any = SimpleNamespace(
            group=group, config=config, session=session, current=lambda: donors, emit=print
        )
        membership = Membership(executor)
        membership.rebase(Rebase("late", keeps_change=True))
        await membership._copies[group.workers["late"]]
        collectives = Collectives(group, 10, cast("Any", None))
        return await collectives.measure(Measure(("0", "late")))

    assert asyncio.run(rebase()) == Measured({"0": 4.0, "late": 1.0}, 10)


@pytest.mark.parametrize("lease_s", [0.1, 30.0])
def test_the_time_is_up_between_events_and_at_one(lease_s: float) -> None:
    ends_s: list[float] = []

    class SlowLeases(Script):
        async def before(self, dask: VirtualDask, worker: FakeWorker, step: str) -> None:
            if step == "lease":
                await asyncio.sleep(lease_s)
                ends_s.append(asyncio.get_running_loop().time())

    dask = train(SlowLeases(), "adaptive-sgd", minutes=0.1)
    check(dask)
    assert dask.driver.event_log.events[-1]["reason"] == "minutes"
    assert ends_s[-1] < 6.0 + 2.5 * lease_s  # at the deadline a lease runs, and another one waits


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("strategy", "same_address", "options"),
    [
        ("adaptive-sgd", 0.0, {}),
        ("adaptive-sgd", 0.5, {}),
        ("elastic", 0.0, {"has_local_state": True}),
        ("static", 0.0, {"is_replicated": False}),
        ("mirrored", 0.3, {}),
    ],
)
def test_any_order_of_answers_losses_and_arrivals(
    strategy: str, same_address: float, options: dict[str, Any], seed: int
) -> None:
    script = Chance(seed, kills=12, kill_chance=0.08, same_address=same_address)
    dask = train(script, strategy, workers=4, seed=seed, **options)
    ended = dask.driver.event_log.events[-1]
    if ended["reason"] == "error":  # bad luck: no worker is left to write the model
        assert "every worker was lost before" in ended["error"]["args"][0], ended["details"]
    else:
        check(dask)
