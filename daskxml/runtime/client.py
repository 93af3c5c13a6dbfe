"""Starting a run and following it: what a user calls, from Python or from the command line."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster

from daskxml._version import __version__
from daskxml.config import RunConfig, load_run_config
from daskxml.errors import ClusterError, ConfigError
from daskxml.model.store import ModelHeader
from daskxml.model.trained import Model
from daskxml.runtime import worker as tasks
from daskxml.runtime.journal import revive
from daskxml.runtime.run_dir import RunDir
from daskxml.runtime.scheduler import RunsPlugin

CONNECT_S = "10s"
DASHBOARD_PORT = 8787
# Ctrl-C at a terminal reaches the workers too: they go on, until the run ends at a merge.
IGNORE_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
OnEvent = Callable[[Mapping[str, Any]], None]
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
    train: Paths | None = None,
    test: Paths | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    on_event: OnEvent | None = None,
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
        Files, globs or URLs that the workers can read; they replace those of the run file.
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
        Called with every event of the run; see `daskxml.runtime.journal`.

    Raises
    ------
    ConfigError, InputError, ModelError, ClusterError, TrainingError
        Each with one line that says what is wrong, where, and what to do.

    Examples
    --------
    ::

        run = daskxml.train("pipelines/adaptive-sgd.toml", train="train.txt", test="test.txt")
        run.model.predict(X, top_k=5)
    """
    resolved = _resolve(config, train, test, workers, overrides)
    place = RunDir.open(out, resume)
    with place, _connected(client, scheduler, resolved) as connected:
        return _Follower(connected, resolved, place, on_event or _ignore).follow()


def _ignore(event: Mapping[str, Any]) -> None:
    return None


def _resolve(
    config: str | Path | Mapping[str, Any] | RunConfig,
    train: Paths | None,
    test: Paths | None,
    workers: int | None,
    overrides: Iterable[str] | Mapping[str, Any],
) -> RunConfig:
    resolved = load_run_config(config, overrides)
    given: dict[str, Any] = {}
    for name, paths in (("train", train), ("test", test)):
        own = getattr(resolved.data, name) if paths is None else paths
        given[f"data.{name}"] = [_absolute(path) for path in _listed(own)]
    if workers is not None:
        given["cluster.workers"] = workers
    if not given["data.train"]:
        raise ConfigError("no training data: give --train FILE, or data.train in the run file")
    return load_run_config(resolved, given)


def _listed(paths: Paths) -> list[str]:
    return [str(paths)] if isinstance(paths, str | Path) else [str(path) for path in paths]


def _absolute(path: str) -> str:
    """Workers have other working directories; a URL is absolute as it is."""
    return path if "://" in path or "::" in path else str(Path(path).expanduser().absolute())


@contextlib.contextmanager
def _connected(client: Client | None, scheduler: str | None, config: RunConfig) -> Iterator[Client]:
    if client is not None:
        if client.asynchronous:
            raise ConfigError("an asynchronous client cannot be waited for: give a synchronous one")
        yield client
    elif scheduler is not None:
        with _client(scheduler) as connected:
            yield connected
    else:
        with _local_cluster(config) as cluster, Client(cluster) as connected:
            yield connected


def _client(scheduler: str) -> Client:
    try:
        return Client(scheduler, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"{scheduler}: no scheduler answers there ({type(error).__name__}); "
            "start one with 'dask scheduler' or correct the address"
        ) from error


@contextlib.contextmanager
def _local_cluster(config: RunConfig) -> Iterator[LocalCluster]:
    cores = len(os.sched_getaffinity(0))
    with (
        tempfile.TemporaryDirectory(prefix="daskxml-") as folder,
        LocalCluster(
            n_workers=config.cluster.workers_on(cores),
            threads_per_worker=1,
            processes=True,
            dashboard_address=_dashboard_address(),
            local_directory=folder,
            silence_logs=50,
            preload=[IGNORE_INTERRUPTS],
        ) as cluster,
    ):
        yield cluster


def _dashboard_address() -> str:
    """Dask's usual port if it is free, else any: a warning about it would help nobody."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", DASHBOARD_PORT))
        except OSError:
            return "127.0.0.1:0"
    return f"127.0.0.1:{DASHBOARD_PORT}"


class _Follower:
    """Starts a run and writes down what it tells, until it is over."""

    def __init__(self, client: Client, config: RunConfig, place: RunDir, on_event: OnEvent) -> None:
        self.client, self.config, self.place, self.on_event = client, config, place, on_event
        self.history = place.history()
        self.seen = 0  # events

    def follow(self) -> Run:
        self._install()
        self.place.begin(self.config)
        run = self._call(
            "daskxml_start",
            config=self.config.to_toml(),
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
        try:
            self.client.register_plugin(RunsPlugin())
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

        Ctrl-C asks the run to end at a merge, with a checkpoint; a second one is not waited for.
        """
        self.seen, version, interrupts = 0, -1, 0
        while True:
            try:
                news = self._call("daskxml_read", run=run, since=self.seen, version=version)
                version = news["version"]
                if ended := self._pass_on(news):
                    return ended
            except KeyboardInterrupt:
                interrupts += 1
                if interrupts > 1:
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
        elif event["kind"] == "started":
            event |= {"dashboard": self.client.dashboard_link, "out": str(self.place.path or "")}
        self.on_event(event)

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
