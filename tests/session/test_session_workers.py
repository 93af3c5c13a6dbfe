"""Workers that are lost, join, or report too late, in every stage of a mega-batch."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.work_stats import WorkStats
from daskxml.session.commands import (
    CheckpointWritten,
    Evaluate,
    EvaluationResult,
    MergeReplicas,
    MergeResult,
    Rebalance,
    RunWork,
    StopRequest,
    WorkResult,
    WriteCheckpoint,
)
from daskxml.strategies.protocol import (
    REPLICA,
    GiveUp,
    Measure,
    Measured,
    WorkerJoined,
    WorkerSilent,
)
from harness.random_scripts import CHOICES, run_script, scripts
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

# --------------------------------------------------------------------- losses


@pytest.mark.parametrize("is_replicated", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_a_worker_lost_in_every_stage(stage, is_replicated):
    session = new_session(
        megabatches=4, checkpoint_every=1, can_checkpoint=True, is_replicated=is_replicated
    )
    backend = VirtualExecutor(session, {"a": 40.0, "b": 20.0, "c": 30.0})
    for _ in range(20):
        backend.advance()
    backend.until(stage)
    megabatch = len(backend.session.history)
    backend.lose("a")
    assert backend.run() == "megabatches"
    backend.check_history()
    assert all(row["metrics"]["rows"] == 30 for row in backend.session.history)
    counted = [
        (row["megabatch"], e["worker"]) for row in backend.session.history for e in row["events"]
    ]
    assert counted == [(megabatch + 1, "a")]
    assert bool(kinds(backend.log, Rebalance)) is not is_replicated


@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_worker_lost_while_a_checkpoint_is_written(lost):
    backend = executor(megabatches=3, checkpoint_every=1, can_checkpoint=True)
    backend.until("checkpoint")
    backend.lose(lost)
    written = [command.worker for command in kinds(backend.log, WriteCheckpoint)]
    assert written == (["a", "b"] if lost == "a" else ["a"])  # again only if the writer is gone
    assert backend.run() == "megabatches"
    backend.check_history()


def test_a_worker_lost_during_an_evaluation_has_its_pieces_done_by_others():
    backend = VirtualExecutor(new_session(megabatches=1), {"a": 40.0, "b": 20.0, "c": 30.0})
    backend.until("evaluate")
    backend.advance()  # a is done
    backend.lose("a")
    backend.lose("b")
    assert backend.run() == "megabatches"
    assert backend.session.history[0]["metrics"]["rows"] == 30


def test_what_a_lost_worker_scored_after_all_is_not_counted_twice():
    backend = executor(megabatches=1)
    backend.until("evaluate")
    (late,) = [task.command for task in backend.tasks if task.worker == "a"]
    backend.lose("a")
    backend.handle(backend.evaluated(late))
    backend.run()
    assert backend.session.history[0]["metrics"]["rows"] == 30


@pytest.mark.parametrize("is_measured", [False, True])
def test_a_loss_at_the_merge_undoes_it(is_measured):
    backend = executor(megabatches=1)
    backend.until("merge")
    if is_measured:
        backend.advance()
        assert kinds(backend.log, MergeReplicas)
    backend.lose("a")
    assert backend.session.stage == "train"
    backend.run()
    (row,) = backend.session.history
    assert row["workers"].keys() == {"b"}
    assert row["workers"]["b"]["rows"] == MEGABATCH_ROWS
    assert row["workers"]["b"]["weight"] == 1.0
    assert row["events"][0]["rows_returned"] > 0


@pytest.mark.parametrize("is_measured", [False, True])
def test_a_stop_during_a_merge_that_is_undone_does_not_wait_for_lost_rows(is_measured):
    backend = executor()
    backend.until("merge")
    if is_measured:
        backend.advance()
    backend.handle(StopRequest("asked"))
    backend.lose("a")
    leases = len(kinds(backend.log, RunWork))
    assert backend.run() == "asked"
    assert len(kinds(backend.log, RunWork)) == leases
    assert backend.session.history[0]["rows"] == backend.session.history[0]["workers"]["b"]["rows"]


@pytest.mark.parametrize("stage", STAGES)
def test_the_last_worker_lost_means_a_restart(stage):
    backend = executor(megabatches=9, checkpoint_every=1, can_checkpoint=True)
    backend.until(stage)
    backend.lose("b")
    backend.lose("a")
    assert backend.ended == "restart"
    assert backend.session.stage == "lost"


@pytest.mark.parametrize("stage", STAGES)
def test_the_last_worker_gone_silent_means_a_restart(stage):
    backend = executor(megabatches=9, checkpoint_every=1, can_checkpoint=True)
    backend.until(stage)
    backend.lose("b")
    backend.handle(WorkerSilent("a"))
    assert backend.ended == "restart"
    assert backend.session.stage == "lost"
    assert backend.session.handle(StopRequest("asked"), 1.0) == []
    assert backend.session.tick(1e9) == []


def test_a_late_worker_does_not_come_back_with_a_change_that_others_make_again():
    """Its rows were given to others after it had copied the model for its return."""
    backend = executor(megabatches=4)
    backend.until("train")
    session = backend.session
    session._command(GiveUp("a"), 100.0)
    taken = len(session._trace)
    assert session.handle(WorkerJoined("a", keeps_change=True), 100.0) == []
    assert len(session._trace) == taken  # the strategy has not heard of it: it is rebased once more
    session.handle(WorkerJoined("a", keeps_change=False), 100.0)
    assert len(session._trace) == taken + 1


def test_rows_of_a_late_worker_whose_change_is_dropped_are_leased_again():
    """It is back with the model of the others, and with nothing of its own."""
    backend = executor(megabatches=4)
    backend.advance()
    session = backend.session
    mine = [task.command for task in backend.tasks if task.worker == "a"]
    session.handle(WorkerSilent("a"), 101.0)
    for command in mine:
        session.handle(backend._work_done(command), 102.0)
    before = [row for lease in session.ledger.held["a"] for row in rows_of(lease)]
    given = [
        row
        for command in session.handle(WorkerJoined("a", keeps_change=False), 103.0)
        for batch in command.batches[0]
        for row in rows_of(batch)
    ]
    held = [row for leases in session.ledger.held.values() for it in leases for row in rows_of(it)]
    assert {*before} <= {*given, *rows_of(session.ledger.returned)}
    assert {*given} <= {*held}
    assert len(held) == len({*held})


def test_others_evaluate_what_a_silent_worker_has_not():
    backend = executor(megabatches=1)
    backend.until("evaluate")
    (left,) = [task.command for task in backend.tasks if task.worker == "a"]
    (again,) = backend.session.handle(WorkerSilent("a"), backend.now_s)
    assert (again.worker, again.pieces) == ("b", left.pieces)


def test_where_a_worker_goes_silent_in_a_merge_the_training_ends_anew():
    backend = executor(megabatches=1)
    backend.until("merge")
    commands = backend.session.handle(WorkerSilent("a"), backend.now_s + 5.0)
    assert commands[-1] == Measure(("b",))
    assert backend.session.log.trained_s == backend.now_s + 5.0


# ------------------------------------------------------------------- arrivals


@pytest.mark.parametrize("is_replicated", [False, True])
@pytest.mark.parametrize("stage", ["train", "evaluate", "checkpoint"])
def test_a_worker_that_joins_takes_part(stage, is_replicated):
    session = new_session(
        megabatches=4, checkpoint_every=1, can_checkpoint=True, is_replicated=is_replicated
    )
    backend = VirtualExecutor(session, {"a": 40.0, "b": 20.0})
    backend.until("evaluate")
    backend.until(stage)
    megabatch = len(session.history)
    backend.join("c")
    assert backend.run() == "megabatches"
    backend.check_history()
    counted = [(row["megabatch"], e["kind"]) for row in session.history for e in row["events"]]
    assert counted == [(megabatch + 1, "joined")]
    assert session.history[megabatch]["workers"].keys() == {"a", "b", "c"}
    assert session.history[megabatch]["workers"]["c"]["rows"] > 0


def test_a_lost_worker_may_come_back_under_its_name():
    backend = executor(megabatches=3)
    for _ in range(3):
        backend.advance()
    backend.lose("a")
    backend.join("a")
    backend.run()
    backend.check_history()
    assert backend.session.history[0]["workers"]["a"]["rows"] > 0


def test_shards_of_a_worker_that_was_lost_before_the_start_are_placed_again():
    session = new_session(megabatches=1, is_replicated=False)
    session.placement.spread({"a": 1.0, "b": 1.0})
    backend = VirtualExecutor(session, {"a": 40.0})
    assert isinstance(backend.log[0], Rebalance)
    assert backend.run() == "megabatches"
    assert session.history[0]["metrics"]["rows"] == 30
    settled = new_session(megabatches=1, is_replicated=False)
    settled.placement.spread({"a": 1.0})
    assert isinstance(settled.start({"a": REPLICA}, 0.0)[0], RunWork)


# -------------------------------------------------------------- late messages


def test_reports_out_of_turn_change_nothing():
    backend = executor(megabatches=2, checkpoint_every=1, can_checkpoint=True)
    for _ in range(2):
        backend.advance()
    lost = [task.command.number for task in backend.tasks if task.worker == "a"]
    backend.lose("a")
    sums = backend.evaluated(Evaluate(1, "b", ((0, 0, 20),))).sums
    late = [
        WorkResult(number, (WorkStats(updates=1, loss_sum=1.0, nonzeros=1, busy_s=1.0),))
        for number in [*lost, 999]
    ]
    late += [
        MergeResult(5),
        CheckpointWritten(),
    ]
    late += [EvaluationResult(1, sums), Measured({"a": 1.0, "b": 1.0}, 100)]
    for stage in STAGES:
        backend.until(stage)
        expected = {"merge": MergeResult, "checkpoint": CheckpointWritten}.get(stage)
        for report in late:
            if not isinstance(report, expected or ()) and (
                stage != "evaluate" or not isinstance(report, EvaluationResult)
            ):
                assert backend.session.handle(report, backend.now_s) == [], (stage, report)
    backend.run()
    backend.check_history()


@given(
    script=scripts("lose", "join", "stop"),
    choices=CHOICES,
    speeds=st.lists(st.floats(1.0, 200.0), min_size=1, max_size=4),
    is_replicated=st.booleans(),
    test_rows=st.sampled_from([(), (20, 10)]),
    training_loss=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_order_of_results_losses_and_arrivals(
    script, choices, speeds, is_replicated, test_rows, training_loss
):
    """Where every worker is lost, the run continues from its last checkpoint with new ones."""

    def session(stored):
        return new_session(
            stored, test_rows=test_rows, is_replicated=is_replicated, megabatches=5,
            evaluate_every=2, checkpoint_every=2, can_checkpoint=True,
            training_loss=training_loss, evaluation_rows=16,
        )  # fmt: skip

    def renew(stored, name):
        return VirtualExecutor(session(stored), {name: 60.0})

    begun = VirtualExecutor(session(None), {f"w{i}": speed for i, speed in enumerate(speeds)})
    backend = run_script(begun, script, choices, renew)
    assert backend.ended in ("megabatches", "asked")
    history = backend.session.history
    if backend.ended == "megabatches":
        assert [row["rows"] for row in history] == [MEGABATCH_ROWS * i for i in range(1, 6)]
    for row in history:
        is_due = row is history[-1] or row["megabatch"] % 2 == 0
        assert (row["metrics"].get("rows") == 30) == (is_due and test_rows != ())
        found = mean_training_loss(is_replicated) if is_due and training_loss else None
        assert row.get("training_loss") == found
