"""Whole runs on a virtual clock: their records, their ends, and workers that come and go."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_executor import VirtualExecutor, rows_of

from daskxml.strategies.adaptive_sgd import AdaptiveSgd, Config
from daskxml.strategies.protocol import Measured
from daskxml.training.orders import (
    CheckpointOrder,
    CheckpointReport,
    EvaluateOrder,
    EvaluationReport,
    LeaseOrder,
    LeaseReport,
    MergeOrder,
    MergeReport,
    PlaceOrder,
    StopRequest,
)
from daskxml.training.placement import Placement
from daskxml.training.session import Limits, Session

FIELDS = {
    "megabatch", "rows", "epoch", "wall_s", "train_s", "merge_s", "eval_s", "loss", "metrics",
    "workers", "perturbed", "merged_bytes",
}  # fmt: skip
WORKER_FIELDS = {"updates", "rows", "batch_rows", "lr", "weight", "busy_s", "idle_s"}
MEGABATCH_ROWS = 64  # 8 batches of 8
STAGES = ("train", "merge", "evaluate", "checkpoint")


def new_session(stored=None, *, test_rows=(20, 10), is_replicated=True, **limits):
    """200 training rows in two parts."""
    where = Placement(is_replicated, (120, 80), test_rows)
    machine = AdaptiveSgd(Config(batch_max=8, megabatch_batches=8))
    return Session(machine, Limits(**{"ks": (1,), **limits}), where, 100, stored)


def executor(session=None, good_after=10**9, **limits):
    session = session or new_session(**limits)
    return VirtualExecutor(session, {"a": 40.0, "b": 20.0}, good_after=good_after)


def kinds(log, kind):
    return [order for order in log if isinstance(order, kind)]


# ------------------------------------------------------------------ the record


def test_a_run_and_its_history():
    play = executor(megabatches=7)
    assert play.run() == "megabatches"
    history = play.session.history
    play.check_history()
    assert [row["megabatch"] for row in history] == list(range(1, 8))
    assert [row["rows"] for row in history] == [MEGABATCH_ROWS * i for i in range(1, 8)]
    assert [row["epoch"] for row in history] == [MEGABATCH_ROWS * i / 200 for i in range(1, 8)]
    for row in history:
        assert row.keys() >= FIELDS
        assert row["loss"] == 0.5
        assert row["merged_bytes"] == 2000
        assert row["merge_s"] == 0.125 + 0.25
        assert row["eval_s"] == 0.5
        assert row["metrics"]["rows"] == 30
        assert row["workers"].keys() == {"a", "b"}
        assert sum(w["weight"] for w in row["workers"].values()) == pytest.approx(1.0)
        for worker in row["workers"].values():
            assert worker.keys() >= WORKER_FIELDS
            assert worker["busy_s"] + worker["idle_s"] == pytest.approx(row["train_s"])
            assert worker["updates"] >= worker["rows"] / 8
    json.dumps(history)
    assert history[-1]["wall_s"] == pytest.approx(play.now_s - 100.0)
    spent = sum(row["train_s"] + row["merge_s"] + row["eval_s"] for row in history)
    assert history[-1]["wall_s"] == pytest.approx(spent)
    merges = kinds(play.log, MergeOrder)
    assert [merge.generation for merge in merges] == list(range(1, 8))
    assert merges[0].weights == {n: w["weight"] for n, w in history[0]["workers"].items()}


def test_the_rows_of_an_epoch_are_done_before_the_next_begins():
    play = executor(megabatches=7)  # 448 rows, two epochs and a bit
    play.run()
    every = play.check_history()
    assert sorted(row for row in every if row[0] < 2) == sorted(
        rows_of([(0, 0, 0, 200), (1, 0, 0, 200)])
    )


def test_every_how_many_megabatches_evaluations_and_checkpoints_come():
    play = executor(megabatches=8, evaluate_every=3, checkpoint_every=2, can_checkpoint=True)
    play.run()
    evaluated = [row["megabatch"] for row in play.session.history if row["metrics"]]
    assert evaluated == [3, 6, 8]  # the last one always
    written = kinds(play.log, CheckpointOrder)
    assert [order.megabatch for order in written] == [2, 4, 6, 8]


def test_checkpoints_only_at_the_end_or_nowhere():
    play = executor(megabatches=3, checkpoint_every=0, can_checkpoint=True)
    play.run()
    assert [order.megabatch for order in kinds(play.log, CheckpointOrder)] == [3]
    play = executor(megabatches=3, checkpoint_every=1)
    play.run()
    assert kinds(play.log, CheckpointOrder) == []


def test_no_test_rows_no_evaluation():
    for test_rows in ((), (0, 0)):
        play = executor(megabatches=2, test_rows=test_rows)
        assert play.run() == "megabatches"
        assert kinds(play.log, EvaluateOrder) == []
        assert play.session.history[-1]["metrics"] == {}


# -------------------------------------------------------------------- the ends


def test_epochs():
    play = executor(epochs=1.0)
    assert play.run() == "epochs"
    assert [row["rows"] for row in play.session.history] == [64, 128, 192, 256]


def test_minutes_count_training_and_drain_the_megabatch():
    play = executor(train_s=3.3)
    assert play.run(ticks=True) == "minutes"
    history = play.session.history
    trained_s = sum(row["train_s"] + row["merge_s"] for row in history)
    assert 3.3 <= trained_s < 4.5
    assert history[-1]["rows"] % MEGABATCH_ROWS  # it did not wait for the mega-batch to end
    assert history[-1]["metrics"]
    play.check_history()


def test_minutes_without_a_tick_end_at_a_merge():
    play = executor(train_s=3.0)
    assert play.run() == "minutes"
    assert play.session.history[-1]["rows"] % MEGABATCH_ROWS == 0


def test_the_target():
    play = executor(target=0.9, good_after=4, evaluate_every=3, can_checkpoint=True)
    assert play.run() == "target"
    assert [row["megabatch"] for row in play.session.history if row["metrics"]] == [3, 6]
    assert len(play.stored) == 1


@pytest.mark.parametrize("stage", STAGES)
def test_a_stop_request_in_every_stage(stage):
    play = executor(checkpoint_every=1, evaluate_every=2, can_checkpoint=True)
    for _ in range(9):
        play.advance()
    play.until(stage)
    play.tell(StopRequest("asked"))
    play.tell(StopRequest("asked twice"))
    assert play.run() == "asked"
    history = play.check_history()
    assert history
    assert play.session.history[-1]["metrics"], "the last one is always evaluated"
    assert play.stored[-1]["history"] == play.session.history
    assert len(play.session.history) <= 3


def test_a_stop_request_before_anything_is_done():
    play = executor(can_checkpoint=True)
    play.tell(StopRequest("asked"))
    assert play.run() == "asked"
    assert len(play.session.history) == 1
    assert play.session.history[0]["rows"] == 32  # what was leased already


def test_nothing_is_merged_where_nothing_was_done():
    play = executor(can_checkpoint=True)
    play.tell(StopRequest("asked"))
    play.join("c")  # the stop is near: it gets nothing
    play.lose("a")
    play.lose("b")
    assert play.run() == "asked"
    assert play.session.history == []
    assert kinds(play.log, MergeOrder) == []
    again = executor(new_session(play.stored[-1], megabatches=2))
    assert again.run() == "megabatches"
    again.check_history()


def test_a_run_that_is_over_when_it_begins():
    play = executor(megabatches=2, checkpoint_every=1, can_checkpoint=True)
    play.run()
    again = executor(new_session(play.stored[-1], megabatches=2))
    assert again.ended == "megabatches"
    assert kinds(again.log, LeaseOrder) == []


# --------------------------------------------------------------------- resume


@pytest.mark.parametrize("is_replicated", [False, True])
def test_a_resumed_run_gives_the_same_orders(is_replicated):
    limits = {"checkpoint_every": 3, "can_checkpoint": True, "is_replicated": is_replicated}
    play = executor(megabatches=6, **limits)
    play.run()
    stored = play.stored[0]
    assert len(stored["history"]) == 3
    session = new_session(stored, megabatches=6, **limits)
    session.placement.train_owners = dict(play.session.placement.train_owners)
    session.placement.test_owners = dict(play.session.placement.test_owners)
    again = executor(session)
    assert again.run() == "megabatches"
    cut = next(i for i, o in enumerate(play.log) if isinstance(o, CheckpointOrder)) + 1
    assert without_evaluations(again.log) == without_evaluations(play.log[cut:])
    again.check_history(before=3)
    for one, other in zip(play.session.history, again.session.history, strict=True):
        for name in ("rows", "epoch", "metrics", "merged_bytes", "perturbed", "loss", "events"):
            assert one[name] == other[name]
        assert one["train_s"] == pytest.approx(other["train_s"])
    walls = [row["wall_s"] for row in again.session.history]
    assert walls == sorted(walls)


def without_evaluations(log):
    """Evaluation orders are counted anew in each session."""
    return [order for order in log if not isinstance(order, EvaluateOrder)]


def test_what_was_stored_stays_as_it_was():
    session = new_session(megabatches=4, checkpoint_every=1, can_checkpoint=True)
    play = VirtualExecutor(session, {"a": 40.0})
    play.until("checkpoint")
    plain = session.plain()
    before = json.dumps(plain)
    play.run()
    assert json.dumps(plain) == before


def test_a_drained_run_resumes_with_the_rows_that_came_back():
    play = executor(can_checkpoint=True)
    for _ in range(3):
        play.advance()
    play.tell(StopRequest("asked"))
    play.lose("a")  # its rows go back, and are not leased any more
    assert play.run() == "asked"
    again = executor(new_session(play.stored[-1], epochs=1.0))
    assert again.run() == "epochs"
    every = again.check_history(before=1)
    assert {row for row in every if row[0] == 0} == set(rows_of([(0, 0, 0, 200)]))


# --------------------------------------------------------------------- losses


@pytest.mark.parametrize("is_replicated", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_a_worker_lost_in_every_stage(stage, is_replicated):
    session = new_session(
        megabatches=4, checkpoint_every=1, can_checkpoint=True, is_replicated=is_replicated
    )
    play = VirtualExecutor(session, {"a": 40.0, "b": 20.0, "c": 30.0})
    for _ in range(20):
        play.advance()
    play.until(stage)
    megabatch = len(play.session.history)
    play.lose("a")
    assert play.run() == "megabatches"
    play.check_history()
    assert all(row["metrics"]["rows"] == 30 for row in play.session.history)
    told = [(row["megabatch"], e["worker"]) for row in play.session.history for e in row["events"]]
    assert told == [(megabatch + (stage in ("train", "merge")), "a")]
    assert bool(kinds(play.log, PlaceOrder)) is not is_replicated


@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_worker_lost_while_a_checkpoint_is_written(lost):
    play = executor(megabatches=3, checkpoint_every=1, can_checkpoint=True)
    play.until("checkpoint")
    play.lose(lost)
    written = [order.worker for order in kinds(play.log, CheckpointOrder)]
    assert written == (["a", "b"] if lost == "a" else ["a"])  # again only if the writer is gone
    assert play.run() == "megabatches"
    play.check_history()


def test_a_worker_lost_during_an_evaluation_has_its_pieces_done_by_others():
    play = VirtualExecutor(new_session(megabatches=1), {"a": 40.0, "b": 20.0, "c": 30.0})
    play.until("evaluate")
    play.advance()  # a is done
    play.lose("a")
    play.lose("b")
    assert play.run() == "megabatches"
    assert play.session.history[0]["metrics"]["rows"] == 30


@pytest.mark.parametrize("is_measured", [False, True])
def test_a_loss_at_the_merge_undoes_it(is_measured):
    play = executor(megabatches=1)
    play.until("merge")
    if is_measured:
        play.advance()
        assert kinds(play.log, MergeOrder)
    play.lose("a")
    assert play.session.stage == "train"
    play.run()
    (row,) = play.session.history
    assert row["workers"].keys() == {"b"}
    assert row["workers"]["b"]["rows"] == MEGABATCH_ROWS
    assert row["workers"]["b"]["weight"] == 1.0
    assert row["events"][0]["rows_returned"] > 0


@pytest.mark.parametrize("is_measured", [False, True])
def test_a_stop_during_a_merge_that_is_undone_does_not_wait_for_lost_rows(is_measured):
    play = executor()
    play.until("merge")
    if is_measured:
        play.advance()
    play.tell(StopRequest("asked"))
    play.lose("a")
    leases = len(kinds(play.log, LeaseOrder))
    assert play.run() == "asked"
    assert len(kinds(play.log, LeaseOrder)) == leases
    assert play.session.history[0]["rows"] == play.session.history[0]["workers"]["b"]["rows"]


@pytest.mark.parametrize("stage", STAGES)
def test_the_last_worker_lost_means_a_restart(stage):
    play = executor(megabatches=9, checkpoint_every=1, can_checkpoint=True)
    play.until(stage)
    play.lose("b")
    play.lose("a")
    assert play.ended == "restart"
    assert play.session.stage == "lost"
    assert play.session.handle(StopRequest("asked"), 1.0) == []
    assert play.session.tick(1e9) == []


# ------------------------------------------------------------------- arrivals


@pytest.mark.parametrize("is_replicated", [False, True])
@pytest.mark.parametrize("stage", ["train", "evaluate", "checkpoint"])
def test_a_worker_that_joins_takes_part(stage, is_replicated):
    session = new_session(
        megabatches=4, checkpoint_every=1, can_checkpoint=True, is_replicated=is_replicated
    )
    play = VirtualExecutor(session, {"a": 40.0, "b": 20.0})
    play.until("evaluate")
    play.until(stage)
    megabatch = len(session.history) + (stage == "train")
    play.join("c")
    assert play.run() == "megabatches"
    play.check_history()
    told = [(row["megabatch"], e["kind"]) for row in session.history for e in row["events"]]
    assert told == [(megabatch, "joined")]
    assert session.history[megabatch]["workers"].keys() == {"a", "b", "c"}
    assert session.history[megabatch]["workers"]["c"]["rows"] > 0


def test_a_lost_worker_may_come_back_under_its_name():
    play = executor(megabatches=3)
    for _ in range(3):
        play.advance()
    play.lose("a")
    play.join("a")
    play.run()
    play.check_history()
    assert play.session.history[0]["workers"]["a"]["rows"] > 0


def test_shards_of_a_worker_that_was_lost_before_the_start_are_placed_again():
    session = new_session(megabatches=1, is_replicated=False)
    session.placement.spread({"a": 1.0, "b": 1.0})
    play = VirtualExecutor(session, {"a": 40.0})
    assert isinstance(play.log[0], PlaceOrder)
    assert play.run() == "megabatches"
    assert session.history[0]["metrics"]["rows"] == 30
    settled = new_session(megabatches=1, is_replicated=False)
    settled.placement.spread({"a": 1.0})
    assert isinstance(settled.start(["a"], 0.0)[0], LeaseOrder)


# -------------------------------------------------------------- late messages


def test_reports_out_of_turn_change_nothing():
    play = executor(megabatches=2, checkpoint_every=1, can_checkpoint=True)
    for _ in range(2):
        play.advance()
    lost = [task.order.lease for task in play.tasks if task.worker == "a"]
    play.lose("a")
    sums = play._evaluated(EvaluateOrder(1, "b", ((0, 0, 20),))).sums
    late = [LeaseReport(lease, 1.0, 1.0) for lease in lost]
    late += [LeaseReport(999, 1.0, 1.0), MergeReport(5), CheckpointReport()]
    late += [EvaluationReport(1, sums), Measured({"a": 1.0, "b": 1.0}, 100)]
    for stage in STAGES:
        play.until(stage)
        expected = {"merge": MergeReport, "checkpoint": CheckpointReport}.get(stage)
        for report in late:
            if not isinstance(report, expected or ()) and (
                stage != "evaluate" or not isinstance(report, EvaluationReport)
            ):
                assert play.session.handle(report, play.now_s) == [], (stage, report)
    play.run()
    play.check_history()


ACTIONS = st.lists(
    st.tuples(
        st.integers(0, 9), st.sampled_from(["lose", "join", "stop", "none"]), st.integers(0, 9)
    ),
    max_size=14,
)


@given(
    script=ACTIONS,
    choices=st.lists(st.integers(0, 5), min_size=1, max_size=40),
    speeds=st.lists(st.floats(1.0, 200.0), min_size=1, max_size=4),
    is_replicated=st.booleans(),
    test_rows=st.sampled_from([(), (20, 10)]),
)
@settings(max_examples=120, deadline=None)
def test_any_order_of_reports_losses_and_arrivals(
    script, choices, speeds, is_replicated, test_rows
):
    """Where every worker is lost, the run goes on from its last checkpoint with new ones."""

    def session(stored):
        return new_session(
            stored, test_rows=test_rows, is_replicated=is_replicated, megabatches=5,
            evaluate_every=2, checkpoint_every=2, can_checkpoint=True,
        )  # fmt: skip

    play = VirtualExecutor(session(None), {f"w{i}": speed for i, speed in enumerate(speeds)})
    before, turn = 0, 0
    pending = list(script)
    while play.ended in ("", "restart"):
        if play.ended:
            stored = play.stored[-1] if play.stored else None
            play.check_history(before)
            saved = play.stored
            before = len(stored["history"]) if stored else 0
            play = VirtualExecutor(session(stored), {f"r{turn}": 60.0})
            play.stored = saved
            continue
        steps, action, number = pending.pop(0) if pending else (1, "none", 0)
        for _ in range(steps):
            if not play.ended:
                turn += 1
                play.advance(choices[turn % len(choices)])
        if play.ended:
            continue
        there = sorted(play.workers)
        if action == "lose":
            play.lose(there[number % len(there)])
        elif action == "join" and play.session.stage in ("train", "evaluate", "checkpoint"):
            play.join(f"j{turn}-{len(play.log)}", 1.0 + 20.0 * number)
        elif action == "stop" and number < 3:
            play.tell(StopRequest("asked"))
        assert turn < 5000, "the run does not end"
    assert play.ended in ("megabatches", "asked")
    play.check_history(before)
    history = play.session.history
    if play.ended == "megabatches":
        assert [row["rows"] for row in history] == [MEGABATCH_ROWS * i for i in range(1, 6)]
    for row in history:
        assert sum(w["weight"] for w in row["workers"].values()) == pytest.approx(1.0)
        is_due = row is history[-1] or row["megabatch"] % 2 == 0
        assert (row["metrics"].get("rows") == 30) == (is_due and test_rows != ())
    json.dumps(play.session.plain())
