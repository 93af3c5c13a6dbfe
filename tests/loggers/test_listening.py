"""Callbacks and loggers that fail do not touch the run; those that cannot begin stop it first."""

from __future__ import annotations

import json

import pytest
from small_data import data as data

from daskxml.errors import CallbackWarning, ConfigError
from daskxml.loggers import make_logger
from daskxml.simulator import CostModel, simulate
from daskxml.training.history import read_history

VALUES = {
    "model": {"hidden": [8]},
    "strategy": {"batch_max": 32, "megabatch_batches": 10},
    "training": {"megabatches": 4},
    "checkpoint": {"every": 2},
}
COST = CostModel(fixed_s=1e-3, per_row_s=1e-4, per_nonzero_s=0.0)


class Notes:
    """A logger that remembers what it was told, and fails where it should."""

    def __init__(self, *, fails_at=()):
        self.told, self.fails_at = [], set(fails_at)

    def begin(self, run):
        self.facts = run
        self._note("begin", len(run.history))

    def log(self, row):
        self._note("log", row["megabatch"])

    def rewind(self, megabatch):
        self._note("rewind", megabatch)

    def end(self, reason):
        self._note("end", reason)

    def _note(self, *what):
        self.told.append(what)
        if what[0] in self.fails_at or what in self.fails_at:
            raise OSError("the server is gone")


def go(data, **values):
    return simulate(VALUES, [1, 0.5], train=data["train"], cost=COST, **values)


def test_a_callback_hears_every_row_and_cannot_change_the_run(data, tmp_path):
    heard = []

    def spoil(row):
        heard.append(json.loads(json.dumps(row)))
        row["workers"].clear()
        row["rows"] = -1

    run = go(data, on_megabatch=spoil, out=tmp_path / "run")
    assert heard == run.history == go(data, out=tmp_path / "other").history
    assert read_history(tmp_path / "run" / "history.jsonl") == heard


def test_a_callback_that_fails_is_told_at_once_and_given_up_after_three_errors(data):
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
    told = [str(warning.message) for warning in warned]
    assert told[0].startswith("on_megabatch failed: ValueError: no such thing (test_listening.py:")
    assert told[0].endswith("); the run goes on")
    assert told[1:] == [
        "on_megabatch failed 3 times in a row: not called again",
        "on_megabatch failed 3 times in 3 calls",
    ]
    assert warned_after == [(1, told[0]), (3, told[1]), (3, told[2])]


def test_one_error_is_told_once(data):
    with pytest.warns(CallbackWarning) as warned:
        go(data, on_megabatch=lambda row: 1 / (row["megabatch"] - 2))
    assert len(warned) == 1


def test_a_logger_is_told_of_the_run(data, tmp_path):
    logger = Notes()
    go(data, loggers=[logger], out=tmp_path / "first")
    assert logger.told == [
        ("begin", 0),
        *(("log", i) for i in (1, 2, 3, 4)),
        ("end", "megabatches"),
    ]
    assert (logger.facts.title, logger.facts.out) == ("first", tmp_path / "first")
    assert logger.facts.config.training.megabatches == 4


def test_a_logger_of_a_resumed_run_has_its_history(data, tmp_path):
    go(data, out=tmp_path / "run")
    logger = Notes()
    more = {"training.megabatches": 5}
    simulate(VALUES, [1, 0.5], train=data["train"], cost=COST, resume=tmp_path / "run",
             overrides=more, loggers=[logger])  # fmt: skip
    assert logger.told == [("begin", 4), ("log", 5), ("end", "megabatches")]
    assert [row["megabatch"] for row in logger.facts.history] == [1, 2, 3, 4]


@pytest.mark.parametrize("fails_at", [["log"], [("log", 3)], ["end"]])
def test_a_logger_that_fails_does_not_disturb_the_others(data, fails_at):
    failing, other = Notes(fails_at=fails_at), Notes()
    with pytest.warns(CallbackWarning) as warned:
        run = go(data, loggers=[failing, other])
    assert "Notes failed: OSError: the server is gone" in str(warned[0].message)
    assert len(other.told) == 6
    given_up = [("log", 4)] if fails_at == ["log"] else []
    assert failing.told == [what for what in other.told if what not in given_up]
    assert run.history == go(data).history


def test_a_logger_that_cannot_begin_stops_the_run_before_it_starts(data, tmp_path):
    first = Notes()
    with pytest.raises(ConfigError, match=r"Notes: cannot begin \(OSError: the server is gone\)"):
        go(data, loggers=[first, Notes(fails_at=["begin"])], out=tmp_path / "run")
    assert first.told == [("begin", 0), ("end", "error")]
    assert not (tmp_path / "run").exists()


def test_loggers_hear_of_a_run_that_fails_and_of_ctrl_c(data):
    def fail(event):
        if event["kind"] == "megabatch":
            raise kind

    for kind, reason in ((ZeroDivisionError(), "error"), (KeyboardInterrupt(), "interrupt")):
        logger = Notes()
        with pytest.raises(type(kind)):
            go(data, loggers=[logger], on_event=fail)
        assert logger.told[-1] == ("end", reason)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_what_is_not_installed_names_its_extra(name, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=rf"pip install 'daskxml\[{name}\]' brings it"):
        make_logger(f"{name}:somewhere")
