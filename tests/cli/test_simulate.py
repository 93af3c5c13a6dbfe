"""simulate as a user types it: one run, several beside each other, and a calibrated one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from daskxml.cli import main
from daskxml.data.synthetic import SyntheticSpec, write_xml
from harness.records import history

ROWS = SyntheticSpec(rows=1200, test_rows=150, features=200, labels=30, seed=9)
SETTINGS = ["training.megabatches=4", "training.epochs=0", "strategy.batch_max=32",
            "strategy.megabatch_batches=8", "model.hidden=[16]"]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("simulate")
    train = write_xml(folder / "train.txt", ROWS, "train")
    test = write_xml(folder / "test.txt", ROWS, "test")
    return ["--train", str(train), "--test", str(test), *(f"--set={s}" for s in SETTINGS)]


def test_a_simulated_run_is_evaluated_like_a_real_one(files, tmp_path, capsys):
    out = tmp_path / "run"
    costs = ["--cost", "1e-3,1e-4,1e-6", "--jitter", "0.1", "--bandwidth", "10GB/s"]
    speeds = ["--speeds", "1,0.92,0.84,0.76"]
    command = ["simulate", "adaptive-sgd", *files, *speeds, *costs, "--out", str(out)]
    assert main(command) == 0
    output = capsys.readouterr().out
    assert "mega-batch 4" in output
    assert "ended by  megabatches" in output
    assert sorted(history(out)[-1]["workers"]) == ["0", "1", "2", "3"]
    described = json.loads((out / "simulation.json").read_text())
    assert described["cost"]["jitter"] == 0.1
    assert described["network"]["bandwidth_bytes_s"] == 1e10
    assert main(["evaluate", str(out), files[3], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == history(out)[-1]["metrics"]
    assert main(command) == 2
    assert "holds a run already" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_calibrates_another(files, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    costs = ["--speeds", "1,0.5", "--cost", "1e-3,1e-4,0", "--jitter", "0"]
    assert main(["simulate", "adaptive-sgd", *files, *costs, "--out", str(first)]) == 0
    example = Path(__file__).parents[2] / "docs/examples/calibrate.py"
    fitted = subprocess.run(
        [sys.executable, example, first], capture_output=True, text=True, check=True
    )
    assert "--speeds 0=1.0000,1=0.5000" in fitted.stdout
    assert fitted.stderr.startswith("predicts the run within 0.")
    fit = [*fitted.stdout.split(), "--out", str(second)]
    assert main(["simulate", "adaptive-sgd", *files, *fit]) == 0
    for found, predicted in zip(history(first), history(second), strict=True):
        assert predicted["train_s"] == pytest.approx(found["train_s"], rel=0.05)


def test_a_pool_is_one_of_the_workers(files, tmp_path, capsys):
    speeds = ["--speeds", "gpu=1,cpu=1,0.5", "--pool", "cpu=4", "--pool-ratio", "50"]
    command = ["simulate", "adaptive-sgd", *files, *speeds, "--cost", "1e-3,1e-4,1e-6"]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    assert sorted(history(tmp_path / "run")[0]["workers"]) == ["2", "cpu", "gpu"]
    described = json.loads((tmp_path / "run" / "simulation.json").read_text())
    assert described["speeds"] == {"gpu": 1.0, "cpu": 1.0, "2": 0.5}
    assert described["pools"] == {"cpu": 4}
    assert described["pool_cost"]["per_row_s"] == pytest.approx(50 * (1e-3 / 32 + 1e-4))
    assert described["pool_cost"]["per_nonzero_s"] == pytest.approx(50e-6)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([], "required: --speeds; see `daskxml simulate --help`"),
        (["--speeds", "1,x"], "'x' is not a number of at least 0"),
        (["--speeds", "1,0"], "worker 1: speed = 0.0: must be above 0"),
        (["--speeds", "a=1,a=2"], "has a name twice"),
        (["--speeds", "a=1", "--pool", "b=2"], "pool b: no such worker"),
        (["--speeds", "a=1", "--pool", "2"], "not a worker's name and threads"),
        (["--speeds", "a=1", "--pool", "a=0"], "not a whole number of at least 1"),
        (["--speeds", "1", "--cost", "1,2"], "not three numbers"),
        (["--speeds", "1", "--cost", "0,0,0"], "a batch costs no time"),
        (["--speeds", "1", "--bandwidth", "fast"], "'fast' is not a size"),
    ],
)
def test_what_cannot_be_is_one_line(files, tmp_path, capsys, options, problem):
    assert main(["simulate", "adaptive-sgd", *files, *options, "--out", str(tmp_path / "x")]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1
    assert not (tmp_path / "x").exists()
