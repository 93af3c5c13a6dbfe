"""The record of a run: what its rows say, and that a damaged one is refused in one line."""

from __future__ import annotations

import pytest

from daskxml.core.errors import ModelError
from daskxml.core.work_stats import WorkStats
from daskxml.records.run_dir import append_history, read_history, write_history
from daskxml.session.commands import MergeResult
from daskxml.session.history import MegabatchLog, worker_event
from daskxml.session.ledger import Span
from daskxml.strategies.protocol import Merge, WorkerView


def test_a_row_adds_up():
    log = MegabatchLog(3, begun_s=10.0)
    log.count("a", WorkStats(64, 1, 32.0, 128, busy_s=1.5))
    log.count("a", WorkStats(32, 1, 16.0, 64, busy_s=0.5))
    log.count("b", WorkStats(32, 2, 16.0, 64, busy_s=1.0))
    log.count("c", WorkStats(99, 9, 999.0, 198, busy_s=9.0))
    log.drop("c")
    log.drop("never seen")
    log.count("a", WorkStats(means={"staleness": (6.0, 4)}))
    log.count("b", WorkStats(means={"staleness": (2.0, 4), "never": (0.0, 0)}))
    assert log.rows == 128
    log.end_training(
        {"a": WorkerView(64, 0.5, 9.0), "b": WorkerView(16, 0.25, 9.0, batch_size=16.3)}, now_s=13.0
    )
    log.weights = {"a": 0.75, "b": 0.25}
    log.decided = Merge(log.weights, 0.5, perturbed=True, regularized=True)
    log.squared_norms = {"a": 9.0}
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


def test_a_worker_without_work_is_recorded():
    log = MegabatchLog(1, 0.0)
    log.end_training({"a": WorkerView(64, 0.5, 0.0)}, 2.0)
    log.weights = {"a": 1.0}
    row = log.row(0, 0.0, {})
    assert (row["loss"], row["workers"]["a"]["rows"], row["workers"]["a"]["idle_s"]) == (0.0, 0, 2)


def test_a_lost_worker_whose_work_stays_is_recorded():
    log = MegabatchLog(1, 0.0)
    log.count("gpu", WorkStats(64, 1, 32.0, 64, busy_s=1.0))
    log.count("cpu", WorkStats(12, 3, 6.0, 12, busy_s=1.0))
    log.departed["cpu"] = WorkerView(4, 0.125, 12.0, pool_threads=4)
    log.departed["idle"] = WorkerView(4, 0.125, 0.0)  # had done nothing
    log.end_training({"gpu": WorkerView(64, 2.0, 64.0), "new": WorkerView(64, 2.0, 0.0)}, 2.0)
    log.weights = log.update_shares({"gpu": 0.5, "new": 0.5})
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
    log = MegabatchLog(1, 0.0)
    log.count("cpu", WorkStats(4, 1, 6.0, 12, busy_s=1.0))
    log.departed["cpu"] = WorkerView(4, 0.125, 12.0, pool_threads=4)
    log.count("cpu", WorkStats(8, 1, 6.0, 12, busy_s=1.0))
    log.end_training({"cpu": WorkerView(8, 0.25, 64.0)}, 2.0)
    log.weights = log.update_shares({"cpu": 1.0})
    (worker,) = log.row(12, 1.0, {})["workers"].values()
    assert (worker["rows"], worker["weight"], worker["batch_rows"]) == (12, 1.0, 8)


def test_later_events_do_not_change_a_row():
    log = MegabatchLog(1, 0.0)
    log.events.append(worker_event("lost", "a", 1.0, 64))
    row = log.row(0, 0.0, {})
    log.events.append(worker_event("joined", "a", 2.0))
    assert row["events"] == [{"kind": "lost", "worker": "a", "after_s": 1.0, "rows_returned": 64}]


def test_written_appended_and_read(tmp_path):
    path = tmp_path / "history.jsonl"
    rows = [{"megabatch": i, "loss": 0.1 * i, "name": "ä\u2028b\n"} for i in range(3)]
    write_history(path, rows[:1])
    for row in rows[1:]:
        append_history(path, row)
    assert read_history(path) == rows
    write_history(path, rows[:2])
    assert read_history(path) == rows[:2]
    assert [p.name for p in tmp_path.iterdir()] == ["history.jsonl"]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b'{"a": 1}\n{"a"', ":2: not a JSON object"),
        (b'{"a": 1}\n3\n', ":2: not a JSON object"),
        (b'{"a": 1}\n\n', ":2: not a JSON object"),
        (b"\xff\xfe\x00", ": not a text file"),
    ],
)
def test_a_damaged_history_is_refused(tmp_path, content, place):
    path = tmp_path / "history.jsonl"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        read_history(path)
    assert str(caught.value).startswith(f"{path}{place}")
    assert "\n" not in str(caught.value)


def test_a_history_that_is_missing_or_has_no_place(tmp_path):
    path = tmp_path / "no" / "history.jsonl"
    with pytest.raises(ModelError, match="no history of a run here"):
        read_history(path)
    with pytest.raises(ModelError, match="cannot be written"):
        append_history(path, {})
    with pytest.raises(ModelError, match="cannot be written"):
        write_history(path, [])
