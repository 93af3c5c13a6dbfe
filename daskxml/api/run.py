"""The input of a run, a run file and a user's matrices, and its result."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daskxml.config import RunConfig, load_run_config
from daskxml.core.arrays import Csr, Partition
from daskxml.core.errors import ConfigError, InputError
from daskxml.data.rows import feature_blocks, label_csr
from daskxml.models.trained import Model
from daskxml.observe.notebook import run_html

Paths = str | Path | Iterable[str | Path]


@dataclass(frozen=True)
class Matrices:
    """Rows in memory, or in Dask arrays.

    Those in memory are put on the workers block by block by the client: if a worker is lost, they
    cannot be read again, and the run ends. Blocks of Dask arrays stay on the workers, and are
    computed again where they are lost.

    Attributes
    ----------
    X
        ``(rows, features)``: scipy sparse of any format, or a dense array of numbers; or a Dask
        array of such blocks, or of those of the package `sparse`.
    Y
        ``(rows, labels)``: the same, with 1 where a label is true.
    sample_weight
        ``(rows,)``: what each row counts in the loss (`daskxml.data.weights`); None: all count 1.
        Of test rows it has no effect.

    Examples
    --------
    >>> import numpy as np
    >>> rows = Matrices(np.eye(3), np.array([[1, 0], [0, 1], [1, 1]]))
    >>> [part.rows for part in rows.partitions()]
    [3]
    """

    X: Any
    Y: Any
    sample_weight: Any = None

    def partitions(self) -> list[Partition]:
        """Return the rows as partitions of a few thousand.

        Raises
        ------
        InputError
            If they differ in the number of rows, or hold values that are not numbers.
        ConfigError
            If they are on a cluster.
        """
        for rows in (self.X, self.Y):
            _check_is_here(rows)
        try:
            (rows, columns), (label_rows, labels) = self.X.shape, self.Y.shape
        except (AttributeError, ValueError) as error:
            raise InputError("Matrices(X, Y) takes two matrices, a row for each sample") from error
        if rows != label_rows:
            raise InputError(f"X has {rows} rows but Y has {label_rows}")
        targets = label_csr(self.Y, rows, labels)
        parts, first = [], 0
        for features in feature_blocks(self.X, columns):
            last = first + features.rows
            parts.append(Partition(features, _slice(targets, first, last)))
            first = last
        return parts


def _check_is_here(rows: Any) -> None:
    if hasattr(rows, "__dask_graph__"):
        raise ConfigError("rows in Dask collections are trained on a cluster: call daskxml.train")


def _slice(labels: Csr, first: int, last: int) -> Csr:
    start, stop = labels.indptr[first], labels.indptr[last]
    indptr = labels.indptr[first : last + 1] - start
    return Csr(indptr, labels.indices[start:stop], None, labels.columns)


class Run:
    """The result of a run.

    Attributes
    ----------
    model
        The trained `Model`.
    history
        One dictionary a mega-batch; see `daskxml.session.history`.
    out
        The run's directory, or None.
    reason
        Why it ended: ``megabatches``, ``epochs``, ``minutes``, ``target``, ``patience``,
        ``callback``, or a request to stop.
    """

    def __init__(
        self, model: Model, history: list[dict[str, Any]], out: Path | None, reason: str
    ) -> None:
        self.model, self.history, self.out, self.reason = model, history, out, reason

    @property
    def metrics(self) -> dict[str, float]:
        """The last metrics that were measured; empty without test rows.

        Those of the best model, where that was kept.
        """
        if not self.history:
            return {}
        best = self.model.header.training.get("best_megabatch", len(self.history))
        measured = (row["metrics"] for row in reversed(self.history[:best]) if row["metrics"])
        return next(measured, {})

    def __repr__(self) -> str:
        best = ", ".join(f"{name} {value:.4f}" for name, value in list(self.metrics.items())[:3])
        return f"<Run: {len(self.history)} mega-batches, ended by {self.reason}; {best}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows instead of ``repr``."""
        return run_html(self.history, self.metrics, self.reason, str(self.out or ""))


def resolve_run(
    config: str | Path | Mapping[str, Any] | RunConfig,
    train: Any,
    test: Any,
    overrides: Iterable[str] | Mapping[str, Any],
) -> RunConfig:
    """Return the resolved run file of a call, with absolute paths.

    Parameters
    ----------
    train, test
        Files, globs or URLs that replace those in the run file; None or matrices do not.

    Raises
    ------
    ConfigError
        If a path is not one, or the run file is invalid.

    Examples
    --------
    >>> run = resolve_run({"training": {"epochs": 1}}, "/data/train.txt", None, ["run.seed=7"])
    >>> run.data.train, run.data.test
    (('/data/train.txt',), ())
    """
    resolved = load_run_config(config, overrides)
    absolute: dict[str, Any] = {}
    for name, paths in (("train", train), ("test", test)):
        _check_is_here(paths)
        is_none = paths is None or hasattr(paths, "partitions")
        own = getattr(resolved.data, name) if is_none else paths
        absolute[f"data.{name}"] = [_absolute(path) for path in _listed(own, name)]
    for name in ("feature_names", "label_names"):
        if path := getattr(resolved.data, name):
            absolute[f"data.{name}"] = _absolute(path)
    return load_run_config(resolved, absolute)


def _listed(paths: Any, name: str) -> list[str]:
    is_one = isinstance(paths, str | os.PathLike)
    listed = [paths] if is_one or hasattr(paths, "shape") else list(paths)
    if all(isinstance(path, str | os.PathLike) for path in listed):
        return [str(path) for path in listed]
    raise ConfigError(f"{name}: must be paths, or daskxml.Matrices(X, Y) for rows in memory")


def _absolute(path: str) -> str:
    """Return a path that is valid in any working directory, as workers have others; or a URL."""
    return path if "://" in path or "::" in path else str(Path(path).expanduser().absolute())
