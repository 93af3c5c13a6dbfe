"""Directories of runs that are under way, broken off, cut or damaged are read all the same."""

import json
import shutil

import pytest

from daskxml.core.errors import ConfigError, ModelError
from daskxml.core.files import is_locked
from daskxml.observe.report import (
    Comparison,
    StoredRun,
    find_runs,
    name_runs,
    read_rows,
    read_run,
    read_runs,
)
from daskxml.observe.run_view import NEAR_BEST
from daskxml.records.run_dir import RunDir


def row(megabatch, **values):
    plain = {"rows": 10 * megabatch, "train_s": 1.0, "merge_s": 0.5, "metrics": {}, "workers": {}}
    return plain | {"megabatch": megabatch} | values


def write(path, *lines):
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("\n".join(texts) + "\n")
    return path


def test_a_run_that_is_over_says_all_about_itself(simulated):
    run = read_run(simulated / "changing", "changing")
    assert run.state == "ended by megabatches"
    assert [row["megabatch"] for row in run.history] == [1, 2, 3, 4, 5, 6]
    assert run.course.workers == ["0", "1", "2"]
    assert run.config["strategy"]["name"] == "adaptive-sgd"
    assert run.simulation["speeds"] == {"0": 1.0, "1": 0.6}
    assert run.starts[0]["packages"]["numpy"]
    assert run.metrics == run.history[-1]["metrics"]
    assert run.problems == ()


def test_a_run_under_way_is_told_from_one_that_broke_off(run_dir):
    (run_dir / "model.json").unlink()
    assert read_run(run_dir, "run").state == "broken off after 6 mega-batches"
    with RunDir.open(None, run_dir):  # looking has not kept it from its directory
        assert read_run(run_dir, "run").state == "under way, 6 mega-batches so far"
    assert not is_locked(run_dir)


def test_a_resumed_run_that_broke_off_is_not_called_ended(run_dir):
    history = (run_dir / "history.jsonl").read_text()
    more = {**json.loads(history.splitlines()[-1]), "megabatch": 7}
    (run_dir / "history.jsonl").write_text(history + json.dumps(more) + "\n")
    assert read_run(run_dir, "run").state == "broken off after 7 mega-batches"


@pytest.mark.parametrize("cut", [1, 20, 300])
def test_a_cut_line_is_left_out_and_told(run_dir, cut):
    path = run_dir / "history.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    run = read_run(run_dir, "run")
    if cut == 1:  # only the end of the line
        assert (len(run.history), run.problems) == (6, ())
    else:
        assert len(run.history) == 5
        assert run.problems == ("history.jsonl: line 6 is cut off; left out",)


def test_a_last_line_that_is_whole_but_wrong_is_not_called_cut_off(run_dir):
    with (run_dir / "history.jsonl").open("a") as file:
        file.write('{"megabatch": "seven"}\n')
    run = read_run(run_dir, "run")
    assert run.problems == ("history.jsonl: line 7 is no row of a history; left out",)


@pytest.mark.parametrize("text", ["[{", "{}", "[3]"])
def test_an_unreadable_record_of_the_environment_is_told(run_dir, text):
    (run_dir / "environment.json").write_text(text)
    assert read_run(run_dir, "run").problems == ("environment.json cannot be read; left out",)
    (run_dir / "environment.json").unlink()
    assert read_run(run_dir, "run").problems == ()


def test_rows_that_come_again_replace_what_was_undone(tmp_path):
    again = [row(1), row(2), row(3, loss=1.0), row(2, loss=2.0), row(3, loss=3.0)]
    path, problems = write(tmp_path / "history.jsonl", *again), []
    assert read_rows(path, problems) == [row(1), row(2, loss=2.0), row(3, loss=3.0)]
    assert problems == []


@pytest.mark.parametrize(
    "damaged",
    [
        "null",
        "[1]",
        "{}",
        '{"megabatch": "2"}',
        "\x00\x00",
        json.dumps(row(2, workers=None)),
        json.dumps(row(2, workers=[])),
        json.dumps(row(2, workers={"0": 1})),
        json.dumps(row(1.5)),
        json.dumps(row(0)),
    ],
)
def test_lines_that_are_no_rows_are_left_out_and_told(tmp_path, damaged):
    path, problems = write(tmp_path / "history.jsonl", row(1), damaged, row(2)), []
    assert read_rows(path, problems) == [row(1), row(2)]
    assert problems == ["history.jsonl: line 2 is no row of a history; left out"]


def test_rows_after_a_gap_are_left_out_and_told(tmp_path):
    path, problems = write(tmp_path / "history.jsonl", row(1), row(3)), []
    assert read_rows(path, problems) == [row(1)]
    assert problems == ["history.jsonl: line 2 comes after a gap; left out"]


def test_a_run_without_any_mega_batch_has_no_history(run_dir):
    for name in ("history.jsonl", "model.json"):
        (run_dir / name).unlink()
    run = read_run(run_dir, "run")
    assert (run.history, run.problems, run.metrics) == ((), (), {})
    assert run.state == "broken off after 0 mega-batches"


@pytest.mark.parametrize("text", [None, "not [toml", b"\xff\xfe"])
def test_a_missing_or_damaged_run_file_is_told(run_dir, text):
    path = run_dir / "run.toml"
    path.unlink()
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    run = read_run(run_dir, "run")
    assert len(run.history) == 6
    assert run.problems[0].startswith("run.toml cannot be read (")


def test_a_folder_stands_for_the_runs_in_it(simulated, tmp_path):
    both = [simulated / "changing", simulated / "elastic"]
    assert find_runs(simulated) == both
    shutil.copy(simulated / "elastic" / "run.toml", tmp_path)  # a run that has just begun
    assert find_runs(tmp_path) == [tmp_path]
    assert [run.name for run in read_runs([simulated, both[0]])] == ["changing", "elastic"]


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_a_place_without_runs_is_refused(tmp_path, name):
    with pytest.raises(ModelError, match=r"no run here \(there is no run.toml"):
        read_runs([tmp_path / name])


def test_the_same_last_part_twice_is_told_apart(tmp_path):
    paths = [tmp_path / "a" / "x", tmp_path / "b" / "x"]
    assert name_runs(paths) == ["a/x", "b/x"]


def test_the_level_is_near_the_best_of_all_runs(simulated):
    runs = read_runs([simulated])
    values = [row["metrics"]["P@1"] for run in runs for row in run.history if row["metrics"]]
    found = Comparison.of(runs)
    assert (found.metric, found.level) == ("P@1", NEAR_BEST * max(values))
    assert Comparison.of(runs, "P@3", 0.25).level == 0.25


def test_a_metric_that_was_not_measured_is_refused_with_those_that_were(simulated, tmp_path):
    runs = read_runs([simulated])
    assert Comparison.of(runs, "nDCG@3").metric == "nDCG@3"
    with pytest.raises(ConfigError, match=r"--metric rows: no run measured it; there are P@1, P@3"):
        Comparison.of(runs, "rows")
    bare = [StoredRun(name="x", directory=tmp_path)]
    with pytest.raises(ConfigError, match="train with --test FILE"):
        Comparison.of(bare, "P@1")
    assert Comparison.of(bare).level is None
