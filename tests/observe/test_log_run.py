"""The documented way to log a run: its history, followed by `docs/examples/log_run.py`.

TensorBoard, MLflow and W&B come with the extra: ``pip install '.[test,loggers]'``.
"""

import json
import math
import os
import runpy
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from daskxml.api.in_process import simulate
from daskxml.core.files import lock_folder
from daskxml.local import CostModel
from harness.small_data import data as data

EXAMPLE = Path(__file__).parents[2] / "docs/examples/log_run.py"
VALUES = {
    "model": {"hidden": [8]},
    "strategy": {"batch_max": 32, "megabatch_batches": 10},
    "training": {"megabatches": 3},
}


@pytest.fixture
def names():
    return runpy.run_path(str(EXAMPLE))


@pytest.fixture
def run(data, tmp_path):
    """The run's directory, and its history."""
    cost = CostModel(fixed_s=1e-3, per_row_s=1e-4, per_nonzero_s=0.0)
    out = tmp_path / "run"
    return out, simulate(VALUES, {"a": 1.0, "tcp://b:1": 0.5}, cost=cost, out=out, **data).history


def test_a_row_has_what_users_look_at(names, run):
    row = run[1][-1]
    found = names["figures"](row)
    assert (found["P@1"], found["loss"]) == (row["metrics"]["P@1"], row["loss"])
    assert found["workers/weight/tcp://b:1"] == row["workers"]["tcp://b:1"]["weight"]
    assert all(isinstance(v, float) and math.isfinite(v) for v in found.values())
    empty = {"loss": math.nan, "rows": None, "metrics": {"P@1": math.inf}, "workers": {"a": {}}}
    assert names["figures"](empty) == {}


def test_a_run_under_way_is_followed_through_a_rewind(names, tmp_path, monkeypatch):
    history, logged = tmp_path / "history.jsonl", []
    lock = lock_folder(tmp_path, "")

    def write(*losses):
        rows = ({"megabatch": n, "loss": x, "metrics": {}, "workers": {}}
                for n, x in enumerate(losses, 1))  # fmt: skip
        history.write_text("".join(json.dumps(row) + "\n" for row in rows))

    writes = [lambda: write(0.5, 0.4), lambda: write(0.5), lambda: write(0.5, 0.3)]

    def next_state(pause_s):
        writes.pop(0)() if writes else lock.close()

    monkeypatch.setattr("time.sleep", next_state)
    names["follow"](tmp_path, lambda step, found: logged.append((step, found["loss"])))
    assert logged == [(1, 0.5), (2, 0.4), (2, 0.3)]


def test_prometheus_reads_the_last_figures(names, run):
    out, history = run
    names["follow"](out, names["prometheus"](out), 0.0)
    with urllib.request.urlopen("http://127.0.0.1:8800/metrics") as answer:
        text = answer.read().decode()
    assert 'daskxml{figure="megabatch",run="run"} 3.0' in text
    assert f'daskxml{{figure="loss",run="run"}} {history[-1]["loss"]}' in text


@pytest.mark.filterwarnings("default")
def test_tensorboard_reads_every_row(names, run):
    pytest.importorskip("tensorboard", reason="comes with the extra 'loggers'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out, history = run
    names["follow"](out, names["tensorboard"](out), 0.0)
    events = EventAccumulator(str(out / "tensorboard"), size_guidance={"tensors": 0}).Reload()
    points = [(e.step, e.tensor_proto.float_val[0]) for e in events.Tensors("loss")]
    assert points == [(row["megabatch"], pytest.approx(row["loss"])) for row in history]


@pytest.mark.filterwarnings("default")
def test_mlflow_reads_every_row(names, run, tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="comes with the extra 'loggers'")
    pytest.importorskip("sqlalchemy", reason="a store in a file needs the whole of MLflow")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    out, history = run
    names["follow"](out, names["mlflow"](out), 0.0)
    from mlflow import MlflowClient, end_run

    end_run()
    client = MlflowClient(tracking_uri=uri)
    (found,) = client.search_runs([client.get_experiment_by_name("daskxml").experiment_id])
    assert found.data.params["strategy.megabatch_batches"] == "10"
    assert found.data.metrics["P_at_1"] == history[-1]["metrics"]["P@1"]
    points = client.get_metric_history(found.info.run_id, "loss")
    assert [point.value for point in points] == [row["loss"] for row in history]


def test_wandb_takes_a_run(run, tmp_path):
    """In a process of its own: W&B's helper process outlives a test."""
    pytest.importorskip("wandb", reason="comes with the extra 'loggers'")
    environment = os.environ | {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}
    command = [sys.executable, str(EXAMPLE), str(run[0]), "wandb"]
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, timeout=120)
    (file,) = tmp_path.glob("wandb/offline-run-*/run-run.wandb")
    assert b"megabatch_batches" in file.read_bytes()
