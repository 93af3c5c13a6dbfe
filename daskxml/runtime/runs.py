"""Runs that are on a scheduler already: list them, follow one, end one."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from distributed import Client

from daskxml.config import RunConfig, load_run_config
from daskxml.errors import ClusterError
from daskxml.loggers import Logger, listening
from daskxml.loggers.listening import OnEvent, OnMegabatch, ignore
from daskxml.runtime.connection import running_cluster
from daskxml.runtime.following import Follower, call, forget, open_runs
from daskxml.runtime.records import RunRecord
from daskxml.training.run import Run
from daskxml.training.run_dir import RunDir


def runs(client: Client | None = None, *, scheduler: str | None = None) -> list[RunRecord]:
    """Return the runs that a scheduler has: under way, or detached and over.

    Parameters
    ----------
    client, scheduler
        One of them: a synchronous Dask client, or a scheduler's address.

    Raises
    ------
    ConfigError, ClusterError
        If no scheduler answers, or it has no daskxml of this version.

    Examples
    --------
    ::

        [record.run for record in daskxml.runs(scheduler="tcp://scheduler:8786")]
    """
    with running_cluster(client, scheduler) as connected:
        return _records(connected)


def attach(
    run: str,
    *,
    client: Client | None = None,
    scheduler: str | None = None,
    on_event: OnEvent | None = None,
    on_megabatch: OnMegabatch | None = None,
    loggers: Iterable[str | Logger] = (),
) -> Run:
    """Follow a run from its beginning to its end, and return what came of it.

    The run's directory is kept by the workers, or by the client that started it; only loggers
    write here, all mega-batches from the first one on. The model comes from the directory where
    this machine sees it, else from a worker. To be interrupted does the run no harm.

    Parameters
    ----------
    run
        Its name in `runs`, or the ``[run] name`` of its run file if no other run has that.
    on_event, on_megabatch, loggers
        Who hears of the run: see `daskxml.loggers.listening`. It lets a logger end with
        ``interrupt`` where this call is interrupted and the run goes on.

    Raises
    ------
    DaskxmlError
        If there is no such run, or it failed: what it ended with.
    """
    with running_cluster(client, scheduler) as connected:
        found = find_run(run, _records(connected))
        config, place = _settings(connected, found)
        title = Path(found.out).name or f"{found.name or found.strategy}-{found.run}"
        heard = listening(config, place, on_event, on_megabatch, loggers, title)
        with heard as tell:
            return Follower(connected, tell).follow(found.run)


def stop(
    run: str,
    *,
    client: Client | None = None,
    scheduler: str | None = None,
    on_event: OnEvent | None = None,
    forget_it: bool = False,
) -> RunRecord:
    """End a run at a merge, with a checkpoint where it has a directory; wait until it is over.

    Parameters
    ----------
    forget_it
        Let the scheduler forget the run then, and workers the model that they keep of it.

    Raises
    ------
    ClusterError
        If there is no such run.
    """
    with running_cluster(client, scheduler) as connected:
        found = find_run(run, _records(connected))
        call(connected, "daskxml_stop", run=found.run, reason="stop")
        _await_end(Follower(connected, on_event or ignore), found.run)
        over = next((it for it in _records(connected) if it.run == found.run), None)
        if forget_it:
            forget(connected, found.run)
        return over or dataclasses.replace(found, is_over=True, state="ended by stop")


def _await_end(follower: Follower, run: str) -> None:
    while follower.ended is None:
        try:
            follower.read(run)
        except ClusterError:
            if any(it.run == run for it in _records(follower.client)):
                raise
            return  # the client that it belongs to has heard of its end, and let it be forgotten


def find_run(run: str, records: Sequence[RunRecord]) -> RunRecord:
    """Return the run that is called so.

    Raises
    ------
    ClusterError
        If there is none, or several have this ``[run] name``.
    """
    named = [it for it in records if it.run == run] or [it for it in records if it.name == run]
    if len(named) == 1:
        return named[0]
    known = ", ".join(it.run for it in named or records) or "none"
    what = "several runs have this name" if named else "no such run on this scheduler"
    raise ClusterError(f"{run}: {what}; take one of: {known}")


def _settings(client: Client, found: RunRecord) -> tuple[RunConfig, RunDir]:
    """Return a run's settings, and its directory where loggers of this process can write."""
    told = call(client, "daskxml_settings", run=found.run)
    config = load_run_config(tomllib.loads(told["config"]))
    if not found.out or not os.access(found.out, os.W_OK):
        return config, RunDir(None, None)
    is_there = told["checkpoint"] is not None and Path(told["checkpoint"]).is_file()
    return config, RunDir(Path(found.out), told["checkpoint"] if is_there else None)


def _records(client: Client) -> list[RunRecord]:
    open_runs(client)
    return [RunRecord(**told) for told in call(client, "daskxml_runs")]
