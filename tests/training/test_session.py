"""Whole runs on a virtual clock: their records, their ends, and workers that come and go."""

from __future__ import annotations

import json

import pytest
from virtual_executor import (
    MEGABATCH_ROWS,
    STAGES,
    VirtualExecutor,
    executor,
    kinds,
    mean_training_loss,
    new_session,
    rows_of,
)

from daskxml.training.orders import (
    CheckpointOrder,
    EvaluateOrder,
    LeaseOrder,
    MergeOrder,
    StopRequest,
)

FIELDS = {
    "megabatch", "rows", "epoch", "wall_s", "train_s", "merge_s", "eval_s", "loss", "metrics",
    "workers", "perturbed", "merged_bytes",
}  # fmt: skip
WORKER_FIELDS = {"updates", "rows", "batch_rows", "lr", "weight", "busy_s", "idle_s"}


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


@pytest.mark.parametrize("is_replicated", [True, False])
@pytest.mark.parametrize("test_rows", [(20, 10), (0, 0), ()])
def test_the_loss_of_all_training_rows_is_part_of_an_evaluation(is_replicated, test_rows):
    session = new_session(
        is_replicated=is_replicated, test_rows=test_rows, megabatches=3, evaluate_every=2,
        training_loss=True, evaluation_rows=16,
    )  # fmt: skip
    play = executor(session)
    play.run()
    plain = executor(new_session(is_replicated=is_replicated, test_rows=(), megabatches=3))
    plain.run()
    expected = mean_training_loss(is_replicated)
    first, *evaluated = session.history
    assert "training_loss" not in first
    assert [row["training_loss"] for row in evaluated] == [expected, expected]
    assert [row["eval_s"] for row in evaluated] == [0.5, 0.5]
    for row, other in zip(session.history, plain.session.history, strict=True):
        assert bool(row["metrics"]) == (row is not first and sum(test_rows) > 0)
        assert row["train_s"] == other["train_s"]
        assert "training_loss" not in other
    for order in kinds(play.log, EvaluateOrder):
        assert all(start % 16 == 0 for _, start, _ in order.train_pieces)


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
