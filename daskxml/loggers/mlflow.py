"""A run as a run of MLflow's."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from daskxml._version import __version__
from daskxml.loggers.protocol import RunFacts, plain_config
from daskxml.loggers.scalars import scalars

KIND = "mlflow"
EXPERIMENT, EXPERIMENT_VARIABLE = "daskxml", "MLFLOW_EXPERIMENT_NAME"
_METRICS, _PARAMS = 1000, 100  # that MLflow takes at once
_LONGEST_VALUE = 500  # of a parameter, that every version takes
_STATES = {"error": "FAILED", "interrupt": "KILLED"}


class MlflowLogger:
    """Writes parameters, and metrics against mega-batches.

    Parameters
    ----------
    place
        A tracking URI, ``http://HOST:5000`` or ``sqlite:///mlflow.db``; ``""`` takes MLflow's own
        setting (``MLFLOW_TRACKING_URI``). The experiment is that of ``MLFLOW_EXPERIMENT_NAME``, or
        ``daskxml``.
    """

    def __init__(self, place: str = "") -> None:
        self.place = place
        self._client: Any = None
        self.run_id = ""

    def begin(self, run: RunFacts) -> None:
        """Create a run of MLflow's, or go on with the one that this run had before."""
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=self.place or None)
        remembered = run.recall(KIND)
        if remembered.get("uri") == self.place:
            self.run_id = str(remembered["run_id"])
            self._client.update_run(self.run_id, status="RUNNING")
            return
        experiment = os.environ.get(EXPERIMENT_VARIABLE, EXPERIMENT)
        made = self._client.create_run(self._experiment(experiment), run_name=run.title)
        self.run_id = made.info.run_id
        run.remember(KIND, {"run_id": self.run_id, "uri": self.place})
        self._describe(run)
        for row in run.history:
            self.log(row)

    def _describe(self, run: RunFacts) -> None:
        from mlflow.entities import Param, RunTag

        settings = plain_config(run.config).items()
        for part in _parts([Param(n, str(v)[:_LONGEST_VALUE]) for n, v in settings], _PARAMS):
            self._client.log_batch(self.run_id, params=part)
        tags = [RunTag("daskxml", __version__), RunTag("directory", str(run.out or ""))]
        self._client.log_batch(self.run_id, tags=tags)

    def _experiment(self, name: str) -> str:
        """Return an experiment's id; somebody else may make it at the same time."""
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))

    def log(self, row: Mapping[str, Any]) -> None:
        """Write a mega-batch."""
        from mlflow.entities import Metric

        now_ms, step = int(1000 * time.time()), row["megabatch"]
        named = ((mlflow_name(name), value) for name, value in scalars(row).items())
        metrics = [Metric(name, value, now_ms, step) for name, value in named]
        for part in _parts(metrics, _METRICS):
            self._client.log_batch(self.run_id, metrics=part)

    def rewind(self, megabatch: int) -> None:
        """Do nothing: MLflow forgets nothing; what comes again has a later time."""

    def end(self, reason: str) -> None:
        """Say how the run ended."""
        self._client.set_tag(self.run_id, "ended_by", reason)
        self._client.set_terminated(self.run_id, _STATES.get(reason, "FINISHED"))


def mlflow_name(name: str) -> str:
    """Return a name of letters that MLflow takes.

    Examples
    --------
    >>> mlflow_name("metrics/P@1"), mlflow_name("workers/lr/tcp://10.0.0.1:4000")
    ('metrics/P_at_1', 'workers/lr/tcp_10.0.0.1_4000')
    """
    return re.sub(r"[^A-Za-z0-9_\-. /]+", "_", re.sub("://?", "_", name.replace("@", "_at_")))


def _parts(values: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(values), most):
        yield values[start : start + most]
