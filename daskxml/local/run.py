"""A run in this process, from rows to model: on virtual clocks, or with one worker in real time.

The second is what many small runs are made with, the folds of a cross-validation or the trials of
a search: it begins in milliseconds. Nothing is lost there and nothing joins, and what the run file
says of a cluster has no effect, except for threads, a device and one pool.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from daskxml.config import RunConfig
from daskxml.core.arrays import Array
from daskxml.core.errors import ClusterError
from daskxml.core.hardware import usable_cores
from daskxml.local.clock import Clock, VirtualClock, WallClock
from daskxml.local.cost import Devices, Network
from daskxml.local.driver import NOBODY_COMES, Arrival, Change, LocalDriver, Script
from daskxml.local.executor import LocalExecutor
from daskxml.local.rows import share_rows
from daskxml.local.worker import LocalWorker, WorkerFactory
from daskxml.models.network.spec import grown_parameters
from daskxml.models.store import ModelHeader, write_model
from daskxml.models.trained import Model, calibrated
from daskxml.records.checkpoint import read_checkpoint, read_local
from daskxml.records.run_dir import RunDir
from daskxml.session.commands import STOP, Stop
from daskxml.session.row_loading import Rows
from daskxml.session.run_loop import RESTART
from daskxml.session.session import Session
from daskxml.session.setup import NO_NAMES, ColumnNames, describe_run, make_session, model_header

Stored = tuple[dict[str, Any], Path]  # a session, and the checkpoint that holds it
OnEvent = Callable[[Mapping[str, Any]], Any]
SIMULATION_FILE = "simulation.json"
NAME = "0"  # of the one worker in real time, in the history


def read_stored(place: RunDir) -> Stored | None:
    """Return the checkpoint that a run in this directory continues from."""
    if place.checkpoint is None:
        return None
    return read_checkpoint(place.checkpoint)[1], Path(place.checkpoint)


class LocalRun:
    """One run.

    Parameters
    ----------
    config
        The resolved run file.
    rows
        Of the run, as `read_rows` returns them.
    publish
        Called with every event.
    start
        The model to start from, in real time; by default the seed's.
    names
        Of the columns, for the model's header.
    devices
        What work and messages cost on virtual clocks; None: one worker in real time.
    speeds
        Of the workers that are there at the beginning, by name.
    place
        Where the run is written.
    stored
        The checkpoint that it continues from.
    changes
        Workers that are lost or arrive.

    Attributes
    ----------
    history
        One dictionary a mega-batch.

    Raises
    ------
    ConfigError
        If the strategy needs several workers.
    """

    def __init__(
        self,
        config: RunConfig,
        rows: Rows,
        publish: OnEvent,
        start: Model | None = None,
        names: ColumnNames = NO_NAMES,
        *,
        devices: Devices | None = None,
        speeds: Mapping[str, float] | None = None,
        place: RunDir | None = None,
        stored: Stored | None = None,
        changes: Sequence[Change] = (),
    ) -> None:
        self._is_virtual = devices is not None
        self.config = config
        self.rows, self._held, self._publish_event = rows, share_rows(rows), publish
        self._start, self._names = start, names
        self._devices = devices or _this_process(self.config)
        self._speeds, self._changes = dict(speeds or {NAME: 1.0}), tuple(changes)
        self._place, self._stored = place or RunDir(None, None), stored
        self.spec = rows.model_spec(config)
        names.check(self.spec)
        self.history = self._place.history()
        self._is_described = not self._is_virtual

    def run(self) -> tuple[Model, str]:
        """Run to the end, from the last checkpoint again where all workers are lost.

        Return the model, and why the run ended.

        Raises
        ------
        ConfigError
            If the strategy needs a GPU or a cluster.
        ModelError
            If the model to start from has other hidden layers.
        ClusterError
            If all workers are lost, and none arrives.
        """
        self._begin()
        script, clock = Script(self._changes), VirtualClock() if self._is_virtual else WallClock()
        driver = self._new_driver(script, self._speeds, clock)
        try:
            self._continue_directory()
            while (reason := driver.run()) == RESTART:
                self._stored = driver.executor.stored
                speeds = self._next_workers(driver, script, clock)
                driver = self._new_driver(script, speeds, clock)
            model = self._model(driver, reason)
        finally:
            driver.close()
        self._publish("ended", reason=reason, run_dir=self._place.path_for_workers)
        return model, reason

    def _begin(self) -> None:
        if self._place.checkpoint is None:  # a resumed run keeps its files until it continues
            self._place.begin(self.config)
        devices = {name: self._devices.device_of(name) for name in self._speeds}
        self._publish(
            "started",
            **describe_run(self.config, self.spec, self.rows.placement(), devices),
            out=str(self._place.path or ""),
        )

    def _continue_directory(self) -> None:
        """Write the run file and the history of the run that continues from its checkpoint."""
        if self._place.checkpoint is not None:
            self._place.begin(self.config)
            self._place.rewrite(self.history)

    def _describe(self) -> None:
        """Write the devices and changes beside the first results."""
        if self._is_described or self._place.path is None:
            return
        self._is_described = True
        changes = [
            {"kind": type(c).__name__.lower(), **dataclasses.asdict(c)} for c in self._changes
        ]
        simulated = {"speeds": self._speeds, **self._devices.plain(), "changes": changes}
        text = json.dumps(simulated, indent=2) + "\n"
        (self._place.path / SIMULATION_FILE).write_text(text, encoding="utf-8")

    def _publish(self, kind: str, **values: Any) -> Stop | None:
        """Pass an event on; return `STOP` if a listener does."""
        if kind == "megabatch":
            values["row"] = json.loads(json.dumps(values["row"]))  # as a reader of the file gets it
            self._describe()
            self.history.append(values["row"])
            self._place.append(values["row"])
        answer = self._publish_event({"kind": kind, **values})
        return STOP if answer is STOP else None

    def _publish_at(self, clock: Any, kind: str, **values: Any) -> Stop | None:
        at = {"at_s": clock.now_s} if kind == "worker" else {}
        return self._publish(kind, **values, **at)

    def _warn(self, text: str) -> None:
        self._publish("warning", text=text)

    # ---------------------------------------------------------------- session

    def _new_driver(self, script: Script, speeds: Mapping[str, float], clock: Clock) -> LocalDriver:
        session = self.new_session()
        factory = WorkerFactory(self.config, self.spec, self._held, self._devices, session)
        workers = factory.create_first(speeds)
        session.placement.spread({name: worker.rows_per_s for name, worker in workers.items()})
        for text in dict.fromkeys(w.training.memory.announce() for w in workers.values()):
            self._publish("memory", text=text)
        self._load_model(workers)
        path = self._place.path
        store = (path, self.config.checkpoint.keep) if path is not None else None
        network, row_bytes = self._devices.network, self.rows.row_bytes
        executor = LocalExecutor(session, workers, clock, network, row_bytes, store, self._warn)
        executor.stored = self._stored
        publish = partial(self._publish_at, clock)
        is_soft = self._is_virtual or path is not None
        return LocalDriver(session, executor, factory, script, publish, ends_at_merge=is_soft)

    def _load_model(self, workers: Mapping[str, LocalWorker]) -> None:
        """Load the checkpoint's model and each worker's own arrays, or the model to start from."""
        if self._start is not None:
            for worker in workers.values():
                _begin_from(worker, self._start, self.config.run.seed)
        if self._stored is None:
            return
        stored, path = self._stored
        models, session = read_checkpoint(path)
        numbers = stored.get("local", {})
        for name, worker in workers.items():
            generation = len(stored["history"])
            worker.training.set_models(models, generation, session.get("best", 0))
            if name in numbers:
                worker.training.set_local_state(read_local(path, numbers[name]))

    def new_session(self) -> Session:
        """Return the session of a run that begins, or continues from its last checkpoint."""
        session = make_session(
            self.config,
            self.spec,
            self.rows.placement(),
            can_checkpoint=self._place.path is not None,
            stored=self._stored[0] if self._stored else None,
        )
        if len(self.history) > session.generation:
            del self.history[session.generation :]
            self._place.rewrite(self.history)
            self._publish("rewound", megabatch=session.generation)
        return session

    def _next_workers(self, driver: LocalDriver, script: Script, clock: Clock) -> dict[str, float]:
        """Return the speeds of those with which the run continues from its last checkpoint."""
        lost = "every worker with the model" if driver.executor.workers else "every worker"
        self._warn(f"{lost} was lost; going back to the last checkpoint")
        if speeds := driver.speeds():
            return speeds
        while script.next_s < float("inf"):
            at_s, change = script.next_s, script.pop()
            if isinstance(change, Arrival):
                clock.advance(at_s)
                return {change.worker: change.speed}
        raise ClusterError(NOBODY_COMES)

    # ----------------------------------------------------------------- result

    def _model(self, driver: LocalDriver, reason: str) -> Model:
        workers = [worker.training for worker in driver.executor.current()]
        best = driver.session.best
        having = [worker for worker in workers if best and worker.restore_best(best)]
        worker = next(iter([*having, *workers]))
        header = self._header(reason, best if having else 0)
        parameters, counts = worker.model_arrays(), worker.label_counts
        header, counts = self._seen(header, counts)
        return self._written(header, parameters, counts)

    def _seen(self, header: ModelHeader, counts: Array) -> tuple[ModelHeader, Array]:
        """Count rows and labels over all rows that the model has seen, before this run as well."""
        if self._start is None:
            return header, counts
        before, counts = self._start.label_counts, counts.copy()
        counts[: before.size] += before
        rows = header.training_rows + self._start.header.training_rows
        return replace(header, training_rows=rows), counts

    def _written(self, header: ModelHeader, arrays: dict[str, Any], counts: Array) -> Model:
        """Return a model, from the run's directory if there is one."""
        whole = calibrated(header, arrays, counts, self.rows.test.parts)
        if self._place.path is None:
            return Model(*whole)
        write_model(self._place.path, *whole, overwrite=True)
        return Model.load(self._place.path)

    def _header(self, reason: str, best: int) -> ModelHeader:
        of_run = self.config, self.spec, self.rows
        return model_header(*of_run, reason, len(self.history), best, self._names)


def _this_process(config: RunConfig) -> Devices:
    """Return the one worker of a run in real time, a replica or a pool."""
    cluster, cores = config.cluster, usable_cores()
    pools = {NAME: cluster.pool_threads_on(cores)} if cluster.pools else {}
    return Devices(cost=None, network=Network(message_s=0.0, latency_s=0.0), pools=pools)


def _begin_from(worker: LocalWorker, start: Model, seed: int) -> None:
    """Set a worker to the model to start from, grown to the rows' features and labels."""
    data = worker.training.settings.data
    flat = grown_parameters(data.spec, seed, start)
    worker.training.set_model(flat, flat, generation=0)
