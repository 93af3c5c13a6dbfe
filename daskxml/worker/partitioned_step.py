"""The step of workers that each have a part of the labels, as a program of messages.

Every worker has the rows of the whole step and the layers below, and so computes the last hidden
layer itself. It then computes logits, loss and update of its own labels. Softmax exchanges the peak
and the sum of exponentials of each row. Each worker adds up the gradient by the hidden layer of its
own rows, in the order of the ranks, and sends the sums to all, who update the layers below alike.

With N workers, each sends ``2 (N - 1) / N`` times rows x units numbers a step. Workers that
computed the hidden layer of their own rows only would have to gather it, which is half as much
again, and would still need all rows to update the first layer alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from daskxml.collectives.all_gather import all_gather_small
from daskxml.collectives.codec import make_codec
from daskxml.collectives.messages import Flush, Program, Send, Worked
from daskxml.core.arrays import Array, Segment
from daskxml.core.errors import ConfigError
from daskxml.core.work_stats import WorkStats
from daskxml.model.batch import batch_rows, with_offsets
from daskxml.model.partitioned import PartPass
from daskxml.worker.label_part import LabelPart

RowParts = tuple[slice, ...]  # the rows of a step that each rank adds up


def step_program(
    part: LabelPart, batch: Sequence[Segment], own: RowParts, rank: int, lr: float, key: int,
    transfer: str, labels: int,
) -> Program[WorkStats]:  # fmt: skip
    """Update a part with the mean gradient over the rows of all ranks.

    Parameters
    ----------
    batch
        The rows of the whole step.
    own
        For each rank the rows whose gradient it adds up; together all of them, in order.
    lr, key
        Learning rate, and the seed of dropout.
    transfer
        The type in which gradients travel: ``float32`` or ``bfloat16``.
    labels
        All labels, for the share of the work that this part is.

    Raises
    ------
    ConfigError
        If rows have weights.
    """
    if part.mlp.weighs(batch):
        raise ConfigError(
            "[model] output = 'partitioned': takes no weights of rows: leave them out"
        )
    rows, kernels, mlp = batch_rows(batch), part.kernels, part.mlp
    pieces = tuple(with_offsets(batch))
    nonzeros = sum(kernels.nonzeros(s.partition.features, s.rows) for s in batch)
    work = _Work(round(rows * part.spec.labels / labels), nonzeros)
    part.optimizer.reserve(rows, nonzeros)
    part.optimizer.begin_step()
    layers = mlp.forward(pieces, rows, key)
    found = mlp.output.begin(layers[-1], pieces, lr, part.optimizer)
    if part.spec.loss == "softmax":
        found.exponentials()
        yield work.done(1 / 3)
        yield from _join_softmax(found, rank, len(own))
    gradient = found.back_propagate()
    loss = found.loss_sum(own[rank])
    yield work.done(1.0 - found.share_waiting / 3)
    exchange = _GradientExchange(gradient, own, rank, part, transfer)
    yield from exchange.send_parts()
    found.update_waiting()
    yield work.done(1.0)
    total = yield from exchange.gather()
    mlp.backward(pieces, layers, total, lr, key, part.optimizer)
    part.optimizer.end_step()
    mine = own[rank].stop - own[rank].start
    return WorkStats(
        rows=mine,
        updates=int(mine > 0),
        loss_sum=loss,
        nonzeros=round(nonzeros * mine / rows),
        labels_scored=rows * part.spec.labels,
    )


@dataclass
class _Work:
    """A batch's work, reported as it is done."""

    rows: int
    nonzeros: int
    share: float = 0.0

    def done(self, share: float) -> Worked:
        """Return the work since the last call, where ``share`` of all is done now."""
        before, self.share = self.share, share
        return Worked(self.rows, self.nonzeros, share - before)


def _join_softmax(found: PartPass, rank: int, ranks: int) -> Program[None]:
    """Exchange the peak and the sum of exponentials of every row over each rank's labels."""
    own = np.stack([found.peak.astype(np.float64), found.total])
    each = yield from all_gather_small(rank, range(ranks), own)
    found.join_parts(
        np.stack([pair[0] for pair in each]).astype(np.float32),
        np.stack([pair[1] for pair in each]),
    )
    yield Flush()


class _GradientExchange:
    """A reduce-scatter of the gradient by the hidden layer, then an all-gather of the sums."""

    def __init__(
        self, gradient: Array, own: RowParts, rank: int, part: LabelPart, transfer: str
    ) -> None:
        self.gradient, self.own, self.rank = gradient, own, rank
        self.kernels, units = part.kernels, int(gradient.shape[1])
        most = max(rows.stop - rows.start for rows in own) * units
        self.codec = make_codec(transfer, self.kernels, most)
        buffers = part.mlp.buffers
        buffers.reserve("summed gradient", int(gradient.shape[0]) * units)
        buffers.reserve("arrived gradient", most)
        self.total = buffers.matrix("summed gradient", *gradient.shape)
        self.arrived = buffers.vector("arrived gradient", most)

    def others(self) -> Iterator[int]:
        """Yield the other ranks that have rows, the next one first."""
        ranks = len(self.own)
        order = ((self.rank + turn) % ranks for turn in range(1, ranks))
        return (other for other in order if self._size(other))

    def _size(self, rank: int) -> int:
        return self.own[rank].stop - self.own[rank].start

    def send_parts(self) -> Program[None]:
        """Send each rank what its rows have here."""
        for other in self.others():
            yield Send(other, self.codec.encode(self.gradient[self.own[other]].reshape(-1)))

    def gather(self) -> Program[Array]:
        """Return the gradient, added up over the ranks in their order."""
        mine = self.total[self.own[self.rank]].reshape(-1)
        if self._size(self.rank):
            yield from self._add(mine)
            message = self.codec.encode_rounding(mine)
            for turn in range(1, len(self.own)):
                yield Send((self.rank + turn) % len(self.own), message)
        for other in self.others():
            yield from self.codec.receive(other, self.total[self.own[other]].reshape(-1))
        yield Flush()
        return self.total

    def _add(self, mine: Array) -> Program[None]:
        arrived = self.arrived[: mine.shape[0]]
        for rank in range(len(self.own)):
            term = self.gradient[self.own[rank]].reshape(-1)
            if rank != self.rank:
                yield from self.codec.receive(rank, arrived)
                term = arrived
            if rank == 0:
                self.kernels.copy(mine, term)
            else:
                self.kernels.add_scaled(mine, term, 1.0)
