"""Strategies of gangs worked out by hand: what each exchanges, with which batches and rates."""

from dataclasses import replace

import pytest

from daskxml.strategies.asynchronous import batch_shares
from daskxml.strategies.protocol import (
    Asynchronous,
    Averaging,
    Begin,
    Central,
    LocalSteps,
    Mirrored,
    Part,
    Started,
    Work,
    WorkDone,
)
from daskxml.strategies.state import MegabatchState, WorkerState
from harness.every_strategy import follow, make
from harness.virtual_cluster import VirtualCluster


def begun(machine, *workers):
    """Return the state after ``Begin``, and the first gang."""
    state, _ = machine.step(machine.initial_state(), Started(workers))
    state, (gang,) = machine.step(state, Begin())
    return state, gang


# ------------------------------------------------------- gradient aggregation


@pytest.mark.parametrize(("case", "pattern"), [("mirrored", Mirrored()), ("central", Central())])
def test_gradient_aggregation_divides_the_batch(case, pattern):
    # section 5.1: batch_max / N rows each, so that a step is as long as one worker's
    _, gang = begun(make(case, lr=0.5), "a", "b")
    assert gang == Work({"a": Part(64, 32, 0.5), "b": Part(64, 32, 0.5)}, pattern)
    _, gang = begun(make(case, lr=0.5), "a", "b", "c")
    assert [s.batch_rows for s in gang.parts.values()] == [22, 21, 21]
    assert {s.lr for s in gang.parts.values()} == {0.5}  # a mean of 64 rows


def test_undivided_batches_have_a_rate_for_all_their_rows():
    _, gang = begun(make("mirrored, whole batches", lr=0.5), "a", "b")
    assert gang.parts["a"] == Part(128, 64, 1.0)  # linear scaling: 128 rows a step


def test_adasum_of_gradients_has_one_workers_rate():
    # 64 rows a step, 32 of each worker: Adasum makes the batch no larger
    _, gang = begun(make("mirrored", lr=0.5, lr_rows="batch"), "a", "b")
    assert gang.parts["a"] == Part(64, 32, 0.25)


def test_more_workers_than_rows_in_a_batch():
    cluster = VirtualCluster(make("mirrored", batch_max=2), {"a": 9.0, "b": 9.0, "c": 9.0})
    assert [s.rows for s in cluster.gang.parts.values()] == [2, 2, 0]  # two steps
    cluster.run(2)


def test_what_gradient_aggregation_says_of_itself():
    mirrored, central = make("mirrored"), make("central")
    assert mirrored.shares_optimizer  # each replica has one, and all must stay the same
    assert not central.shares_optimizer
    assert mirrored.rules == ("mean", "sum", "adasum")
    assert central.rules == ("mean", "sum")


# --------------------------------------------------------------- asynchronous


def test_asynchronous_gangs_are_shared_by_throughput():
    machine = make("asynchronous", lr=0.5)
    state, gang = begun(machine, "a", "b")
    assert gang == Work({"a": Part(128, 64, 0.5), "b": Part(128, 64, 0.5)}, Asynchronous(-1))
    # a twice as fast; 0.1 s a round, so that one gang takes the four batches that are left:
    # 2.67 and 1.33 of them
    rows, updates = {"a": 128, "b": 128}, {"a": 2, "b": 2}
    done = WorkDone(0.2, rows, updates, {"a": 0.1, "b": 0.2})
    follow(machine, state, [(done, ["a 192 b 64"])])


def test_bounded_staleness_shares_equally():
    machine = make("asynchronous, bounded")
    state, gang = begun(machine, "a", "b")
    assert gang.pattern == Asynchronous(2)
    rows, updates = {"a": 128, "b": 128}, {"a": 2, "b": 2}
    done = WorkDone(0.2, rows, updates, {"a": 0.1, "b": 0.2})
    follow(machine, state, [(done, ["a 128 b 128"])])


def test_shares_are_equal_until_all_are_measured():
    new = WorkerState(batch_size=8)
    members = {"a": replace(new, rows_per_s=9.0), "b": new, "c": replace(new, came_late=True)}
    state = MegabatchState(remaining_rows=1, members=members)
    assert batch_shares(state, -1) == {"a": 1.0, "b": 1.0}


def test_asynchronous_workers_are_through_together():
    speeds = {"a": 640.0, "b": 480.0, "c": 160.0}
    cluster = VirtualCluster(make("asynchronous", megabatch_batches=200), speeds)
    cluster.run(3)
    late = [gang.parts for gang in cluster.gangs[3:]]
    ends = [[share.rows / speeds[name] for name, share in gang.items()] for gang in late]
    slack_s = 64 / 160.0  # a batch of the slowest
    assert all(max(end_s) - min(end_s) <= slack_s for end_s in ends)


# ------------------------------------------------------------------- crossbow


def test_learners_are_drawn_by_one_nth():
    machine = make("crossbow", lr=0.5)
    _, gang = begun(machine, "a", "b", "c", "d")
    assert gang.parts["d"] == Part(128, 64, 0.5)
    assert gang.pattern == Averaging(pull=0.25, momentum=0.9)
    assert machine.averages
    _, gang = begun(make("crossbow", pull=0.1, momentum=0.5), "a", "b")
    assert gang.pattern == Averaging(pull=0.1, momentum=0.5)


# --------------------------------------------------------------------- adasum


def test_changes_are_combined_after_local_steps():
    machine = make("adasum, 3 local steps", megabatch_batches=20, lr=0.5)
    assert machine.rules[0] == "adasum"
    state, gang = begun(machine, "a", "b")
    # two steps would cut a round short: three
    assert gang == Work({"a": Part(192, 64, 0.5), "b": Part(192, 64, 0.5)}, LocalSteps(3))
    # of ten steps, half a second each, seven are left: 3.5 s in four gangs of a round each
    done = WorkDone(1.5, {"a": 192, "b": 192}, {"a": 3, "b": 3}, {"a": 1.0, "b": 1.0})
    trace = [(done, ["a 192 b 192"]), (done, ["a 192 b 192"]), (done, ["a 64 b 64"])]
    state = follow(machine, state, trace)
    assert state.remaining_rows == 0  # the last step alone is a round as well
