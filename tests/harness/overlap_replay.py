"""A run with overlapped merges repeated from its history alone, bit for bit, in one process.

Every worker steps through its batches in their order; the correction by the merge before comes
after as many of them as the history says. Merges run in one process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from daskxml.collectives.combine import outer_memory
from daskxml.collectives.messages import run_together
from daskxml.config import RunConfig
from daskxml.core.arrays import Partition
from daskxml.session.commands import MergeReplicas
from daskxml.session.ledger import Span, cut_batches
from daskxml.session.placement import Placement
from daskxml.worker.merge_program import merge_program
from daskxml.worker.settings import DataFacts, WorkerSettings, WorkerSlot
from daskxml.worker.training_worker import TrainingWorker


def lease_rate(
    config: RunConfig, worker: Mapping[str, Any], batches: Sequence[Sequence[Span]]
) -> float:
    """Return the rate of a lease: a smaller batch has one of its own, in proportion to its rows."""
    rows = sum(span.rows for batch in batches for span in batch)
    is_scaled = getattr(config.make_strategy(), "scales_parts", False)
    share = min(1.0, rows / worker["batch_rows"]) if is_scaled else 1.0
    return float(worker["lr"] * share)


def make_training_worker(config: RunConfig, rows: Partition) -> TrainingWorker:
    """Return a worker that holds all rows, as one stream."""
    placement = Placement(True, (rows.rows,), ())
    spec = config.model_spec(rows.features.columns, rows.labels.columns)
    facts = DataFacts(spec=spec, rows=rows.rows, stream_rows=placement.streams(), row_nonzeros=9)
    training_worker = TrainingWorker(WorkerSettings.of(config, facts, WorkerSlot()))
    training_worker.initialize()
    training_worker.rows.hold_all([rows], [])
    return training_worker


class Replay:
    """The workers of a run, and its global model."""

    def __init__(self, config: RunConfig, rows: Partition) -> None:
        self._config, self._rows = config, rows
        self.workers: dict[str, TrainingWorker] = {}
        first = make_training_worker(config, rows)
        self._models = first.current.copy(), first.previous.copy()
        self.generation = 0

    def repeat(self, history: Sequence[Mapping[str, Any]]) -> Any:
        """Go through the rows of a history; return the flat model at the end."""
        for number, row in enumerate(history):
            overlaps = number + 1 < len(history) and any(
                "corrected_after" in worker for worker in history[number + 1]["workers"].values()
            )
            for name, worker in row["workers"].items():
                self._work(name, worker)
            self._merge(row, history[number + 1]["workers"] if overlaps else {})
        return self._models[0]

    def _work(self, name: str, worker: Mapping[str, Any]) -> None:
        corrected_after = worker.get("corrected_after")
        if corrected_after is None:
            self._begin_from_global(name)
        training_worker = self.workers[name]
        rows = worker["batch_rows"]
        leases = [cut_batches([Span(*span) for span in spans], rows) for spans in worker["leases"]]
        for number, batch in enumerate(batch for lease in leases for batch in lease):
            if number == corrected_after:
                training_worker.commit(self.generation)
            training_worker.lease([batch], lease_rate(self._config, worker, [batch]), {})
        training_worker.commit(self.generation)  # nothing, if that was done before

    def _begin_from_global(self, name: str) -> None:
        """Set a worker to the global model; moments of an optimizer stay."""
        if name not in self.workers:
            self.workers[name] = make_training_worker(self._config, self._rows)
        self.workers[name].set_model(*self._models, self.generation)

    def _merge(self, row: Mapping[str, Any], following: Mapping[str, Any]) -> None:
        group = [self.workers[name] for name in row["workers"]]
        self.generation += 1
        weights = {name: worker["weight"] for name, worker in row["workers"].items()}
        is_work = any(worker["rows"] for worker in row["workers"].values())
        momentum = getattr(self._config.strategy, "momentum", 0.0) if is_work else 0.0
        command = MergeReplicas(self.generation, weights, momentum, overlaps=bool(following))
        continuing = [name for name in following if "corrected_after" in following[name]]
        for name in continuing:
            self.workers[name].take_snapshot(command)
        hosts = ("here",) * len(group)
        run_together([merge_program(m, command, rank, hosts) for rank, m in enumerate(group)])
        self._models = group[0].scratch.copy(), self._memory(group[0])

    def _memory(self, training_worker: TrainingWorker) -> Any:
        """Return the global model before, or the outer optimizer's memory."""
        combine = self._config.combine
        if combine.outer == "none":
            return training_worker.current.copy()
        memory = training_worker.previous.copy()
        outer_memory(
            memory, training_worker.scratch, combine.outer_momentum, training_worker.kernels
        )
        return memory


def assert_repeats(config: RunConfig, rows: Partition, history: Any, model: Any) -> None:
    """Check that a history leads to a model, by its parameters' names."""
    flat = Replay(config, rows).repeat(history)
    layout = make_training_worker(config, rows).layout
    for name, array in layout.views(flat).items():
        assert np.array_equal(array, model.parameters[name]), name
