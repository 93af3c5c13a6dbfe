"""Loggers: a run's figures in TensorBoard, MLflow or Weights & Biases, each an optional extra.

One is named ``tensorboard:DIR``, ``mlflow:URI`` or ``wandb:PROJECT``; what follows the colon may be
left out. Its package is imported only then. Any object with the methods of `Logger` is one.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from daskxml._version import __version__
from daskxml.config import RunConfig
from daskxml.core.errors import ConfigError
from daskxml.core.files import read_json, replacing
from daskxml.observe.run_view import Row, busy_share, rows_per_s, scores
from daskxml.observe.wording import dotted
from daskxml.records.run_dir import LOGGERS_FILE

_PLAIN = {
    "loss": "loss/megabatch",
    "training_loss": "loss/training_rows",
    "rows": "progress/rows",
    "epoch": "progress/epoch",
    "train_s": "seconds/training",
    "merge_s": "seconds/merging",
    "eval_s": "seconds/evaluating",
    "wall_s": "seconds/since_start",
    "merged_bytes": "bytes/merging",
    "moved_bytes": "bytes/training",
}
_OF_WORKERS = ("batch_rows", "updates", "lr", "weight")


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run that starts or resumes.

    Attributes
    ----------
    title
        The last part of its directory, or the name in its run file.
    config
        The resolved run.
    out
        Its directory, or None.
    history
        The rows that it resumes from; empty for a new run. See `daskxml.session.history`.
    """

    title: str
    config: RunConfig
    out: Path | None = None
    history: Sequence[Row] = ()

    def recall(self, kind: str) -> dict[str, Any]:
        """Return what a logger of this kind stored of the run that resumes."""
        return dict(self._stored().get(kind, {})) if self.history else {}

    def remember(self, kind: str, values: Mapping[str, Any]) -> None:
        """Store what a logger of this kind needs to continue the same charts.

        Raises
        ------
        ModelError
            If it cannot be written.
        """
        if self.out is None:
            return
        before = self._stored()
        with replacing(self.out / LOGGERS_FILE) as partial:
            text = json.dumps({**before, kind: dict(values)}, indent=2)
            partial.write_text(text + "\n", encoding="utf-8")

    def _stored(self) -> dict[str, Any]:
        return {} if self.out is None else read_json(self.out / LOGGERS_FILE) or {}


class Logger(Protocol):
    """Writes a run's figures during the run.

    An error in ``begin`` ends the run before it starts. Later errors are warnings.
    """

    def begin(self, run: RunFacts) -> None:
        """Prepare; the rows of ``run.history`` may have been logged before it was resumed."""

    def log(self, row: Row) -> None:
        """Log a mega-batch."""

    def rewind(self, megabatch: int) -> None:
        """Expect the mega-batches after this one again: the run went back to a checkpoint."""

    def end(self, reason: str) -> None:
        """Finish; the reason is that of `daskxml.Run`, or ``error``."""


def make_logger(text: str) -> Logger:
    """Return the logger that a text names.

    Parameters
    ----------
    text
        ``tensorboard:DIR``, ``mlflow:URI`` or ``wandb:PROJECT``; what follows the colon may be
        left out.

    Raises
    ------
    ConfigError
        If there is no such logger, or its package is not installed: then it names the extra.

    Examples
    --------
    >>> make_logger("paper")
    Traceback (most recent call last):
    daskxml.core.errors.ConfigError: --log paper: no such logger; there are tensorboard, mlflow,
    wandb
    """
    name, _, place = text.partition(":")
    if name not in _LOGGERS:
        raise ConfigError(f"--log {text}: no such logger; there are {', '.join(_LOGGERS)}")
    if importlib.util.find_spec(name) is None:
        raise ConfigError(
            f"--log {name}: {name} is not installed; pip install 'daskxml[{name}]' brings it"
        )
    return _LOGGERS[name](place)


def scalars(row: Row) -> dict[str, float]:
    """Return the numbers to plot of a row of a history, by tag; infinities and NaN are left out.

    Parameters
    ----------
    row
        See `daskxml.session.history`.

    Examples
    --------
    >>> worker = {"rows": 60, "busy_s": 1.5, "idle_s": 0.5, "batch_rows": 32}
    >>> found = scalars({"loss": 4.5, "train_s": 2.0, "merge_s": 1.0, "metrics": {"P@1": 0.5},
    ...                  "workers": {"0": worker}})
    >>> found["metrics/P@1"], found["speed/rows_per_s"], found["workers/busy_share/0"]
    (0.5, 20.0, 0.75)
    """
    return {name: float(value) for name, value in _tagged(row) if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _tagged(row: Row) -> Iterator[tuple[str, Any]]:
    yield from ((tag, row.get(key)) for key, tag in _PLAIN.items())
    yield from ((f"metrics/{metric}", value) for metric, value in scores(row).items())
    yield from ((f"notes/{note}", value) for note, value in row.get("notes", {}).items())
    yield "speed/rows_per_s", rows_per_s(row)
    for name, worker in row.get("workers", {}).items():
        yield from ((f"workers/{key}/{name}", worker.get(key)) for key in _OF_WORKERS)
        yield f"workers/busy_share/{name}", busy_share(worker)


# --------------------------------------------------------------------------- TensorBoard


class TensorBoardLogger:
    """Writes scalars against mega-batches, and the run file as a text, to event files.

    Parameters
    ----------
    directory
        For many runs, each in a folder of its own; ``""`` takes the run's directory.
    """

    def __init__(self, directory: str = "") -> None:
        self.directory = directory
        self._writer: Any = None

    def begin(self, run: RunFacts) -> None:
        """Open an event file; TensorBoard joins the files of a run that is resumed.

        Raises
        ------
        ConfigError
            If there is no directory to write to.
        """
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if not self.directory and run.out is None:
            raise ConfigError("--log tensorboard: say where, tensorboard:DIR, or give --out")
        of_run = Path(str(run.out)) / "tensorboard"
        folder = Path(self.directory) / run.title if self.directory else of_run
        is_known = any(folder.glob("events.out.tfevents.*"))
        self._writer = EventFileWriter(str(folder), flush_secs=10)
        if is_known:  # of a run that is resumed, or logged again from its beginning
            self.rewind(len(run.history))
        if not (is_known and run.history):
            self._add(0, [_tensorboard_text("run file", run.config.to_toml())])
            for row in run.history:
                self.log(row)

    def log(self, row: Row) -> None:
        """Write a mega-batch."""
        found = scalars(row).items()
        self._add(row["megabatch"], [{"tag": n, "simple_value": value} for n, value in found])

    def rewind(self, megabatch: int) -> None:
        """Let TensorBoard discard later mega-batches."""
        from tensorboard.compat.proto import event_pb2

        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._event(megabatch + 1, session_log=start)

    def end(self, reason: str) -> None:
        """Close the file."""
        self._writer.close()

    def _add(self, step: int, values: list[dict[str, Any]]) -> None:
        from tensorboard.compat.proto import summary_pb2

        parts = [summary_pb2.Summary.Value(**value) for value in values]
        self._event(step, summary=summary_pb2.Summary(value=parts))

    def _event(self, step: int, **content: Any) -> None:
        from tensorboard.compat.proto import event_pb2

        self._writer.add_event(event_pb2.Event(wall_time=time.time(), step=step, **content))


def _tensorboard_text(name: str, text: str) -> dict[str, Any]:
    """Return a text for TensorBoard's text page; four spaces in, it is shown verbatim."""
    from tensorboard.compat.proto import tensor_pb2, types_pb2
    from tensorboard.plugins.text import metadata as text_plugin

    shown = "\n".join("    " + line for line in text.splitlines())
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[shown.encode()])
    metadata = text_plugin.create_summary_metadata(display_name=name, description="")
    return {"tag": f"{name}/text_summary", "metadata": metadata, "tensor": tensor}


# -------------------------------------------------------------------------------- MLflow


class MlflowLogger:
    """Writes parameters, and metrics against mega-batches.

    Parameters
    ----------
    uri
        Of the tracking server, ``http://HOST:5000`` or ``sqlite:///mlflow.db``; ``""`` takes
        MLflow's own setting (``MLFLOW_TRACKING_URI``). The experiment is that of
        ``MLFLOW_EXPERIMENT_NAME``, or ``daskxml``.
    """

    _VALUE_CHARACTERS = 500  # of a parameter, the most that every version accepts

    def __init__(self, uri: str = "") -> None:
        self.uri = uri
        self._client: Any = None
        self.run_id = ""

    def begin(self, run: RunFacts) -> None:
        """Create a run of MLflow's, or continue the one of the run that is resumed."""
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=self.uri or None)
        stored = run.recall("mlflow")
        if stored.get("uri") == self.uri:
            self.run_id = str(stored["run_id"])
            self._client.update_run(self.run_id, status="RUNNING")
            return
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "daskxml")
        created = self._client.create_run(self._experiment(experiment), run_name=run.title)
        self.run_id = created.info.run_id
        run.remember("mlflow", {"run_id": self.run_id, "uri": self.uri})
        self._describe(run)
        for row in run.history:
            self.log(row)

    def _describe(self, run: RunFacts) -> None:
        from mlflow.entities import Param, RunTag

        settings = dotted(run.config.as_dict()).items()
        params = [Param(name, str(value)[: self._VALUE_CHARACTERS]) for name, value in settings]
        tags = [RunTag("daskxml", __version__), RunTag("directory", str(run.out or ""))]
        self._client.log_batch(self.run_id, params=params, tags=tags)  # in requests of some size

    def _experiment(self, name: str) -> str:
        """Return an experiment's id; create it where it is missing."""
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))

    def log(self, row: Row) -> None:
        """Write a mega-batch."""
        from mlflow.entities import Metric

        now_ms, step = int(1000 * time.time()), row["megabatch"]
        metrics = [Metric(mlflow_name(n), v, now_ms, step) for n, v in scalars(row).items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def rewind(self, megabatch: int) -> None:
        """Do nothing: MLflow keeps all values; those that come again have a later time."""

    def end(self, reason: str) -> None:
        """Store why the run ended."""
        self._client.set_tag(self.run_id, "ended_by", reason)
        states = {"error": "FAILED", "interrupt": "KILLED"}
        self._client.set_terminated(self.run_id, states.get(reason, "FINISHED"))


def mlflow_name(name: str) -> str:
    """Return a tag with only the characters that MLflow accepts.

    Examples
    --------
    >>> mlflow_name("metrics/P@1"), mlflow_name("workers/lr/tcp://10.0.0.1:4000")
    ('metrics/P_at_1', 'workers/lr/tcp_10.0.0.1_4000')
    """
    return re.sub(r"[^A-Za-z0-9_\-. /]+", "_", re.sub("://?", "_", name.replace("@", "_at_")))


# ---------------------------------------------------------------------- Weights & Biases


class WandbLogger:
    """Writes the settings, and figures against mega-batches.

    Mega-batches are a value and not W&B's own step, which must never fall: a run that goes back to
    a checkpoint repeats some. Where it writes, and whether at all (``WANDB_MODE=offline``), are
    settings of W&B's own.

    Parameters
    ----------
    project
        ``""`` takes that of ``WANDB_PROJECT``, or ``daskxml``.
    """

    _STEP = "megabatch"

    def __init__(self, project: str = "") -> None:
        self.project = project or os.environ.get("WANDB_PROJECT", "daskxml")
        self._run: Any = None

    def begin(self, run: RunFacts) -> None:
        """Open a run, or continue the one of the run that is resumed."""
        import wandb

        stored = run.recall("wandb")
        is_known = stored.get("project") == self.project
        identity = str(stored["id"]) if is_known else secrets.token_hex(4)
        self._run = wandb.init(
            project=self.project,
            id=identity,
            name=run.title,
            resume="allow",
            config=run.config.as_dict(),
            allow_val_change=True,  # a run may be resumed with other settings
            reinit="create_new",  # beside whatever this process logs already
            settings=wandb.Settings(console="off"),  # stdout stays the command's own
        )
        self._run.define_metric(self._STEP)
        self._run.define_metric("*", step_metric=self._STEP)
        if not is_known:
            run.remember("wandb", {"id": identity, "project": self.project})
            for row in run.history:
                self.log(row)

    def log(self, row: Row) -> None:
        """Write a mega-batch."""
        self._run.log({self._STEP: row["megabatch"], **scalars(row)})

    def rewind(self, megabatch: int) -> None:
        """Do nothing: values that come again are drawn at their mega-batch."""

    def end(self, reason: str) -> None:
        """Store why the run ended, and wait until everything is written."""
        self._run.summary["ended_by"] = reason
        self._run.finish(exit_code=int(reason == "error"))


_LOGGERS: dict[str, Callable[[str], Logger]] = {
    "tensorboard": TensorBoardLogger,
    "mlflow": MlflowLogger,
    "wandb": WandbLogger,
}
