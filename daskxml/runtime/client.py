"""Starting a run and following it: what a user calls, from Python or from the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from distributed import Client, Future

from daskxml.config import RunConfig, load_run_config
from daskxml.config.sections import ClusterSection
from daskxml.errors import ConfigError
from daskxml.loggers import Logger, listening
from daskxml.loggers.listening import OnEvent, OnMegabatch, ignore
from daskxml.model.trained import Model
from daskxml.runtime.connection import connection
from daskxml.runtime.following import (
    Follower,
    call,
    forget,
    open_runs,
    raise_failure,
)
from daskxml.runtime.local_cluster import Warn
from daskxml.runtime.matrices import Matrices, scatter
from daskxml.training.run import Paths, Run, resolve_run
from daskxml.training.run_dir import RunDir

_ENDING = "the run ends at the next merge; Ctrl-C again ends it at once, as it was last written"

Rows = Paths | Matrices
Config = str | Path | Mapping[str, Any] | RunConfig


def load(directory: str | Path) -> Model:
    """Load the model of a run.

    Raises
    ------
    ModelError
        If there is none, or it is damaged or of another version.
    """
    return Model.load(directory)


def train(
    config: Config,
    *,
    client: Client | None = None,
    train: Rows | None = None,
    test: Rows | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    on_event: OnEvent | None = None,
    on_megabatch: OnMegabatch | None = None,
    loggers: Iterable[str | Logger] = (),
) -> Run:
    """Train a model as a run file says, on any Dask cluster.

    Parameters
    ----------
    config
        A run file, the name of one that comes with daskxml, or a dictionary of its sections.
    client
        A synchronous Dask client. Without one, `scheduler` is connected to, or a local cluster of
        processes is made, and closed at the end.
    train, test
        Files, globs or URLs that the workers can read, or `Matrices`, in the run file's place.
    out
        Directory of the run, seen by client and workers; None: all in memory, no checkpoints.
    resume
        Directory of a run to go on with, from its last checkpoint.
    scheduler
        Address of a running scheduler.
    workers
        Processes of the local cluster.
    overrides
        ``"section.key=value"`` texts, or a mapping; they win over the run file.
    on_event, on_megabatch, loggers
        Who hears of the run while it goes on: see `daskxml.loggers.listening`.

    Raises
    ------
    ConfigError, InputError, ModelError, ClusterError, TrainingError
        Each with one line that says what is wrong, where, and what to do.

    Examples
    --------
    ::

        run = daskxml.train("adaptive-sgd", train=daskxml.Matrices(X, Y))
        run.model.predict(X, top_k=5)
    """
    resolved, matrices = _resolve(config, train, test, overrides, workers)
    place, section = RunDir.open(out, resume), _local_section(resolved)
    heard = listening(resolved, place, on_event, on_megabatch, loggers)
    with place, heard as tell, connection(client, scheduler, section, _warner(tell)) as connected:
        open_runs(connected)
        return _follow(Follower(connected, tell, place, resolved), resolved, matrices)


def launch(
    config: Config,
    *,
    client: Client | None = None,
    train: Rows | None = None,
    test: Rows | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    scheduler: str | None = None,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    on_event: OnEvent | None = None,
) -> str:
    """Start a run on a cluster of yours and leave it there; return its name.

    `daskxml.attach` follows it again, `daskxml.stop` ends it. Without ``out`` two workers keep its
    model, until it is forgotten or the scheduler ends. Parameters and errors are those of `train`;
    ``on_event`` hears of the run until this call comes back, which is once its workers and its
    directory have been found good.

    Raises
    ------
    ConfigError
        If there is neither a client nor a scheduler: a local cluster would end with this process.

    Examples
    --------
    ::

        name = daskxml.launch("best", scheduler="tcp://host:8786", train="/shared/train.txt.gz")
        run = daskxml.attach(name, scheduler="tcp://host:8786")
    """
    if client is None and scheduler is None:
        raise ConfigError("a detached run needs --scheduler: a local cluster ends with its command")
    resolved, matrices = _resolve(config, train, test, overrides)
    place, tell = RunDir.open(out, resume), on_event or ignore
    cluster = connection(client, scheduler, resolved.cluster, _warner(tell))
    with place, cluster as connected:
        open_runs(connected)
        return _launch(Follower(connected, tell, place, resolved), resolved, matrices)


def _resolve(
    config: Config,
    train: Rows | None,
    test: Rows | None,
    overrides: Iterable[str] | Mapping[str, Any],
    workers: int | None = None,
) -> tuple[RunConfig, dict[str, Matrices]]:
    """Return the run with all that was given for it, and the rows that are in this process."""
    matrices = {n: m for n, m in (("train", train), ("test", test)) if isinstance(m, Matrices)}
    resolved = resolve_run(config, train, test, overrides)
    if workers is not None:
        resolved = load_run_config(resolved, {"cluster.workers": workers})
    if not (resolved.data.train or "train" in matrices):
        raise ConfigError("no training data: give --train FILE, or data.train in the run file")
    return resolved, matrices


def _warner(tell: OnEvent) -> Warn:
    """Return what tells a line of text as an event."""
    return lambda text: tell({"kind": "warning", "text": text})


def _local_section(config: RunConfig) -> ClusterSection:
    """Return what a local cluster is made from: some runs are for CPUs alone."""
    section = config.cluster
    needs_cpu = config.sampling.is_on or config.make_strategy().shares_model
    if needs_cpu and section.device == "auto":
        return dataclasses.replace(section, device="cpu")
    return section


Put = Mapping[str, list[Future]]  # rows of this process on the workers; held until they are read


def _put(client: Client, matrices: Mapping[str, Matrices]) -> Put:
    return {name: scatter(client, given, name) for name, given in matrices.items()}


def _start(follower: Follower, config: RunConfig, put: Put, is_detached: bool) -> str:
    """Start a run on the follower's cluster; return its name."""
    client, place = follower.client, follower.place
    if place.checkpoint is None:  # a run to go on with keeps its own until it does
        place.begin(config)
    return str(
        call(
            client,
            "daskxml_start",
            config=config.to_toml(),
            given={name: [future.key for future in futures] for name, futures in put.items()},
            owner=client.id,
            run_dir=place.path_for_workers,
            checkpoint=place.checkpoint,
            is_detached=is_detached,
        )
    )


def _follow(follower: Follower, config: RunConfig, matrices: Mapping[str, Matrices]) -> Run:
    """Start a run and follow it to its end.

    Ctrl-C asks the run to end at a merge, with a checkpoint; a second one is not waited for, nor
    the first while there is nothing to merge yet.
    """
    interrupts, put = 0, _put(follower.client, matrices)
    run = _start(follower, config, put, is_detached=False)
    try:
        while True:
            try:
                return follower.follow(run)
            except KeyboardInterrupt:
                interrupts += 1
                if interrupts > 1 or not follower.has_started:
                    raise
                call(follower.client, "daskxml_stop", run=run, reason="interrupt")
                follower.on_event({"kind": "warning", "text": _ENDING})
    finally:
        forget(follower.client, run)


def _launch(follower: Follower, config: RunConfig, matrices: Mapping[str, Matrices]) -> str:
    """Start a run and leave it, once its workers and its directory have been found good.

    Rows that come from this process are waited for until the workers have them.
    """
    put = _put(follower.client, matrices)
    run = _start(follower, config, put, is_detached=True)
    try:
        follower.place.hand_over()
        while not (follower.has_started or (follower.state == "loading" and not put)):
            follower.read(run)
            if follower.ended is not None:
                raise_failure(follower.ended)
        call(follower.client, "daskxml_detach", run=run)
    except BaseException:
        forget(follower.client, run)
        raise
    return run
