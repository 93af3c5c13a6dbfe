"""One worker's model: it takes a batch and steps, or ranks the labels of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskxml.errors import ConfigError
from daskxml.model.batch import Updates, batch_rows
from daskxml.model.mlp import Mlp
from daskxml.model.parameters import Layout
from daskxml.model.spec import ModelSpec
from daskxml.ops import Kernels
from daskxml.optim import GradientBuffer, Optimizer, OptimizerConfig
from daskxml.types import Array, Segment


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step did.

    Attributes
    ----------
    loss_sum
        The sum of the rows' losses before the update; rows without labels count 0 with softmax.
    rows, nonzeros
        Rows of the batch, and their stored features.
    """

    loss_sum: float
    rows: int
    nonzeros: int


class Replica:
    """A model's parameters on one device, with everything that a step needs allocated once.

    Parameters
    ----------
    spec, optimizer
        What the model is, and how gradients change it.
    kernels
        The device. Batches must be there (``kernels.to_device``).
    max_batch_rows
        The largest batch of ``step``, and the batch in which rows are ranked.
    logits_budget_bytes
        Where rows x labels floats exceed it, labels are walked in blocks.

    Attributes
    ----------
    flat
        ``(layout.size,)`` float32, zero at first: write initial parameters into it, in place
        (``kernels.copy``). It is never replaced by another array.
    layout
        Which parameter lies where in ``flat``.

    Raises
    ------
    ConfigError
        If max_batch_rows or the budget is below 1.

    Examples
    --------
    >>> from daskxml.ops import get_kernels
    >>> from daskxml.types import Csr, Partition
    >>> x = Csr(np.array([0, 1, 2]), np.array([0, 1], np.int32), np.ones(2, np.float32), 2)
    >>> part = Partition(x, Csr(x.indptr, x.indices, None, 2))
    >>> replica = Replica(ModelSpec(features=2, labels=2, hidden=()), OptimizerConfig(),
    ...                   get_kernels("cpu", 1), max_batch_rows=2)
    >>> result = replica.step([Segment(part, np.arange(2))], lr=1.0, key=0)
    >>> round(result.loss_sum, 4), result.rows, result.nonzeros
    (1.3863, 2, 2)
    >>> replica.top_k([Segment(part, np.arange(2))], k=1)[0].tolist()
    [[0], [1]]
    """

    def __init__(
        self, spec: ModelSpec, optimizer: OptimizerConfig, kernels: Kernels, *,
        max_batch_rows: int, logits_budget_bytes: int = 256 * 2**20,
    ) -> None:  # fmt: skip
        for name, value in (("max_batch_rows", max_batch_rows), ("budget", logits_budget_bytes)):
            if value < 1:
                raise ConfigError(f"replica: {name} = {value}: must be at least 1")
        self.spec, self.kernels, self.max_batch_rows = spec, kernels, max_batch_rows
        self.layout = Layout(spec)
        self.flat = kernels.zeros(self.layout.size)
        self.parameters = self.layout.views(self.flat)
        self._optimizer_config = optimizer
        self.optimizer = self.optimizer_for(self.flat)
        self._mlp = Mlp(spec, kernels, self.parameters, max_batch_rows, logits_budget_bytes)

    @property
    def memory_bytes(self) -> int:
        """Bytes of parameters, optimizer state and buffers."""
        return int(self.flat.nbytes) + self.optimizer.nbytes + self._mlp.nbytes

    def optimizer_for(self, flat: Array) -> Optimizer:
        """Return a new optimizer of the same kind over another model ``(layout.size,)``."""
        layout, views = self.layout, self.layout.views(flat)
        return Optimizer(self._optimizer_config, self.kernels, views, layout.views, layout.size)

    def resize(self, max_batch_rows: int) -> None:
        """Allow batches of ``max_batch_rows`` rows; buffers only ever grow.

        Raises
        ------
        ConfigError
            If max_batch_rows is below 1.
        """
        if max_batch_rows < 1:
            raise ConfigError(f"replica: max_batch_rows = {max_batch_rows}: must be at least 1")
        if max_batch_rows > self.max_batch_rows:
            self._mlp.reserve(max_batch_rows)
            self.max_batch_rows = max_batch_rows

    def step(self, batch: Sequence[Segment], lr: float, key: int) -> StepResult:
        """Update ``flat`` with the mean gradient over the batch's rows.

        Parameters
        ----------
        batch
            Up to ``max_batch_rows`` rows in segments; how they are split does not matter.
        lr
            Learning rate.
        key
            64 bits that seed dropout: the same key drops the same units on any device.

        Raises
        ------
        ConfigError
            If the batch is larger than max_batch_rows.
        """
        if batch_rows(batch) == 0:
            return StepResult(0.0, 0, 0)
        self._check_rows(batch)
        self.optimizer.begin_step()
        result = self._pass(batch, lr, key, self.optimizer)
        self.optimizer.end_step()
        return result

    def gradient(self, batch: Sequence[Segment], buffer: GradientBuffer, key: int) -> StepResult:
        """Add the mean gradient over the batch's rows to ``buffer``; ``flat`` stays as it is.

        ``batch`` and ``key`` are those of `step`; clear the buffer before, where it is not to be
        a sum.

        Raises
        ------
        ConfigError
            If the batch is larger than max_batch_rows.
        """
        if batch_rows(batch) == 0:
            return StepResult(0.0, 0, 0)
        self._check_rows(batch)
        return self._pass(batch, 0.0, key, buffer)

    def apply(self, gradient: Mapping[str, Array], lr: float) -> None:
        """Step by a whole gradient, by names: `gradient`, then this, is `step` up to rounding."""
        self.optimizer.begin_step()
        self.optimizer.apply(gradient, lr)

    def _check_rows(self, batch: Sequence[Segment]) -> None:
        rows = batch_rows(batch)
        if rows > self.max_batch_rows:
            raise ConfigError(
                f"replica: a batch of {rows} rows exceeds max_batch_rows = {self.max_batch_rows}"
            )

    def _pass(self, batch: Sequence[Segment], lr: float, key: int, updates: Updates) -> StepResult:
        nonzeros = sum(self.kernels.nonzeros(s.partition.features, s.rows) for s in batch)
        loss_sum = self._mlp.step(batch, lr, key, updates)
        return StepResult(loss_sum, batch_rows(batch), nonzeros)

    def top_k(self, segments: Sequence[Segment], k: int) -> tuple[Any, Any]:
        """The best ``k`` labels of every row, best first, on the host.

        Returns
        -------
        ids
            ``(rows, k)`` int32, -1 where there are fewer than k labels. Labels are ranked by
            their logits; among equal ones the lowest id comes first.
        scores
            ``(rows, k)`` float32: the labels' probabilities by softmax or sigmoid, -inf where
            there is no label. Ranking by score, lowest id first, gives the same order.

        Raises
        ------
        ConfigError
            If k is below 1.
        """
        if k < 1:
            raise ConfigError(f"top_k: k = {k}: must be at least 1")
        total, done = batch_rows(segments), 0
        ids, scores = np.empty((total, k), np.int32), np.empty((total, k), np.float32)
        for batch in _batches(segments, self.max_batch_rows):
            rows = batch_rows(batch)
            found = self.kernels.empty((rows, k)), self.kernels.empty((rows, k), "int32")
            self._mlp.top_k(batch, *found)
            scores[done : done + rows] = self.kernels.to_host(found[0])
            ids[done : done + rows] = self.kernels.to_host(found[1])
            done += rows
        return ids, scores

    def scores(self, segments: Sequence[Segment]) -> Any:
        """The probability of every label ``(rows, labels)``; for few labels, by way of top_k."""
        ids, ranked = self.top_k(segments, self.spec.labels)
        out = np.full(ids.shape, np.nan, np.float32)
        np.put_along_axis(out, np.maximum(ids, 0).astype(np.int64), ranked, axis=1)
        return out


def _batches(segments: Sequence[Segment], most: int) -> Iterator[list[Segment]]:
    """The same rows in order, in batches of exactly ``most`` rows but the last."""
    batch: list[Segment] = []
    room = most
    for segment in segments:
        rows = segment.rows
        while rows.shape[0] > 0:
            batch.append(Segment(segment.partition, rows[:room]))
            room -= int(batch[-1].rows.shape[0])
            rows = rows[int(batch[-1].rows.shape[0]) :]
            if room == 0:
                yield batch
                batch, room = [], most
    if batch:
        yield batch
