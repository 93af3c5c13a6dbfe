"""A run with one worker in this process: a third backend of the run loop, without Dask.

Commands are executed when they are given, one after the other, and their results are events, as
those of a cluster are. Nothing is lost and nothing joins. It begins in milliseconds, so it is what
many small runs are made with: the folds of a cross-validation, the trials of a search.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from daskxml.collectives.messages import run_together
from daskxml.config import RunConfig
from daskxml.core.errors import ConfigError, TrainingError
from daskxml.core.work_stats import sum_stats
from daskxml.local.rows import Rows, share_rows
from daskxml.models.network.growth import grown_parameters
from daskxml.models.trained import Model
from daskxml.session.commands import (
    STOP,
    BestKept,
    Command,
    Evaluate,
    EvaluationResult,
    GangResult,
    KeepBest,
    LeaseResult,
    MeasureNorms,
    MergeReplicas,
    MergeResult,
    Result,
    RunGang,
    RunLease,
    StopRequest,
)
from daskxml.session.run_loop import Participant, RunLoop
from daskxml.session.setup import (
    NO_NAMES,
    ColumnNames,
    describe_run,
    make_session,
    model_header,
)
from daskxml.strategies.label_tree import LabelTrees
from daskxml.strategies.protocol import Measured, WorkerDevice
from daskxml.worker.create import AnyWorker, new_worker
from daskxml.worker.gang_programs import gang_program, needs_server, server_program
from daskxml.worker.merge_program import merge_program
from daskxml.worker.settings import DataFacts, WorkerSettings, WorkerSlot
from daskxml.worker.training_worker import TrainingWorker
from daskxml.worker.tree_worker import TreeWorker

NAME = "0"  # of the worker, in the history
_TREE_PIECES = 8  # steps in which one worker fits a tree; nobody shares them
OnEvent = Callable[[Mapping[str, Any]], Any]


class InProcessRun:
    """One run, from its rows to its model.

    Parameters
    ----------
    config
        The resolved run file; what it says of a cluster, and of checkpoints, has no effect.
    rows
        As `read_rows` returns them for one worker.
    publish
        Called with every event.
    start
        The model to start from; by default the seed's.
    names
        Of the columns, for the model's header.

    Attributes
    ----------
    history
        One dictionary a mega-batch.

    Raises
    ------
    ConfigError
        If the strategy needs a GPU or a cluster.
    ModelError
        If the model to start from has other hidden layers.
    """

    def __init__(
        self,
        config: RunConfig,
        rows: Rows,
        publish: OnEvent,
        start: Model | None = None,
        names: ColumnNames = NO_NAMES,
    ) -> None:
        config = _for_one_worker(config)
        self.config, self.rows, self._publish_event = config, share_rows(rows), publish
        self.history: list[dict[str, Any]] = []
        self._start, self._names = start, names
        self.spec = rows.model_spec(config)
        names.check(self.spec)
        self._placement = rows.placement()
        self._session = make_session(config, self.spec, self._placement, can_checkpoint=False)

    def run(self) -> tuple[Model, str]:
        """Run to the end; return the model, and why the run ended."""
        worker = self._new_worker()
        try:
            executor = InProcessExecutor(worker, self._session.parameters)
            device = WorkerDevice(worker.settings.slot.pool_threads)
            self._publish(
                "started",
                **describe_run(self.config, self.spec, self._placement, {NAME: device}),
                out="",
            )
            reason = self._run_loop(executor, device)
            model = self._model(worker, reason)
        finally:
            worker.close()
        self._publish("ended", reason=reason, run_dir=None)
        return model, reason

    def _run_loop(self, executor: InProcessExecutor, device: WorkerDevice) -> str:
        loop = RunLoop(self._session, executor, _Nobody(), self._publish)
        commands = loop.start({NAME: _Worker(device)}, time.monotonic())
        while not (reason := loop.execute(commands)):
            commands = loop.session.tick(time.monotonic())
            if loop.is_stop_asked:
                loop.is_stop_asked = False
                commands = loop.handle(StopRequest(STOP.value), time.monotonic())
            if not commands:
                commands = loop.handle(executor.results.popleft(), time.monotonic())
        return reason

    def _publish(self, kind: str, **values: Any) -> Any:
        if kind == "megabatch":
            self.history.append(values["row"])
        return self._publish_event({"kind": kind, **values})

    # ------------------------------------------------------------------ worker

    def _new_worker(self) -> AnyWorker:
        facts = DataFacts.of(self.spec, self._placement, self.rows.facts)
        worker = new_worker(WorkerSettings.of(self.config, facts, self._slot()))
        worker.initialize()
        if isinstance(worker, TreeWorker):
            if self._start is not None:
                raise ConfigError("label trees are fitted anew: leave the model to start from out")
            assert self.rows.label_orders is not None
            worker.orders = self.rows.label_orders
        elif self._start is not None:
            assert isinstance(worker, TrainingWorker)
            flat = grown_parameters(facts.network, self.config.run.seed, self._start)
            worker.set_model(flat, flat, generation=0)
        if self._placement.is_replicated:
            worker.rows.hold_all(self.rows.train, self.rows.test)
        else:
            worker.rows.hold(dict(enumerate(self.rows.train)), dict(enumerate(self.rows.test)))
            self._placement.spread({NAME: 1.0})
        worker.count_labels(self.rows.label_counts)
        return worker

    def _slot(self) -> WorkerSlot:
        cluster, cores = self.config.cluster, len(os.sched_getaffinity(0))
        device = "cpu" if cluster.device == "auto" else cluster.device
        pool = cluster.pool_threads_on(cores) if cluster.pools else 0
        return WorkerSlot(device=device, threads=cluster.threads_on(cores, 1), pool_threads=pool)

    def _model(self, worker: AnyWorker, reason: str) -> Model:
        best = self._session.best
        if best:
            worker.restore_best(best)
        header = model_header(
            self.config,
            self.spec,
            training_rows=sum(part.rows for part in self.rows.train),
            feature_base=self.rows.facts.feature_base,
            ended=reason,
            megabatches=len(self.history),
            best=best,
            names=self._names,
        )
        parameters = worker.model_arrays()
        counts = self.rows.label_counts
        if self._start is not None:  # labels are counted over all rows that the model has seen
            before = self._start.label_counts
            counts = counts.copy()
            counts[: before.size] += before
            seen = header.training_rows + self._start.header.training_rows
            header = replace(header, training_rows=seen)
        return Model(header, parameters, counts)


@dataclass(frozen=True)
class _Worker:
    """The one worker, as the run loop sees it."""

    device: WorkerDevice
    name: str = NAME
    autotune_event: dict[str, Any] | None = None


class _Nobody:
    """Nobody joins."""

    def has_candidates(self) -> bool:
        """Whether a worker waits to join."""
        return False

    def admit(self, generation: int, may_join: bool) -> Iterable[Participant]:
        """Let no worker join."""
        return ()


def _for_one_worker(config: RunConfig) -> RunConfig:
    """Return the run file, with label trees in few pieces: each reads rows that others read, too.

    The trees are the same, bit for bit.
    """
    if not isinstance(config.strategy, LabelTrees.Config):
        return config
    pieces = min(config.strategy.pieces, _TREE_PIECES)
    return replace(config, strategy=replace(config.strategy, pieces=pieces))


class InProcessExecutor:
    """Executes commands at once.

    Parameters
    ----------
    worker
        Which steps, evaluates and merges with itself.
    parameters
        Number of model parameters.

    Attributes
    ----------
    results
        Of the commands, in their order.
    """

    def __init__(self, worker: AnyWorker, parameters: int) -> None:
        self._worker, self._parameters = worker, parameters
        self.results: deque[Result] = deque()

    @property
    def _network_worker(self) -> TrainingWorker:
        assert isinstance(self._worker, TrainingWorker)
        return self._worker

    def remove(self, worker: str) -> bool:
        """Refuse: nothing is lost in one process."""
        raise AssertionError(f"worker {worker} cannot be lost")

    def execute(self, command: Command) -> None:
        """Execute a command."""
        result = self._result(command)
        if result is not None:
            self.results.append(result)

    def _result(self, command: Command) -> Result | None:
        worker = self._worker
        match command:
            case RunLease():
                return LeaseResult(command.lease, worker.lease(command.batches, command.lr, {}))
            case RunGang():
                return self._gang(command)
            case MeasureNorms():
                norm = self._network_worker.squared_norm()
                if not math.isfinite(norm):
                    raise TrainingError("the weights are not finite any more: lower strategy.lr")
                return Measured({NAME: norm}, self._parameters)
            case MergeReplicas():
                return self._merge(command)
            case Evaluate():
                sums = worker.evaluate(command.pieces, {})
                loss = worker.training_loss(command.train_pieces, {})
                return EvaluationResult(command.number, sums, loss)
            case KeepBest():
                worker.keep_best(command.megabatch)
                return BestKept()
        return None  # `Rebalance`: all shards are here

    def _gang(self, command: RunGang) -> Result:
        begun_s = time.perf_counter()
        programs = [gang_program(self._network_worker, command, 0, ("",), {})]
        if needs_server(command.pattern):
            programs.append(server_program(self._network_worker, command))
        work = sum_stats(run_together(programs))
        work.busy_s = time.perf_counter() - begun_s
        return GangResult(command.gang, (work,))

    def _merge(self, command: MergeReplicas) -> Result:
        if command.overlaps:
            self._network_worker.take_snapshot(command)
        (means,) = run_together([merge_program(self._worker, command, 0, ("",))])
        self._worker.commit(command.generation)
        return MergeResult(0, means, {NAME: 0} if command.overlaps else {})
