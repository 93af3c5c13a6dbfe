"""The order of leases on a worker, and what becomes of those that wait when the run is over."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from daskxml.cluster import worker_plugin
from daskxml.cluster.worker_plugin import LeaseQueue
from daskxml.core.errors import ClusterError
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


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Set when a lease has left its slot in the thread pool."""
    event = Event()
    monkeypatch.setattr(worker_plugin, "secede", event.set)
    return event


def test_a_lease_that_begins_too_early_waits_for_the_one_before(
    queue: LeaseQueue, left: Event
) -> None:
    done: list[int] = []

    def lease(number: int) -> None:
        queue.acquire_turn(number)
        done.append(number)
        queue.release_turn()

    with ThreadPoolExecutor() as threads:
        early = threads.submit(lease, 1)
        assert left.wait(WITHIN_S)
        left.clear()
        lease(0)
        early.result(WITHIN_S)
    assert done == [0, 1]
    assert not left.is_set()


def test_a_lease_that_waits_fails_when_the_queue_is_closed(queue: LeaseQueue, left: Event) -> None:
    with ThreadPoolExecutor() as threads:
        early = threads.submit(queue.acquire_turn, 1)
        assert left.wait(WITHIN_S)
        queue.close()
        with pytest.raises(ClusterError, match="the run is over"):
            early.result(WITHIN_S)
