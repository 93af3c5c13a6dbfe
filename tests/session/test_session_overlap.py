"""Merges that travel while workers go on: order of events, losses, arrivals, stops, the ledger."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from daskxml.core.work_stats import WorkStats
from daskxml.session.commands import (
    Evaluate,
    JoinPending,
    MergeReplicas,
    MergeResult,
    RunWork,
    StopRequest,
    WorkResult,
    WriteCheckpoint,
)
from daskxml.session.overlapped import OverlappedSession
from daskxml.session.placement import Placement
from daskxml.session.stopping import StoppingRules
from daskxml.strategies.adaptive_sgd import AdaptiveSgd
from daskxml.strategies.adaptive_sgd import Config as AdaptiveConfig
from daskxml.strategies.elastic import Config, ElasticSgd
from daskxml.strategies.protocol import WorkerLost
from harness.overlapped_executor import OverlappedExecutor, overlapped
from harness.random_scripts import CHOICES, run_script, scripts
from harness.virtual_executor import MEGABATCH_ROWS, kinds

SPEEDS = {"a": 40.0, "b": 20.0, "c": 30.0}


def two_workers():
    """Mega-batches of one batch of 8 rows for each of two workers, three of them."""
    strategy = ElasticSgd(Config(batch_max=8, megabatch_batches=2))
    placement = Placement(True, (200,), ())
    rules = StoppingRules(megabatches=3)
    return OverlappedSession(strategy, rules, placement, 10)


def lease(number):
    work = WorkStats(rows=8, updates=1, loss_sum=8.0, nonzeros=8, busy_s=1.0)
    return WorkResult(number, (work,))


def short(todo):
    return [
        f"lease {o.workers[0]}" if isinstance(o, RunWork)
        else f"merge {o.generation}{' on' if o.overlaps else ''}" if isinstance(o, MergeReplicas)
        else o.reason for o in todo
    ]  # fmt: skip


def test_three_merges_of_two_workers_by_hand():
    session = two_workers()
    assert short(session.start(["a", "b"], 0.0)) == ["lease a", "lease b"]
    assert session.handle(lease(1), 1.0) == []
    # All is back at 2: the merge travels, the next mega-batch begins at once.
    assert short(session.handle(lease(2), 2.0)) == ["merge 1 on", "lease a", "lease b"]
    assert session.history == []
    assert session.handle(lease(3), 3.0) == []
    # The merge arrives at 3.5, a has done one lease, b none.
    assert session.handle(MergeResult(80, corrected={"a": 1, "b": 0}), 3.5) == []
    assert session.generation == 1
    assert session.closed_rows == 0  # until it is known that nothing waits for it
    assert short(session.handle(lease(4), 4.0)) == ["merge 2 on", "lease a", "lease b"]
    assert session.closed_rows == 1
    # The second merge is slow: from 5 to 7 everybody waits for it.
    assert session.handle(lease(5), 4.5) == []
    assert session.handle(lease(6), 5.0) == []
    assert session.stage == "merge"
    # The third merge is the last one, so everybody waits for it, too.
    assert short(session.handle(MergeResult(80, corrected={"a": 1, "b": 1}), 7.0)) == ["merge 3"]
    assert short(session.handle(MergeResult(80), 8.0)) == ["megabatches"]
    rows = session.history
    assert [row["rows"] for row in rows] == [16, 32, 48]
    assert [row["train_s"] for row in rows] == [2.0, 2.0, 1.0]
    assert [row["merge_s"] for row in rows] == [0.0, 2.0, 1.0]
    assert [row["overlapped_s"] for row in rows] == [1.5, 1.0, 0.0]
    assert sum(row["train_s"] + row["merge_s"] for row in rows) == 8.0
    counted = [{n: w.get("corrected_after") for n, w in row["workers"].items()} for row in rows]
    assert counted == [{"a": None, "b": None}, {"a": 1, "b": 0}, {"a": 1, "b": 1}]
    places = [[w["leases"] for w in row["workers"].values()] for row in rows]
    assert places[0] == [[[[0, 0, 0, 8]]], [[[0, 0, 8, 16]]]]
    assert places[2] == [[[[0, 0, 32, 40]]], [[[0, 0, 40, 48]]]]


def test_a_lost_workers_weight_and_rows_go_to_the_others():
    session = two_workers()
    session.start(["a", "b"], 0.0)
    session.handle(lease(1), 1.0)
    session.handle(lease(2), 2.0)
    session.handle(lease(3), 3.0)
    again, *leases = session.handle(WorkerLost("b"), 3.0)
    assert again == MergeReplicas(1, {"a": 1.0}, 0.9, overlaps=True)
    assert [(o.workers, o.batches) for o in leases] == [(("a",), ((((0, 0, 8, 16),),),))]
    assert session.handle(MergeResult(0, corrected={"a": 1}), 4.0) == []
    assert session.history[0]["rows"] == 8  # of a alone
    assert session.history[0]["workers"].keys() == {"a"}


@pytest.mark.parametrize("strategy", ["adaptive-sgd", "elastic"])
@pytest.mark.parametrize("merge_s", [0.01, 0.5, 4.0])
def test_every_row_is_merged_once(strategy, merge_s):
    session = overlapped(strategy=strategy, megabatches=6, evaluate_every=2)
    backend = OverlappedExecutor(session, SPEEDS, merge_s)
    assert backend.run() == "megabatches"
    backend.check_history()
    assert [row["rows"] for row in session.history] == [MEGABATCH_ROWS * n for n in range(1, 7)]
    merges = kinds(backend.log, MergeReplicas)
    assert [command.overlaps for command in merges] == [True] * 5 + [False]
    measured = [row["megabatch"] for row in session.history if row["metrics"]]
    assert measured == [2, 4, 6]


def test_time_between_merges_is_the_longer_of_training_and_merging():
    for merge_s in (0.25, 5.0):
        session = overlapped(strategy="elastic", megabatches=6, tests=())
        backend = OverlappedExecutor(session, {"a": 40.0, "b": 40.0}, merge_s)
        backend.run()
        for row in session.history[1:-1]:
            assert row["train_s"] == pytest.approx(32 / 40)
            between_s = row["train_s"] + row["merge_s"]
            assert between_s == pytest.approx(max(32 / 40, merge_s))
            assert row["merge_s"] + row["overlapped_s"] == pytest.approx(merge_s)


def test_a_checkpoint_is_written_when_every_replica_is_the_global_model():
    session = overlapped(megabatches=7, checkpoint_every=3, can_checkpoint=True)
    backend = OverlappedExecutor(session, SPEEDS)
    backend.run()
    assert [command.megabatch for command in kinds(backend.log, WriteCheckpoint)] == [3, 6, 7]
    overlaps = [command.overlaps for command in kinds(backend.log, MergeReplicas)]
    assert overlaps == [True, True, False, True, True, False, False]


def test_a_resumed_session_goes_on_as_the_whole_one():
    limits = {"checkpoint_every": 2, "can_checkpoint": True, "evaluate_every": 2}
    whole = OverlappedExecutor(overlapped(megabatches=6, **limits), SPEEDS)
    whole.run()
    stored = whole.stored[1]  # of mega-batch 4
    resumed = OverlappedExecutor(overlapped(stored, megabatches=6, **limits), SPEEDS)
    resumed.run()
    mine, other = (backend.session.history[4:] for backend in (whole, resumed))
    assert [row["workers"].keys() for row in mine] == [row["workers"].keys() for row in other]
    for one, another in zip(mine, other, strict=True):
        for name, worker in one["workers"].items():
            assert worker["leases"] == another["workers"][name]["leases"]
            assert worker.get("corrected_after") == another["workers"][name].get("corrected_after")


def until(backend, where):
    """Go on to one of the places where a worker may be lost."""
    for _ in range(200):
        session, travels = backend.session, backend.is_merging
        found = {
            "is_merging": session.stage == "train" and travels and session.log.rows > 0,
            "waiting": session.stage == "merge" and travels,
            "arrived": session.stage == "train" and not travels and len(session.history) == 1,
            "closing": session.stage == "evaluate" and session.rows_done > session.rows_merged,
            "measuring": session.stage == "merge" and not travels,
        }
        if found[where]:
            return
        backend.advance()
    raise AssertionError(where)


PLACES = {"is_merging": 1.0, "waiting": 9.0, "arrived": 0.05, "closing": 0.5, "measuring": 0.5}


@pytest.mark.parametrize(
    ("place", "strategy"),
    [
        (p, s)
        for p in PLACES
        for s in ("adaptive-sgd", "elastic")
        if (p, s) != ("measuring", "elastic")
    ],
)
def test_a_worker_is_lost(place, strategy):
    session = overlapped(strategy=strategy, megabatches=4)
    backend = OverlappedExecutor(session, SPEEDS, PLACES[place])
    until(backend, place)
    before = len(backend.merged)
    backend.lose("a")
    assert backend.run() == "megabatches"
    backend.check_history()
    for row in session.history:
        assert sum(w["weight"] for w in row["workers"].values()) == pytest.approx(1.0)
        assert row["metrics"]["rows"] == 30
    (counted,) = [event for row in session.history for event in row["events"]]
    assert counted["worker"] == "a"
    assert counted["rows_returned"] > 0
    gone = [("a" in row["workers"]) for row in session.history]
    # What had been merged before stays; nothing that was under way does.
    assert gone == [True] * before + [False] * (4 - before)


def test_a_stop_after_all_work_was_lost_ends_with_a_merge_that_moves_nothing():
    """Worker a had the only batch of both mega-batches."""
    strategy = AdaptiveSgd(AdaptiveConfig(batch_max=8, megabatch_batches=1, dispatch="batch"))
    limits = StoppingRules(checkpoint_every=0, can_checkpoint=True, ks=(1,))
    session = OverlappedSession(strategy, limits, Placement(True, (200,), (30,)), 100)
    backend = OverlappedExecutor(session, {"a": 40.0, "b": 40.0}, 9.0)
    while not backend.is_merging:
        backend.advance()
    backend.handle(StopRequest("asked"))
    backend.lose("a")
    assert kinds(backend.log, MergeReplicas)[-1] == MergeReplicas(1, {"b": 1.0}, 0.0, overlaps=True)
    assert backend.run() == "asked"
    backend.check_history()
    (row,) = session.history
    assert row["rows"] == 0
    assert row["metrics"]["rows"] == 30
    assert len(backend.stored) == 1  # once only
    assert backend.stored[0]["ledger"]["returned"] == [[0, 0, 0, 8], [0, 0, 8, 16]]


@pytest.mark.parametrize("merge_s", [0.1, 0.5, 9.0])
def test_a_worker_joins_once_a_merge_was_waited_for(merge_s):
    session = overlapped(megabatches=6, checkpoint_every=0)
    backend = OverlappedExecutor(session, SPEEDS, merge_s)
    while not backend.is_merging:
        backend.advance()
    assert not session.may_join
    assert session.handle(JoinPending(), backend.now_s) == []
    while not session.may_join or session.stage != "evaluate":
        backend.advance()
    backend.join("d")
    assert backend.run() == "megabatches"
    backend.check_history()
    first = next(row for row in session.history if "d" in row["workers"])
    assert first["workers"]["d"]["rows"] > 0
    assert "corrected_after" not in first["workers"]["d"]
    assert (
        sum(not command.overlaps for command in kinds(backend.log, MergeReplicas)) == 2
    )  # that, the last


def test_a_worker_joins_while_no_merge_is_under_way():
    session = overlapped(megabatches=4)
    backend = OverlappedExecutor(session, SPEEDS, 0.05)
    until(backend, "arrived")
    assert session.may_join
    backend.join("d")
    backend.run()
    backend.check_history()
    assert "corrected_after" in session.history[1]["workers"]["a"]
    assert session.history[1]["workers"]["d"]["rows"] > 0


@pytest.mark.parametrize("place", PLACES)
def test_a_stop_ends_with_a_merge_that_all_wait_for(place):
    session = overlapped(checkpoint_every=5, can_checkpoint=True)
    backend = OverlappedExecutor(session, SPEEDS, PLACES[place])
    until(backend, place)
    backend.handle(StopRequest("asked"))
    assert backend.run() == "asked"
    backend.check_history()
    assert not kinds(backend.log, MergeReplicas)[-1].overlaps
    assert session.history[-1]["metrics"]["rows"] == 30
    assert len(backend.stored[-1]["history"]) == len(session.history)
    json.dumps(session.plain())


def test_a_target_that_is_met_ends_the_run_at_the_next_merge():
    session = overlapped(target=0.5, target_metric="P@1")
    backend = OverlappedExecutor(session, SPEEDS, good_after=2)
    assert backend.run() == "target"
    assert len(session.history) == 3  # the third was done when the second was measured
    backend.check_history()


def test_time_under_way_counts_as_training():
    session = overlapped(train_s=3.0, tests=())
    backend = OverlappedExecutor(session, {"a": 40.0, "b": 40.0}, 0.7)
    assert backend.run(ticks=True) == "minutes"
    spent_s = sum(row["train_s"] + row["merge_s"] for row in session.history)
    assert 3.0 <= spent_s < 3.0 + 2 * 0.2 + 0.7  # leases under way, and the merge
    assert spent_s == pytest.approx(backend.now_s - 100.0)


def test_no_worker_steps_while_the_global_model_is_evaluated():
    session = overlapped(megabatches=4)
    backend = OverlappedExecutor(session, SPEEDS, 0.3)
    while not backend.ended:
        kinds_open = {type(task.command) for task in backend.tasks}
        assert not {Evaluate, RunWork} <= kinds_open
        assert not {Evaluate, MergeReplicas} <= kinds_open
        backend.advance()


@pytest.mark.parametrize("strategy", ["adaptive-sgd", "elastic"])
def test_two_losses_while_the_global_model_is_evaluated(strategy):
    """The leases that follow from the first loss are held, and still valid at the second."""
    session = overlapped(strategy=strategy, megabatches=6)
    run = OverlappedExecutor(session, {"a": 40.0, "b": 20.0, "c": 30.0, "d": 25.0}, 0.01)
    run.until("evaluate")
    assert session.generation == 1
    run.lose("d")
    run.lose("c")
    assert run.run() == "megabatches"
    run.check_history()
    assert session.history[-1]["rows"] == 6 * MEGABATCH_ROWS


@given(
    script=scripts("lose", "join", "await", "stop"),
    choices=CHOICES,
    speeds=st.lists(st.floats(1.0, 200.0), min_size=1, max_size=4),
    merge_s=st.sampled_from([0.01, 0.3, 5.0]),
    strategy=st.sampled_from(["adaptive-sgd", "elastic"]),
    is_replicated=st.booleans(),
    tests=st.sampled_from([(), (20, 10)]),
)
@example(  # the loss ends the mega-batch: the merge that then begins must be ordered once
    script=[(7, "join", 1), (5, "join", 0), (2, "await", 0), (9, "lose", 0)], choices=[0],
    speeds=[16.0, 16.0], merge_s=0.01, strategy="elastic", is_replicated=True, tests=(20, 10),
)  # fmt: skip
@settings(max_examples=120, deadline=None)
def test_any_order_of_results_losses_and_arrivals(
    script, choices, speeds, merge_s, strategy, is_replicated, tests
):
    """Where every worker is lost, the run continues from its last checkpoint with new ones."""

    def session(stored):
        return overlapped(
            stored, strategy=strategy, is_replicated=is_replicated, tests=tests, megabatches=6,
            evaluate_every=2, checkpoint_every=4, can_checkpoint=True,
        )  # fmt: skip

    def renew(stored, name):
        return OverlappedExecutor(session(stored), {name: 60.0}, merge_s)

    first = {f"w{i}": speed for i, speed in enumerate(speeds)}
    begun = OverlappedExecutor(session(None), first, merge_s)
    backend = run_script(begun, script, choices, renew, lambda backend: backend.session.may_join)
    assert backend.ended in ("megabatches", "asked")
    for row in backend.session.history:
        is_due = row is backend.session.history[-1] or row["megabatch"] % 2 == 0
        assert (row["metrics"].get("rows") == 30) == (is_due and tests != ())
    if backend.ended == "megabatches":
        assert len(backend.session.history) == 6
