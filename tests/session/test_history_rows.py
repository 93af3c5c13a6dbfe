"""Rows of the history, folded from the events of a strategy and from what was measured."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from daskxml.core.work_stats import WorkStats
from daskxml.session.commands import MergeResult
from daskxml.session.history import MegabatchLog
from daskxml.session.ledger import Span
from daskxml.strategies.protocol import (
    Begin,
    Drain,
    GiveUp,
    GraceOver,
    Measure,
    Measured,
    Merge,
    Mirrored,
    Part,
    Work,
    WorkDone,
    WorkerJoined,
    WorkerLost,
    WorkerView,
    WorkRolledBack,
)


@dataclass
class Told:
    """A strategy that says of its workers what it is told."""

    views: Mapping[str, WorkerView]
    is_joint: bool = False
    shares_model: bool = False

    def view(self, state):
        return self.views


def take(log, told, event, *commands, **work):
    """Let an event of a strategy be counted, with the work that was measured."""
    log.take(told, (None, None), event, commands, work or None)


def done(worker, rows, updates, busy_s):
    return WorkDone.alone(worker, rows, updates, busy_s)


def test_a_row_adds_up():
    log, told = MegabatchLog(3, begun_s=10.0), Told({})
    for name, stats in (
        ("a", WorkStats(64, 1, 32.0, 128, busy_s=1.5, means={"staleness": (6.0, 4)})),
        ("a", WorkStats(32, 1, 16.0, 64, busy_s=0.5)),
        ("b", WorkStats(32, 2, 16.0, 64, busy_s=1.0, means={"staleness": (2.0, 4)})),
        ("c", WorkStats(99, 9, 999.0, 198, busy_s=9.0, means={"never": (0.0, 0)})),
    ):
        take(log, told, done(name, stats.rows, stats.updates, stats.busy_s), **{name: stats})
    take(log, told, WorkerLost("c"))
    take(log, told, WorkerLost("never seen"))
    assert log.rows == 128
    told.views = {
        "a": WorkerView(64, 0.5, 9.0), "b": WorkerView(16, 0.25, 9.0, batch_size=16.3)
    }  # fmt: skip
    log.trained_s = 13.0
    take(log, told, done("a", 0, 0, 0.0), Measure(("a", "b")), a=WorkStats())
    told.views = {}  # what is said after the training has ended is not of this mega-batch
    weights = {"a": 0.75, "b": 0.25}
    merge = Merge(weights, 0.5, perturbed=True, regularized=True)
    take(log, told, Measured({"a": 9.0}, 5), merge)
    row = log.row(1128, 2.5, {"a": [[Span(2, 0, 0, 64)], [Span(2, 0, 64, 96)]]})
    assert {name: row[name] for name in ("megabatch", "rows", "epoch", "perturbed", "loss")} == {
        "megabatch": 3, "rows": 1128, "epoch": 2.5, "perturbed": True, "loss": 0.5,
    }  # fmt: skip
    assert row["train_s"] == 3.0
    assert row["notes"] == {"staleness": 1.0}
    assert row["workers"]["a"] == {
        "updates": 2, "rows": 96, "batch_rows": 64, "lr": 0.5, "weight": 0.75, "busy_s": 2.0,
        "nonzeros": 192, "idle_s": 1.0, "leases": [[[2, 0, 0, 64]], [[2, 0, 64, 96]]],
        "pool_threads": 0, "norm": 3.0,
    }  # fmt: skip
    assert (row["momentum"], row["regularized"]) == (0.5, True)
    assert row["workers"]["b"]["leases"] == []
    assert row["workers"]["b"]["batch_size"] == 16.3
    assert "norm" not in row["workers"]["b"]


def test_without_work_that_was_measured_events_say_what_was_done():
    log, told = MegabatchLog(1, 0.0), Told({"a": WorkerView(8, 0.5, 0.0)}, is_joint=True)
    gang = WorkDone(2.0, {"a": 8, "b": 0}, {"a": 1, "b": 0}, {"a": 1.5, "b": 0.25})
    take(log, told, gang)
    assert (log.rows, log.work["b"].busy_s, log.moved_bytes) == (8, 0.25, 0)
    sent = {name: WorkStats(4, 1, sent_bytes=100, means={"x": (1.0, 1)}) for name in "ab"}
    take(log, told, gang, **sent)
    assert (log.rows, log.moved_bytes, log.means) == (16, 200, {"x": (2.0, 2)})
    take(log, told, WorkRolledBack())
    assert (log.rows, log.moved_bytes, log.means) == (0, 200, {})
    take(log, told, gang)
    take(log, told, WorkerLost("b"))  # with it, the work of all
    assert log.work == {}


def test_a_worker_without_work_is_recorded():
    log, told = MegabatchLog(1, 0.0), Told({"a": WorkerView(64, 0.5, 0.0)})
    log.trained_s = 2.0
    take(log, told, Drain(), Merge({"a": 1.0}, 0.0, perturbed=False))
    row = log.row(0, 0.0, {})
    assert (row["loss"], row["workers"]["a"]["rows"], row["workers"]["a"]["idle_s"]) == (0.0, 0, 2)


def test_a_lost_worker_whose_work_stays_is_recorded():
    log, told = MegabatchLog(1, 0.0), Told({}, shares_model=True)
    take(log, told, done("gpu", 64, 1, 1.0))
    take(log, told, done("cpu", 12, 3, 1.0))
    told.views = {  # the second one had done nothing
        "cpu": WorkerView(4, 0.125, 12.0, pool_threads=4), "idle": WorkerView(4, 0.125, 0.0)
    }  # fmt: skip
    for name in ("cpu", "idle"):
        take(log, told, WorkerLost(name))
    told.views = {"gpu": WorkerView(64, 2.0, 64.0), "new": WorkerView(64, 2.0, 0.0)}
    take(log, told, Drain(), Merge({"gpu": 0.5, "new": 0.5}, 0.0, perturbed=False))
    log.trained_s = 2.0
    log.merged(MergeResult(100, {"staleness": (6.0, 4)}), 2.5)
    row = log.row(76, 1.0, {"cpu": [[Span(0, 0, 0, 12)]]})
    assert {name: w["weight"] for name, w in row["workers"].items()} == {
        "gpu": 0.25, "new": 0.0, "cpu": 0.75,
    }  # fmt: skip
    cpu = row["workers"]["cpu"]
    assert (cpu["pool_threads"], cpu["batch_rows"], cpu["lr"], cpu["rows"]) == (4, 4, 0.125, 12)
    assert cpu["leases"] == [[[0, 0, 0, 12]]]
    assert (row["merged_bytes"], row["merge_s"], row["notes"]) == (100, 0.5, {"staleness": 1.5})


def test_a_lost_worker_that_came_back_is_recorded_as_it_is_now():
    log, told = MegabatchLog(1, 0.0), Told({"cpu": WorkerView(4, 0.125, 1.0)}, shares_model=True)
    take(log, told, done("cpu", 4, 1, 1.0))
    take(log, told, WorkerLost("cpu"))
    take(log, told, done("cpu", 8, 1, 1.0))
    told.views = {"cpu": WorkerView(8, 0.25, 64.0)}
    take(log, told, Drain(), Merge({"cpu": 1.0}, 0.0, perturbed=False))
    (worker,) = log.row(12, 1.0, {})["workers"].values()
    assert (worker["rows"], worker["weight"], worker["batch_rows"]) == (12, 1.0, 8)


def test_after_a_loss_the_training_goes_on_and_ends_again():
    log, told = MegabatchLog(1, 0.0), Told({"a": WorkerView(8, 0.5, 1.0)})
    merge = Merge({"a": 0.5, "b": 0.5}, 0.9, perturbed=False)
    take(log, told, done("a", 8, 1, 1.0), merge)
    take(log, told, WorkerLost("b"))
    told.views = {"a": WorkerView(4, 0.25, 1.0)}
    take(log, told, done("a", 8, 2, 1.0), replace(merge, weights={"a": 1.0}))
    assert log.counted()["workers"] == {
        "a": {
            "updates": 3, "rows": 16, "batch_rows": 4, "lr": 0.25, "weight": 1.0,
            "pool_threads": 0, "busy_s": 2.0,
        }
    }  # fmt: skip


def test_later_events_do_not_change_a_row():
    log, told = MegabatchLog(1, 0.5), Told({})
    log.take(told, (None, None), Begin(), [Work.alone("a", 64, 32, 0.1)])
    log.take(told, (None, None), WorkerLost("a"), [], now_s=1.5)
    row = log.row(0, 0.0, {})
    log.take(told, (None, None), WorkerJoined("a"), [], now_s=2.5)
    assert row["events"] == [{"kind": "lost", "worker": "a", "after_s": 1.0, "rows_returned": 64}]


def test_a_worker_of_a_gang_without_rows_has_no_lease():
    log, told, part = MegabatchLog(1, 0.0), Told({}, is_joint=True), Part(8, 4, 0.1)
    take(log, told, Begin(), Work({"a": part, "b": replace(part, rows=0)}, Mirrored()))
    take(log, told, WorkDone(1.0, {"a": 8, "b": 0}, {"a": 2, "b": 0}, {"a": 1.0, "b": 0.0}))
    assert (log.done, log.open) == ({"a": [part]}, {"a": []})
    assert log.rows_lost("b", told) == 8


def test_what_a_late_worker_comes_back_without_is_not_in_the_row():
    log, told = MegabatchLog(1, begun_s=0.0), Told({})
    for name in "ab":
        take(log, told, done(name, 8, 1, 1.0), **{name: WorkStats(8, 1, 4.0, 8, busy_s=1.0)})
    take(log, told, WorkerJoined("a", keeps_change=True))
    assert log.rows == 16
    take(log, told, WorkerJoined("a", keeps_change=False))
    assert log.rows == 8


def of_two(rows_of_b=8, loss_of_b=72.0):
    """Return the log of a mega-batch that begins its merge without b, and who is told of it."""
    log = MegabatchLog(1, begun_s=0.0)
    told = Told({name: WorkerView(8, 0.5, 8.0) for name in "ab"})
    take(log, told, Begin(), Work.alone("a", 8, 8, 0.5), Work.alone("b", rows_of_b, 8, 0.5))
    for name, stats in (("a", WorkStats(8, 1, 8.0)), ("b", WorkStats(rows_of_b, 1, loss_of_b))):
        take(log, told, done(name, stats.rows, 1, 1.0), **{name: stats})
    take(log, told, GraceOver(), Merge({"a": 1.0}, 0.0, perturbed=False))
    return log, told


def test_the_loss_of_a_late_worker_counts_in_the_merge_that_it_enters():
    log, told = of_two()
    row = log.row(8, 1.0, {})
    assert (row["late"], row["loss"]) == (["b"], 1.0)
    log = log.following()
    take(log, told, done("a", 8, 1, 1.0), a=WorkStats(8, 1, 8.0))
    take(log, told, WorkerJoined("b"))
    take(log, told, Drain(), Merge({"a": 0.5, "b": 0.5}, 0.0, perturbed=False))
    row = log.row(24, 1.0, {})
    assert ("late" in row, row["loss"]) == (False, 5.0)


def test_a_late_worker_that_is_lost_takes_its_work_with_it():
    log, told = of_two()
    take(log, told, WorkerLost("b"))
    assert log.rows == 8
    row = log.row(8, 1.0, {})
    assert (row["loss"], row["workers"].keys(), "late" in row) == (1.0, {"a"}, False)
    assert [event["rows_returned"] for event in row["events"]] == [0, 8]


def test_a_worker_that_stays_late_is_told_of_once():
    log, told = of_two()
    assert [event["kind"] for event in log.row(8, 1.0, {})["events"]] == ["late"]
    log = log.following()
    take(log, told, GraceOver(), Merge({"a": 1.0}, 0.0, perturbed=False))
    row = log.row(8, 1.0, {})
    assert (row["late"], row["events"]) == (["b"], [])


def test_a_worker_that_is_given_up_twice_has_the_rows_of_both_times():
    log, told = MegabatchLog(1, 0.0), Told({"a": WorkerView(8, 0.5, 8.0)})
    for rows in (8, 16):
        take(log, told, Begin(), Work.alone("b", rows, 8, 0.5))
        take(log, told, GraceOver(), GiveUp("b"))
        take(log, told, WorkerJoined("b", keeps_change=False))
    assert log.counted()["given_up"] == {"b": 24}
