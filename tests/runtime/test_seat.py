"""Whose turn it is on a worker: leases, snapshots among them, and merges between batches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from daskxml.errors import ClusterError
from daskxml.runtime.seats import Seat
from daskxml.training.orders import MergeOrder

ORDER = MergeOrder(1, {"a": 1.0}, 0.0, overlaps=True)


class Recorder:
    """In the place of a member: what is done to it, in order."""

    def __init__(self) -> None:
        self.generation, self.log = 0, list[str]()

    def take_snapshot(self, order: MergeOrder) -> None:
        """Note it."""
        self.log.append(f"snapshot {order.generation}")

    def commit(self, generation: int) -> None:
        """Note it."""
        if generation != self.generation:
            self.log.append(f"commit {generation}")
            self.generation = generation

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def seat() -> Any:
    return Seat(Recorder())  # type: ignore[arg-type]


def lease(seat: Any, number: int, gates: list[threading.Event]) -> None:
    """A lease of one batch for each gate, which ends when that is opened."""
    seat.take_turn(number)
    for gate in gates:
        assert gate.wait(20)
        seat.member.log.append(f"batch of {number}")
        seat.rest(1)
    seat.end_turn()


def until(holds: Callable[[], bool]) -> None:
    """Wait for another thread."""
    deadline = threading.Event()
    for _ in range(2000):
        if holds():
            return
        deadline.wait(0.01)
    raise AssertionError("it never came")


def test_a_merge_is_committed_between_two_batches_and_counts_those_since_the_snapshot(
    seat: Any,
) -> None:
    gates = [threading.Event() for _ in range(3)]
    with ThreadPoolExecutor(2) as threads:
        seat.take_snapshot(0, ORDER)
        working = threads.submit(lease, seat, 1, gates)
        gates[0].set()
        until(lambda: len(seat.member.log) == 2)
        committing: Future[int] = threads.submit(seat.commit, 1)
        until(lambda: seat._pauses == 1 or committing.done())
        gates[1].set()
        done = committing.result(20)
        gates[2].set()
        working.result(20)
    assert seat.member.log == ["snapshot 1", *["batch of 1"] * done, "commit 1",
                               *["batch of 1"] * (3 - done)]  # fmt: skip
    assert done in (1, 2)
    assert seat.commit(1) == done  # told twice


def test_a_merge_comes_before_a_lease_that_waits_for_its_turn(seat: Any) -> None:
    gate, gates = threading.Event(), [threading.Event()]
    gates[0].set()
    seat.take_snapshot(0, ORDER)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(lease, seat, 1, [gate])
        until(lambda: seat._is_working)
        committing = threads.submit(seat.commit, 1)
        until(lambda: seat._pauses == 1)
        gate.set()
        assert committing.result(20) == 1
        first.result(20)
        threads.submit(lease, seat, 2, gates).result(20)
    assert seat.member.log == ["snapshot 1", "batch of 1", "commit 1", "batch of 2"]


def test_a_snapshot_whose_turn_is_over_is_not_taken_again(seat: Any) -> None:
    seat.take_snapshot(0, ORDER)
    lease(seat, 1, [])
    seat.take_snapshot(0, ORDER)
    assert seat.member.log == ["snapshot 1"]


def test_who_waits_on_a_seat_that_closes_is_refused(seat: Any) -> None:
    gate = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        working = threads.submit(lease, seat, 0, [gate])
        until(lambda: seat._is_working)
        committing = threads.submit(seat.commit, 1)
        until(lambda: seat._pauses == 1)
        seat.close()
        with pytest.raises(ClusterError, match="the run is over"):
            committing.result(20)
        gate.set()
        working.result(20)
    assert "commit 1" not in seat.member.log
