"""A bench as a user calls it: it goes on where it stopped, past what fails, and compares."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import time
from pathlib import Path

import pytest

from daskxml.cli import main
from daskxml.cli.bench import load_suite, run_suite
from daskxml.cli.bench.execution import cell_processes
from daskxml.records.run_dir import read_history
from harness.commands import Command

DEADLINE_S = 30.0
# A script that counts its calls, waits while it is held, and writes one row.
SCRIPT = """
import json, os, pathlib, sys, time
here, name, milliseconds = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
with (here / "calls").open("a") as file:
    file.write(name + "\\n")
while (here / f"hold-{name}").exists():
    time.sleep(0.01)
if (here / f"break-{name}").exists():
    sys.exit(f"{name} is broken")
out = pathlib.Path(os.environ["DASKXML_RESULTS"])
(out / "s.json").write_text(json.dumps({"rows": [{"what": "sum", "ms": milliseconds}]}))
"""


class Bench:
    """A suite of scripts in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        self.suite = folder / "mine.toml"
        (folder / "s.py").write_text(SCRIPT)
        self.write({"a": 10.0, "b": 20.0, "c": 30.0})

    def write(self, times_ms, head=""):
        """Write the suite, with a script for each name that says such a time."""
        self.suite.write_text(head + "".join(
            f'[[script]]\nname = "{name}"\nfile = "s.py"\nresult = "s"\nrows = ["what"]\n'
            f'smaller = ["ms"]\nrepeats = 1\narguments = ["{self.folder}", "{name}", "{ms}"]\n'
            for name, ms in times_ms.items()
        ))  # fmt: skip

    def calls(self):
        """Return the names of the scripts that were begun since the last call."""
        file = self.folder / "calls"
        names = file.read_text().split() if file.exists() else []
        file.unlink(missing_ok=True)
        return names

    def __call__(self, *options):
        """Call the command here."""
        return main(["bench", str(self.suite), "--out", str(self.out), *options])

    @contextlib.contextmanager
    def started(self, cell):
        """Start the command in a process, and wait until a cell is under way that is held."""
        (self.folder / f"hold-{cell}").touch()
        with Command("bench", self.suite, "--out", self.out) as command:
            wait_until(lambda: cell in (self.folder / "calls").read_text().split()
                       if (self.folder / "calls").exists() else False)  # fmt: skip
            yield command
        (self.folder / f"hold-{cell}").unlink()

    def processes(self):
        """Return the processes of all cells."""
        return [p for path in (self.out / "cells").iterdir() for p in cell_processes(path)]

    def table(self):
        """Return the CSV table by script."""
        with (self.out / "table.csv").open() as file:
            return {row["run"]: row for row in csv.DictReader(file)}


def wait_until(holds):
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.01)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_a_bench_keeps_what_is_done(bench, capsys):
    assert bench() == 0
    assert bench.calls() == ["a", "b", "c"]
    table = bench.table()
    assert {name: float(row["median"]) for name, row in table.items()} == {
        "a": 10.0, "b": 20.0, "c": 30.0,
    }  # fmt: skip
    about = [json.loads(path.read_text()) for path in bench.out.glob("cells/*/cell.json")]
    assert len(about) == 3
    assert all({"commit", "cpu", "packages", "code"} <= set(a["environment"]) for a in about)
    assert "[3/3] c 0: done" in capsys.readouterr().out
    assert bench() == 0
    assert bench.calls() == []
    assert "[3/3] c 0: done before" in capsys.readouterr().out
    assert bench.table() == table
    bench.write({"a": 10.0, "b": 21.0, "c": 30.0})
    assert bench() == 0
    assert bench.calls() == ["b"]
    assert len(list(bench.out.glob("cells/*"))) == 4  # the other b stays there


def test_a_failed_cell_does_not_stop_the_others_and_is_done_again(bench, capsys):
    (bench.folder / "break-b").touch()
    assert bench() == 1
    output = capsys.readouterr().out
    assert "[2/3] b 0: failed" in output
    assert "- b 0: failed: exit status 1: b is broken" in output
    assert "1 of 3 cells failed" in output
    assert bench.calls() == ["a", "b", "c"]
    assert set(bench.table()) == {"a", "c"}
    (bench.folder / "break-b").unlink()
    assert bench() == 0
    assert bench.calls() == ["b"]
    assert set(bench.table()) == {"a", "b", "c"}


def test_a_cell_over_its_time_has_failed(bench, capsys):
    bench.write({"a": 1.0, "b": 2.0}, head="[suite]\nminutes = 0.02\n")
    (bench.folder / "hold-a").touch()
    assert bench() == 1
    assert "a 0: over time: ended after its 0.02 minutes" in capsys.readouterr().out
    assert bench.calls() == ["a", "b"]
    assert bench.processes() == []


def test_a_result_without_the_columns_has_failed(bench, capsys):
    bench.suite.write_text(bench.suite.read_text().replace('"ms"', '"ns"'))
    bench.suite.write_text(bench.suite.read_text().replace('"what"', '"who"'))
    assert bench() == 1
    assert "not the rows that the suite says: KeyError('who')" in capsys.readouterr().out


def test_after_a_kill_the_bench_goes_on_and_ends_what_was_left_running(bench):
    with bench.started("b") as command:
        command.process.kill()
        command.process.join()
        assert len(bench.processes()) == 1
        assert bench.calls() == ["a", "b"]
        left = bench.processes()
        (bench.folder / "hold-c").touch()
    (bench.folder / "hold-c").unlink()
    assert bench() == 0
    assert bench.calls() == ["b", "c"]
    assert not set(left) & set(bench.processes())
    assert set(bench.table()) == {"a", "b", "c"}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_bench_leaves_no_process_and_goes_on(bench, number):
    with bench.started("b") as command:
        os.kill(command.pid, number)
        status, _, error = command.end()
        assert status == 130
        assert error.endswith("daskxml: interrupted\n")
        assert bench.processes() == []
        found = json.loads((bench.out / "results.json").read_text())
        assert (len(found["cells"]), found["open"]) == (1, 2)
        assert "2 cells have not been begun" in (bench.out / "table.md").read_text()
    assert bench.calls() == ["a", "b"]
    assert bench() == 0
    assert bench.calls() == ["b", "c"]


def test_a_second_bench_in_one_folder_is_refused(bench, capsys):
    with bench.started("a"):
        assert bench() == 2
        error = capsys.readouterr().err
        assert error == (
            f"daskxml: error: {bench.out}: a bench is under way here; choose another --out\n"
        )
        assert bench.calls() == ["a"]


def test_against_an_earlier_bench(bench, capsys, tmp_path):
    assert bench() == 0
    earlier, bench.out = bench.out, bench.folder / "now"
    bench.write({"a": 10.2, "b": 30.0, "c": 15.0, "d": 1.0})
    capsys.readouterr()
    assert bench("--against", str(earlier)) == 0
    output = capsys.readouterr().out
    assert f"3 figures compared with {earlier}: 1 worse, 1 better." in output
    assert "For 3 of them no repeats tell the noise" in output
    assert "Settings or rows differ from then: a; b; c." in output
    verdicts = {name: row["verdict"] for name, row in bench.table().items()}
    assert verdicts == {"a": "same", "b": "worse", "c": "better", "d": ""}


def test_times_of_another_machine_are_not_compared(bench, capsys):
    assert bench() == 0
    results = bench.out / "results.json"
    found = json.loads(results.read_text())
    found["environment"]["cpu"] = "Z80"
    results.write_text(json.dumps(found))
    earlier, bench.out = bench.out, bench.folder / "now"
    bench.write({"a": 100.0})
    assert bench("--against", str(earlier)) == 0
    output = capsys.readouterr().out
    assert "another machine: times by the clock are not compared" in output
    assert "0 figures compared" in output


def test_a_suite_whose_files_are_not_there_says_so(tmp_path, capsys):
    suite = tmp_path / "real.toml"
    suite.write_text('[[matrix]]\nrun = ["adaptive-sgd"]\ndata = ["bibtex"]\n')
    assert main(["bench", str(suite), "--out", str(tmp_path / "out")]) == 1
    output = capsys.readouterr().out
    files = "bibtex.train.txt.gz and bibtex.test.txt.gz"
    assert f"skipped: give --data FOLDER, with {files}" in output
    assert "nothing was done: every cell was skipped" in output


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["smoek"], "smoek: no such suite, did you mean 'smoke'?"),
        (["smoke", "--out", "{here}/file"], "is a file; choose another --out"),
        (["smoke", "--against", "{here}", "--out", "{here}"], "name one directory"),
        (["smoke", "--against", "{here}", "--out", "{here}/x"], "no results of a bench here"),
        (["smoke", "--against", "{here}/bad", "--out", "{here}/x"], "not the results of a bench"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path, capsys, options, problem):
    (tmp_path / "file").touch()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "results.json").write_text("[]")
    assert main(["bench", *(option.replace("{here}", str(tmp_path)) for option in options)]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1
    assert not (tmp_path / "x").exists()


SMALL = """
[data.small]
rows = 300
test_rows = 60
features = 60
labels = 12

[[matrix]]
run = ["adaptive-sgd"]
data = ["small"]
workers = [1]
executors = ["cluster", "simulate"]
target = 0.01
set.model.hidden = [8]
set.training.epochs = 1
set.strategy = { batch_max = 16, megabatch_batches = 10 }
set.cluster.threads = 1
"""


@pytest.mark.slow
def test_a_real_and_a_simulated_run(tmp_path):
    suite = tmp_path / "small.toml"
    suite.write_text(SMALL)
    done = run_suite(load_suite(suite), tmp_path / "out")
    assert [cell["status"] for cell in done.cells] == ["done", "done"], done.cells
    real, virtual = (cell["figures"][""] for cell in done.cells)
    for cell, figures in zip(done.cells, (real, virtual), strict=True):
        folder = done.path / cell["folder"] / "run"
        last = read_history(folder / "history.jsonl")[-1]["metrics"]
        assert figures["P@1"] == last["P@1"] > 0
        assert (folder / "model.json").exists()
        assert figures["s to P@1 0.01"] <= figures["train s"]
        assert figures["memory MiB"] > 20
    assert real["in all s"] > real["train s"]
    assert "in all s" not in virtual
    assert (done.path / "table.md").read_text().count("| adaptive-sgd | small |") == 2


@pytest.mark.slow
def test_smoke(tmp_path, capsys):
    assert main(["bench", "smoke", "--out", str(tmp_path / "out")]) == 0
    assert "13/13" in capsys.readouterr().out
