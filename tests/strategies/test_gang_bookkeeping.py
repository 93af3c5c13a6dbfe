"""Gangs of a mega-batch: how long they are, and what a loss, an arrival and a stop do to them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.strategies.gangs import next_steps
from daskxml.strategies.protocol import (
    Begin,
    Drain,
    Merge,
    Merged,
    Started,
    WorkDone,
    WorkerJoined,
    WorkerLost,
    WorkRolledBack,
)
from daskxml.strategies.state import MegabatchState
from harness.every_strategy import follow, make
from harness.virtual_cluster import VirtualCluster

FIRST = [  # 512 rows, steps of 64: 22, 21 and 21 rows
    (Started(("c", "a", "b")), []),
    (Begin(), ["a 44 b 42 c 42"]),  # two steps, in natural order
]


def done(took_s, **rows):
    """A gang whose workers were busy half of the time."""
    updates = {name: -(-count // 22) for name, count in rows.items()}
    return WorkDone(took_s, rows, updates, dict.fromkeys(rows, took_s / 2))


def after_first(machine):
    return follow(machine, machine.initial_state(), FIRST)


def test_a_trace_of_a_megabatch():
    machine = make("mirrored")
    state = follow(
        machine,
        after_first(machine),
        # 0.25 s a step: the six that are left take 1.5 s, in two gangs
        [(done(0.5, a=44, b=42, c=42), ["a 66 b 63 c 63"])],
    )
    state = follow(machine, state, [(done(0.75, a=66, b=63, c=63), ["a 66 b 63 c 63"])])
    state, (merge,) = machine.step(state, done(0.75, a=66, b=63, c=63))
    assert merge == Merge({"c": 0.0, "a": 1.0, "b": 0.0}, 0.0, perturbed=False)
    assert state.phase == "merge"
    # 176 rows a second of a, throughout
    assert machine.view(state)["a"].rows_per_s == pytest.approx(176.0)
    # 2 s in two gangs: what has been learned stays
    follow(machine, state, [(Merged(), []), (Begin(), ["a 88 b 84 c 84"])])


def test_the_last_step_of_a_megabatch_has_what_is_left():
    machine = make("mirrored, whole batches")  # steps of 192 rows: two, and 128 rows
    trace = [
        (Started(("a", "b", "c")), []),
        (Begin(), ["a 128 b 128 c 128"]),
        (done(0.5, a=128, b=128, c=128), ["a 43 b 43 c 42"]),
    ]
    state = follow(machine, machine.initial_state(), trace)
    assert state.remaining_rows == 0
    assert sum(worker.leased_rows for worker in state.members.values()) == 128


def test_a_loss_undoes_the_work_of_all_and_lets_in_who_waits():
    machine = make("mirrored")
    state = follow(machine, after_first(machine), [(WorkerJoined("d"), [])])
    assert state.members["d"].came_late
    assert machine.view(state)["d"].batch_rows == 16
    state = follow(machine, state, [(done(0.5, a=44, b=42, c=42), ["a 66 b 63 c 63"])])
    # 512 rows again, four workers: 16 rows each, 2 s in two gangs of four steps
    state = follow(machine, state, [(WorkerLost("b"), ["a 88 c 84 d 84"])])
    assert state.remaining_rows == 512 - 256
    assert not state.members["d"].came_late


def test_a_worker_that_waits_is_counted_in_the_merge_and_works_from_the_next_megabatch_on():
    machine = make("mirrored")
    state = follow(machine, after_first(machine), [(WorkerJoined("9"), [])])
    state = follow(machine, state, [(done(0.1, a=44, b=42, c=42), ["a 132 b 126 c 126"])])
    state, (merge,) = machine.step(state, done(0.3, a=132, b=126, c=126))
    assert merge.weights == {"c": 0.0, "a": 1.0, "b": 0.0, "9": 0.0}  # it has no work to hand over
    state = follow(machine, state, [(Merged(), []), (Begin(), ["9 128 a 128 b 128 c 128"])])


def test_a_worker_that_waits_and_is_lost_undoes_the_work_too():
    # what it stood in was one transaction: the session takes back the rows of all
    machine = make("mirrored")
    state = follow(machine, after_first(machine), [(WorkerJoined("d"), [])])
    follow(machine, state, [(WorkerLost("d"), ["a 44 b 42 c 42"])])


def test_a_gang_that_breaks_begins_again():
    machine = make("mirrored")
    state = follow(machine, after_first(machine), [(WorkRolledBack(), ["a 44 b 42 c 42"])])
    assert state.remaining_rows == 512 - 128


def test_a_loss_in_the_merge():
    machine = make("mirrored")
    state = after_first(machine)
    state = follow(machine, state, [(done(0.02, a=44, b=42, c=42), ["a 132 b 126 c 126"])])
    state, _ = machine.step(state, done(0.06, a=132, b=126, c=126))
    state = follow(machine, state, [(WorkerLost("a"), ["b 256 c 256"])])
    assert state.phase == "train"


def test_a_loss_between_two_megabatches():
    machine = make("mirrored")
    state, _ = machine.step(machine.initial_state(), Started(("a", "b", "c")))
    follow(machine, state, [(WorkerLost("a"), []), (Begin(), ["b 64 c 64"])])


def test_drain_merges_after_the_gang_that_is_under_way():
    machine = make("mirrored")
    state = follow(machine, after_first(machine), [(Drain(), [])])
    _, (merge,) = machine.step(state, done(0.5, a=44, b=42, c=42))
    assert merge.weights == {"c": 0.0, "a": 1.0, "b": 0.0}


def test_a_loss_after_drain_begins_no_gang():
    machine = make("mirrored")
    state = follow(machine, after_first(machine), [(Drain(), [])])
    state, commands = machine.step(state, WorkerLost("a"))
    assert commands == (Merge({"c": 0.0, "b": 1.0}, 0.0, perturbed=False),)  # of nothing
    assert state.phase == "merge"


def test_without_workers_nothing_is_commanded():
    machine = make("mirrored")
    state = follow(machine, machine.initial_state(), [(Started(("a",)), []), (Begin(), ["a 128"])])
    state = follow(machine, state, [(WorkerLost("a"), [])])
    assert machine.view(state) == {}
    follow(machine, state, [(WorkerJoined("b"), ["b 128"])])  # it starts from the global model


def test_gangs_last_about_a_second():
    cluster = VirtualCluster(make("mirrored", megabatch_batches=100), {"a": 320.0, "b": 640.0})
    cluster.run(3)  # steps of 0.1 s: ten seconds a mega-batch
    steps = [gang.parts["a"].rows // 32 for gang in cluster.gangs]
    assert steps[0] == 2
    assert sum(steps[:11]) == 100
    assert all(9 <= count <= 11 for count in steps[1:])


@given(st.integers(1, 10**6), st.floats(0.0, 100.0), st.integers(1, 5000), st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_gangs_take_what_is_left_in_whole_rounds(rows, step_s, step_rows, round_steps):
    state = MegabatchState(remaining_rows=rows, step_s=step_s)
    steps = next_steps(state, step_rows, round_steps)
    assert steps >= 1
    assert steps % round_steps == 0
    if step_s:  # one gang more than needed is never begun, and none is much longer than a second
        assert steps - round_steps < -(-rows // step_rows)
        assert (steps - round_steps) * step_s <= 2.0 + step_s
