"""Scheduler and workers started by hand as processes, and the command line against them."""

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from distributed import Client

import daskxml
from daskxml.cli.main import main
from daskxml.core.errors import ClusterError
from daskxml.records.checkpoint import checkpoints
from harness.clusters import dask_process
from harness.commands import Command

RUN_FILE = """
[model]
hidden = [16]
[strategy]
batch_max = 32
megabatch_batches = 12
lr = 0.5
[training]
megabatches = {megabatches}
[cluster]
threads = 1
"""


def started(*arguments: str, folder: Path) -> AbstractContextManager[subprocess.Popen[str]]:
    """A process of Dask's that soon gives up connecting."""
    timeout = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "5s"}
    return dask_process(*arguments, folder=folder, **timeout)


@pytest.fixture(scope="module")
def scheduler(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, list[subprocess.Popen[str]]]]:
    """Address of a scheduler with two workers, one of them with two threads, and the processes."""
    folder = tmp_path_factory.mktemp("dask")
    file = folder / "scheduler.json"
    with contextlib.ExitStack() as stack:
        options = ("--port", "0", "--dashboard-address", ":0", "--scheduler-file", str(file))
        processes = [stack.enter_context(started("scheduler", *options, folder=folder))]
        with Client(scheduler_file=str(file), timeout="20s") as client:
            for threads in (1, 2):
                worker = ("--scheduler-file", str(file), "--nthreads", str(threads),
                          "--no-dashboard", "--local-directory", str(folder))  # fmt: skip
                process = started("worker", *worker, folder=folder)
                processes.append(stack.enter_context(process))
            client.wait_for_workers(2, timeout=40)
            address = client.scheduler.address
        yield address, processes


def test_train_evaluate_predict(
    scheduler: tuple[str, Any], data: dict[str, Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    address, _ = scheduler
    out, run_file = tmp_path / "run", tmp_path / "run.toml"
    run_file.write_text(RUN_FILE.format(megabatches=6))
    arguments = ("--train", data["train"], "--test", data["test"], "--out", out)
    with Command("train", run_file, "--scheduler", address, *arguments) as training:
        status, said, errors = training.end()
    assert status == 0, errors
    assert "P@1" in said
    last = json.loads((out / "history.jsonl").read_text().splitlines()[-1])
    assert len(last["workers"]) == 2

    assert main(["evaluate", str(out), str(data["test"]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == last["metrics"]

    target = tmp_path / "predicted.npz"
    arguments = (str(out), str(data["test"]), "--top-k", "5", "--out", str(target))
    assert main(["predict", *arguments]) == 0
    scores = scipy.sparse.load_npz(target)
    assert scores.shape == (200, 60)
    assert counted_p1(scores, data["test"]) == pytest.approx(last["metrics"]["P@1"], abs=1e-12)


def counted_p1(scores: scipy.sparse.csr_matrix, path: Path) -> float:
    """P@1 counted from the text itself."""
    hits = 0
    for row, line in enumerate(path.read_text().splitlines()[1:]):
        labels = line.split(" ", 1)[0]
        best = scores.getrow(row)
        hits += str(best.indices[np.argmax(best.data)]) in labels.split(",")
    return hits / scores.shape[0]


@pytest.mark.slow
def test_nobody_answers() -> None:
    with pytest.raises(ClusterError, match="no scheduler answers"):
        daskxml.train({"training": {"epochs": 1}}, train="/x", scheduler="tcp://127.0.0.1:9")


@pytest.mark.slow
def test_the_scheduler_dies(
    scheduler: tuple[str, list[Any]], data: dict[str, Path], tmp_path: Path
) -> None:
    """The last test of this file: its scheduler is gone."""
    address, (process, *_) = scheduler
    out, run_file = tmp_path / "run", tmp_path / "run.toml"
    run_file.write_text(RUN_FILE.format(megabatches=10**6) + "[checkpoint]\nevery = 1\n")
    arguments = ("--train", data["train"], "--out", out, "--scheduler", address)
    with Command("train", run_file, *arguments) as training:
        training.wait_for("mega-batch 2 ")
        process.send_signal(signal.SIGKILL)
        _, _, errors = training.end()
    told = (
        f"daskxml: error: {address}: the scheduler does not answer any more; continue with --resume"
    )
    assert errors == f"{told} {out}\n"
    done = int(checkpoints(out)[-1].stem)
    resumed = daskxml.train(
        run_file, resume=out, train=data["train"], workers=1,
        overrides={"training.megabatches": done + 2},
    )  # fmt: skip
    assert [row["megabatch"] for row in resumed.history] == list(range(1, done + 3))


@pytest.mark.parametrize("kib", [pytest.param(500_000, marks=pytest.mark.slow), 700_000])
def test_where_memory_is_too_little_to_begin_that_is_told_at_once(tmp_path: Path, kib: int) -> None:
    (tmp_path / "rows.txt").write_text("1,2 3:1 4:0.5\n0 1:1\n" * 20)
    command = 'ulimit -v "$0"; exec "$@"'
    train = ("-m", "daskxml", "train", "adaptive-sgd", "--train", "rows.txt", "--workers", "1")
    done = subprocess.run(
        ["bash", "-c", command, str(kib), sys.executable, *train],
        cwd=tmp_path, capture_output=True, text=True, timeout=40, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert re.match("daskxml: error: .*(ulimit -v|not enough memory)", done.stderr)
