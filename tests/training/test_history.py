"""The record of a run: what its rows say, and that a damaged one is refused in one line."""

from __future__ import annotations

import pytest

from daskxml.errors import ModelError
from daskxml.strategies.protocol import WorkerView
from daskxml.training.history import (
    MegabatchLog,
    Tally,
    append_history,
    read_history,
    worker_event,
    write_history,
)
from daskxml.training.ledger import Span


def test_a_row_adds_up():
    log = MegabatchLog(3, begun_s=10.0)
    log.count("a", Tally(64, 1, 1.5, 32.0, 128))
    log.count("a", Tally(32, 1, 0.5, 16.0, 64))
    log.count("b", Tally(32, 2, 1.0, 16.0, 64))
    log.count("c", Tally(99, 9, 9.0, 999.0, 198))
    log.drop("c")
    log.drop("never seen")
    log.note({"staleness": (6.0, 4)})
    log.note({"staleness": (2.0, 4), "never": (0.0, 0)})
    assert log.rows == 128
    log.trained({"a": WorkerView(64, 0.5, 9.0), "b": WorkerView(16, 0.25, 9.0)}, now_s=13.0)
    log.weigh({"a": 0.75, "b": 0.25}, perturbed=True)
    row = log.row(1128, 2.5, {"a": [[Span(2, 0, 0, 64)], [Span(2, 0, 64, 96)]]})
    assert {name: row[name] for name in ("megabatch", "rows", "epoch", "perturbed", "loss")} == {
        "megabatch": 3, "rows": 1128, "epoch": 2.5, "perturbed": True, "loss": 0.5,
    }  # fmt: skip
    assert row["train_s"] == 3.0
    assert row["notes"] == {"staleness": 1.0}
    assert row["workers"]["a"] == {
        "updates": 2, "rows": 96, "batch_rows": 64, "lr": 0.5, "weight": 0.75, "busy_s": 2.0,
        "nonzeros": 192, "idle_s": 1.0, "leases": [[[2, 0, 0, 64]], [[2, 0, 64, 96]]],
    }  # fmt: skip
    assert row["workers"]["b"]["leases"] == []


def test_a_worker_that_did_nothing_is_told_of():
    log = MegabatchLog(1, 0.0)
    log.trained({"a": WorkerView(64, 0.5, 0.0)}, 2.0)
    log.weigh({"a": 1.0}, perturbed=False)
    row = log.row(0, 0.0, {})
    assert (row["loss"], row["workers"]["a"]["rows"], row["workers"]["a"]["idle_s"]) == (0.0, 0, 2)


def test_later_events_do_not_change_a_row():
    log = MegabatchLog(1, 0.0)
    log.event(worker_event("lost", "a", 1.0, 64))
    row = log.row(0, 0.0, {})
    log.event(worker_event("joined", "a", 2.0))
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
