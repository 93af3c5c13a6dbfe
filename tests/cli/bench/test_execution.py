"""Cells as processes: their budgets, their ends, and what they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daskxml.cli.bench.cells import Budget
from daskxml.cli.bench.execution import (
    CELL_VARIABLE,
    DONE,
    FAILED,
    OVER_MEMORY,
    OVER_TIME,
    cell_processes,
    execute,
    group_processes,
    kill_all,
    memory_bytes,
)

AMPLE = Budget(seconds=60.0, memory_bytes=2**33)
FILL = "import time; held = bytearray(b'x') * (200 << 20); time.sleep(60)"
# A child that leaves the process group, as a daemon does; the parent waits for it.
DAEMON = (
    "import subprocess, sys, pathlib;"
    "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
    "                     start_new_session=True);"
    "pathlib.Path(sys.argv[1]).write_text(str(p.pid))"
)


def is_running(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().split(")")[1].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_cell_that_ends_well(tmp_path):
    execution = execute(["-c", "import time; print('hello'); time.sleep(0.7)"], tmp_path, AMPLE)
    assert (execution.status, execution.reason) == (DONE, "")
    assert 0.7 < execution.seconds < 30
    assert 2**20 < execution.peak_bytes < 2**28
    assert (tmp_path / "output.txt").read_text() == "hello\n"


def test_a_cell_that_fails_says_its_last_line(tmp_path):
    execution = execute(["-c", "print('first'); raise SystemExit('no good\\n')"], tmp_path, AMPLE)
    assert (execution.status, execution.reason) == (FAILED, "exit status 1: no good")
    silent = execute(["-c", "import os; os.kill(os.getpid(), 9)"], tmp_path, AMPLE)
    assert silent.reason == "exit status -9: it said nothing"


def test_a_cell_over_its_time_is_killed(tmp_path):
    budget = Budget(seconds=0.5, memory_bytes=2**33)
    execution = execute(["-c", "import time; time.sleep(60)"], tmp_path, budget)
    assert execution.status == OVER_TIME
    assert execution.seconds < 10
    assert "minutes" in execution.reason


def test_a_cell_over_its_memory_is_killed_where_its_child_has_it(tmp_path):
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {FILL!r}])"
    execution = execute(["-c", parent], tmp_path, Budget(seconds=60.0, memory_bytes=100 << 20))
    assert execution.status == OVER_MEMORY
    assert execution.reason == "ended for having more memory than its 100MiB"
    assert 100 << 20 < execution.peak_bytes < 1 << 30
    assert not cell_processes(tmp_path)


def test_nothing_outlives_a_cell_not_even_what_left_its_group(tmp_path):
    execution = execute(["-c", DAEMON, str(tmp_path / "pid")], tmp_path, AMPLE)
    assert execution.status == DONE
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_shared_memory_counts_once(tmp_path):
    program = (
        "import os, mmap, sys; held = mmap.mmap(-1, 64 << 20); held.write(b'x' * (64 << 20));"
        "os.fork(); os.write(1, b'ready\\n'); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        env={**os.environ, CELL_VARIABLE: str(tmp_path)},
    )  # fmt: skip
    try:
        assert child.stdout.readline() == child.stdout.readline() == b"ready\n"
        assert len(group_processes(child.pid)) == 2
        processes = group_processes(child.pid)
        assert set(cell_processes(tmp_path)) == set(processes)
        assert 64 << 20 < memory_bytes(processes) < 100 << 20
    finally:
        kill_all(lambda: group_processes(child.pid))
        child.communicate()
    assert memory_bytes(processes) == 0


def test_an_interrupted_bench_ends_its_cell(tmp_path, monkeypatch):
    def interrupt(processes):
        raise KeyboardInterrupt

    monkeypatch.setattr("daskxml.cli.bench.execution.memory_bytes", interrupt)
    begun_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        execute(["-c", "import time; time.sleep(60)"], tmp_path, AMPLE)
    assert time.monotonic() - begun_s < 10
    assert not cell_processes(tmp_path)
