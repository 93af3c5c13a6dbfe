"""Runs on a scheduler: list, follow and stop them, through the handlers of its plugin."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from distributed import Client

from daskxml._version import __version__
from daskxml.api.run import Run
from daskxml.cluster.connection import page_link, running_cluster, submit
from daskxml.cluster.detached import model_of
from daskxml.cluster.event_log import revive
from daskxml.cluster.scheduler_plugin import RunSchedulerPlugin
from daskxml.cluster.worker_info import daskxml_version, explain_import
from daskxml.config import RunConfig
from daskxml.core.errors import ClusterError, ModelError
from daskxml.core.signals import defer_signals
from daskxml.core.work_stats import StageRecord
from daskxml.models.store import ModelHeader, read_model
from daskxml.models.trained import Model
from daskxml.observe.callbacks import OnEvent, OnMegabatch, ignore, run_callbacks
from daskxml.observe.dashboard import DashboardPlugin
from daskxml.observe.terminal import notebook_progress
from daskxml.records.checkpoint import checkpoints
from daskxml.records.run_dir import OF_STARTS, RunDir
from daskxml.session.commands import STOP

NOWHERE = RunDir(None, None)


@dataclass(frozen=True, kw_only=True)
class RunHandle:
    """A run on a scheduler: its summary at the time of the request, and what may be done with it.

    Attributes
    ----------
    run
        Its name for `daskxml.attach`.
    name, strategy
        As in the run file.
    state
        What it is doing; if it is over, the reason or the error.
    is_over, is_detached
        Whether it has ended; whether it continues without a client.
    begun_at_s
        Start time, in seconds since 1970 by the scheduler's clock.
    megabatches, rows, epoch
        Progress at the last merge.
    metrics
        The last that were measured; empty before.
    out
        Its directory, as the workers see it; "" if it has none.
    client, scheduler
        How to reach its scheduler.
    """

    run: str
    name: str
    strategy: str
    state: str
    is_over: bool
    is_detached: bool
    begun_at_s: float
    megabatches: int = 0
    rows: int = 0
    epoch: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    out: str = ""
    client: Client | None = field(default=None, repr=False, compare=False)
    scheduler: str | None = field(default=None, repr=False, compare=False)

    def follow(
        self, *, on_event: OnEvent | None = None, on_megabatch: OnMegabatch | None = None
    ) -> Run:
        """Follow the run from its beginning to its end, and return its result.

        The run's directory is written by the workers, or by the client that started the run. The
        model is read from the directory if this machine sees it, else fetched from a worker.
        Interrupting this call does not affect the run.

        Parameters
        ----------
        on_event, on_megabatch
            Called with all events and mega-batches from the first one on: see
            `daskxml.observe.callbacks`.

        Raises
        ------
        DaskxmlError
            If the run is gone, or it failed: the error that ended it.
        """
        with running_cluster(self.client, self.scheduler) as connected:
            found = find_run(self.run, _handles(connected))
            publish = run_callbacks(on_event or notebook_progress(), on_megabatch)
            return RunFollower(connected, found.run, publish).follow()

    def stop(self, *, forget_it: bool = False) -> RunHandle:
        """End the run at a merge, with a checkpoint if it has a directory; return once it is over.

        Parameters
        ----------
        forget_it
            Also remove the run from the scheduler, and its model from the workers.

        Raises
        ------
        ClusterError
            If the run is gone.
        """
        with running_cluster(self.client, self.scheduler) as connected:
            found = find_run(self.run, _handles(connected))
            follower = RunFollower(connected, found.run, ignore)
            follower.call("daskxml_stop", reason="stop")
            follower.await_end()
            over = [each for each in _handles(connected) if each.run == found.run]
            if forget_it:
                forget(connected, found.run)
            ended = over[0] if over else replace(found, is_over=True, state="ended by stop")
            return replace(ended, client=self.client, scheduler=self.scheduler)


def runs(client: Client | None = None, *, scheduler: str | None = None) -> list[RunHandle]:
    """Return the runs of a scheduler: those under way, and detached runs that are over.

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

        [handle.run for handle in daskxml.runs(scheduler="tcp://scheduler:8786")]
    """
    with running_cluster(client, scheduler) as connected:
        return _handles(connected, client=client, scheduler=scheduler)


def attach(run: str, *, client: Client | None = None, scheduler: str | None = None) -> RunHandle:
    """Return a run on a scheduler, to follow or to stop.

    Parameters
    ----------
    run
        Its name in `runs`, its directory, or, if no other run has that, the directory's name or
        the ``[run] name`` of its run file.
    client, scheduler
        As for `runs`.

    Raises
    ------
    ClusterError
        If there is no such run.

    Examples
    --------
    ::

        run = daskxml.attach("f00d", scheduler="tcp://scheduler:8786").follow()
    """
    with running_cluster(client, scheduler) as connected:
        return find_run(run, _handles(connected, client=client, scheduler=scheduler))


def find_run(run: str, records: Sequence[RunHandle]) -> RunHandle:
    """Return the run with this name.

    Raises
    ------
    ClusterError
        If there is none, or several have this directory's or ``[run] name``.
    """
    folder = Path(run).absolute()
    named = (
        [each for each in records if each.run == run]
        or [each for each in records if each.out and Path(each.out) == folder]
        or [each for each in records if run in (each.name, Path(each.out).name)]
    )
    if len(named) == 1:
        return named[0]
    known = ", ".join(each.run for each in named or records) or "none"
    what = "several runs have this name" if named else "no such run on this scheduler"
    raise ClusterError(f"{run}: {what}; take one of: {known}")


def _handles(connected: Client, **where: Any) -> list[RunHandle]:
    open_runs(connected)
    return [RunHandle(**record, **where) for record in call(connected, "daskxml_runs")]


def open_runs(client: Client) -> None:
    """Register the plugins for runs on a scheduler, unless they are there.

    Raises
    ------
    ClusterError
        If its daskxml is missing, or of another version.
    """
    try:
        found = client.run_on_scheduler(daskxml_version)
        if found == __version__:
            client.register_plugin(RunSchedulerPlugin())
            return client.register_plugin(DashboardPlugin())
        problem = f"daskxml {found}"
    except (ImportError, AttributeError) as error:
        problem = explain_import(error)
    raise ClusterError(
        f"{client.scheduler.address}: the scheduler has {problem}, this client {__version__}; "
        f"install daskxml {__version__} in its environment and start it again"
    )


def call(client: Client, handler: str, hint: str = "", **values: Any) -> Any:
    """Call a handler of the scheduler's plugin.

    Raises
    ------
    ClusterError
        If the scheduler is gone; ``hint`` is added to the message.
    """
    if client.scheduler is None:
        raise ClusterError(f"the client of the run was closed{hint}")
    try:
        return client.sync(getattr(client.scheduler, handler), **values)
    except OSError as error:  # which Dask's CommClosedError is
        problem = f"the scheduler does not answer any more{hint}"
        raise ClusterError(f"{client.scheduler.address}: {problem}") from error


def forget(client: Client, run: str) -> None:
    """Remove a run from its scheduler; end it if it is under way."""
    with contextlib.suppress(ClusterError, ModelError):
        call(client, "daskxml_forget", run=run)


def _with_lists(row: Any) -> Any:
    """Return a row, or several, with lists where Dask's messages make tuples of them."""
    return json.loads(json.dumps(row))


class RunFollower:
    """Reads a run's event log, passes events on, and writes the run's directory.

    Parameters
    ----------
    client
        A client of the run's scheduler.
    run
        Its name.
    on_event
        Called with every event.
    place
        The directory, if this client writes it.
    config
        The run file to write there.
    """

    def __init__(
        self,
        client: Client,
        run: str,
        on_event: OnEvent,
        place: RunDir = NOWHERE,
        config: RunConfig | None = None,
    ) -> None:
        self.client, self.run, self.on_event = client, run, on_event
        self.place, self.config = place, config
        self.out, self.history = str(place.path or ""), place.history()
        self.events, self.version = 0, -1  # read so far; of the last state
        self.state = ""
        self.page = ""  # path of the run's page on the scheduler
        self.ended: Mapping[str, Any] | None = None
        self.has_started = False  # the data is loaded, so there will be a model
        self._has_asked_to_stop = False

    def call(self, handler: str, hint: str = "", **values: Any) -> Any:
        """Call a handler of the scheduler's plugin for the run; see `call`."""
        return call(self.client, handler, hint, run=self.run, **values)

    def start(
        self,
        scattered: Mapping[str, Sequence[Any]],
        stages: Sequence[StageRecord],
        is_detached: bool,
    ) -> None:
        """Start the run; ``scattered`` has the keys of rows that are on the workers."""
        assert self.config is not None
        if self.place.checkpoint is None:  # a resumed run keeps its run file until it is ready
            self.place.begin(self.config)
        self.call(
            "daskxml_start",
            config=self.config.to_toml(),
            scattered=scattered,
            owner=self.client.id,
            run_dir=self.place.path_for_workers,
            checkpoint=self.place.checkpoint,
            is_detached=is_detached,
            stages=[asdict(stage) for stage in stages],
        )

    def leave_directory(self) -> None:
        """Let a worker write the directory from now on."""
        self.place.unlock()
        self.place = NOWHERE

    def read(self) -> None:
        """Wait for new events, and pass them on."""
        path = self.place.path
        hint = f"; continue with --resume {path}" if path and checkpoints(path) else ""
        answer = self.call("daskxml_read", hint, since=self.events, version=self.version)
        self.version = answer["version"]
        self.state = answer["status"]["state"]
        with defer_signals():
            if not any(event["kind"] == "ended" for event in answer["events"]):
                self._pass_on(answer["status"])
            for event in answer["events"]:
                self.events += 1
                self._handle(event)
                self._pass_on(event)

    def read_now(self) -> None:
        """Pass on the events so far, without waiting for more."""
        self.version = -1
        self.read()

    def await_end(self) -> None:
        """Pass events on until the run is over."""
        while self.ended is None:
            try:
                self.read()
            except ClusterError:
                if any(each.run == self.run for each in _handles(self.client)):
                    raise
                return  # the client that owns it has read its end, and removed it

    def raise_failure(self) -> None:
        """Raise the error that the run has ended with, if it failed."""
        if self.ended is not None and self.ended["reason"] == "error":
            raise revive(self.ended["error"])

    def follow(self) -> Run:
        """Pass events on until the run is over; return its result.

        Raises
        ------
        DaskxmlError
            The error that the run ended with, if it failed.
        """
        while self.ended is None:  # the last call may have been interrupted
            self.read()
        self.raise_failure()
        run_dir, reason = self.ended.get("run_dir"), self.ended["reason"]
        if run_dir is None or not Path(run_dir).is_dir():
            return Run(self._fetch_model(run_dir), self.history, None, reason)
        out = Path(run_dir)
        return Run(Model.load(out), self.history, out, reason)

    def _handle(self, event: dict[str, Any]) -> None:
        if event["kind"] == "megabatch":
            event["row"] = _with_lists(event["row"])
            self.history.append(event["row"])
            self.place.append(event["row"])
        elif event["kind"] == "rewound":
            self.history = [
                each for each in self.history if each["megabatch"] <= event["megabatch"]
            ]
            self.place.rewrite(self.history)
        elif event["kind"] in OF_STARTS:
            self.place.record(event)
        elif event["kind"] == "page":
            self.page = event["path"]
        elif event["kind"] == "started":
            self.has_started = True
            event |= {"dashboard": page_link(self.client.dashboard_link, self.page)}
            event["out"] = self.out or str(event.get("out", ""))
        elif event["kind"] == "ready":
            self._begin(event["history"])
        elif event["kind"] == "ended":
            self.ended = event

    def _pass_on(self, event: dict[str, Any]) -> None:
        """Pass an event on; let the run end at the next merge if a listener returns `STOP`."""
        if self.on_event(event) is STOP and not (self._has_asked_to_stop or self.ended):
            self._has_asked_to_stop = True
            self.call("daskxml_stop", reason=STOP.value)

    def _begin(self, history: list[Any]) -> None:
        """Begin with the history of the checkpoint that the workers have read.

        They may have found a later one than was there when this process looked: a worker of the run
        before had still been writing it.
        """
        self.history = _with_lists(history)
        if self.place.checkpoint is not None and self.config is not None:
            self.place.begin(self.config)
            self.place.rewrite(self.history)

    def _fetch_model(self, run_dir: str | None) -> Model:
        """Fetch the model from a worker, not through the scheduler if that can be avoided."""
        if run_dir is not None:  # not visible on this machine
            return Model(*submit(self.client, read_model, run_dir).result())
        holder = self.call("daskxml_holder")
        header = ModelHeader.from_dict(holder["header"])
        task = submit(self.client, model_of, self.run, header, workers=holder["address"])
        return Model(*task.result())
