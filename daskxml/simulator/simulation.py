"""A run in virtual time, from its files to its model."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from daskxml.config import RunConfig
from daskxml.errors import ClusterError, ConfigError
from daskxml.model.parameters import Layout
from daskxml.model.spec import ModelSpec
from daskxml.model.store import write_model
from daskxml.model.trained import Model
from daskxml.runtime.interrupts import postponed
from daskxml.simulator.changes import Arrival, Change
from daskxml.simulator.cost import CostModel, Network
from daskxml.simulator.crew import Crew
from daskxml.simulator.devices import Devices
from daskxml.simulator.executor import Executor
from daskxml.simulator.play import RESTART, OnEvent, Play, Script
from daskxml.simulator.rows import Rows, read_rows, share_rows
from daskxml.simulator.worker import VirtualWorker
from daskxml.training.checkpoint import read_checkpoint, read_local
from daskxml.training.limits import plain_limits
from daskxml.training.run import Run
from daskxml.training.run_dir import RunDir
from daskxml.training.session import Session
from daskxml.training.setup import make_session, model_header
from daskxml.training.sources import Placed

Costs = CostModel | Callable[[ModelSpec], CostModel]
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
        Workers that come and go.
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
        self._tell({"kind": "status", "state": "loading"})
        given = {n: m for n, m in (("train", train), ("test", test)) if hasattr(m, "partitions")}
        if rows is None and not (self.config.data.train or "train" in given):
            raise ConfigError("no training data: give --train FILE, or data.train in the run file")
        placed = Placed(**self.stored[0]["placed"]) if self.stored else None
        workers = len(self.speeds)
        self.rows = rows or read_rows(self.config, workers, **given, placed=placed)
        self._held = share_rows(self.rows)
        facts = self.rows.facts
        self.spec: ModelSpec = self.config.model_spec(facts.features, facts.labels)

    def equip(
        self,
        cost: Costs,
        network: Network,
        pools: Mapping[str, int],
        pool_cost: Costs | None = None,
    ) -> None:
        """Say what batches and messages cost, and which workers are pools of so many threads."""
        self.devices = Devices(
            cost=cost if isinstance(cost, CostModel) else cost(self.spec),
            network=network,
            pools=pools,
            pool_cost=pool_cost(self.spec) if callable(pool_cost) else pool_cost,
        )

    def run(self) -> Run:
        """Go to the end, from checkpoint to checkpoint where all workers are lost."""
        self._begin()
        script = Script(self.changes)
        play = self._new_play(script, self.speeds, 0.0)
        self._go_on()
        while (reason := self._play(play)) == RESTART:
            self.stored = play.executor.stored
            now_s, speeds = self._muster_again(play, script)
            play = self._new_play(script, speeds, now_s)
        self.stored = play.executor.stored
        model = self._model(play, reason)
        self._tell({"kind": "ended", "reason": reason, "run_dir": self.place.path_for_workers})
        return Run(model, self.history, self.place.path, reason)

    def _begin(self) -> None:
        if self.place.checkpoint is None:  # a run to go on with keeps its own until it does
            self.place.begin(self.config)
        placement, facts = self.rows.placement(), self.rows.facts
        self._tell({
            "kind": "started",
            "strategy": self.config.strategy_name,
            "rows": sum(placement.train_rows),
            "test_rows": sum(placement.test_rows),
            "tested_on": "validation" if self.config.data.validation else "test",
            "features": facts.features,
            "labels": facts.labels,
            "parameters": Layout(self.spec).count,
            "residency": "replicate" if self.rows.is_replicated else "shard",
            "workers": list(self.speeds),
            "limits": plain_limits(self.config.training),
            "pools": {n: t for n, t in self.devices.pools.items() if n in self.speeds},
            "out": str(self.place.path or ""),
        })  # fmt: skip

    def _go_on(self) -> None:
        """Let the directory say what is true now that workers go on from its checkpoint."""
        if self.place.checkpoint is not None:
            self.place.begin(self.config)
            self.place.rewrite(self.history)

    def _describe(self) -> None:
        """Write down what was simulated, beside the first results."""
        if self.place.path is None:
            return
        changes = [
            {"kind": type(c).__name__.lower(), **dataclasses.asdict(c)} for c in self.changes
        ]
        simulated = {"speeds": self.speeds, **self.devices.described(), "changes": changes}
        text = json.dumps(simulated, indent=2) + "\n"
        (self.place.path / SIMULATION_FILE).write_text(text, encoding="utf-8")

    def _tell(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "megabatch":
            row = json.loads(json.dumps(event["row"]))  # as it is read again
            event = {**event, "row": row}
            if not self._is_described:
                self._is_described = True
                self._describe()
            self.history.append(row)
            self.place.append(row)
        for listen in self.listeners:
            listen(event)

    # ---------------------------------------------------------------- session

    def _new_play(self, script: Script, speeds: Mapping[str, float], now_s: float) -> Play:
        session = self.new_session()
        crew = Crew(self.config, self.spec, self._held, self.devices, session)
        workers = crew.muster(speeds)
        placement = session.placement
        placement.spread({name: worker.rows_per_s for name, worker in workers.items()})
        for text in dict.fromkeys(w.member.memory.announce() for w in workers.values()):
            self._tell({"kind": "memory", "text": text})
        if self.stored is not None:
            self._load_model(workers, *self.stored)
        path = self.place.path
        store = (path, self.config.checkpoint.keep) if path is not None else None
        network, row_bytes = self.devices.network, self.rows.row_bytes
        executor = Executor(session, workers, network, row_bytes, store, self._warn)
        executor.stored = self.stored
        return Play(session, executor, script, crew.enlist, self._tell, now_s)

    def _load_model(
        self, workers: Mapping[str, VirtualWorker], stored: Mapping[str, Any], path: Path
    ) -> None:
        """Take the checkpoint's model, and what each worker alone knew."""
        models, _ = read_checkpoint(path)
        numbers = stored.get("local", {})
        for name, worker in workers.items():
            generation = len(stored["history"])
            worker.member.set_model(models["current"], models["previous"], generation)
            if name in numbers:
                worker.member.set_local_state(read_local(path, numbers[name]))

    def _warn(self, text: str) -> None:
        self._tell({"kind": "warning", "text": text})

    def new_session(self) -> Session:
        """Return the session of a run that begins, or goes on from its last checkpoint."""
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
            self._tell({"kind": "rewound", "megabatch": session.generation})
        return session

    def _play(self, play: Play) -> str:
        """Go on until the session ends; Ctrl-C asks it to end at a merge, a second one does not."""
        pending, interrupts = play.begin(), 0
        while True:
            try:
                with postponed():
                    reason = play.carry_out(pending)
                    pending = [] if reason else play.next_orders()
                if reason:
                    return reason
            except KeyboardInterrupt:
                interrupts += 1
                if interrupts > 1:
                    raise
                play.stop("interrupt")

    def _muster_again(self, play: Play, script: Script) -> tuple[float, dict[str, float]]:
        """Return when the run goes on from its last checkpoint, and the speeds of its workers."""
        lost = "the shared model" if play.executor.workers else "every worker"
        self._warn(f"{lost} was lost; going back to the last checkpoint")
        if speeds := play.speeds():
            return play.now_s, speeds
        while script.next_s < float("inf"):
            at_s, change = script.next_s, script.pop()
            if isinstance(change, Arrival):
                return max(play.now_s, at_s), {change.worker: change.speed}
        raise ClusterError(
            "every worker was lost, and no other comes; let one arrive, or lose less"
        )

    # ----------------------------------------------------------------- result

    def _model(self, play: Play, reason: str) -> Model:
        member = next(iter(play.executor.workers.values())).member
        header = model_header(
            self.config,
            self.spec,
            training_rows=sum(part.rows for part in self.rows.train),
            feature_base=self.rows.facts.feature_base,
            ended=reason,
            megabatches=len(self.history),
        )
        parameters = member.layout.views(member.kernels.to_host(member.current))
        if self.place.path is None:
            return Model(header, parameters, member.label_counts)
        write_model(self.place.path, header, parameters, member.label_counts, overwrite=True)
        return Model.load(self.place.path)
