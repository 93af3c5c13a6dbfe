"""Training in this process, with one worker and without a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from daskxml.api.run import Run, resolve_run
from daskxml.config import RunConfig
from daskxml.kernels.compilation import TEXT, telling_of_compilation
from daskxml.local.rows import load_rows
from daskxml.local.run import LocalRun
from daskxml.local.tree_runs import LocalTreeRun
from daskxml.models.trained import Model
from daskxml.observe.callbacks import OnEvent, OnMegabatch, run_callbacks
from daskxml.observe.loggers import Logger
from daskxml.records.run_dir import RunDir


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
        The model to go on with: rows may have more features and labels than it, after its own.

    Examples
    --------
    >>> import daskxml, numpy as np
    >>> rows = daskxml.Matrices(np.eye(64), np.eye(64))
    >>> run = train_here({"training": {"epochs": 2}}, train=rows)
    >>> run.reason, run.model.spec.labels
    ('epochs', 64)
    """
    resolved, place = resolve_run(config, train, test, overrides), RunDir(None, None)
    with (
        run_callbacks(resolved, place, on_event, on_megabatch, loggers, raises=raises) as publish,
        telling_of_compilation(lambda: publish({"kind": "compiling", "text": TEXT})),
    ):
        publish({"kind": "status", "state": "loading"})
        resolved, rows, names = load_rows(resolved, 1, train, test)
        kind = LocalRun if resolved.has_strategy else LocalTreeRun
        run = kind(resolved, rows, publish, start, names)
        model, reason = run.run()
        return Run(model, run.history, None, reason)
