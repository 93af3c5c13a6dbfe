"""Workers that are lost, join, or report too late, in every stage of a mega-batch."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_scripts import CHOICES, play_script, scripts
from virtual_executor import (
    MEGABATCH_ROWS,
    STAGES,
    VirtualExecutor,
    executor,
    kinds,
    mean_training_loss,
    new_session,
)

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


def test_what_a_lost_worker_scored_after_all_is_not_counted_twice():
    play = executor(megabatches=1)
    play.until("evaluate")
    (late,) = [task.order for task in play.tasks if task.worker == "a"]
    play.lose("a")
    play.tell(play.evaluated(late))
    play.run()
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
    sums = play.evaluated(EvaluateOrder(1, "b", ((0, 0, 20),))).sums
    late = [LeaseReport(lease, 1.0, 1.0, 1, 1) for lease in lost]
    late += [LeaseReport(999, 1.0, 1.0, 1, 1), MergeReport(5), CheckpointReport()]
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


@given(
    script=scripts("lose", "join", "stop"),
    choices=CHOICES,
    speeds=st.lists(st.floats(1.0, 200.0), min_size=1, max_size=4),
    is_replicated=st.booleans(),
    test_rows=st.sampled_from([(), (20, 10)]),
    training_loss=st.booleans(),
)
@settings(max_examples=120, deadline=None)
def test_any_order_of_reports_losses_and_arrivals(
    script, choices, speeds, is_replicated, test_rows, training_loss
):
    """Where every worker is lost, the run goes on from its last checkpoint with new ones."""

    def session(stored):
        return new_session(
            stored, test_rows=test_rows, is_replicated=is_replicated, megabatches=5,
            evaluate_every=2, checkpoint_every=2, can_checkpoint=True,
            training_loss=training_loss, evaluation_rows=16,
        )  # fmt: skip

    def renew(stored, name):
        return VirtualExecutor(session(stored), {name: 60.0})

    begun = VirtualExecutor(session(None), {f"w{i}": speed for i, speed in enumerate(speeds)})
    play = play_script(begun, script, choices, renew)
    assert play.ended in ("megabatches", "asked")
    history = play.session.history
    if play.ended == "megabatches":
        assert [row["rows"] for row in history] == [MEGABATCH_ROWS * i for i in range(1, 6)]
    for row in history:
        is_due = row is history[-1] or row["megabatch"] % 2 == 0
        assert (row["metrics"].get("rows") == 30) == (is_due and test_rows != ())
        found = mean_training_loss(is_replicated) if is_due and training_loss else None
        assert row.get("training_loss") == found
