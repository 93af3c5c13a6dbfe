"""Elastic SGD worked out by hand: equal quotas, leases of a second, equal weights."""

import pytest

from daskxml.strategies.protocol import (
    Begin,
    Drain,
    Merge,
    Merged,
    Started,
    Work,
    WorkDone,
    WorkerJoined,
    WorkerLost,
)
from harness.every_strategy import follow, make
from harness.virtual_cluster import VirtualCluster, leases_of

THIRDS = dict.fromkeys("abc", 1 / 3)
FIRST_MEGABATCH = [
    # 512 rows: two batches of 64 each, and 128 rows that are 43, 43 and 42. No speed is known.
    (Started(("a", "b", "c")), []),
    (Begin(), ["a 64", "b 64", "c 64", "a 64", "b 64", "c 64"]),
    (WorkDone.alone("a", 64, 1, 0.5), ["a 43"]),
    (WorkDone.alone("a", 64, 1, 0.5), []),
    (WorkDone.alone("a", 43, 1, 0.5), []),  # a is through, and takes nothing of the others' rows
    (WorkDone.alone("b", 64, 1, 1.0), ["b 43"]),
    (WorkDone.alone("c", 64, 1, 2.0), ["c 42"]),
    (WorkDone.alone("b", 64, 1, 1.0), []),
    (WorkDone.alone("b", 43, 1, 1.0), []),
    (WorkDone.alone("c", 64, 1, 2.0), []),
]
LAST = WorkDone.alone("c", 42, 1, 2.0)


def test_a_trace_of_two_megabatches():
    machine = make("elastic", lr=0.5, momentum=0.25)
    state = follow(machine, machine.initial_state(), FIRST_MEGABATCH)
    state, (merge,) = machine.step(state, LAST)  # without asking for norms
    assert merge == Merge(THIRDS, 0.25, perturbed=False)
    assert state.phase == "merge"
    state = follow(machine, state, [(Merged(), [])])
    # a made 128, 128 and 86 rows a second: 128, then (128 + 86) / 2 = 107: one batch of 64
    assert machine.view(state)["a"].rows_per_s == pytest.approx(107.0)
    state, leases = machine.step(state, Begin())
    assert leases[0] == Work.alone("a", 64, 64, 0.5)


def test_a_smaller_batch_is_a_lease_of_its_own_at_a_rate_in_proportion():
    machine = make("elastic", lr=0.5)
    state = follow(machine, machine.initial_state(), FIRST_MEGABATCH[:2])
    _, (lease,) = machine.step(state, WorkDone.alone("a", 64, 1, 0.5))
    assert lease == Work.alone("a", 43, 64, 0.5 * 43 / 64)


def test_leases_last_about_a_second():
    machine = make("elastic", megabatch_batches=100)
    trace = [
        (Started(("a", "b")), []),  # 3200 rows each
        (Begin(), ["a 64", "b 64", "a 64", "b 64"]),
        (WorkDone.alone("a", 64, 1, 0.05), ["a 1280"]),  # 1280 rows a second
        (WorkDone.alone("a", 64, 1, 0.05), ["a 1280"]),
        (WorkDone.alone("a", 1280, 20, 1.0), ["a 512"]),  # the rest of its quota
        (WorkDone.alone("b", 64, 1, 0.1), ["b 640"]),
        (Drain(), []),
        (WorkDone.alone("b", 64, 1, 0.1), []),
        (WorkDone.alone("b", 640, 10, 1.0), []),
        (WorkDone.alone("a", 1280, 20, 1.0), []),
    ]
    state = follow(machine, machine.initial_state(), trace)
    _, (merge,) = machine.step(state, WorkDone.alone("a", 512, 8, 0.4))
    assert merge.weights == {"a": 0.5, "b": 0.5}


def test_a_lost_workers_rows_are_divided_equally():
    machine = make("elastic")
    state = follow(machine, machine.initial_state(), FIRST_MEGABATCH[:6])
    # a is through with its 171 rows, which are done again: 64 each, and 43 that are 22 and 21
    state = follow(machine, state, [(WorkerLost("a"), [])])
    assert {n: m.quota_rows for n, m in state.members.items()} == {"b": 86, "c": 42 + 85}
    assert state.remaining_rows == 0
    trace = [
        (WorkDone.alone("b", 64, 1, 1.0), ["b 64"]),
        (WorkDone.alone("b", 43, 1, 1.0), ["b 22"]),
        (WorkDone.alone("c", 64, 1, 2.0), ["c 64"]),
        (WorkDone.alone("c", 64, 1, 2.0), ["c 63"]),
        (WorkDone.alone("b", 64, 1, 1.0), []),
        (WorkDone.alone("b", 22, 1, 1.0), []),
        (WorkDone.alone("c", 64, 1, 2.0), []),
    ]
    state = follow(machine, state, trace)
    _, (merge,) = machine.step(state, WorkDone.alone("c", 63, 1, 2.0))
    assert merge.weights == {"b": 0.5, "c": 0.5}


def test_a_worker_that_joins_has_rows_that_went_back_only():
    machine = make("elastic")
    state = follow(machine, machine.initial_state(), FIRST_MEGABATCH)
    state = follow(machine, state, [(WorkerJoined("d"), [])])
    idle, (merge,) = machine.step(state, LAST)
    assert merge.weights == {**THIRDS, "d": 0.0}  # it has nothing to add
    idle = follow(machine, idle, [(Merged(), [])])
    _, leases = machine.step(idle, Begin())
    assert {lease.worker for lease in leases_of(leases)} == {"a", "b", "c", "d"}
    # c's 170 rows: 57, 57, 56
    follow(machine, state, [(WorkerLost("c"), ["a 57", "b 57", "d 56"])])


def test_the_slowest_decides_when_the_merge_comes():
    cluster = VirtualCluster(make("elastic", megabatch_batches=40), {"a": 640.0, "b": 160.0})
    cluster.run(5)
    assert all(updates == {"a": 20, "b": 20} for updates, _ in cluster.merges)
    assert cluster.now_s == pytest.approx(5 * 20 * 64 / 160.0)
