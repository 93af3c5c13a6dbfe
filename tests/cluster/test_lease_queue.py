"""The order of leases on a worker, of snapshots among them, and of merges between batches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from daskxml.cluster.worker_plugin import LeaseQueue
from daskxml.core.errors import ClusterError
from daskxml.session.commands import MergeReplicas
from daskxml.worker.training_worker import TrainingWorker

COMMAND = MergeReplicas(1, {"a": 1.0}, 0.0, overlaps=True)


class Recorder(TrainingWorker):
    """Records calls, and does nothing else."""

    def __init__(self) -> None:
        self.generation, self.log = 0, list[str]()

    def take_snapshot(self, command: MergeReplicas) -> None:
        """Record it."""
        self.log.append(f"snapshot {command.generation}")

    def commit(self, generation: int) -> None:
        """Record it."""
        if generation != self.generation:
            self.log.append(f"commit {generation}")
            self.generation = generation

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def queue() -> Any:
    return LeaseQueue(Recorder())


def lease(queue: Any, number: int, gates: list[threading.Event]) -> None:
    """A lease of one batch for each gate, which ends when that is opened."""
    queue.acquire_turn(number)
    for gate in gates:
        assert gate.wait(20)
        queue.worker.log.append(f"batch of {number}")
        queue.batch_boundary(1)
    queue.release_turn()


def until(holds: Callable[[], bool]) -> None:
    """Wait for another thread."""
    deadline = threading.Event()
    for _ in range(2000):
        if holds():
            return
        deadline.wait(0.01)
    raise AssertionError("the condition was never met")


def test_a_merge_is_committed_between_two_batches_and_counts_those_since_the_snapshot(
    queue: Any,
) -> None:
    gates = [threading.Event() for _ in range(3)]
    with ThreadPoolExecutor(2) as threads:
        queue.take_snapshot(0, COMMAND)
        working = threads.submit(lease, queue, 1, gates)
        gates[0].set()
        until(lambda: len(queue.worker.log) == 2)
        committing: Future[int] = threads.submit(queue.commit, 1)
        until(lambda: queue._pauses == 1 or committing.done())
        gates[1].set()
        done = committing.result(20)
        gates[2].set()
        working.result(20)
    assert queue.worker.log == ["snapshot 1", *["batch of 1"] * done, "commit 1",
                               *["batch of 1"] * (3 - done)]  # fmt: skip
    assert done in (1, 2)
    assert queue.commit(1) == done  # the message comes twice


def test_a_merge_comes_before_a_lease_that_waits_for_its_turn(queue: Any) -> None:
    gate, gates = threading.Event(), [threading.Event()]
    gates[0].set()
    queue.take_snapshot(0, COMMAND)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(lease, queue, 1, [gate])
        until(lambda: queue._is_working)
        committing = threads.submit(queue.commit, 1)
        until(lambda: queue._pauses == 1)
        gate.set()
        assert committing.result(20) == 1
        first.result(20)
        threads.submit(lease, queue, 2, gates).result(20)
    assert queue.worker.log == ["snapshot 1", "batch of 1", "commit 1", "batch of 2"]


def test_a_snapshot_whose_turn_is_over_is_not_taken_again(queue: Any) -> None:
    queue.take_snapshot(0, COMMAND)
    lease(queue, 1, [])
    queue.take_snapshot(0, COMMAND)
    assert queue.worker.log == ["snapshot 1"]


def test_a_commit_that_waits_fails_when_the_queue_is_closed(queue: Any) -> None:
    gate = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        working = threads.submit(lease, queue, 0, [gate])
        until(lambda: queue._is_working)
        committing = threads.submit(queue.commit, 1)
        until(lambda: queue._pauses == 1)
        queue.close()
        with pytest.raises(ClusterError, match="the run is over"):
            committing.result(20)
        gate.set()
        working.result(20)
    assert "commit 1" not in queue.worker.log
