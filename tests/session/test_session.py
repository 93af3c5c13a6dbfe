"""Whole runs on a virtual clock: their records, their ends, and workers that come and go."""

import json

import pytest

from daskxml.session.commands import (
    Evaluate,
    MergeReplicas,
    RunWork,
    StopRequest,
    WriteCheckpoint,
)
from harness.virtual_executor import (
    MEGABATCH_ROWS,
    STAGES,
    VirtualExecutor,
    executor,
    kinds,
    mean_training_loss,
    new_session,
    rows_of,
)

FIELDS = {
    "megabatch", "rows", "epoch", "wall_s", "train_s", "merge_s", "eval_s", "loss", "metrics",
    "workers", "perturbed", "merged_bytes",
}  # fmt: skip
WORKER_FIELDS = {"updates", "rows", "batch_rows", "lr", "weight", "busy_s", "idle_s"}


# ------------------------------------------------------------------ the record


def test_a_run_and_its_history():
    backend = executor(megabatches=7)
    assert backend.run() == "megabatches"
    history = backend.session.history
    every = backend.check_history()  # 448 rows, two epochs and a bit, one after the other
    first = rows_of([(0, 0, 0, 200), (1, 0, 0, 200)])
    assert sorted(row for row in every if row[0] < 2) == sorted(first)
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
    assert history[-1]["wall_s"] == pytest.approx(backend.now_s - 100.0)
    spent = sum(row["train_s"] + row["merge_s"] + row["eval_s"] for row in history)
    assert history[-1]["wall_s"] == pytest.approx(spent)
    merges = kinds(backend.log, MergeReplicas)
    assert [merge.generation for merge in merges] == list(range(1, 8))
    assert merges[0].weights == {n: w["weight"] for n, w in history[0]["workers"].items()}


@pytest.mark.parametrize(
    ("every", "can_checkpoint", "expected"),
    [(2, True, [2, 4, 6, 8]), (0, True, [8]), (1, False, [])],
)
def test_every_how_many_megabatches_evaluations_and_checkpoints_come(
    every, can_checkpoint, expected
):
    backend = executor(
        megabatches=8, evaluate_every=3, checkpoint_every=every, can_checkpoint=can_checkpoint
    )
    backend.run()
    evaluated = [row["megabatch"] for row in backend.session.history if row["metrics"]]
    assert evaluated == [3, 6, 8]  # the last one always
    written = kinds(backend.log, WriteCheckpoint)
    assert [command.megabatch for command in written] == expected


def test_no_test_rows_no_evaluation():
    for test_rows in ((), (0, 0)):
        backend = executor(megabatches=2, test_rows=test_rows)
        assert backend.run() == "megabatches"
        assert kinds(backend.log, Evaluate) == []
        assert backend.session.history[-1]["metrics"] == {}


@pytest.mark.parametrize("is_replicated", [True, False])
@pytest.mark.parametrize("test_rows", [(20, 10), (0, 0), ()])
def test_the_loss_of_all_training_rows_is_part_of_an_evaluation(is_replicated, test_rows):
    session = new_session(
        is_replicated=is_replicated, test_rows=test_rows, megabatches=3, evaluate_every=2,
        training_loss=True, evaluation_rows=16,
    )  # fmt: skip
    backend = executor(session)
    backend.run()
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
    for command in kinds(backend.log, Evaluate):
        assert all(start % 16 == 0 for _, start, _ in command.train_pieces)


# -------------------------------------------------------------------- the ends


def test_epochs():
    backend = executor(epochs=1.0)
    assert backend.run() == "epochs"
    assert [row["rows"] for row in backend.session.history] == [64, 128, 192, 200]


def test_minutes_count_training_and_drain_the_megabatch():
    backend = executor(train_s=3.3)
    assert backend.run(ticks=True) == "minutes"
    history = backend.session.history
    trained_s = sum(row["train_s"] + row["merge_s"] for row in history)
    assert 3.3 <= trained_s < 4.5
    assert history[-1]["rows"] % MEGABATCH_ROWS  # it did not wait for the mega-batch to end
    assert history[-1]["metrics"]
    backend.check_history()


def test_minutes_are_those_before_and_after_a_resumption():
    limits = {"train_s": 3.3, "checkpoint_every": 1, "can_checkpoint": True}
    backend = executor(**limits)
    while not backend.stored:
        backend.advance()
    again = executor(new_session(backend.stored[0], **limits))
    assert again.run(ticks=True) == "minutes"
    assert 3.3 <= sum(row["train_s"] + row["merge_s"] for row in again.session.history) < 4.5


def test_minutes_without_a_tick_end_at_a_merge():
    backend = executor(train_s=3.0)
    assert backend.run() == "minutes"
    assert backend.session.history[-1]["rows"] % MEGABATCH_ROWS == 0


def test_the_target():
    backend = executor(target=0.9, good_after=4, evaluate_every=3, can_checkpoint=True)
    assert backend.run() == "target"
    assert [row["megabatch"] for row in backend.session.history if row["metrics"]] == [3, 6]
    assert len(backend.stored) == 1


@pytest.mark.parametrize("stage", STAGES)
def test_a_stop_request_in_every_stage(stage):
    backend = executor(checkpoint_every=1, evaluate_every=2, can_checkpoint=True)
    for _ in range(9):
        backend.advance()
    backend.until(stage)
    backend.handle(StopRequest("asked"))
    backend.handle(StopRequest("asked twice"))
    assert backend.run() == "asked"
    history = backend.check_history()
    assert history
    assert backend.session.history[-1]["metrics"], "the last one is always evaluated"
    assert backend.stored[-1]["history"] == backend.session.history
    assert len(backend.session.history) <= 3


def test_a_stop_request_before_anything_is_done():
    backend = executor(can_checkpoint=True)
    backend.handle(StopRequest("asked"))
    assert backend.run() == "asked"
    assert len(backend.session.history) == 1
    assert backend.session.history[0]["rows"] == 32  # what was leased already


def test_nothing_is_merged_where_nothing_was_done():
    backend = executor(can_checkpoint=True)
    backend.handle(StopRequest("asked"))
    backend.join("c")  # the stop is near: it gets nothing
    backend.lose("a")
    backend.lose("b")
    assert backend.run() == "asked"
    assert backend.session.history == []
    assert kinds(backend.log, MergeReplicas) == []
    again = executor(new_session(backend.stored[-1], megabatches=2))
    assert again.run() == "megabatches"
    again.check_history()


def test_a_run_that_is_over_when_it_begins():
    backend = executor(megabatches=2, checkpoint_every=1, can_checkpoint=True)
    backend.run()
    again = executor(new_session(backend.stored[-1], megabatches=2))
    assert again.ended == "megabatches"
    assert kinds(again.log, RunWork) == []


# --------------------------------------------------------------------- resume


@pytest.mark.parametrize("is_replicated", [False, True])
def test_a_resumed_run_gives_the_same_commands(is_replicated):
    limits = {"checkpoint_every": 3, "can_checkpoint": True, "is_replicated": is_replicated}
    backend = executor(megabatches=6, **limits)
    backend.run()
    stored = backend.stored[0]
    assert len(stored["history"]) == 3
    session = new_session(stored, megabatches=6, **limits)
    session.placement.train_owners = dict(backend.session.placement.train_owners)
    session.placement.test_owners = dict(backend.session.placement.test_owners)
    again = executor(session)
    assert again.run() == "megabatches"
    cut = next(i for i, o in enumerate(backend.log) if isinstance(o, WriteCheckpoint)) + 1
    assert without_evaluations(again.log) == without_evaluations(backend.log[cut:])
    again.check_history(before=3)
    for one, other in zip(backend.session.history, again.session.history, strict=True):
        for name in ("rows", "epoch", "metrics", "merged_bytes", "perturbed", "loss", "events"):
            assert one[name] == other[name]
        assert one["train_s"] == pytest.approx(other["train_s"])
    walls = [row["wall_s"] for row in again.session.history]
    assert walls == sorted(walls)


def without_evaluations(log):
    """Evaluation orders are counted anew in each session."""
    return [command for command in log if not isinstance(command, Evaluate)]


def test_what_was_stored_stays_as_it_was():
    session = new_session(megabatches=4, checkpoint_every=1, can_checkpoint=True)
    backend = VirtualExecutor(session, {"a": 40.0})
    backend.until("checkpoint")
    plain = session.plain()
    before = json.dumps(plain)
    backend.run()
    assert json.dumps(plain) == before


def test_a_drained_run_resumes_with_the_rows_that_came_back():
    backend = executor(can_checkpoint=True)
    for _ in range(3):
        backend.advance()
    backend.handle(StopRequest("asked"))
    backend.lose("a")  # its rows go back, and are not leased any more
    assert backend.run() == "asked"
    again = executor(new_session(backend.stored[-1], epochs=1.0))
    assert again.run() == "epochs"
    every = again.check_history(before=1)
    assert {row for row in every if row[0] == 0} == set(rows_of([(0, 0, 0, 200)]))


def test_the_speed_of_workers_is_what_their_leases_have_shown():
    backend = executor(megabatches=2)
    assert backend.session.speeds() == {"a": 0.0, "b": 0.0}
    backend.run()
    measured = backend.session.speeds(["b", "a", "unknown"])
    speeds = {name: worker.speed for name, worker in backend.workers.items()}
    assert measured == pytest.approx({**speeds, "unknown": 0.0})
