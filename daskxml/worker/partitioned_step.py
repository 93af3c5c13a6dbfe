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

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from daskxml.collectives.all_gather import all_gather_small
from daskxml.collectives.codec import make_codec
from daskxml.collectives.messages import Flush, Program, Receive, Send, Worked
from daskxml.core.arrays import Array, Segment
from daskxml.core.work_stats import WorkStats
from daskxml.kernels import Kernels
from daskxml.models.batch import batch_rows, with_offsets
from daskxml.models.network.partitioned import PartPass
from daskxml.models.network.sampled_part import RowPartPass
from daskxml.optim import Optimizer
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
    """
    rows, kernels, mlp = batch_rows(batch), part.kernels, part.mlp
    pieces = tuple(with_offsets(batch))
    nonzeros = sum(kernels.nonzeros(s.partition.features, s.rows) for s in batch)
    work = _Work(round(rows * part.spec.labels / labels), nonzeros)
    part.optimizer.reserve(rows, nonzeros)
    part.optimizer.begin_step()
    yield from _follow_labels(part, rank, rows)
    layers = mlp.forward(pieces, rows, key)
    found = part.begin(layers[-1], pieces, lr, key)
    if part.spec.loss == "softmax":
        found.exponentials()
        yield work.done(1 / 3)
        yield from _join_softmax(found, kernels, rank, len(own))
    gradient = found.back_propagate()
    loss = found.loss_sum(own[rank])
    yield work.done(1.0 - found.share_waiting / 3)
    exchange = _GradientExchange(gradient, own, rank, part, transfer)
    yield from exchange.send_parts()
    found.update_waiting()
    yield work.done(1.0)
    total = yield from exchange.gather()
    mlp.backward(pieces, layers, total, lr, key, part.optimizer)
    yield from _finish_step(part.optimizer, rank, len(own))
    mine = own[rank].stop - own[rank].start
    return WorkStats(
        rows=mine,
        updates=int(mine > 0),
        loss_sum=loss,
        nonzeros=round(nonzeros * mine / rows),
        labels_scored=part.labels_scored(rows),
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


def _follow_labels(part: LabelPart, rank: int, rows: int) -> Program[None]:
    """Build the hash tables of all labels on every rank, if that is due: each hashes its own."""
    tables = part.tables
    if tables is None or not tables.count(rows):
        return
    assert part.sampled is not None
    cuts, labels = part.cuts, part.sampled.part.order.labels
    own = np.empty((tables.keys.shape[0], part.spec.labels), np.int32)
    weight, bias = part.parameters["output.weight"], part.parameters["output.bias"]
    tables.hash_labels(part.kernels, weight, bias, own)
    ranks = len(cuts) - 1
    arrived = np.empty(max(stop - start for start, stop in itertools.pairwise(cuts)), np.int32)
    for keys, mine in zip(tables.keys, own, strict=True):
        keys[labels[part.start : part.stop]] = mine
        for turn in range(1, ranks):
            yield Send((rank + turn) % ranks, mine)
        for source in ((rank - turn) % ranks for turn in range(1, ranks)):
            found = arrived[: cuts[source + 1] - cuts[source]]
            yield Receive(source, found)
            keys[labels[cuts[source] : cuts[source + 1]]] = found
        yield Flush()
    tables.build(part.kernels, rows)


def _join_softmax(
    found: PartPass | RowPartPass, kernels: Kernels, rank: int, ranks: int
) -> Program[None]:
    """Exchange the peak and the sum of exponentials of every row over each rank's labels."""
    peak, total = kernels.to_host(found.peak), kernels.to_host(found.total)
    own = np.stack([peak.astype(np.float64), total])
    each = yield from all_gather_small(rank, range(ranks), own)
    peaks = np.stack([pair[0] for pair in each]).astype(np.float32)
    totals = np.stack([pair[1] for pair in each])
    found.join_parts(kernels.to_device(peaks), kernels.to_device(totals))
    yield Flush()


def _finish_step(optimizer: Optimizer, rank: int, ranks: int) -> Program[None]:
    """End a step; add up over all parts what it depends on: the norms of a gradient or a layer."""
    finishing = optimizer.finish_step()
    sums = next(finishing, None)
    while sums is not None:
        each = yield from all_gather_small(rank, range(ranks), sums)
        yield Flush()
        try:
            sums = finishing.send(np.stack(each).sum(axis=0))
        except StopIteration:
            return


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
