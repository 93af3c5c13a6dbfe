"""Asking workers: losses, failures, and who suffers from them."""

import asyncio

import pytest
from distributed import Client, LocalCluster, wait

from daskxml.errors import ClusterError, TrainingError
from daskxml.runtime import crew as crew_module
from daskxml.runtime.crew import Crew, WorkerGone, first_failure, is_broken, lost_any, result_of
from daskxml.runtime.hand import Hand
from daskxml.runtime.machines import Arrival


def with_crew(act):
    """Let an asynchronous function act with a crew of two workers."""

    async def run():
        async with (
            LocalCluster(n_workers=2, threads_per_worker=1, processes=False, asynchronous=True,
                         dashboard_address=":0") as cluster,
            Client(cluster, asynchronous=True) as client,
        ):  # fmt: skip
            crew = Crew(client, "a run")
            for name, worker in cluster.workers.items():
                crew.hands[str(name)] = Hand(Arrival(str(name), worker.address))
            await asyncio.wait_for(act(crew), 30)

    asyncio.run(run())


def test_who_stops_waiting_does_not_cancel_the_results_of_others():
    async def act(crew):
        futures = [
            crew.submit(hand, "test", int, number)
            for number, hand in enumerate(crew.hands.values())
        ]
        await wait(futures)
        waiting = [asyncio.ensure_future(result_of(future)) for future in futures]
        while crew.client._gather_future is None:  # until both results are asked for, in one
            await asyncio.sleep(0)
        waiting[0].cancel()
        assert await waiting[1] == 1

    with_crew(act)


def test_a_task_that_raises_and_a_worker_that_is_gone():
    def refuse():
        raise TrainingError("no")

    async def act(crew):
        first, second = crew.hands.values()
        second.lost.set()
        answers = await crew.ask_all((first, second), "test", refuse)
        assert isinstance(first_failure(answers), TrainingError)
        assert lost_any(answers)
        assert not lost_any({first.name: answers[first.name]})

    with_crew(act)


def test_a_worker_that_is_closing_has_no_handlers_and_is_waited_for(monkeypatch):
    """Dask answers None in their place, which is no answer."""
    monkeypatch.setattr(crew_module, "NOTICE_S", 0.2)

    async def act(crew):
        first, second = crew.hands.values()
        with pytest.raises(ClusterError, match=f"^worker {first.name} at .* does not answer$"):
            await crew.call(first, "daskxml_norm")
        asyncio.get_running_loop().call_later(0.1, second.lost.set)
        with pytest.raises(WorkerGone):
            await crew.call(second, "daskxml_norm")

    with_crew(act)


def test_the_failure_that_others_suffer_from_is_told_first():
    suffered, cause = ClusterError("worker 1 is gone"), TrainingError("not finite")
    answers = {"0": suffered, "1": cause, "2": WorkerGone("2"), "3": 5}
    assert first_failure(answers) is cause
    assert is_broken(suffered)
    assert not is_broken(cause)
    assert first_failure({"0": suffered, "3": 5}) is suffered
    assert first_failure({"2": WorkerGone("2"), "3": 5}) is None


def test_rounds_are_numbered():
    async def act(crew):
        with pytest.raises(WorkerGone):
            crew.hand("nobody")
        assert [crew.next_round() for _ in range(3)] == [1, 2, 3]

    with_crew(act)
