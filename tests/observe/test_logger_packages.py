"""The real packages read what the loggers have written: of a run, a resumed one, a rewound one.

They come with the extras: ``pip install '.[test,tensorboard,mlflow,wandb]'``.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys

import pytest

from daskxml.api.in_process import simulate
from daskxml.cli import main
from daskxml.config import load_run_config
from daskxml.core.errors import ConfigError
from daskxml.local import CostModel
from daskxml.observe.loggers import RunFacts, make_logger
from daskxml.records.run_dir import read_history
from harness.small_data import data as data

pytestmark = pytest.mark.filterwarnings("default")  # of the packages; ours are asserted
COST = CostModel(fixed_s=1e-3, per_row_s=1e-4, per_nonzero_s=0.0)
VALUES = {
    "model": {"hidden": [8]},
    "strategy": {"batch_max": 32, "megabatch_batches": 10},
    "training": {"megabatches": 3},
    "checkpoint": {"every": 1},
}


def go(data, folder, *loggers, **values):
    """Simulate three mega-batches, then resume for a fourth; return the history."""
    out = folder / "run"
    given = {"train": data["train"], "test": data["test"], "cost": COST, "loggers": loggers}
    simulate(VALUES, [1, 0.5], **given, out=out)
    more = {"training.megabatches": 4}
    return simulate(VALUES, [1, 0.5], **given, resume=out, overrides=more).history


def losses(history):
    return [(row["megabatch"], pytest.approx(row["loss"], rel=1e-6)) for row in history]


def facts(history=()):
    config = load_run_config(VALUES)
    return RunFacts(title="run", config=config, history=history)


def row(megabatch, loss):
    return {"megabatch": megabatch, "loss": loss, "metrics": {"P@1": 0.5}, "workers": {}}


# --------------------------------------------------------------------------- TensorBoard


def read_events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    return events.Reload()


@pytest.fixture
def tensorboard():
    pytest.importorskip("tensorboard", reason="comes with the extra 'tensorboard'")


def test_tensorboard_joins_the_parts_of_a_resumed_run(data, tmp_path, tensorboard):
    history = go(data, tmp_path, f"tensorboard:{tmp_path / 'logs'}")
    events = read_events(tmp_path / "logs" / "run")
    found = [(point.step, point.value) for point in events.Scalars("loss/megabatch")]
    assert found == losses(history)
    assert "workers/batch_rows/1" in events.Tags()["scalars"]
    (text,) = events.Tensors("run file/text_summary")
    assert b"megabatch_batches = 10" in text.tensor_proto.string_val[0]


def test_tensorboard_forgets_what_was_undone(tmp_path, tensorboard):
    logger = make_logger(f"tensorboard:{tmp_path}")
    logger.begin(facts())
    for megabatch in (1, 2, 3):
        logger.log(row(megabatch, 1.0))
    logger.rewind(1)
    for megabatch in (2, 3):
        logger.log(row(megabatch, 2.0))
    logger.end("epochs")
    events = read_events(tmp_path / "run").Scalars("loss/megabatch")
    assert [(point.step, point.value) for point in events] == [(1, 1.0), (2, 2.0), (3, 2.0)]


def test_tensorboard_gets_the_whole_history_of_a_run_that_it_did_not_know(
    data, tmp_path, tensorboard
):
    simulate(VALUES, [1, 0.5], train=data["train"], cost=COST, out=tmp_path / "run")
    history = simulate(
        VALUES, [1, 0.5], train=data["train"], cost=COST, resume=tmp_path / "run",
        overrides={"training.megabatches": 4}, loggers=["tensorboard"],
    ).history  # fmt: skip
    points = read_events(tmp_path / "run" / "tensorboard").Scalars("loss/megabatch")
    assert [(point.step, point.value) for point in points] == losses(history)


def test_tensorboard_shows_a_run_once_that_is_told_again(tmp_path, tensorboard):
    for loss in (1.0, 2.0):
        logger = make_logger(f"tensorboard:{tmp_path}")
        logger.begin(facts())
        for megabatch in (1, 2):
            logger.log(row(megabatch, loss))
        logger.end("epochs")
    points = read_events(tmp_path / "run").Scalars("loss/megabatch")
    assert [(point.step, point.value) for point in points] == [(1, 2.0), (2, 2.0)]


def test_tensorboard_without_a_place_is_one_line(data, tensorboard):
    with pytest.raises(ConfigError, match="say where, tensorboard:DIR, or give --out"):
        simulate(VALUES, [1], train=data["train"], loggers=["tensorboard"])


def test_the_command_line_takes_loggers(data, tmp_path, tensorboard):
    settings = ["training.megabatches=2", "strategy.batch_max=32", "model.hidden=[8]",
                "strategy.megabatch_batches=10", "training.epochs=0"]  # fmt: skip
    command = ["simulate", "adaptive-sgd", "--train", str(data["train"]), "--speeds", "1,1"]
    command += [f"--set={setting}" for setting in settings]
    logs = ["--log", f"tensorboard:{tmp_path / 'logs'}", "--compare", "elastic"]
    assert main([*command, *logs, "--out", str(tmp_path / "runs")]) == 0
    for name in ("adaptive-sgd", "elastic"):
        assert len(read_events(tmp_path / "logs" / name).Scalars("loss/megabatch")) == 2


# -------------------------------------------------------------------------------- MLflow


@pytest.fixture
def mlflow_uri(tmp_path):
    pytest.importorskip("mlflow", reason="comes with the extra 'mlflow'")
    pytest.importorskip("sqlalchemy", reason="a store in a file needs the whole of MLflow")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def test_mlflow_goes_on_with_the_same_run(data, tmp_path, mlflow_uri):
    from mlflow import MlflowClient

    history = go(data, tmp_path, f"mlflow:{mlflow_uri}")
    client = MlflowClient(tracking_uri=mlflow_uri)
    experiment = client.get_experiment_by_name("daskxml")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert run.data.params["strategy.megabatch_batches"] == "10"
    assert run.data.tags["ended_by"] == "megabatches"
    assert run.data.metrics["metrics/P_at_1"] == history[-1]["metrics"]["P@1"]
    points = client.get_metric_history(run.info.run_id, "loss/megabatch")
    assert sorted((point.step, point.value) for point in points) == losses(history)


def test_mlflow_says_how_a_run_failed(tmp_path, mlflow_uri):
    from mlflow import MlflowClient

    logger = make_logger(f"mlflow:{mlflow_uri}")
    logger.begin(facts([row(1, 1.0), row(2, 2.0)]))
    logger.end("error")
    client = MlflowClient(tracking_uri=mlflow_uri)
    assert client.get_run(logger.run_id).info.status == "FAILED"
    assert len(client.get_metric_history(logger.run_id, "loss/megabatch")) == 2


def test_a_server_that_is_not_there_is_one_line(data, tmp_path, mlflow_uri, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    command = ["simulate", "adaptive-sgd", "--train", str(data["train"]), "--speeds", "1"]
    out = tmp_path / "run"
    assert main([*command, "--log", "mlflow:http://127.0.0.1:9", "--out", str(out)]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("daskxml: error: --log mlflow: cannot begin (MlflowException:")
    assert not out.exists()


# ---------------------------------------------------------------------- Weights & Biases


def read_records(path, block=32_768):
    """Yield the records of a file of W&B's, a log as LevelDB has: see its log_format.md."""
    found, place, record = path.read_bytes(), 7, b""
    assert found.startswith(b":W&B")
    while place + 7 <= len(found):
        if block - place % block < 7:
            place += block - place % block
            continue
        length, kind = struct.unpack_from("<HB", found, place + 4)
        record += found[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""


def read_wandb(path):
    """Return the history, the configuration and the name in one of W&B's files."""
    from wandb.proto import wandb_internal_pb2

    rows, config, name = [], {}, ""
    for found in read_records(path):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(found)
        items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json)
                 for item in record.history.item}  # fmt: skip
        rows += [items] if items else []
        if record.HasField("run"):
            updates = record.run.config.update
            config |= {item.key: json.loads(item.value_json) for item in updates}
            name = record.run.display_name
    return rows, config, name


WANDB_PROGRAM = """
import json, sys
from daskxml.api.in_process import simulate

given = json.loads(sys.argv[1])
arguments = {"train": given["train"], "loggers": ["wandb:study"]}
simulate(given["values"], [1, 0.5], out=given["out"], **arguments)
more = {"training.megabatches": 4}
simulate(given["values"], [1, 0.5], resume=given["out"], overrides=more, **arguments)
"""


def test_wandb_goes_on_with_the_same_run(data, tmp_path):
    """In a process of its own: W&B's helper process outlives a test."""
    pytest.importorskip("wandb", reason="comes with the extra 'wandb'")
    values = {"values": VALUES, "train": str(data["train"]), "out": str(tmp_path / "run")}
    environment = os.environ | {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}
    subprocess.run(
        [sys.executable, "-c", WANDB_PROGRAM, json.dumps(values)], env=environment, cwd=tmp_path,
        check=True, timeout=120, capture_output=True,
    )  # fmt: skip
    history = read_history(tmp_path / "run" / "history.jsonl")
    found = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    files = sorted(found, key=lambda path: path.stat().st_mtime)
    remembered = json.loads((tmp_path / "run" / "loggers.json").read_text())["wandb"]
    assert {path.stem for path in files} == {f"run-{remembered['id']}"}
    assert remembered["project"] == "study"
    parts = [read_wandb(path) for path in files]
    rows = [row for part in parts for row in part[0]]
    assert [(row["megabatch"], row["loss/megabatch"]) for row in rows] == losses(history)
    assert parts[0][1]["strategy"]["megabatch_batches"] == 10
    assert parts[0][2] == "run"
