"""A bench as a user calls it: within its limits, past what fails, and on from where it stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daskxml.cli import bench, main
from daskxml.cli.bench import DONE, FAILED, OVER_MEMORY, OVER_TIME, execute, processes_of
from daskxml.cli.suite import Limits
from daskxml.records.run_dir import read_history
from harness.commands import Command

AMPLE = Limits(minutes=1.0, memory=2**33)
FILL = "import time; held = bytearray(b'x') * (200 << 20); time.sleep(60)"
# A child that leaves the session, as a daemon does.
DAEMON = (
    "import subprocess, sys, pathlib;"
    "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
    "                     start_new_session=True);"
    "pathlib.Path(sys.argv[1]).write_text(str(p.pid))"
)
SUITE = """
[suite]
title = "tiny runs"

[data.small]
rows = 300
test_rows = 60
features = 60
labels = 12

[[matrix]]
run = ["minibatch"]
data = ["small"]
workers = [1]
seeds = [0, 1]
executors = ["simulate"]
target = 0.01
settings = [
    "model.hidden=[8]", "training.epochs=1", "strategy.batch_max=16",
    "strategy.megabatch_batches=10", "cluster.threads=1",
]
"""


def is_running(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().split(")")[1].split()[0] not in "ZX"
    except OSError:
        return False


# ------------------------------------------------------------------------------- one process


def test_a_process_that_ends_well(tmp_path):
    result = execute(["-c", "import time; print('hello'); time.sleep(0.7)"], tmp_path, AMPLE)
    assert (result["status"], result["reason"]) == (DONE, "")
    assert 0.7 < result["seconds"] < 30
    assert 2**20 < result["peak_bytes"] < 2**28
    assert (tmp_path / "output.txt").read_text() == "hello\n"


def test_a_process_that_fails_says_its_last_line(tmp_path):
    result = execute(["-c", "print('first'); raise SystemExit('no good\\n')"], tmp_path, AMPLE)
    assert (result["status"], result["reason"]) == (FAILED, "exit status 1: no good")
    silent = execute(["-c", "import os; os.kill(os.getpid(), 9)"], tmp_path, AMPLE)
    assert silent["reason"] == "exit status -9: it said nothing"


def test_a_process_over_its_time_is_killed(tmp_path):
    result = execute(["-c", "import time; time.sleep(60)"], tmp_path, Limits(minutes=0.01))
    assert (result["status"], result["reason"]) == (OVER_TIME, "ended after its 0.01 minutes")
    assert result["seconds"] < 10


def test_a_process_over_its_memory_is_killed_where_its_child_has_it(tmp_path):
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {FILL!r}])"
    result = execute(["-c", parent], tmp_path, Limits(minutes=1.0, memory=100 << 20))
    assert result["status"] == OVER_MEMORY
    assert result["reason"] == "ended for having more memory than its 100MiB"
    assert 100 << 20 < result["peak_bytes"] < 1 << 30
    assert not processes_of(tmp_path)


def test_nothing_outlives_a_process_not_even_what_left_its_session(tmp_path):
    assert execute(["-c", DAEMON, str(tmp_path / "pid")], tmp_path, AMPLE)["status"] == DONE
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_shared_memory_counts_once(tmp_path):
    program = (
        "import os, mmap, sys; held = mmap.mmap(-1, 64 << 20); held.write(b'x' * (64 << 20));"
        "os.fork(); os.write(1, b'ready\\n'); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, bench.CELL_VARIABLE: str(tmp_path)},
    )  # fmt: skip
    try:
        assert child.stdout.readline() == child.stdout.readline() == b"ready\n"
        processes = processes_of(tmp_path)
        assert len(processes) == 2
        assert 64 << 20 < bench.memory_bytes(processes) < 100 << 20
    finally:
        bench.kill_all(tmp_path)
        child.communicate()
    assert bench.memory_bytes(processes) == 0


# ------------------------------------------------------------------------------ the command


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(SUITE)
    return path


def test_a_bench_keeps_what_is_done_and_does_again_what_failed(suite, capsys, monkeypatch):
    """In the place of training, a cell writes what it would, or fails."""
    calls, broken = [], {1}

    def train(command, folder, limits):
        seed = int("seed = 1" in (folder / "run.toml").read_text())
        calls.append(seed)
        if seed in broken:
            return {"status": FAILED, "reason": "broken", "seconds": 1.0, "peak_bytes": 1}
        row = {"megabatch": 1, "rows": 40, "train_s": 4.0, "merge_s": 1.0, "wall_s": 5.0,
               "metrics": {"P@1": 0.5 + seed}, "workers": {"0": {"busy_s": 3.0}}}  # fmt: skip
        (folder / "run").mkdir()
        (folder / "run/history.jsonl").write_text(json.dumps(row) + "\n")
        return {"status": DONE, "reason": "", "seconds": 1.0, "peak_bytes": 3 << 20}

    monkeypatch.setattr(bench, "execute", train)
    monkeypatch.setattr(bench, "read_history", lambda path: [json.loads(path.read_text())])
    out = suite.parent / "out"
    call = ["bench", str(suite), "--out", str(out)]
    assert main(call) == 1
    told = capsys.readouterr().out
    assert "[1/2] minibatch, small, 1, simulate: seed 0: done, 1.0 s, 3 MiB\n" in told
    assert "- minibatch, small, 1, simulate: seed 1: failed, 1.0 s, 0 MiB: broken" in told
    assert told.endswith("1 of 2 runs failed\n")
    broken.clear()
    assert main(call) == 0
    assert "seed 0: done, 1.0 s, 3 MiB: before\n" in capsys.readouterr().out
    assert calls == [0, 1, 1]
    found = json.loads((out / "results.json").read_text())
    assert {"commit", "cpu", "packages"} <= found["environment"].keys()
    figures = [result["figures"] for result in found["results"]]
    assert [one["s to P@1 0.01"] for one in figures] == [5.0, 5.0]
    assert "| 1 (0.5 to 1.5) |" in (out / "table.md").read_text()
    suite.write_text(SUITE.replace("batch_max=16", "batch_max=8"))
    assert main(call) == 0
    assert calls == [0, 1, 1, 0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["simulate", "cluster"])
def test_a_real_run(suite, executor, capsys):
    suite.write_text(SUITE.replace("simulate", executor).replace("[0, 1]", "[0]"))
    out = suite.parent / "out"
    assert main(["bench", str(suite), "--out", str(out)]) == 0
    [result] = json.loads((out / "results.json").read_text())["results"]
    [folder] = out.glob("cells/*")
    figures = result["figures"]
    assert figures["P@1"] == read_history(folder / "run/history.jsonl")[-1]["metrics"]["P@1"] > 0
    assert (folder / "run/model.json").exists()
    assert figures["s to P@1 0.01"] <= figures["train s"]
    assert ("in all s" in figures) == (executor == "cluster")
    assert f"| minibatch | small | 1       | {executor}" in capsys.readouterr().out


def test_a_bench_is_alone_in_its_folder_and_goes_on_after_a_kill_or_ctrl_c(suite, capsys):
    """The first seed of two is under way; it would take minutes."""
    suite.write_text(SUITE.replace("epochs=1", "epochs=100000"))
    out = suite.parent / "out"

    def wait_for_process():
        deadline_s = time.monotonic() + 60
        while not (found := [p for f in out.glob("cells/*") for p in processes_of(f)]):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        return found

    with Command("bench", suite, "--out", out) as command:
        left = wait_for_process()
        assert main(["bench", str(suite), "--out", str(out)]) == 2
        assert f"{out}: a bench is under way here; choose another" in capsys.readouterr().err
        command.process.kill()
        command.process.join()
    assert any(process.is_running() for process in left)
    with Command("bench", suite, "--out", out) as command:
        deadline_s = time.monotonic() + 60
        while any(process.is_running() for process in left):  # the bench before left them
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        wait_for_process()
        os.kill(command.pid, signal.SIGTERM)
        status, _, error = command.end()
        assert (status, error) == (130, "daskxml: interrupted\n")
    assert not [p for folder in out.glob("cells/*") for p in processes_of(folder)]


def test_a_suite_whose_files_are_not_there_says_so(tmp_path, capsys):
    suite = tmp_path / "real.toml"
    suite.write_text('[[matrix]]\nrun = ["adaptive-sgd"]\ndata = ["bibtex"]\n')
    assert main(["bench", str(suite), "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().out
    files = "bibtex.train.txt.gz and bibtex.test.txt.gz"
    assert f"skipped: give --data FOLDER, with {files}" in told
    assert "nothing was done: every run was skipped" in told


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["smoek"], "smoek: no such suite, did you mean 'smoke'?"),
        (["smoke", "--out", "{here}/file"], "is a file; choose another --out"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path, capsys, options, problem):
    (tmp_path / "file").touch()
    given = [option.replace("{here}", str(tmp_path)) for option in options]
    assert main(["bench", *given]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_smoke(tmp_path, capsys):
    assert main(["bench", "smoke", "--out", str(tmp_path / "out")]) == 0
    assert "13/13" in capsys.readouterr().out
