"""A run in virtual time, from its files to its model."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from daskxml.config import RunConfig
from daskxml.core.errors import ClusterError, ConfigError
from daskxml.local.cost import CostModel, Devices, Network
from daskxml.local.executor import Executor
from daskxml.local.rows import Rows, read_rows, share_rows
from daskxml.local.virtual_session import Arrival, Change, Membership, Script, VirtualSession
from daskxml.local.worker import VirtualWorker, WorkerFactory
from daskxml.models.kinds import AnySpec
from daskxml.models.store import ModelHeader, write_model
from daskxml.models.trained import Model
from daskxml.records.checkpoint import read_checkpoint, read_local
from daskxml.records.run_dir import RunDir
from daskxml.session.commands import STOP, Stop
from daskxml.session.run_loop import RESTART, RunLoop
from daskxml.session.session import Session
from daskxml.session.setup import (
    ColumnNames,
    DataLayout,
    describe_run,
    make_session,
    model_header,
)

Costs = CostModel | Callable[[AnySpec], CostModel]
OnEvent = Callable[[Mapping[str, Any]], Any]
SIMULATION_FILE = "simulation.json"


class Simulation:
    """One simulated run, from its files to its model.

    Parameters
    ----------
    config
        The resolved run file.
    speeds
        Of the workers that are there at the beginning, by name.
    place
        Where it is written.
    changes
        Workers that are lost or arrive.
    listeners
        Called with every event.
    """

    def __init__(
        self,
        config: RunConfig,
        speeds: Mapping[str, float],
        place: RunDir,
        changes: tuple[Change, ...],
        listeners: Sequence[OnEvent],
    ) -> None:
        self.config, self.speeds, self.place = config, dict(speeds), place
        self.changes, self.listeners = changes, listeners
        self.history = place.history()
        self._is_described = False
        self.stored: tuple[dict[str, Any], Path] | None = None
        if place.checkpoint is not None:
            self.stored = read_checkpoint(place.checkpoint)[1], Path(place.checkpoint)

    def read(self, rows: Rows | None, train: Any, test: Any) -> None:
        """Read the rows, unless they are given."""
        self._publish("status", state="loading")
        given = {n: m for n, m in (("train", train), ("test", test)) if hasattr(m, "partitions")}
        if rows is None and not (self.config.data.train or "train" in given):
            raise ConfigError("no training data: give --train FILE, or data.train in the run file")
        self._names = ColumnNames.read(self.config.data)
        self.config = self._names.sized(self.config)
        placed = DataLayout(**self.stored[0]["placed"]) if self.stored else None
        workers = len(self.speeds)
        self.rows = rows or read_rows(self.config, workers, **given, placed=placed)
        self._held = share_rows(self.rows)
        self.spec: AnySpec = self.rows.model_spec(self.config)
        self._names.check(self.spec)

    def set_costs(
        self,
        cost: Costs,
        network: Network,
        pools: Mapping[str, int],
        pool_cost: Costs | None = None,
    ) -> None:
        """Set the costs of batches and messages, and the threads of workers that are pools."""
        self.devices = Devices(
            cost=cost if isinstance(cost, CostModel) else cost(self.spec),
            network=network,
            pools=pools,
            pool_cost=pool_cost(self.spec) if callable(pool_cost) else pool_cost,
        )

    def run(self) -> tuple[Model, str]:
        """Run to the end, from the last checkpoint again where all workers are lost.

        Return the model, and why the run ended.
        """
        self._begin()
        script = Script(self.changes)
        session = self._new_session(script, self.speeds, 0.0)
        self._continue_directory()
        while (reason := session.run()) == RESTART:
            self.stored = session.executor.stored
            now_s, speeds = self._next_workers(session, script)
            session = self._new_session(script, speeds, now_s)
        self.stored = session.executor.stored
        model = self._model(session, reason)
        self._publish("ended", reason=reason, run_dir=self.place.path_for_workers)
        return model, reason

    def _begin(self) -> None:
        if self.place.checkpoint is None:  # a resumed run keeps its files until it continues
            self.place.begin(self.config)
        devices = {name: self.devices.device_of(name) for name in self.speeds}
        self._publish(
            "started",
            **describe_run(self.config, self.spec, self.rows.placement(), devices),
            out=str(self.place.path or ""),
        )

    def _continue_directory(self) -> None:
        """Write the run file and the history of the run that continues from its checkpoint."""
        if self.place.checkpoint is not None:
            self.place.begin(self.config)
            self.place.rewrite(self.history)

    def _describe(self) -> None:
        """Write the devices and changes beside the first results."""
        if self.place.path is None:
            return
        changes = [
            {"kind": type(c).__name__.lower(), **dataclasses.asdict(c)} for c in self.changes
        ]
        simulated = {"speeds": self.speeds, **self.devices.plain(), "changes": changes}
        text = json.dumps(simulated, indent=2) + "\n"
        (self.place.path / SIMULATION_FILE).write_text(text, encoding="utf-8")

    def _publish(self, kind: str, **values: Any) -> Stop | None:
        """Pass an event on; return `STOP` if a listener does."""
        if kind == "megabatch":
            values["row"] = json.loads(json.dumps(values["row"]))  # as a reader of the file gets it
            if not self._is_described:
                self._is_described = True
                self._describe()
            self.history.append(values["row"])
            self.place.append(values["row"])
        answers = [listen({"kind": kind, **values}) for listen in self.listeners]
        return STOP if any(answer is STOP for answer in answers) else None

    def _warn(self, text: str) -> None:
        self._publish("warning", text=text)

    # ---------------------------------------------------------------- session

    def _new_session(
        self, script: Script, speeds: Mapping[str, float], now_s: float
    ) -> VirtualSession:
        session = self.new_session()
        factory = WorkerFactory(self.config, self.spec, self._held, self.devices, session)
        workers = factory.create_first(speeds)
        session.placement.spread({name: worker.rows_per_s for name, worker in workers.items()})
        for text in dict.fromkeys(w.training.announce_memory() for w in workers.values()):
            self._publish("memory", text=text)
        if self.stored is not None:
            self._load_model(workers, *self.stored)
        path = self.place.path
        store = (path, self.config.checkpoint.keep) if path is not None else None
        network, row_bytes = self.devices.network, self.rows.row_bytes
        executor = Executor(session, workers, network, row_bytes, store, self._warn, now_s)
        executor.stored = self.stored

        def publish(kind: str, **values: Any) -> Stop | None:
            at = {"at_s": executor.now_s} if kind == "worker" else {}
            return self._publish(kind, **values, **at)

        membership = Membership(factory, executor)
        loop = RunLoop(session, executor, membership, publish)
        return VirtualSession(loop, executor, membership, script)

    def _load_model(
        self, workers: Mapping[str, VirtualWorker], stored: Mapping[str, Any], path: Path
    ) -> None:
        """Load the checkpoint's model, and each worker's own arrays."""
        models, session = read_checkpoint(path)
        numbers = stored.get("local", {})
        for name, worker in workers.items():
            generation = len(stored["history"])
            worker.training.set_models(models, generation, session.get("best", 0))
            if name in numbers:
                worker.network_worker.set_local_state(read_local(path, numbers[name]))

    def new_session(self) -> Session:
        """Return the session of a run that begins, or continues from its last checkpoint."""
        session = make_session(
            self.config,
            self.spec,
            self.rows.placement(),
            can_checkpoint=self.place.path is not None,
            stored=self.stored[0] if self.stored else None,
        )
        if len(self.history) > session.generation:
            del self.history[session.generation :]
            self.place.rewrite(self.history)
            self._publish("rewound", megabatch=session.generation)
        return session

    def _next_workers(
        self, session: VirtualSession, script: Script
    ) -> tuple[float, dict[str, float]]:
        """Return when the run continues from its last checkpoint, and its workers' speeds."""
        lost = "every worker was lost"
        if session.executor.workers:
            lost = "the shared model was lost"
        self._warn(f"{lost}; going back to the last checkpoint")
        now_s = session.executor.now_s
        if speeds := session.speeds():
            return now_s, speeds
        while script.next_s < float("inf"):
            at_s, change = script.next_s, script.pop()
            if isinstance(change, Arrival):
                return max(now_s, at_s), {change.worker: change.speed}
        raise ClusterError(
            "every worker was lost, and no other comes; let one arrive, or lose less"
        )

    # ----------------------------------------------------------------- result

    def _model(self, session: VirtualSession, reason: str) -> Model:
        workers = [it.training for it in session.executor.workers.values()]
        best = session.session.best
        having = [worker for worker in workers if best and worker.restore_best(best)]
        worker = next(iter([*having, *workers]))
        header = self._header(reason, best if having else 0)
        parameters = worker.model_arrays()
        if self.place.path is None:
            return Model(header, parameters, worker.label_counts)
        write_model(self.place.path, header, parameters, worker.label_counts, overwrite=True)
        return Model.load(self.place.path)

    def _header(self, reason: str, best: int) -> ModelHeader:
        return model_header(
            self.config,
            self.spec,
            training_rows=sum(part.rows for part in self.rows.train),
            feature_base=self.rows.facts.feature_base,
            ended=reason,
            megabatches=len(self.history),
            best=best,
            names=self._names,
        )
