"""A run: the rows and the run file that go into it, the job that they are, and its result.

Every way to train makes a `Job` and gives it to a `Place`: a Dask cluster
(`daskxml.api.on_cluster`), or this process, in real time or with workers on virtual clocks
(`daskxml.api.in_process`).
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, TypedDict, TypeVar, cast

from daskxml.config import RunConfig, load_run_config
from daskxml.core.arrays import Partition
from daskxml.core.errors import ConfigError, InputError
from daskxml.data.rows import feature_blocks, label_csr, slice_csr
from daskxml.models.kinds import TRAINED
from daskxml.models.trained import Model
from daskxml.observe.callbacks import OnEvent, OnMegabatch, run_callbacks
from daskxml.observe.notebook import run_html
from daskxml.observe.run_view import last_metrics
from daskxml.observe.wording import dotted
from daskxml.records.run_dir import RUN_FILE, RunDir

Config = str | Path | Mapping[str, Any] | RunConfig
UNCHANGED = {  # when a run is resumed
    "model", "optimizer", "sampling", "run.seed", "data.normalize", "strategy.name",
    "strategy.batch_max",
}  # fmt: skip


Function = TypeVar("Function", bound=Callable[..., Any])


def awaitable(function: Function) -> Function:
    """Let a call with an asynchronous client return an awaitable, done with a client of its own."""

    @functools.wraps(function)
    def call(*args: Any, client: Any = None, **options: Any) -> Any:
        if not getattr(client, "asynchronous", False):
            return function(*args, client=client, **options)

        def in_thread() -> Any:
            from distributed import Client

            place = {"address": client.scheduler.address, "security": client.security}
            with Client(**place, set_as_default=False) as own:
                return function(*args, client=own, **options)

        return asyncio.to_thread(in_thread)

    return cast(Function, call)


@dataclass(frozen=True)
class Matrices:
    """Rows in memory, or in Dask arrays.

    On a cluster the scheduler keeps those in memory until the run is over, and gives a lost
    worker's to another. Blocks of Dask arrays stay on the workers, and are computed again where
    they are lost.

    Attributes
    ----------
    X
        ``(rows, features)``: scipy sparse of any format, or a dense array of numbers; or a Dask
        array of such blocks, or of those of the package `sparse`.
    Y
        ``(rows, labels)``: the same, with 1 where a label is true.
    sample_weight
        ``(rows,)``: what each row counts in the loss (`daskxml.data.side_files`); None: all
        count 1. Of test rows it has no effect.

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
        targets, blocks = label_csr(self.Y, rows, labels), list(feature_blocks(self.X, columns))
        ends = accumulate(block.rows for block in blocks)
        return [
            Partition(block, slice_csr(targets, end - block.rows, end))
            for block, end in zip(blocks, ends, strict=True)
        ]


def _is_pair(rows: Any) -> bool:
    """Whether rows are a pair of matrices, or of Dask arrays."""
    is_two = isinstance(rows, tuple) and len(rows) == 2
    return is_two and all(isinstance(getattr(each, "shape", None), tuple) for each in rows)


def _check_is_here(rows: Any) -> None:
    if hasattr(rows, "__dask_graph__"):
        need = "need a cluster: call daskxml.train without workers=0, or compute them"
        raise ConfigError(f"rows in Dask collections {need}")


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
        Why it ended: ``megabatches``, ``epochs``, ``trees``, ``minutes``, ``target``,
        ``patience``, ``callback``, or a request to stop.
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
        best = self.model.header.training.get("best_megabatch", len(self.history))
        return last_metrics(self.history[:best])

    def __repr__(self) -> str:
        best = ", ".join(f"{name} {value:.4f}" for name, value in list(self.metrics.items())[:3])
        work = TRAINED[self.model.spec.kind].work(self.history[-1]) if self.history else "nothing"
        return f"<Run: {work}, ended by {self.reason}{best and '; '}{best}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows instead of ``repr``."""
        return run_html(self.history, self.metrics, self.reason, str(self.out or ""))


def in_memory(rows: Any, name: str) -> Any:
    """Return rows of this process, as they are; None for files.

    Raises
    ------
    ConfigError
        If they are on a cluster.
    """
    _check_is_here(rows)
    return rows if hasattr(rows, "partitions") or hasattr(rows, "placement") else None


def split_given(given: Sequence[Any]) -> tuple[Any, Any]:
    """Return the run file, "" where none is given, and the rows of a call or a command.

    A run file comes first: a name alone, a path that ends in ``.toml``, or a dictionary.

    Examples
    --------
    >>> split_given(["tree", "a.txt.gz"]), split_given(["a.txt.gz", "b.txt"])
    (('tree', ['a.txt.gz']), ('', ['a.txt.gz', 'b.txt']))
    """
    first = given[0] if given else ""
    is_path = isinstance(first, str | Path) and (Path(first).suffix == ".toml")
    is_name = isinstance(first, str) and re.fullmatch(r"[\w-]+", first) is not None
    is_run_file = is_path or is_name or isinstance(first, Mapping | RunConfig)
    return (first, given[1:]) if is_run_file else ("", given)


class JobOptions(TypedDict, total=False):
    """What every way to train takes; see `daskxml.train`."""

    train: Any
    test: Any
    overrides: Iterable[str] | Mapping[str, Any]
    on_event: OnEvent | None
    on_megabatch: OnMegabatch | None
    raises: Iterable[type[BaseException]]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training.

    Attributes
    ----------
    config
        The resolved run file, with absolute paths.
    given
        Rows that are no files, by ``train`` and ``test``.
    directory
        Where it is written.
    callbacks
        Arguments of `daskxml.observe.callbacks.run_callbacks`.
    """

    config: RunConfig
    given: Mapping[str, Any]
    directory: RunDir
    callbacks: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        config: Config,
        *,
        train: Any = None,
        test: Any = None,
        overrides: Iterable[str] | Mapping[str, Any] = (),
        settings: Mapping[str, Any] | None = None,
        out: str | Path | None = None,
        resume: str | Path | None = None,
        find: Callable[[Any, str], Any] = in_memory,
        **callbacks: Any,
    ) -> Job:
        """Return the job of a call.

        Parameters
        ----------
        train, test
            Rows in the run file's place.
        overrides, settings
            Of the run file; the latter win.
        out, resume
            Directory of a new run, or of one that is resumed.
        find
            Returns rows that are no files, as the place takes them; None for files.

        Raises
        ------
        ConfigError, ModelError
            If the run file is invalid, names no rows, or the directory is not one to write to.
        """
        pairs = {"train": train, "test": test}.items()
        named = {name: Matrices(*rows) if _is_pair(rows) else rows for name, rows in pairs}
        _check_columns(*named.values())
        given = {name: found for name, rows in named.items() if (found := find(rows, name))}
        files = {name: None if name in given else rows for name, rows in named.items()}
        resolved = resolve_run(config, files["train"], files["test"], overrides, settings or {})
        if not (resolved.data.train or "train" in given):
            raise ConfigError("no training data: give train=, or data.train in the run file")
        directory = RunDir.open(out, resume)
        if directory.path is not None and resume is not None:
            _check_unchanged(load_run_config(directory.path / RUN_FILE), resolved)
        return cls(config=resolved, given=given, directory=directory, callbacks=callbacks)

    @property
    def files(self) -> list[str]:
        """The paths, globs and URLs that will be read."""
        data = self.config.data
        others = (data.weights, data.feature_names, data.label_names)
        named = {"train": data.train, "test": data.test, "": others}
        return [path for name in named if name not in self.given for path in named[name] if path]

    def run(self, place: Place) -> Run:
        """Train in some place: the directory is locked, and callbacks are called meanwhile."""
        with self.directory:
            return place.run(self, run_callbacks(**self.callbacks))


class Place(Protocol):
    """Where jobs are done."""

    def run(self, job: Job, publish: OnEvent) -> Run:
        """Do a job, whose directory is locked; ``publish`` is called with every event."""


def resolve_run(
    config: Config, train: Any, test: Any, *overrides: Iterable[str] | Mapping[str, Any]
) -> RunConfig:
    """Return the resolved run file of a call, with absolute paths.

    Parameters
    ----------
    train, test
        Files, globs or URLs that replace those in the run file; None: those stay.

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
    resolved = load_run_config(config, *overrides)
    absolute: dict[str, Any] = {}
    for name, paths in (("train", train), ("test", test)):
        _check_is_here(paths)
        own = getattr(resolved.data, name) if paths is None else paths
        absolute[f"data.{name}"] = [_absolute(path) for path in _listed(own, name)]
    for name in ("weights", "feature_names", "label_names"):
        if path := getattr(resolved.data, name):
            absolute[f"data.{name}"] = _absolute(path)
    return load_run_config(resolved, absolute)


def _check_columns(train: Any, test: Any) -> None:
    """Refuse matrices of training and test rows that differ in their columns."""
    if not (isinstance(train, Matrices) and isinstance(test, Matrices)):
        return
    for name in ("X", "Y"):
        own, other = (getattr(getattr(rows, name), "shape", ())[1:] for rows in (train, test))
        if own and other and own != other:
            raise InputError(f"test: {name} has {other[0]} columns, that of training {own[0]}")


def _check_unchanged(began: RunConfig, now: RunConfig) -> None:
    """Refuse to resume a run with a setting that would make what was done another run's."""
    before, after = (  # the kind first, as the others follow from it
        {"model.kind": config.model.kind} | dotted(config.as_dict()) for config in (began, now)
    )
    for place, value in before.items():
        section = place.partition(".")[0]
        if not UNCHANGED.isdisjoint((section, place)) and value != after[place]:
            raise ConfigError(
                f"{place}: the run began with {value!r}, which cannot become {after[place]!r}: "
                f"leave [{section}] as it was"
            )
    if began.data.validation != now.data.validation or not (now.has_strategy and now.keeps_best):
        return
    if (began.keeps_best and began.training.target_metric) != now.training.target_metric:
        raise ConfigError(
            "training.keep_best: the best model by training.target_metric was not kept when the "
            "run began: leave both as they were"
        )


def _listed(paths: Any, name: str) -> list[str]:
    is_one = isinstance(paths, str | Mapping) or hasattr(paths, "shape")
    listed = [paths] if is_one or not isinstance(paths, Iterable) else list(paths)
    if all(isinstance(path, str | os.PathLike) for path in listed):
        return [str(path) for path in listed]
    raise ConfigError(f"{name}: must be paths, or (X, Y) for rows in memory")


def _absolute(path: str) -> str:
    """Return a path that is valid in any working directory, as workers have others; or a URL."""
    return path if "://" in path or "::" in path else str(Path(path).expanduser().absolute())
