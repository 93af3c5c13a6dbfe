"""A training as a job: what is trained, on which rows, where it is written, and who is told.

Every way to train makes a `Job` and gives it to a `Place`: a Dask cluster (`daskxml.api.train`),
this process (`daskxml.api.train_here`), or workers on virtual clocks (`daskxml.api.simulate`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from daskxml.api.run import Run, resolve_run
from daskxml.config import RunConfig, load_run_config
from daskxml.core.errors import ConfigError
from daskxml.observe.callbacks import OnEvent, OnMegabatch, run_callbacks
from daskxml.observe.loggers import Logger
from daskxml.records.run_dir import RunDir

Config = str | Path | Mapping[str, Any] | RunConfig
Rows = Any  # paths, or what a place takes in their stead


def matrices(rows: Rows, name: str) -> Any:
    """Return rows that are no files, as they are; None for files."""
    return rows if hasattr(rows, "partitions") else None


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
    on_event, on_megabatch, loggers, raises
        See `daskxml.observe.callbacks.run_callbacks`.
    """

    config: RunConfig
    given: Mapping[str, Any] = field(default_factory=dict)
    directory: RunDir
    on_event: OnEvent | None = None
    on_megabatch: OnMegabatch | None = None
    loggers: Iterable[str | Logger] = ()
    raises: Iterable[type[BaseException]] = ()

    @classmethod
    def of(
        cls,
        config: Config,
        train: Rows,
        test: Rows,
        overrides: Iterable[str] | Mapping[str, Any] = (),
        *,
        settings: Mapping[str, Any] | None = None,
        out: str | Path | None = None,
        resume: str | Path | None = None,
        find: Callable[[Rows, str], Any] = matrices,
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
        callbacks
            The attributes of that kind.

        Raises
        ------
        ConfigError, ModelError
            If the run file is invalid, names no rows, or the directory is not one to write to.
        """
        named = {"train": train, "test": test}
        found = {name: find(rows, name) for name, rows in named.items()}
        given = {name: rows for name, rows in found.items() if rows is not None}
        files = {name: None if name in given else rows for name, rows in named.items()}
        resolved = resolve_run(config, files["train"], files["test"], overrides)
        if settings:
            resolved = load_run_config(resolved, settings)
        if not (resolved.data.train or "train" in given):
            raise ConfigError("no training data: give --train FILE, or data.train in the run file")
        return cls(config=resolved, given=given, directory=RunDir.open(out, resume), **callbacks)

    def run(self, place: Place) -> Run:
        """Train in some place: the directory is locked, and callbacks are called meanwhile."""
        callbacks = run_callbacks(
            self.config, self.directory, self.on_event, self.on_megabatch, self.loggers,
            raises=self.raises,
        )  # fmt: skip
        with self.directory, callbacks as publish:
            return place.run(self, publish)


class Place(Protocol):
    """Where jobs are done."""

    def run(self, job: Job, publish: OnEvent) -> Run:
        """Do a job, whose directory is locked; ``publish`` is called with every event."""
