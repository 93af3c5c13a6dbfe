"""A run from the outside: what it is made from, and what is left when it is over."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from daskxml.config import RunConfig, load_run_config
from daskxml.errors import ConfigError
from daskxml.model.trained import Model
from daskxml.training.showing import run_html

Paths = str | Path | Iterable[str | Path]


class Run:
    """A run that is over.

    Attributes
    ----------
    model
        The trained `Model`.
    history
        One dictionary a mega-batch; see `daskxml.training.history`.
    out
        The directory of the run, or None.
    reason
        What ended it: ``megabatches``, ``epochs``, ``minutes``, ``target``, or a request to stop.
    """

    def __init__(
        self, model: Model, history: list[dict[str, Any]], out: Path | None, reason: str
    ) -> None:
        self.model, self.history, self.out, self.reason = model, history, out, reason

    @property
    def metrics(self) -> dict[str, float]:
        """The last metrics that were measured; empty without test rows."""
        measured = (row["metrics"] for row in reversed(self.history) if row["metrics"])
        return next(measured, {})

    def __repr__(self) -> str:
        best = ", ".join(f"{name} {value:.4f}" for name, value in list(self.metrics.items())[:3])
        return f"<Run: {len(self.history)} mega-batches, ended by {self.reason}; {best}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows in the place of the line above."""
        return run_html(self.history, self.metrics, self.reason, str(self.out or ""))


def resolve_run(
    config: str | Path | Mapping[str, Any] | RunConfig,
    train: Any,
    test: Any,
    overrides: Iterable[str] | Mapping[str, Any],
) -> RunConfig:
    """Return the run that a user asks for, with absolute paths.

    Parameters
    ----------
    train, test
        Files, globs or URLs that replace what the run file says; None, or matrices, which are none
        of these, leave it as it is.

    Raises
    ------
    ConfigError
        If a path is none, or the run file is not good.

    Examples
    --------
    >>> run = resolve_run({"training": {"epochs": 1}}, "/data/train.txt", None, ["run.seed=7"])
    >>> run.data.train, run.data.test
    (('/data/train.txt',), ())
    """
    resolved = load_run_config(config, overrides)
    given: dict[str, Any] = {}
    for name, paths in (("train", train), ("test", test)):
        is_none = paths is None or hasattr(paths, "partitions")
        own = getattr(resolved.data, name) if is_none else paths
        given[f"data.{name}"] = [_absolute(path) for path in _listed(own, name)]
    return load_run_config(resolved, given)


def _listed(paths: Any, name: str) -> list[str]:
    is_one = isinstance(paths, str | os.PathLike)
    listed = [paths] if is_one or hasattr(paths, "shape") else list(paths)
    if all(isinstance(path, str | os.PathLike) for path in listed):
        return [str(path) for path in listed]
    raise ConfigError(f"{name}: must be paths, or daskxml.Matrices(X, Y) for rows in memory")


def _absolute(path: str) -> str:
    """Workers have other working directories; a URL is absolute as it is."""
    return path if "://" in path or "::" in path else str(Path(path).expanduser().absolute())
