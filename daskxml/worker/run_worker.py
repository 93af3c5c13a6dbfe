"""What the workers of every kind of model share: resident rows, label counts and evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np

from daskxml.core.arrays import Array, Csr, Partition, Segment
from daskxml.data.rows import slice_csr
from daskxml.kernels import get_kernels
from daskxml.metrics import MetricSums, frequency_groups, metric_sums, propensities
from daskxml.models.class_weights import label_weights
from daskxml.models.protocol import Ranker
from daskxml.session.commands import Piece
from daskxml.worker.memory import choose_budget
from daskxml.worker.resident_rows import ResidentRows
from daskxml.worker.settings import WorkerSettings


class RunWorker(ABC):
    """A worker's part in one run, whatever its model.

    Attributes
    ----------
    rows
        The resident rows.
    budget
        Memory for logits.
    best
        The mega-batch whose model is kept as the best one; 0: none is.
    generation
        Number of merges that the global model includes.
    label_counts
        ``(labels,)`` int64: training rows with each label.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        slot = settings.slot
        self.kernels = get_kernels(slot.device, slot.kernel_threads, settings.config.gpu.exact)
        self.budget = choose_budget(settings, self.kernels)
        self.settings = settings = self.budget.given_to(settings)
        self.rows = ResidentRows(self.kernels, settings.config.run.seed)
        self.generation = self.best = 0
        self.label_counts: Array = np.zeros(settings.data.spec.labels, dtype=np.int64)
        self.inverse_propensity: Array = np.ones(settings.data.spec.labels)
        self.frequency_groups: Array | None = None

    def count_labels(self, label_counts: Array) -> None:
        """Set the counts of each label in the training rows, ``(labels,)`` int64."""
        self.label_counts, data = label_counts, self.settings.config.data
        rows = self.settings.data.rows
        self.frequency_groups = frequency_groups(label_counts)
        self.inverse_propensity = propensities(
            label_counts, rows, data.propensity_a, data.propensity_b
        )
        self.weigh_labels(
            label_weights(
                self.settings.config.training.class_weight,
                label_counts,
                self.inverse_propensity,
                data.label_base,
            )
        )

    @abstractmethod
    def weigh_labels(self, weights: Array | None) -> None:
        """Set what a row's labels count in the loss, ``(labels,)`` float32; None: all count 1."""

    @property
    @abstractmethod
    def model_bytes(self) -> int:
        """Bytes of the models that a new worker copies, and a checkpoint holds."""

    @abstractmethod
    def global_model(self) -> AbstractContextManager[Ranker]:
        """Return the global model, which ranks labels while the context is open."""

    def evaluate(self, pieces: Sequence[Piece], fetched: Mapping[int, Partition]) -> MetricSums:
        """Rank labels of pieces of the test rows by the global model.

        ``fetched`` has shards that are not resident.
        """
        config, to_device = self.settings.config.evaluation, self.kernels.to_device
        sums, held = MetricSums.zero(config.k), None
        with self.global_model() as ranker:
            for part, first, last in self.batches_of(pieces, {**self.rows.tests, **fetched}):
                if part is not held:
                    held, labels = part, self.kernels.to_host(part.labels)
                rows = to_device(np.arange(first, last))
                ids, _ = ranker.top_k([Segment(part, rows)], config.k[-1])
                sums += self.metric_sums(ids, slice_csr(labels, first, last))
        return sums

    def metric_sums(self, ids: Array, truth: Csr) -> MetricSums:
        """Return the sums of the metrics of ranked labels, ``(rows, k)``, at the run's ranks."""
        ks = self.settings.config.evaluation.k
        return metric_sums(ids, truth, self.inverse_propensity, ks, self.frequency_groups)

    def batches_of(
        self, pieces: Sequence[Piece], shards: Mapping[int, Partition]
    ) -> Iterator[tuple[Partition, int, int]]:
        """Yield the shard, the first row and the row after the last of an evaluation's batches."""
        batch_rows = self.settings.config.evaluation.batch_rows
        for shard, start, stop in pieces:
            for first in range(start, stop, batch_rows):
                yield shards[shard], first, min(first + batch_rows, stop)
