"""Static proportional batches worked out by hand: a probe, sizes for good, weights by size."""

import pytest

from daskxml.strategies.protocol import (
    Begin,
    Merge,
    Merged,
    Mirrored,
    Started,
    WorkDone,
    WorkerJoined,
    WorkerLost,
)
from daskxml.strategies.state import MegabatchState, WorkerState
from daskxml.strategies.static import fix_speeds, proportional_sizes
from harness.every_strategy import follow, make
from harness.virtual_cluster import VirtualCluster, leases_of

PROBE = [
    # 512 rows; two batches of 64 each for the probe
    (Started(("a", "b")), []),
    (Begin(), ["a 128", "b 128"]),
    (WorkDone.alone("a", 128, 2, 1.0), []),  # waits for b's speed
]
FIRST_MEGABATCH = [
    *PROBE,
    # 128 and 64 rows a second: batches of 64 and 32. Of the 256 rows that are left two batches
    # each, and 64 rows that are 43 and 21; a lease is a second's worth.
    (WorkDone.alone("b", 128, 2, 2.0), ["a 128", "b 64", "a 43", "b 21"]),
    (WorkDone.alone("a", 128, 2, 1.0), []),
    (WorkDone.alone("a", 43, 1, 0.5), []),
    (WorkDone.alone("b", 64, 2, 1.0), []),
]
LAST = WorkDone.alone("b", 21, 1, 0.5)


def test_a_trace_of_two_megabatches():
    machine = make("static", probe_batches=2, lr=0.5)
    assert not machine.is_joint
    state = follow(machine, machine.initial_state(), FIRST_MEGABATCH)
    state, (merge,) = machine.step(state, LAST)
    assert merge == Merge({"a": pytest.approx(2 / 3), "b": pytest.approx(1 / 3)}, 0.0, False)
    state = follow(machine, state, [(Merged(), [])])
    view = machine.view(state)
    assert {n: (v.batch_rows, v.lr) for n, v in view.items()} == {"a": (64, 0.5), "b": (32, 0.25)}
    # 512 rows are five batches each, and 32 rows that are 21 and 11: 341 and 171
    state, leases = machine.step(state, Begin())
    assert [(lease.worker, lease.batch_rows, lease.lr) for lease in leases_of(leases[:2])] == [
        ("a", 64, 0.5),
        ("b", 32, 0.25),
    ]
    assert {n: m.quota_rows + m.leased_rows for n, m in state.members.items()} == {
        "a": 341,
        "b": 171,
    }


def test_sizes_stay_whatever_the_speeds_become():
    cluster = VirtualCluster(make("static"), {"a": 640.0, "b": 480.0})
    cluster.run(2)
    cluster.speeds = {"a": 160.0, "b": 480.0}
    cluster.run(8)
    assert [m.batch_size for m in cluster.state.members.values()] == [64.0, 48.0]


def test_a_probe_takes_no_more_rows_than_there_are():
    machine = make("static", megabatch_batches=1, probe_batches=4)  # 64 rows, probes of 256
    trace = [
        (Started(("a", "b", "c")), []),
        (Begin(), ["a 22", "b 21", "c 21"]),
        (WorkDone.alone("a", 22, 1, 1.0), []),
        (WorkDone.alone("b", 21, 1, 1.0), []),
    ]
    state = follow(machine, machine.initial_state(), trace)
    _, (merge,) = machine.step(state, WorkDone.alone("c", 21, 1, 2.0))
    assert sum(merge.weights.values()) == pytest.approx(1.0)


def test_a_loss_in_the_probe_leaves_a_probe_of_the_others():
    machine = make("static", probe_batches=2)
    state = follow(machine, machine.initial_state(), PROBE)
    state = follow(machine, state, [(WorkerJoined("c"), ["c 128"]), (WorkerLost("b"), [])])
    # a: 128, c: 256 rows a second, and 512 - 256 rows are left: batches of 32 and 64, two each,
    # and 64 rows that are 21 and 43
    follow(machine, state, [(WorkDone.alone("c", 128, 2, 0.5), ["a 85", "c 171"])])


def test_a_new_worker_is_measured_with_all_others_at_the_next_beginning():
    machine = make("static", probe_batches=2)
    state = follow(machine, machine.initial_state(), FIRST_MEGABATCH)
    state = follow(machine, state, [(WorkerJoined("c"), [])])
    # rows that go back are not for who has no size: b's 213 are three batches and 21 of a
    again = follow(machine, state, [(WorkerLost("b"), ["a 64", "a 64"])])
    assert again.members["a"].quota_rows == 213 - 128
    state, (merge,) = machine.step(state, LAST)
    assert merge.weights["c"] == 0.0
    state = follow(machine, state, [(Merged(), []), (Begin(), ["a 128", "b 128", "c 128"])])
    assert [m.batch_size for m in state.members.values()] == [64.0, 64.0, 64.0]


def test_a_trace_of_synchronous_steps():
    machine = make("static", merge="step", probe_batches=2, lr=0.5)
    assert machine.is_joint
    assert machine.shares_optimizer
    both = {"a": 64, "b": 64}
    trace = [
        (Started(("a", "b")), []),
        (Begin(), ["a 64 b 64"]),  # two steps of 32 rows each
    ]
    state = follow(machine, machine.initial_state(), trace)
    # 64 and 21.3 rows a second: batches of 48 and 16; six steps of a second each are left
    done = WorkDone(2.0, both, {"a": 2, "b": 2}, {"a": 1.0, "b": 3.0})
    state, (gang,) = machine.step(state, done)
    assert gang.pattern == Mirrored()
    assert {n: (s.rows, s.batch_rows, s.lr) for n, s in gang.parts.items()} == {
        "a": (48, 48, 0.5),
        "b": (16, 16, 0.5),
    }
    # whatever the speeds become: 0.1 s a step now, so that one gang takes the five that are left
    done = WorkDone(0.1, {"a": 48, "b": 16}, {"a": 1, "b": 1}, {"a": 0.1, "b": 0.02})
    state, (gang,) = machine.step(state, done)
    assert {n: (s.rows, s.batch_rows) for n, s in gang.parts.items()} == {
        "a": (5 * 48, 48),
        "b": (5 * 16, 16),
    }
    follow(machine, state, [(WorkerLost("b"), ["a 512"])])


def test_synchronous_steps_measure_a_new_worker_with_all_others():
    cluster = VirtualCluster(make("static", merge="step"), {"a": 640.0, "b": 160.0})
    cluster.run(2)
    assert [s.batch_rows for s in cluster.gang.parts.values()] == [51, 13]  # 51.2 and 12.8
    cluster.until("idle")
    cluster.join("c", 400.0)
    cluster.advance()
    assert [s.batch_rows for s in cluster.gang.parts.values()] == [22, 21, 21]
    cluster.advance()
    # 640, 160 and 400 of 1200, times 64: 34.1, 8.5 and 21.3
    assert [s.batch_rows for s in cluster.gang.parts.values()] == [34, 9, 21]


def test_who_had_no_row_of_the_probe_counts_as_the_fastest():
    members = dict.fromkeys("abc", WorkerState(batch_size=8))
    rows, updates = {"a": 64, "b": 64, "c": 0}, {"a": 8, "b": 8, "c": 0}
    probe = WorkDone(4.0, rows, updates, {"a": 2.0, "b": 4.0, "c": 0.5})
    state = fix_speeds(MegabatchState(remaining_rows=0, members=members), probe)
    assert {n: w.speed for n, w in state.members.items()} == {"a": 32.0, "b": 16.0, "c": 32.0}


def test_no_batch_is_larger_than_what_replicas_allocate_for_by_a_rounding_error():
    assert proportional_sizes({"a": 414.2060611747179}, 13) == {"a": 13.0}
