"""Callbacks that fail do not touch the run."""

import json

import pytest

from daskxml.api.in_process import simulate
from daskxml.core.errors import CallbackWarning
from daskxml.local import CostModel
from daskxml.records.run_dir import read_history
from harness.small_data import data as data

VALUES = {
    "model": {"hidden": [8]},
    "strategy": {"batch_max": 32, "megabatch_batches": 10},
    "training": {"megabatches": 4},
    "checkpoint": {"every": 2},
}
COST = CostModel(fixed_s=1e-3, per_row_s=1e-4, per_nonzero_s=0.0)


def go(data, **values):
    return simulate(VALUES, [1, 0.5], train=data["train"], cost=COST, **values)


def test_a_callback_gets_every_row_and_cannot_change_the_run(data, tmp_path):
    rows = []

    def spoil(row):
        rows.append(json.loads(json.dumps(row)))
        row["workers"].clear()
        row["rows"] = -1

    run = go(data, on_megabatch=spoil, out=tmp_path / "run")
    assert rows == run.history == go(data, out=tmp_path / "other").history
    assert read_history(tmp_path / "run" / "history.jsonl") == rows


def test_a_callback_that_fails_is_reported_at_once_and_given_up_after_three_errors(data):
    rows, warned_after = [], []

    def fail(row):
        rows.append(row["megabatch"])
        raise ValueError("no\nsuch thing")

    def watch(event):
        if event["kind"] == "warning":
            warned_after.append((len(rows), event["text"]))

    with pytest.warns(CallbackWarning) as warned:
        run = go(data, on_megabatch=fail, on_event=watch)
    assert rows == [1, 2, 3]
    assert run.history == go(data).history
    texts = [str(warning.message) for warning in warned]
    for text in texts:
        assert text.startswith("on_megabatch failed: ValueError: no such thing (test_callbacks.py:")
    assert texts[0] == texts[1]
    assert texts[0].endswith("); the run continues")
    assert texts[2].endswith("); it is not called again")
    assert warned_after == [*enumerate(texts, 1)]


def test_one_error_is_reported_once(data):
    with pytest.warns(CallbackWarning) as warned:
        go(data, on_megabatch=lambda row: 1 / (row["megabatch"] - 2))
    assert len(warned) == 1


def test_a_callback_of_a_resumed_run_gets_the_rows_that_are_new(data, tmp_path):
    go(data, out=tmp_path / "run")
    rows, more = [], {"training.megabatches": 5}
    simulate(VALUES, [1, 0.5], train=data["train"], cost=COST, resume=tmp_path / "run",
             overrides=more, on_megabatch=rows.append)  # fmt: skip
    assert [row["megabatch"] for row in rows] == [5]
