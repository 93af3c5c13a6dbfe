"""Send a run's figures to TensorBoard, MLflow, Weights & Biases or Prometheus.

    python docs/examples/log_run.py runs/first tensorboard

follows the history of a run of this machine, whoever trains it, until the run is over. From
Python, and for runs on other machines, a callback does the same:

    log = tensorboard(Path("runs/first"))
    daskxml.train(..., on_megabatch=lambda row: log(row["megabatch"], figures(row)))
    daskxml.attach(name, client=client).follow(on_megabatch=...)
"""

import json
import math
import re
import sys
import time
import tomllib
from pathlib import Path

from daskxml.core.files import is_locked

PLAIN = "loss", "training_loss", "rows", "epoch", "train_s", "merge_s", "eval_s", "merged_bytes"
OF_WORKERS = "rows", "batch_rows", "updates", "lr", "weight", "busy_s", "idle_s"


def figures(row):
    """Return the finite numbers of a row of a history, by name."""
    found = {name: row.get(name) for name in PLAIN} | row["metrics"] | row.get("notes", {})
    for name, worker in row["workers"].items():
        found |= {f"workers/{key}/{name}": worker.get(key) for key in OF_WORKERS}
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def tensorboard(run):
    """Write event files into the run's directory: `tensorboard --logdir runs` shows all runs."""
    from tensorboard.summary import Writer

    writer = Writer(str(run / "tensorboard"))

    def log(step, values):
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log


def mlflow(run):
    """Log to `MLFLOW_TRACKING_URI`."""
    import mlflow

    mlflow.set_experiment("daskxml")
    mlflow.start_run(run_name=run.name)
    mlflow.log_params(settings(run))

    def log(step, values):
        plain = {name.replace("@", "_at_").replace("://", "_"): name for name in values}
        names = {re.sub(r"[^\w\-. /]", "_", name): known for name, known in plain.items()}
        mlflow.log_metrics({name: values[known] for name, known in names.items()}, step)

    return log


def wandb(run):
    """Log to W&B; a run that is resumed goes on with its charts."""
    import wandb

    logged = wandb.init(
        project="daskxml", id=run.name, name=run.name, resume="allow", config=settings(run)
    )
    return lambda step, values: logged.log(values, step)


def prometheus(run):
    """Serve the last figures at port 8800, path /metrics."""
    from prometheus_client import Gauge, start_http_server

    gauge = Gauge("daskxml", "A figure of the last mega-batch.", ["run", "figure"])
    start_http_server(8800)

    def log(step, values):
        for name, value in {"megabatch": step, **values}.items():
            gauge.labels(run.name, name).set(value)

    return log


def settings(run):
    """Return the run file's values by `section.key`."""
    tables = tomllib.loads((run / "run.toml").read_text())
    return {f"{name}.{key}": table[key] for name, table in tables.items() for key in table}


def follow(run, log, pause_s=2.0):
    """Log the rows of a run's history as they come; a run may go back to a checkpoint."""
    history, logged, is_open = run / "history.jsonl", 0, True
    while is_open:
        is_open = is_locked(run)
        text = history.read_text() if history.exists() else ""  # before the first mega-batch
        lines = text.split("\n")[:-1]  # the last may be half a row
        for line in lines[min(logged, len(lines)) :]:
            row = json.loads(line)
            log(row["megabatch"], figures(row))
        logged = len(lines)
        time.sleep(pause_s * is_open)


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    sinks = {sink.__name__: sink for sink in (tensorboard, mlflow, wandb, prometheus)}
    follow(directory, sinks[sys.argv[2]](directory))
