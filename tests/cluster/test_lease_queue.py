"""The order of leases on a worker, and what becomes of those that wait when the run is over."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from daskxml.cluster.worker_plugin import LeaseQueue
from daskxml.session.commands import RunWork
from daskxml.worker.training_worker import TrainingWorker

WITHIN_S = 20


class Idle(TrainingWorker):
    """Does nothing."""

    def __init__(self) -> None:
        """Have no model."""

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def queue() -> LeaseQueue:
    return LeaseQueue(Idle())


def lease(turn: int) -> tuple[int, RunWork, int]:
    return turn, RunWork(turn, ("a",), ((),), (0.5,)), 0


def test_a_lease_whose_rows_come_late_goes_before_later_ones(queue: LeaseQueue) -> None:
    with ThreadPoolExecutor() as threads:
        queue.put(lease(1), {})
        first = threads.submit(queue.take)
        assert not first.done()
        queue.put(lease(0), {})
        taken = [first.result(WITHIN_S), queue.take()]
    assert taken == [(lease(0), {}), (lease(1), {})]


def test_who_waits_for_a_lease_has_none_when_the_queue_is_closed(queue: LeaseQueue) -> None:
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(queue.take)
        queue.close()
        assert waiting.result(WITHIN_S) is None
    queue.put(lease(0), {})
    assert queue.take() is None
