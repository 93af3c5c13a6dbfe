"""The first evaluation at a level, or the best one, with what it took until then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskxml.errors import ConfigError
from daskxml.reports.runs import RunRecord, read_runs
from daskxml.reports.targets import best, check_metric, elapsed, reach


def history_of(values):
    """Return rows of 2 s and 10 rows each; None is not evaluated."""
    return [
        {"megabatch": i, "rows": 10 * i, "epoch": i / 4, "train_s": 1.5, "merge_s": 0.5,
         "wall_s": 3.0 * i, "metrics": {} if value is None else {"P@1": value, "rows": 7}}
        for i, value in enumerate(values, 1)
    ]  # fmt: skip


LEVELS = st.one_of(st.none(), st.integers(0, 8).map(lambda eighths: eighths / 8))


@given(st.lists(LEVELS, max_size=8), st.integers(0, 9).map(lambda eighths: eighths / 8))
def test_the_first_at_the_level_or_the_best(values, level):
    found = reach(history_of(values), "P@1", level)
    measured = [(i, value) for i, value in enumerate(values, 1) if value is not None]
    if not measured:
        assert found is None
        return
    at_level = [(i, value) for i, value in measured if value >= level]
    top = max(value for _, value in measured)
    expected = at_level[0] if at_level else next((i, v) for i, v in measured if v == top)
    assert (found.megabatch, found.value) == expected
    assert found.is_reached == bool(at_level)
    assert (found.train_s, found.wall_s, found.rows) == tuple(expected[0] * k for k in (2, 3, 10))


def test_elapsed_time_is_of_training_and_merging(simulated):
    run = read_runs([simulated / "elastic"])[0]
    until = elapsed(run.history)
    assert until[-1] == pytest.approx(sum(r["train_s"] + r["merge_s"] for r in run.history))
    assert until == sorted(until)
    assert all(s <= row["wall_s"] for s, row in zip(until, run.history, strict=True))


def test_the_best_of_all_runs(simulated):
    runs = read_runs([simulated])
    values = [row["metrics"]["P@1"] for run in runs for row in run.history if row["metrics"]]
    assert best(runs, "P@1") == max(values)
    assert best(runs, "P@2") is None


def test_a_metric_that_was_not_measured_is_refused_with_those_that_were(simulated, tmp_path):
    runs = read_runs([simulated])
    check_metric(runs, "nDCG@3")
    with pytest.raises(ConfigError, match=r"--metric rows: no run measured it; there are P@1, P@3"):
        check_metric(runs, "rows")
    with pytest.raises(ConfigError, match="train with --test FILE"):
        check_metric([RunRecord(name="x", directory=tmp_path)], "P@1")
