"""Training in this process, with one worker and without a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from daskxml.api.job import Job
from daskxml.api.run import Run
from daskxml.config import RunConfig
from daskxml.kernels.compilation import TEXT, telling_of_compilation
from daskxml.local.rows import load_rows
from daskxml.local.run import LocalRun
from daskxml.local.tree_runs import LocalTreeRun
from daskxml.models.trained import Model
from daskxml.observe.callbacks import OnEvent, OnMegabatch
from daskxml.observe.loggers import Logger


def train_here(
    config: Mapping[str, Any] | RunConfig | str,
    *,
    train: Any = None,
    test: Any = None,
    start: Model | None = None,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    on_event: OnEvent | None = None,
    on_megabatch: OnMegabatch | None = None,
    loggers: Iterable[str | Logger] = (),
    raises: Iterable[type[BaseException]] = (),
) -> Run:
    """Train a model as a run file says, in this process, with one worker.

    Parameters and errors that are not named here are those of `daskxml.train`. The run has no
    directory and no checkpoints; Ctrl-C interrupts it.

    Parameters
    ----------
    start
        The model to continue from: rows may have more features and labels than it, after its own.

    Examples
    --------
    >>> import daskxml, numpy as np
    >>> rows = daskxml.Matrices(np.eye(64), np.eye(64))
    >>> run = train_here({"training": {"epochs": 2}}, train=rows)
    >>> run.reason, run.model.spec.labels
    ('epochs', 64)
    """
    job = Job.of(
        config, train, test, overrides, on_event=on_event, on_megabatch=on_megabatch,
        loggers=loggers, raises=raises,
    )  # fmt: skip
    return job.run(Here(start))


@dataclass(frozen=True)
class Here:
    """This process; ``start`` is the model to continue from."""

    start: Model | None = None

    def run(self, job: Job, publish: OnEvent) -> Run:
        """Do a job."""
        with telling_of_compilation(lambda: publish({"kind": "compiling", "text": TEXT})):
            publish({"kind": "status", "state": "loading"})
            config, rows, names = load_rows(job.config, 1, **job.given)
            kind = LocalRun if config.has_strategy else LocalTreeRun
            run = kind(config, rows, publish, self.start, names)
            model, reason = run.run()
            return Run(model, run.history, None, reason)
