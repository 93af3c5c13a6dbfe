"""A worker of a run in this process: a real `TrainingWorker`, whose time may be virtual.

On a virtual clock a pool's threads are virtual as well. Every batch is cut into one part for each
thread, as a real pool cuts it, and the parts are stepped through one after the other when the batch
ends: each reads the updates before it, and none is lost, the best outcome of races between real
threads, and the same every time. A batch takes as long as if all parts were as long as the longest.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from daskxml.collectives.messages import Worked
from daskxml.config import RunConfig
from daskxml.core.arrays import Partition
from daskxml.core.work_stats import WorkStats
from daskxml.local.cost import CostModel, Devices, jitter_factor, whole_ticks
from daskxml.models.network.spec import ModelSpec
from daskxml.session.commands import Evaluate, Piece
from daskxml.session.row_loading import Rows
from daskxml.session.session import Session
from daskxml.strategies.protocol import WorkerDevice
from daskxml.worker.resident_rows import Batch, part_of, span_rows
from daskxml.worker.settings import DataFacts, WorkerSettings, WorkerSlot
from daskxml.worker.shared_model import SharedModel
from daskxml.worker.training_worker import TrainingWorker


class LocalWorker:
    """One worker.

    Parameters
    ----------
    name
        In the strategy and the history.
    speed
        Batches take their cost over this; above 0.
    settings, rows
        Of its `TrainingWorker`; rows are shared with other workers, not copied.
    cost
        Of batches at speed 1; None: in real time.
    shared
        The shared model, if any; the first worker creates it.

    Attributes
    ----------
    device
        A replica or a pool.
    keeps_change
        Whether it brings what it changed when it was late.
    has_copy
        It steps on a copy of a shared model: from `work` to `release` its change is pending.
    free_s, wakes_s
        When its last lease ends, and until when it is frozen.
    """

    def __init__(
        self, name: str, speed: float, settings: WorkerSettings, rows: Rows,
        cost: CostModel | None, shared: SharedModel | None = None,
    ) -> None:  # fmt: skip
        self.name, self.speed, self.cost = name, speed, cost
        self.device = WorkerDevice(settings.slot.pool_threads)
        self.free_s, self.wakes_s, self.keeps_change = 0.0, 0.0, True
        self._batches = (-1, 0)  # a mega-batch, and the number of its last one
        shares_model = settings.strategy.shares_model
        self.has_copy = self.is_virtual and shares_model and not settings.steps_in_place
        slot = settings.slot
        if self.is_virtual:
            slot = replace(slot, pool_threads=min(slot.pool_threads, 1))
        self.training = TrainingWorker(replace(settings, slot=slot), shared)
        self.training.runner.is_held = self.has_copy
        self.training.initialize()
        if self.is_virtual:
            self.device = replace(self.device, rows_per_s=self.rows_per_s)
        self._hold(rows)

    def _hold(self, rows: Rows) -> None:
        if rows.is_replicated:
            self.training.rows.hold_all(rows.train.parts, rows.test.parts)
        else:  # all shards: placement only affects the time
            parts = rows.train.parts, rows.test.parts
            self.training.rows.hold(*(dict(enumerate(each)) for each in parts))
        self.training.count_labels(rows.label_counts)

    @property
    def is_virtual(self) -> bool:
        """Whether its time is virtual."""
        return self.cost is not None

    @property
    def rows_per_s(self) -> float:
        """Its speed on typical batches, for the placement of shards."""
        settings = self.training.settings
        rows = min(settings.max_batch_rows, 256)
        if self.cost is None:
            return self.speed
        return self.speed * rows / self.cost.batch_s(rows, rows * settings.data.row_nonzeros)

    def work_s(self, work: Worked, megabatch: int) -> float:
        """Return how long so much work takes, as its next batch of a mega-batch."""
        before, number = self._batches
        number = number + 1 if before == megabatch else 0
        self._batches = megabatch, number
        seed, cost = self.training.settings.config.run.seed, self.cost
        if cost is None:
            return 0.0
        rows, nonzeros = self._rounded(work.rows, work.nonzeros)
        factor = jitter_factor(cost.jitter, seed, self.name, megabatch, number)
        return whole_ticks(cost.batch_s(rows, nonzeros) / self.speed * factor)

    def _rounded(self, rows: int, nonzeros: int) -> tuple[int, int]:
        """Round a pool's batch up to as many rows for each thread as one has."""
        threads = max(1, self.device.pool_threads)
        all_rows = -(-rows // threads) * threads
        return all_rows, nonzeros * all_rows // max(1, rows)

    def pieces(
        self, batches: Sequence[Batch], megabatch: int
    ) -> list[tuple[Sequence[Batch], float]]:
        """Return a lease in pieces that are done at once, and how long each takes.

        In virtual time it is done batch by batch.
        """
        if not self.is_virtual:
            return [(batches, 0.0)]
        return [([batch], self._batch_s(batch, megabatch)) for batch in batches]

    def _batch_s(self, batch: Batch, megabatch: int) -> float:
        rows = sum(span.rows for span in batch)
        return self.work_s(Worked(rows, self._nonzeros(batch)), megabatch)

    def _nonzeros(self, batch: Batch) -> int:
        total = 0
        for span in batch:
            part = self.training.rows.streams[span.stream]
            rows = span_rows(span, part.rows, self.training.settings.config.run.seed)
            total += self.training.kernels.nonzeros(part.features, rows)
        return total

    def work(self, batches: Sequence[Batch], lr: float, done: list[WorkStats]) -> None:
        """Step through batches, and add the stats to ``done``.

        A virtual pool steps through the parts of each in turn.
        """
        if not self.is_virtual:
            return done.append(self.training.lease(batches, lr, {}))
        parts = self.device.pool_threads or 1
        for batch in batches:
            cut = [part_of(batch, part, parts) for part in range(parts)]
            done.append(self.training.lease([part for part in cut if part], lr, {}))

    def release(self) -> None:
        """Add the pending change of the copy to the shared model."""
        if copy := self.training.runner.copy:
            copy.push()

    def write_s(self, nbytes: int) -> float:
        """Return how long it takes to write a checkpoint of so many bytes."""
        return whole_ticks(nbytes / self.cost.storage_bytes_s) if self.cost else 0.0

    def evaluate_s(self, command: Evaluate) -> float:
        """Return how long an evaluation takes."""
        if self.cost is None:
            return 0.0
        rows, cost = self.training.rows, self.cost
        total_s = self._forward_s(cost, command.pieces, rows.tests)
        total_s += self._forward_s(cost, command.train_pieces, rows.streams)
        return whole_ticks(total_s * cost.evaluation_share / self.speed)

    def _forward_s(
        self, cost: CostModel, pieces: Sequence[Piece], shards: Mapping[int, Partition]
    ) -> float:
        """Return the time of training steps on these rows, in an evaluation's batches."""
        most, total_s = self.training.settings.config.evaluation.batch_rows, 0.0
        for shard, start, stop in pieces:
            features = shards[shard].features
            for first in range(start, stop, most):
                last = min(first + most, stop)
                stored = self.training.kernels.nonzeros(features, np.arange(first, last))
                total_s += cost.batch_s(last - first, stored)
        return total_s


class WorkerFactory:
    """Creates workers on machines.

    Parameters
    ----------
    config, spec, rows, session
        Of the run; every worker holds all ``rows``.
    devices
        Costs of batches, and which workers are pools.
    """

    def __init__(
        self, config: RunConfig, spec: ModelSpec, rows: Rows, devices: Devices, session: Session
    ) -> None:
        self._config, self._devices, self._rows = config, devices, rows
        self._facts = DataFacts.of(spec, session.placement, rows.facts)
        self._numbers = itertools.count()
        self._shared: SharedModel | None = None
        self._budgets: dict[str, int] = {}  # for logits, by device, which workers share

    def create_first(self, speeds: Mapping[str, float]) -> dict[str, LocalWorker]:
        """Return the workers of the beginning, by name."""
        return {name: self.create(name, speed) for name, speed in speeds.items()}

    def create(self, name: str, speed: float) -> LocalWorker:
        """Return a worker in the next place on the machines."""
        settings, cost = self._settings(name), self._devices.cost_of(name)
        device, budget_bytes = settings.slot.device, settings.logits_budget_bytes
        budget_bytes = self._budgets.get(device, budget_bytes)
        settings = replace(settings, logits_budget_bytes=budget_bytes)
        worker = LocalWorker(name, speed, settings, self._rows, cost, self._shared)
        self._shared = self._shared or worker.training.shared
        self._budgets[device] = worker.training.settings.logits_budget_bytes
        return worker

    def _settings(self, name: str) -> WorkerSettings:
        device, threads = self._config.cluster.here
        slot = WorkerSlot(
            device=device,
            threads=threads,
            pool_threads=self._devices.device_of(name).pool_threads,
            host=self._devices.network.machine_of(next(self._numbers)),
        )
        return WorkerSettings.of(self._config, self._facts, slot)
