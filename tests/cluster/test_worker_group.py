"""Tasks and messages to workers: losses, and which failure is reported."""

import asyncio

import pytest
from distributed import Client, LocalCluster, wait

from daskxml.cluster import worker_group
from daskxml.cluster.worker_group import (
    Answers,
    BackgroundTasks,
    LostBeforeAnswer,
    WorkerGroup,
    WorkerHandle,
    is_unreachable,
    result_of,
    wait_for_loss,
)
from daskxml.cluster.worker_info import WorkerInfo
from daskxml.cluster.worker_plugin import PLUGIN, RunWorkerPlugin
from daskxml.core.errors import ClusterError, TrainingError


def with_group(act):
    """Call an asynchronous function with a group of two workers."""

    async def run():
        async with (
            LocalCluster(n_workers=2, threads_per_worker=1, processes=False, asynchronous=True,
                         dashboard_address=":0") as cluster,
            Client(cluster, asynchronous=True) as client,
        ):  # fmt: skip
            group = WorkerGroup(client, "a run")
            for name, worker in cluster.workers.items():
                group.workers[str(name)] = WorkerHandle(WorkerInfo(str(name), worker.address))
            await asyncio.wait_for(act(group), 30)

    asyncio.run(run())


def test_what_has_ended_in_the_background_is_not_kept():
    async def run():
        tasks = BackgroundTasks(lambda work: work)
        await tasks.start(asyncio.sleep(0))
        waiting = tasks.start(asyncio.sleep(3600))
        await asyncio.sleep(0)
        assert list(tasks._running) == [waiting]
        await tasks.cancel()
        assert waiting.cancelled()

    asyncio.run(run())


def test_a_cancelled_wait_does_not_cancel_the_results_of_others():
    async def act(group):
        futures = [
            group.submit(handle, "test", int, number)
            for number, handle in enumerate(group.workers.values())
        ]
        await wait(futures)
        waiting = [asyncio.ensure_future(result_of(future)) for future in futures]
        while group.client._gather_future is None:  # until both results are asked for, in one
            await asyncio.sleep(0)
        waiting[0].cancel()
        assert await waiting[1] == 1

    with_group(act)


def test_a_task_that_raises_and_a_worker_that_is_gone():
    def refuse():
        raise TrainingError("no")

    async def act(group):
        first, second = group.workers.values()
        second.lost.set()
        answers = await group.ask_all((first, second), "test", refuse)
        assert isinstance(Answers(answers).failure, TrainingError)
        assert answers.any_lost
        assert not Answers({first.name: answers[first.name]}).any_lost

    with_group(act)


def test_a_worker_whose_plugin_is_gone_answers_none_of_its_messages(monkeypatch):
    """A closed plugin has no communicator, and no queues that it could look into."""
    monkeypatch.setattr(worker_group, "NOTICE_S", 0.1)

    async def act(group):
        await group.client.register_plugin(RunWorkerPlugin())
        worker = group.workers["0"]
        assert await group.call(worker, "daskxml_close")
        await group.client.unregister_worker_plugin(PLUGIN)
        with pytest.raises(ClusterError, match="does not answer"):
            await group.call(worker, "daskxml_close")

    with_group(act)


def test_a_worker_that_is_closing_has_no_handlers_and_is_waited_for(monkeypatch):
    """Dask answers None in their place."""
    monkeypatch.setattr(worker_group, "NOTICE_S", 0.2)

    async def act(group):
        first, second = group.workers.values()
        with pytest.raises(ClusterError, match=f"^worker {first.name} at .* does not answer$"):
            await group.call(first, "daskxml_norm")
        asyncio.get_running_loop().call_later(0.1, second.lost.set)
        with pytest.raises(LostBeforeAnswer):
            await group.call(second, "daskxml_norm")

    with_group(act)


def test_who_has_waited_for_a_loss_leaves_no_task_behind(monkeypatch):
    async def act():
        workers = [WorkerHandle(WorkerInfo(name, f"tcp://h:{name}")) for name in ("1", "2")]
        monkeypatch.setattr(worker_group, "NOTICE_S", 0.01)
        assert not await wait_for_loss(workers)
        workers[1].lost.set()
        monkeypatch.setattr(worker_group, "NOTICE_S", 10.0)
        assert await wait_for_loss(workers)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(act())


def test_the_cause_of_other_failures_is_reported():
    broken, cause = ClusterError("worker 1 is gone"), TrainingError("not finite")
    answers = {"0": broken, "1": cause, "2": LostBeforeAnswer("2"), "3": 5}
    assert Answers(answers).failure is cause
    assert is_unreachable(broken)
    assert not is_unreachable(cause)
    assert Answers({"0": broken, "3": 5}).failure is broken
    assert Answers({"2": LostBeforeAnswer("2"), "3": 5}).failure is None


def test_collectives_are_numbered():
    async def act(group):
        with pytest.raises(LostBeforeAnswer):
            group.worker("nobody")
        assert [next(group.collective_numbers) for _ in range(3)] == [1, 2, 3]

    with_group(act)
