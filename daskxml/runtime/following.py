"""How a client talks to the runs of a scheduler: it calls handlers, and reads a run's journal."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distributed import Client

from daskxml._version import __version__
from daskxml.config import RunConfig
from daskxml.errors import ClusterError, ModelError
from daskxml.loggers.listening import OnEvent
from daskxml.model.store import ModelHeader
from daskxml.model.trained import Model
from daskxml.runtime import keeping
from daskxml.runtime.connection import page_link
from daskxml.runtime.equipment import daskxml_version, explain_import
from daskxml.runtime.interrupts import postponed
from daskxml.runtime.journal import revive
from daskxml.runtime.scheduler import RunsPlugin
from daskxml.training.checkpoint import checkpoints
from daskxml.training.history import read_history
from daskxml.training.run import Run
from daskxml.training.run_dir import HISTORY_FILE, RunDir

NOWHERE = RunDir(None, None)


def open_runs(client: Client) -> None:
    """Let a scheduler have runs, unless it has some.

    Raises
    ------
    ClusterError
        If its daskxml is missing, or of another version.
    """
    # Lies above: the runtime works without it, and a run that is started is to be seen.
    from daskxml.dashboard import DashboardPlugin

    try:
        found = client.run_on_scheduler(daskxml_version)
        if found == __version__:
            client.register_plugin(RunsPlugin())
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
        If the scheduler is gone; ``hint`` says what to do then.
    """
    if client.scheduler is None:
        raise ClusterError(f"the client of the run was closed{hint}")
    try:
        return client.sync(getattr(client.scheduler, handler), **values)
    except OSError as error:  # which Dask's CommClosedError is
        problem = f"the scheduler does not answer any more{hint}"
        raise ClusterError(f"{client.scheduler.address}: {problem}") from error


class Follower:
    """Reads what a run tells, passes it on, and writes it down where that is its task.

    Parameters
    ----------
    client
        Of the run's scheduler.
    on_event
        Called with every event.
    place
        The directory that this client keeps, if it does.
    config
        The run, which that directory is told of.
    """

    def __init__(
        self,
        client: Client,
        on_event: OnEvent,
        place: RunDir = NOWHERE,
        config: RunConfig | None = None,
    ) -> None:
        self.client, self.on_event, self.place, self.config = client, on_event, place, config
        self.history = place.history()
        self.seen, self.version = 0, -1  # events, and the last status
        self.state = ""
        self.page = ""  # path of the page that shows the run, on the scheduler
        self.ended: Mapping[str, Any] | None = None
        self.has_started = False  # the data is loaded: there is a model to come back with

    def read(self, run: str) -> None:
        """Wait for what a run tells next, and pass it on."""
        path = self.place.path
        hint = f"; go on with --resume {path}" if path and checkpoints(path) else ""
        known = {"since": self.seen, "version": self.version}
        news = call(self.client, "daskxml_read", hint, run=run, **known)
        self.version = news["version"]
        self.state = news["status"]["state"]
        with postponed():
            if not any(event["kind"] == "ended" for event in news["events"]):
                self.on_event(news["status"])
            for event in news["events"]:
                self.seen += 1
                self._book(event)

    def follow(self, run: str) -> Run:
        """Pass events on until the run is over; return what came of it.

        Raises
        ------
        DaskxmlError
            What the run ended with, if it failed.
        """
        while self.ended is None:  # the last reading may have been interrupted
            self.read(run)
        return self.result(run, self.ended)

    def _book(self, event: dict[str, Any]) -> None:
        if event["kind"] == "megabatch":
            event["row"] = json.loads(json.dumps(event["row"]))  # messages make tuples of lists
            self.history.append(event["row"])
            self.place.append(event["row"])
        elif event["kind"] == "rewound":
            del self.history[event["megabatch"] :]
            self.place.rewrite(self.history)
        elif event["kind"] == "equipment":
            self.place.note_workers(event["workers"])
        elif event["kind"] == "page":
            self.page = event["path"]
        elif event["kind"] == "started":
            self.has_started = True
            event |= {"dashboard": page_link(self.client.dashboard_link, self.page)}
            event["out"] = str(self.place.path or event.get("out", ""))
        elif event["kind"] == "ready":
            self._go_on()
        elif event["kind"] == "ended":
            self.ended = event
        self.on_event(event)

    def _go_on(self) -> None:
        """Let the directory say what is true now that workers go on from its checkpoint."""
        if self.place.checkpoint is not None and self.config is not None:
            self.place.begin(self.config)
            self.place.rewrite(self.history)

    def result(self, run: str, ended: Mapping[str, Any]) -> Run:
        """Return what came of a run that is over.

        Raises
        ------
        DaskxmlError
            What it ended with, if it failed.
        """
        raise_failure(ended)
        run_dir = ended.get("run_dir")
        if run_dir is None or not Path(run_dir).is_dir():
            return Run(self._fetch_model(run, run_dir), self.history, None, ended["reason"])
        out = Path(run_dir)
        history = self.history if self.place.path else read_history(out / HISTORY_FILE)
        return Run(Model.load(out), history, out, ended["reason"])

    def _fetch_model(self, run: str, run_dir: str | None) -> Model:
        """Take the model from a worker; it does not pass through the scheduler where avoidable."""
        if run_dir is not None:  # which this machine does not see
            return Model(*self._on_worker(None, keeping.stored_model, run_dir))
        held = call(self.client, "daskxml_holder", run=run)
        arrays = self._on_worker(held["address"], keeping.model_of, run)
        return Model(ModelHeader.from_dict(held["header"]), *arrays)

    def _on_worker(self, address: str | None, task: Callable[..., Any], *args: Any) -> Any:
        workers = None if address is None else [address]
        return self.client.submit(task, *args, workers=workers, pure=False).result()


def raise_failure(ended: Mapping[str, Any]) -> None:
    """Raise what a run ended with, if it failed."""
    if ended["reason"] == "error":
        raise revive(ended["error"])


def forget(client: Client, run: str) -> None:
    """Let a scheduler free what a run holds, and end it if it is under way."""
    with contextlib.suppress(ClusterError, ModelError):
        call(client, "daskxml_forget", run=run)
