"""Starting a run and following it: what a user calls, from Python or from the command line."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from distributed import Client

from daskxml._version import __version__
from daskxml.config import RunConfig, load_run_config
from daskxml.errors import ClusterError, ConfigError
from daskxml.loggers import Logger, listening
from daskxml.loggers.listening import OnEvent, OnMegabatch
from daskxml.model.store import ModelHeader
from daskxml.model.trained import Model
from daskxml.runtime import worker as tasks
from daskxml.runtime.connection import connection, page_link
from daskxml.runtime.interrupts import postponed
from daskxml.runtime.journal import revive
from daskxml.runtime.matrices import Matrices, scatter
from daskxml.runtime.scheduler import RunsPlugin
from daskxml.training.run import Paths, Run, resolve_run
from daskxml.training.run_dir import RunDir

Rows = Paths | Matrices


def load(directory: str | Path) -> Model:
    """Load the model of a run.

    Raises
    ------
    ModelError
        If there is none, or it is damaged or of another version.
    """
    return Model.load(directory)


def train(
    config: str | Path | Mapping[str, Any] | RunConfig,
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
        Files, globs or URLs that the workers can read, or `Matrices`; they replace what the run
        file says.
    out
        Directory of the run, seen by client and workers. None keeps everything in memory, without
        checkpoints.
    resume
        Directory of a run to go on with, from its last checkpoint.
    scheduler
        Address of a running scheduler.
    workers
        Processes of the local cluster.
    overrides
        ``"section.key=value"`` texts, or a mapping; they win over the run file.
    on_event
        Called with every event of the run; see `daskxml.runtime.journal`. An error in it ends the
        run and is raised here.
    on_megabatch
        Called with a copy of every row of the history, as soon as it is there. An error in it is a
        `daskxml.errors.CallbackWarning`, and the run goes on; after three in a row it is not
        called again.
    loggers
        ``"tensorboard:DIR"``, ``"mlflow:URI"``, ``"wandb:PROJECT"``, or objects with the methods of
        `daskxml.loggers.Logger`; their errors are warnings too, once the run has begun.

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
    matrices = {n: m for n, m in (("train", train), ("test", test)) if isinstance(m, Matrices)}
    resolved = resolve_run(config, train, test, overrides)
    if workers is not None:
        resolved = load_run_config(resolved, {"cluster.workers": workers})
    if not (resolved.data.train or "train" in matrices):
        raise ConfigError("no training data: give --train FILE, or data.train in the run file")
    place = RunDir.open(out, resume)
    heard = listening(resolved, place, on_event, on_megabatch, loggers)
    with place, heard as tell, connection(client, scheduler, resolved.cluster) as connected:
        return _Follower(connected, resolved, place, tell, matrices).follow()


class _Follower:
    """Starts a run and writes down what it tells, until it is over."""

    def __init__(
        self,
        client: Client,
        config: RunConfig,
        place: RunDir,
        on_event: OnEvent,
        matrices: Mapping[str, Matrices],
    ) -> None:
        self.client, self.config, self.place, self.on_event = client, config, place, on_event
        self.matrices = matrices
        self.history = place.history()
        self.seen = 0  # events
        self.page = ""  # path of the page that shows the run, on the scheduler
        self.has_started = False  # the data is loaded: there is a model to come back with

    def follow(self) -> Run:
        self._install()
        if self.place.checkpoint is None:  # a run to go on with keeps its own until it does
            self.place.begin(self.config)
        put = {name: scatter(self.client, m, name) for name, m in self.matrices.items()}
        run = self._call(
            "daskxml_start",
            config=self.config.to_toml(),
            given={name: [future.key for future in futures] for name, futures in put.items()},
            owner=self.client.id,
            run_dir=self.place.path_for_workers,
            checkpoint=self.place.checkpoint,
        )
        try:
            ended = self._read(run)
            return self._result(run, ended)
        finally:
            with contextlib.suppress(ClusterError):
                self._call("daskxml_forget", run=run)

    def _install(self) -> None:
        # Lies above: the runtime works without it, and a run that is started is to be seen.
        from daskxml.dashboard import DashboardPlugin

        try:
            self.client.register_plugin(RunsPlugin())
            self.client.register_plugin(DashboardPlugin())
        except ImportError as error:
            address = self.client.scheduler.address
            raise ClusterError(
                f"{address}: the scheduler cannot import daskxml ({error}); "
                f"install daskxml {__version__} in its environment"
            ) from error

    def _call(self, handler: str, **values: Any) -> Any:
        try:
            return self.client.sync(getattr(self.client.scheduler, handler), **values)
        except OSError as error:  # which Dask's CommClosedError is
            hint = f"; go on with --resume {self.place.path}" if self.place.path else ""
            problem = f"the scheduler does not answer any more{hint}"
            raise ClusterError(f"{self.client.scheduler.address}: {problem}") from error

    def _read(self, run: str) -> Mapping[str, Any]:
        """Pass events on until the run is over.

        Ctrl-C asks the run to end at a merge, with a checkpoint; a second one is not waited for,
        nor the first while there is nothing to merge yet.
        """
        self.seen, version, interrupts = 0, -1, 0
        while True:
            try:
                news = self._call("daskxml_read", run=run, since=self.seen, version=version)
                version = news["version"]
                with postponed():
                    ended = self._pass_on(news)
                if ended:
                    return ended
            except KeyboardInterrupt:
                interrupts += 1
                if interrupts > 1 or not self.has_started:
                    raise
                self._call("daskxml_stop", run=run, reason="interrupt")

    def _pass_on(self, news: Mapping[str, Any]) -> Mapping[str, Any] | None:
        self.on_event(news["status"])
        for event in news["events"]:
            self.seen += 1
            self._book(event)
            if event["kind"] == "ended":
                return dict(event)
        return None

    def _book(self, event: dict[str, Any]) -> None:
        if event["kind"] == "megabatch":
            event["row"] = json.loads(json.dumps(event["row"]))  # messages make tuples of lists
            self.history.append(event["row"])
            self.place.append(event["row"])
        elif event["kind"] == "rewound":
            del self.history[event["megabatch"] :]
            self.place.rewrite(self.history)
        elif event["kind"] == "page":
            self.page = event["path"]
        elif event["kind"] == "started":
            self.has_started = True
            self._go_on()
            link = page_link(self.client.dashboard_link, self.page)
            event |= {"dashboard": link, "out": str(self.place.path or "")}
        self.on_event(event)

    def _go_on(self) -> None:
        """Let the directory say what is true now that the run goes on from its checkpoint."""
        if self.place.checkpoint is not None:
            self.place.begin(self.config)
            self.place.rewrite(self.history)

    def _result(self, run: str, ended: Mapping[str, Any]) -> Run:
        if ended["reason"] == "error":
            raise revive(ended["error"])
        if self.place.path is not None:
            model = Model.load(self.place.path)
        else:
            model = self._fetch_model(run)
        return Run(model, self.history, self.place.path, ended["reason"])

    def _fetch_model(self, run: str) -> Model:
        """Take the model from a worker; it does not pass through the scheduler where avoidable."""
        held = self._call("daskxml_holder", run=run)
        future = self.client.submit(tasks.model_arrays, run, workers=[held["address"]], pure=False)
        parameters, label_counts = future.result()
        return Model(ModelHeader.from_dict(held["header"]), parameters, label_counts)
