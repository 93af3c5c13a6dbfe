"""What the charts show is what the histories say."""

from dataclasses import replace

import pytest

from daskxml.observe import charts as figures
from daskxml.observe.report import Comparison, StoredRun, read_runs
from daskxml.observe.run_view import phases


@pytest.fixture
def runs(simulated):
    return read_runs([simulated])


def worker_charts(run):
    return figures.worker_charts(run.course, run.course.workers)


def chart(charts, name):
    (found,) = (chart for chart in charts if chart.name == name)
    return found


def pairs(points):
    return tuple(map(tuple, points.tolist()))


def test_metrics_lie_over_each_other_at_their_times(runs):
    charts = figures.comparison(runs, "P@1", 0.4)
    for found, at in (("metric_time", "s"), ("metric_megabatches", "mega-batches")):
        assert at in chart(charts, found).x_label
        assert chart(charts, found).target == 0.4
        assert [line.name for line in chart(charts, found).series] == ["changing", "elastic"]
    line = chart(charts, "metric_megabatches").series[0]
    measured = [row for row in runs[0].history if row["metrics"]]
    assert pairs(line.points) == tuple(
        (row["megabatch"], row["metrics"]["P@1"]) for row in measured
    )
    times = pairs(chart(charts, "metric_time").series[1].points)
    assert times[-1][0] == pytest.approx(
        sum(row["train_s"] + row["merge_s"] for row in runs[1].history)
    )
    assert len(chart(charts, "loss_time").series[0].points) == 6


def test_label_trees_have_no_loss_beside_those_of_networks(runs):
    history = tuple({k: v for k, v in row.items() if k != "loss"} for row in runs[0].history)
    tree = replace(runs[0], history=history)
    found = chart(figures.comparison([tree, runs[1]], "P@1", None), "loss_time")
    assert [len(line.points) for line in found.series] == [0, 6]


def test_phases_are_all_of_the_time(runs):
    for run in runs:
        found = phases(run.history)
        assert sum(found.values()) == pytest.approx(run.history[-1]["wall_s"])
        assert found["computing"] + found["waiting"] == pytest.approx(
            sum(row["train_s"] for row in run.history)
        )
        assert all(seconds > 0 for name, seconds in found.items() if name != "other")


def test_a_run_without_mega_batches_has_no_phases_but_keeps_its_colour(runs, tmp_path):
    empty = StoredRun(name="empty", directory=tmp_path)
    charts = figures.comparison([empty, *runs], "P@1", None)
    assert list(chart(charts, "phases").bars) == ["changing", "elastic"]
    assert next(line.name for line in chart(charts, "loss_time").series) == "empty"
    assert not any(chart.is_empty for chart in charts)
    assert all(chart.is_empty for chart in figures.comparison([empty], "P@1", None))
    assert all(chart.is_empty for chart in worker_charts(empty))


def test_workers_have_lines_while_they_are_there(runs):
    charts = worker_charts(runs[0])
    sizes = chart(charts, "batch_rows")
    assert [line.name for line in sizes.series] == ["worker 0", "worker 1", "worker 2"]
    for name, line in zip("012", sizes.series, strict=True):
        there = [row for row in runs[0].history if name in row["workers"]]
        expected = [(row["megabatch"], row["workers"][name]["batch_rows"]) for row in there]
        assert [*pairs(line.finite)] == expected


def test_of_many_workers_the_first_are_shown(tmp_path):
    rows = [
        {"megabatch": m, "rows": m, "train_s": 1.0, "merge_s": 0.0, "metrics": {}, "workers": {
            str(i): {"batch_rows": 10 * i + m, "weight": 0.01, "rows": 1} for i in range(40)}}
        for m in (1, 2)
    ]  # fmt: skip
    run = StoredRun(name="r", directory=tmp_path, history=tuple(rows))
    text = Comparison.of([run]).write(tmp_path).read_text()
    assert "40 workers, of which the charts show the first 24." in text
    assert "worker 23<" in text
    assert "worker 24<" not in text
