"""Merges by a quorum: traces of who is waited for, and of what becomes of a worker that is late."""

from dataclasses import replace

import pytest

from daskxml.strategies.elastic import ElasticSgd
from daskxml.strategies.protocol import (
    Begin,
    Drain,
    GiveUp,
    GraceOver,
    Merge,
    Merged,
    Rebase,
    Started,
    Wait,
    Work,
    WorkDone,
    WorkerJoined,
    WorkerLost,
    WorkerSilent,
)
from daskxml.strategies.quorum import STALENESS, merging, others
from daskxml.strategies.state import MegabatchState, WorkerState
from harness.every_strategy import follow


def elastic(quorum=0.75, batches=4):
    """Batches of 8 rows, one lease a worker, so that each mega-batch is one lease for each."""
    machine = ElasticSgd(ElasticSgd.Config(batch_max=8, megabatch_batches=batches))
    machine.quorum = quorum
    return machine


def done(name, rows=8):
    return WorkDone.alone(name, rows, rows // 8, 1.0)


def merge_of(names):
    return Merge(dict.fromkeys(names, 1 / len(names)), 0.9, perturbed=False)


def begun(machine, names):
    """Return the state in which each worker has its only lease of the mega-batch."""
    return follow(
        machine,
        machine.initial_state(),
        [(Started(tuple(names)), []), (Begin(), [f"{name} 8" for name in names])],
    )


FOUR = "abcd"


def with_late_d(machine):
    """Return the state after a merge that began without the last of four."""
    trace = [
        (done("a"), [Wait("quorum")]),
        (done("b"), []),
        (done("c"), [Wait("others")]),
        (GraceOver(), [merge_of("abc")]),
        (Merged(), []),
    ]
    return follow(machine, begun(machine, FOUR), trace)


def test_a_quorum_waits_for_the_grace_and_then_merges_without_the_last():
    state = with_late_d(elastic())
    late = state.members["d"]
    assert (late.lag, late.age, late.leases, late.leased_rows) == (1, 1, 1, 8)
    assert state.members["a"].rows == 0


def test_who_comes_within_the_grace_is_merged():
    trace = [
        (done("a"), [Wait("quorum")]), (done("b"), []), (done("c"), [Wait("others")]),
        (done("d"), [merge_of(FOUR)]),
    ]  # fmt: skip
    follow(elastic(), begun(elastic(), FOUR), trace)


def test_a_quorum_of_one_waits_for_all():
    machine = elastic(1.0)
    trace = [(done("a"), []), (done("b"), []), (done("c"), []), (GraceOver(), [])]
    state = follow(machine, begun(machine, FOUR), trace)
    follow(machine, state, [(done("d"), [merge_of(FOUR)])])


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_the_others_of_two_or_three_go_on_after_the_longer_grace(names):
    machine = elastic(batches=len(names))
    *present, late = names
    trace = [(done(name), [Wait("quorum")] if name == "a" else []) for name in present]
    state = follow(machine, begun(machine, names), [*trace, (GraceOver(), [merge_of(present)])])
    state = follow(machine, state, [(Merged(), [])])
    state, _ = machine.step(state, Begin())
    while state.phase == "train":  # nobody waits for it now, though it may be the fastest of all
        name = next(n for n in present if state.members[n].leases)
        state, commands = machine.step(state, done(name, state.members[name].leased_rows))
        assert late not in {n for work in commands if isinstance(work, Work) for n in work.parts}
    assert commands == (merge_of(present),)


def test_one_worker_waits_for_itself():
    machine = elastic(batches=1)
    state = begun(machine, "a")
    state, commands = machine.step(state, GraceOver())
    assert commands == ()
    follow(machine, state, [(done("a"), [merge_of("a")])])


def test_a_late_worker_is_rebased_and_its_rows_enter_the_next_merge():
    machine = elastic()
    state = with_late_d(machine)
    state, _ = machine.step(state, Begin())
    assert "d" not in {n for n, w in state.members.items() if w.quota_rows or w.leased_rows > 8}
    state, commands = machine.step(state, done("d"))
    assert commands[0] == Rebase("d", keeps_change=True)
    state, _ = machine.step(state, WorkerJoined("d"))
    joined = state.members["d"]
    assert (joined.lag, joined.age, joined.rows, joined.came_late) == (0, 1, 8, True)
    while state.phase == "train":
        name = next(n for n, worker in state.members.items() if worker.leases)
        state, commands = machine.step(state, done(name, state.members[name].leased_rows))
    assert commands[-1] == merge_of(FOUR)
    state, _ = machine.step(state, Merged())
    assert state.members["d"].age == 0


def test_rows_of_a_worker_that_stays_late_are_done_by_others():
    machine = elastic()
    state = with_late_d(machine)
    for merges in range(1, STALENESS + 2):
        assert state.members["d"].age == merges
        state, commands = machine.step(state, Begin())
        if merges > STALENESS:
            assert commands[0] == GiveUp("d")
            assert sum(worker.leased_rows for worker in state.members.values()) == 40
            break
        while state.phase == "train":
            name = next(n for n in "abc" if state.members[n].leases)
            state, _ = machine.step(state, done(name, state.members[name].leased_rows))
        state, _ = machine.step(state, Merged())
    state, commands = machine.step(state, WorkDone.alone("d", 0, 0, 0.0))
    assert Rebase("d", keeps_change=False) in commands
    state, _ = machine.step(state, WorkerJoined("d", keeps_change=False))
    assert not state.members["d"].is_late


def test_what_only_a_late_worker_has_is_done_again_at_the_end():
    machine = elastic()
    state = with_late_d(machine)
    state, commands = machine.step(state, Begin(0))
    assert commands[0] == GiveUp("d")
    assert {name for work in commands[1:] for name in work.parts} == {"a", "b", "c"}


def test_a_change_that_is_not_finite_is_dropped_and_its_rows_are_done_again():
    machine = elastic()
    state = with_late_d(machine)
    state, _ = machine.step(state, Begin())
    state, _ = machine.step(state, done("d"))
    before = sum(w.quota_rows + w.leased_rows for w in state.members.values())
    state, _ = machine.step(state, WorkerJoined("d", keeps_change=False))
    assert state.members["d"].rows == 0
    assert sum(w.quota_rows + w.leased_rows for w in state.members.values()) == before + 8


def test_a_late_worker_that_is_lost_does_not_undo_the_merge():
    machine = elastic()
    trace = [
        (done("a"), [Wait("quorum")]), (done("b"), []), (done("c"), [Wait("others")]),
        (GraceOver(), [merge_of("abc")]), (WorkerLost("d"), []),
    ]  # fmt: skip
    state = follow(machine, begun(machine, FOUR), trace)
    assert state.phase == "merge"
    state = follow(machine, state, [(Merged(), [])])
    assert state.members.keys() == {"a", "b", "c"}


def test_a_worker_that_goes_silent_in_a_merge_is_left_out_of_it():
    machine = elastic()
    trace = [
        (done("a"), [Wait("quorum")]), (done("b"), []), (done("c"), [Wait("others")]),
        (done("d"), [merge_of(FOUR)]), (WorkerSilent("d"), [Rebase("d", True), merge_of("abc")]),
        (Merged(), []),
    ]  # fmt: skip
    state = follow(machine, begun(machine, FOUR), trace)
    assert (state.members["d"].lag, state.members["d"].rows) == (2, 8)


def test_a_worker_that_goes_silent_with_nothing_to_merge_brings_nothing():
    machine = elastic()
    state = follow(machine, machine.initial_state(), [(Started(("a", "b")), [])])
    state = follow(machine, state, [(WorkerSilent("b"), [])])
    state, commands = machine.step(state, Begin())
    assert commands[0] == Rebase("b", keeps_change=False)


def test_a_stopped_run_does_not_wait_for_a_frozen_worker_for_ever():
    machine = elastic(batches=2)
    trace = [(Drain(), []), (GraceOver(), []), (done("a"), [Wait("quorum")])]
    state = follow(machine, begun(machine, "ab"), trace)
    follow(machine, state, [(GraceOver(), [merge_of("a")])])


def test_workers_that_have_done_nothing_wait_until_nobody_reports_any_more():
    machine = elastic(batches=1)
    state = begun(machine, "a")
    state = follow(machine, state, [(WorkerJoined("b"), [Wait("work")])])
    state, commands = machine.step(state, GraceOver())
    assert commands[0] == GiveUp("a")
    assert [list(work.parts) for work in commands[1:2]] == [["b"]]


def test_late_updates_count_no_more_than_the_most_of_one_megabatch():
    fresh = WorkerState(batch_size=8, updates=5)
    members = {"a": fresh, "b": replace(fresh, updates=11, age=2), "c": replace(fresh, updates=7)}
    state = MegabatchState(remaining_rows=0, merging=("a", "b", "c"), members=members)
    found = {name: worker.updates for name, worker in merging(state).members.items()}
    assert found == {"a": 5, "b": 7, "c": 7}


def test_seconds_in_which_a_late_worker_was_frozen_are_no_work():
    worker = WorkerState(batch_size=8, rows_per_s=8.0, leased_rows=8, leases=1, lag=1)
    found = worker.with_work(8, 1, 60.0)
    assert found.busy_s == 4.0
    assert found.rows_per_s == 5.0


def test_work_that_took_no_time_says_nothing_of_the_speed():
    """A clock may be too coarse for a few rows."""
    worker = WorkerState(batch_size=1, leased_rows=9, leases=2).with_work(5, 1, 0.0)
    assert worker.rows_per_s == 0.0
    assert worker.with_work(4, 1, 2.0).rows_per_s == 2.0


def test_the_quorum_is_that_of_the_workers_that_are_waited_for():
    """Also of one that is back, which the last merge began without, but of no late one."""
    ready = WorkerState(batch_size=8, rows=8)
    busy = WorkerState(batch_size=8, leases=1)
    members = {"a": ready, "b": replace(ready, age=1), "c": busy, "d": replace(busy, lag=1)}
    state = MegabatchState(remaining_rows=0, members=members)
    assert [others(state, quorum) for quorum in (0.6, 0.7)] == ["others", "quorum"]
