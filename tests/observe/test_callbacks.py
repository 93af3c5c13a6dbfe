"""Callbacks and loggers that fail do not touch the run; those that cannot begin stop it first."""

from __future__ import annotations

import json

import pytest

from daskxml.api.in_process import simulate
from daskxml.core.errors import CallbackWarning, ConfigError
from daskxml.local import CostModel
from daskxml.observe.loggers import make_logger
from daskxml.records.run_dir import read_history
from harness.small_data import data as data

VALUES = {
    "model": {"hidden": [8]},
    "strategy": {"batch_max": 32, "megabatch_batches": 10},
    "training": {"megabatches": 4},
    "checkpoint": {"every": 2},
}
COST = CostModel(fixed_s=1e-3, per_row_s=1e-4, per_nonzero_s=0.0)


class Recorder:
    """A logger that records its calls, and fails where it should."""

    def __init__(self, *, fails_at=()):
        self.calls, self.fails_at = [], set(fails_at)

    def begin(self, run):
        self.facts = run
        self._record("begin", len(run.history))

    def log(self, row):
        self._record("log", row["megabatch"])

    def rewind(self, megabatch):
        self._record("rewind", megabatch)

    def end(self, reason):
        self._record("end", reason)

    def _record(self, *call):
        self.calls.append(call)
        if call[0] in self.fails_at or call in self.fails_at:
            raise OSError("the server is gone")


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
    assert texts[0].startswith("on_megabatch failed: ValueError: no such thing (test_callbacks.py:")
    assert texts[0].endswith("); the run continues")
    assert texts[1:] == [
        "on_megabatch failed 3 times in a row: not called again",
        "on_megabatch failed 3 times in 3 calls",
    ]
    assert warned_after == [(1, texts[0]), (3, texts[1]), (3, texts[2])]


def test_one_error_is_reported_once(data):
    with pytest.warns(CallbackWarning) as warned:
        go(data, on_megabatch=lambda row: 1 / (row["megabatch"] - 2))
    assert len(warned) == 1


def test_a_logger_gets_the_run(data, tmp_path):
    logger = Recorder()
    go(data, loggers=[logger], out=tmp_path / "first")
    assert logger.calls == [
        ("begin", 0),
        *(("log", i) for i in (1, 2, 3, 4)),
        ("end", "megabatches"),
    ]
    assert (logger.facts.title, logger.facts.out) == ("first", tmp_path / "first")
    assert logger.facts.config.training.megabatches == 4


def test_a_logger_of_a_resumed_run_has_its_history(data, tmp_path):
    go(data, out=tmp_path / "run")
    logger = Recorder()
    more = {"training.megabatches": 5}
    simulate(VALUES, [1, 0.5], train=data["train"], cost=COST, resume=tmp_path / "run",
             overrides=more, loggers=[logger])  # fmt: skip
    assert logger.calls == [("begin", 4), ("log", 5), ("end", "megabatches")]
    assert [row["megabatch"] for row in logger.facts.history] == [1, 2, 3, 4]


@pytest.mark.parametrize("fails_at", [["log"], [("log", 3)], ["end"]])
def test_a_logger_that_fails_does_not_disturb_the_others(data, fails_at):
    failing, other = Recorder(fails_at=fails_at), Recorder()
    with pytest.warns(CallbackWarning) as warned:
        run = go(data, loggers=[failing, other])
    assert "Recorder failed: OSError: the server is gone" in str(warned[0].message)
    assert len(other.calls) == 6
    given_up = [("log", 4)] if fails_at == ["log"] else []
    assert failing.calls == [call for call in other.calls if call not in given_up]
    assert run.history == go(data).history


def test_a_logger_that_cannot_begin_stops_the_run_before_it_starts(data, tmp_path):
    first = Recorder()
    with pytest.raises(
        ConfigError, match=r"Recorder: cannot begin \(OSError: the server is gone\)"
    ):
        go(data, loggers=[first, Recorder(fails_at=["begin"])], out=tmp_path / "run")
    assert first.calls == [("begin", 0), ("end", "error")]
    assert not (tmp_path / "run").exists()


def test_loggers_end_with_a_run_that_fails_and_with_ctrl_c(data):
    def fail(event):
        if event["kind"] == "megabatch":
            raise kind

    for kind, reason in ((ZeroDivisionError(), "error"), (KeyboardInterrupt(), "interrupt")):
        logger = Recorder()
        with pytest.raises(type(kind)):
            go(data, loggers=[logger], on_event=fail)
        assert logger.calls[-1] == ("end", reason)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_what_is_not_installed_names_its_extra(name, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=rf"pip install 'daskxml\[{name}\]' brings it"):
        make_logger(f"{name}:somewhere")
