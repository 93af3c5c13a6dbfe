"""What workers that each have a part of the labels do together, as programs of messages.

A gang is steps: see `daskxml.worker.partitioned_step`. At a *merge* each worker keeps a copy of its
part, and sends another to a worker on another machine, if there is one. After a loss all go back to
that, and the part of the lost worker comes from its copy, moments too. When shares change, labels
move before the next gang: `deal_labels`. Who has which labels is asked of all workers each time,
and not concluded from names.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from daskxml.collectives.all_gather import all_gather_small
from daskxml.collectives.messages import Flush, Program, Receive, Send, Worked
from daskxml.core.arrays import Array, Segment
from daskxml.core.errors import TrainingError
from daskxml.core.work_stats import Means, WorkStats
from daskxml.data.rows import slice_csr
from daskxml.metrics import MetricSums
from daskxml.models.batch import with_offsets
from daskxml.models.network.partitioned import PartitionedOutput, cut_labels
from daskxml.session.commands import Evaluate, MergeReplicas, RunGang
from daskxml.session.part_holders import buddies
from daskxml.strategies.protocol import Partitioned
from daskxml.worker.batch_runner import scheduled_rate, settled
from daskxml.worker.label_part import LabelPart, Labels, MergePoint
from daskxml.worker.partitioned_step import RowParts, step_program
from daskxml.worker.partitioned_worker import PartitionedWorker
from daskxml.worker.resident_rows import Batch, Fetched, rows_within

_COPY, _OWN = 1, 2  # how a rank holds a part
_COPY_FLOATS = 1 << 22  # of a message of a copy, at most


# ------------------------------------------------------------------------ a gang


def partitioned_gang(
    worker: PartitionedWorker, command: RunGang, rank: int, fetched: Fetched
) -> Program[WorkStats]:
    """Return one rank's part in a gang; ``fetched`` has spans joined over its batches."""
    assert isinstance(command.pattern, Partitioned)
    cuts = cut_labels(worker.spec.labels, command.pattern.shares)
    if command.begins or command.rewinds or worker.part is None or worker.part.cuts != cuts:
        yield from deal_labels(worker, command, rank, cuts)
    part, result, config = worker.part, WorkStats(), worker.settings.config
    assert part is not None
    for step in range(command.steps):
        batches = [each[step] if step < len(each) else () for each in command.batches]
        whole = [span for batch in batches for span in batch]
        first = next(number for number, batch in enumerate(batches) if batch)
        rate = scheduled_rate(worker.settings, command.lrs[first], batches[first])
        work = yield from step_program(
            part,
            worker.rows.batch(whole, rows_within(whole, fetched)),
            _row_parts(batches),
            rank,
            rate,
            worker.rows.noise_key(whole),
            config.combine.transfer,
            worker.spec.labels,
        )
        result += settled(work, rate)
    if config.sampling.is_on and result.labels_scored:
        result.means = {"active": (result.labels_scored / worker.spec.labels, result.rows)}
    return result


def _row_parts(batches: Sequence[Batch]) -> RowParts:
    ends = np.cumsum([0, *(sum(span.rows for span in batch) for batch in batches)]).tolist()
    return tuple(slice(start, stop) for start, stop in itertools.pairwise(ends))


# ----------------------------------------------------------------- who has what


@dataclass(frozen=True, slots=True)
class Holdings:
    """Which rank holds which part of the last merge.

    Attributes
    ----------
    cuts
        The first place of every part, and the end; empty before the first merge.
    owners, holders
        For each part the rank whose own it is, and a rank that has it; -1: none.
    founders
        Before the first merge, the ranks that have the model with which the run began.
    """

    cuts: tuple[int, ...]
    owners: tuple[int, ...]
    holders: tuple[int, ...]
    founders: tuple[int, ...]

    @property
    def first(self) -> int:
        """The first rank that has the layers below."""
        return min(owner for owner in (*self.owners, *self.holders) if owner >= 0)

    def newcomers(self, ranks: int) -> list[int]:
        """Return the ranks that have no part of their own."""
        return [rank for rank in range(ranks) if rank not in self.owners]


def find_holdings(
    worker: PartitionedWorker, point: MergePoint | None, rank: int, ranks: int,
    wanted: tuple[int, ...] = (),
) -> Program[Holdings | None]:  # fmt: skip
    """Ask all ranks what they hold, this one ``point``; the answer is the same on all.

    None where each rank has its own part of a cut that is ``wanted``.

    Raises
    ------
    TrainingError
        If nobody has a part.
    """
    fits = point is not None and (point.cuts, point.index) == (wanted, rank)
    facts = np.array([len(point.cuts) - 1 if point else 0, worker.is_source, fits], np.int64)
    every = yield from all_gather_small(rank, range(ranks), facts)
    yield Flush()
    if all(each[2] for each in every):
        return None
    parts = max(int(each[0]) for each in every)
    if not parts:
        founders = tuple(number for number, each in enumerate(every) if each[1])
        return Holdings((), (), (), founders)
    table = np.zeros((2, parts + 1), np.int64)
    if point is not None:
        table[0] = point.cuts
        for index in point.labels:
            table[1, index] = _OWN if index == point.index else _COPY
    tables = yield from all_gather_small(rank, range(ranks), table)
    yield Flush()
    cuts = next(each[0] for each, fact in zip(tables, every, strict=True) if fact[0])
    owners = tuple(_first(tables, index, _OWN) for index in range(parts))
    copies = [_first(tables, index, _COPY) for index in range(parts)]
    holders = tuple(o if o >= 0 else c for o, c in zip(owners, copies, strict=True))
    if -1 in holders:
        raise TrainingError(
            "labels were lost with the workers that had them: resume the run from its checkpoint"
        )
    return Holdings(tuple(cuts.tolist()), owners, holders, ())


def _first(tables: Sequence[Array], index: int, kind: int) -> int:
    return next((r for r, table in enumerate(tables) if table[1, index] == kind), -1)


def deal_labels(
    worker: PartitionedWorker, command: RunGang, rank: int, cuts: tuple[int, ...]
) -> Program[None]:
    """Give every rank its part of the labels, with its moments.

    They come from the last merge, or, where a gang only goes on, from what all have now.
    """
    is_going_on = not (command.begins or command.rewinds)
    source = worker.source(is_going_on=is_going_on)
    wanted = () if command.rewinds else cuts
    held = yield from find_holdings(worker, source, rank, len(command.workers), wanted)
    if held is None:
        return
    if worker.label_source is not None and (command.rewinds or held.newcomers(len(cuts) - 1)):
        worker.label_source.reset()  # on all alike: some have no tables, or later ones
    if not is_going_on:
        worker.part = None  # the last merge has all of it: room for the new one
    if held.cuts:
        new = worker.new_part(cuts, rank)
        deal = _Deal(source, held, new, with_moments=is_going_on or worker.keeps_moments)
        yield from deal.run(rank)
        worker.part = new
    else:
        yield from _found(worker, held, cuts, rank)


def _found(
    worker: PartitionedWorker, held: Holdings, cuts: tuple[int, ...], rank: int
) -> Program[None]:
    """Begin with the run's first model; the first rank that has it sends it to those without."""
    ranks = len(cuts) - 1
    without = [other for other in range(ranks) if other not in held.founders]
    for other in without:
        if rank == held.founders[0]:
            for flat in worker.begin_part(cuts, other).flats(with_moments=True).values():
                yield Send(other, flat)
            yield Flush()
        elif rank == other:
            part = worker.part = worker.new_part(cuts, rank)
            for flat in part.flats(with_moments=True).values():
                yield Receive(held.founders[0], flat)
    if worker.is_source:
        worker.part = worker.begin_part(cuts, rank)


class _Deal:
    """Moves labels from those who hold them to a new part of each rank.

    ``source`` is what this rank holds; None where it comes anew.
    """

    def __init__(
        self, source: MergePoint | None, held: Holdings, new: LabelPart, *, with_moments: bool
    ) -> None:
        self.source, self.held, self.new = source, held, new
        self.target = new.point(with_moments=with_moments)
        self._ranks = range(len(new.cuts) - 1)
        self._newcomers = held.newcomers(len(self._ranks))

    def run(self, rank: int) -> Program[None]:
        """Send and receive."""
        for name in self.target.lower:
            yield from self._send(rank, name)
        for name in self.target.lower:
            yield from self._receive(rank, name)
        yield from self._steps(rank)
        yield Flush()

    def _moves(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield every move: from and to which rank, of which old part, which places."""
        old, new = self.held.cuts, self.new.cuts
        for part, source in enumerate(self.held.holders):
            for to in self._ranks:
                start, stop = max(old[part], new[to]), min(old[part + 1], new[to + 1])
                if start < stop:
                    yield source, to, part, start, stop

    def _send(self, rank: int, name: str) -> Program[None]:
        if rank == self.held.first:
            for other in self._newcomers:
                yield Send(other, self._held.lower[name])
        for source, to, part, start, stop in self._moves():
            if source == rank != to:
                for piece in self._held.pieces(name, part, start, stop):
                    yield Send(to, piece)

    @property
    def _held(self) -> MergePoint:
        assert self.source is not None
        return self.source

    def _receive(self, rank: int, name: str) -> Program[None]:
        kernels, lower = self.new.kernels, self.target.lower[name]
        if rank in self._newcomers:
            yield Receive(self.held.first, lower)
        else:
            kernels.copy(lower, self._held.lower[name])
        for source, to, part, start, stop in self._moves():
            if to != rank:
                continue
            pieces = self.target.pieces(name, rank, start, stop)
            if source != rank:
                for piece in pieces:
                    yield Receive(source, piece)
                continue
            known = self._held.pieces(name, part, start, stop)
            for piece, old in zip(pieces, known, strict=True):
                kernels.copy(piece, old)

    def _steps(self, rank: int) -> Program[None]:
        steps = self.target.steps
        if steps is None:
            return
        if rank in self._newcomers:
            yield Receive(self.held.first, steps)
            return
        steps[:] = self._held.steps
        if rank == self.held.first:
            for other in self._newcomers:
                yield Send(other, steps)


# ---------------------------------------------------------------------- a merge


def keep_copies(
    worker: PartitionedWorker, command: MergeReplicas, rank: int, hosts: tuple[str, ...]
) -> Program[Means]:
    """Keep a copy of another worker's part; a commit makes it, and the own, the last merge."""
    part, ranks = worker.part, len(hosts)
    index = np.array([part.index if part else -1], np.int64)
    every = yield from all_gather_small(rank, range(ranks), index)
    yield Flush()
    having = sorted((int(each[0]), number) for number, each in enumerate(every) if each[0] >= 0)
    members = [number for _, number in having]
    copy_of = {members[i]: members[b] for i, b in buddies([hosts[m] for m in members]).items()}
    if part is None:
        return {}
    own, copies = part.point(with_moments=worker.keeps_moments), dict[int, Labels]()
    units = part.spec.hidden[-1]
    for source in (member for member in members if copy_of.get(member) == rank):
        number = int(every[source][0])
        width = part.cuts[number + 1] - part.cuts[number]
        empty = part.kernels.empty
        copies[number] = {name: (empty((width, units)), empty(width)) for name in own.lower}
    mine = list(_pieces(own.labels[part.index])) if rank in copy_of else []
    theirs = {int(every[m][0]): m for m in members}
    arriving = [(theirs[n], list(_pieces(labels))) for n, labels in copies.items()]
    for turn in range(max([len(mine), *(len(pieces) for _, pieces in arriving)])):
        if turn < len(mine):
            yield Send(copy_of[rank], mine[turn])
        for source, pieces in arriving:
            if turn < len(pieces):
                yield Receive(source, pieces[turn])
        yield Flush()  # a driver may copy what nobody takes: never more than a piece
    worker.staged = copies
    return {}


def _pieces(labels: Labels) -> Iterator[Array]:
    """Cut what is held of some labels into messages."""
    for pair in labels.values():
        for array in pair:
            flat = array.reshape(-1)
            for start in range(0, int(flat.shape[0]), _COPY_FLOATS):
                yield flat[start : start + _COPY_FLOATS]


# ------------------------------------------------------------------- evaluation


def evaluate_together(
    worker: PartitionedWorker, command: Evaluate, rank: int, ranks: int, target: int
) -> Program[MetricSums]:
    """Rank labels of pieces of the test rows; each rank ranks the labels that it has.

    The rank ``target`` merges the rankings, and returns the sums of all; others return none.
    """
    config = worker.settings.config.evaluation
    held = yield from find_holdings(worker, worker.point, rank, ranks)
    assert held is not None
    sums = MetricSums.zero(config.k)
    rankers = _rankers(worker, held, rank)
    for part, first, last in worker.batches_of(command.pieces, worker.rows.tests):
        segment = Segment(part, worker.kernels.to_device(np.arange(first, last)))
        nonzeros = worker.kernels.nonzeros(part.features, segment.rows)
        found = [_rank_labels(worker, ranker, segment, config.k[-1]) for ranker in rankers]
        labels = sum(ranker.labels for ranker in rankers)
        share = labels / worker.spec.labels
        yield Worked(round((last - first) * share), nonzeros)
        if rank != target:
            for scores, ids in found:
                yield Send(target, scores)
                yield Send(target, ids)
            yield Flush()
            continue
        for source in (holder for holder in held.holders if holder != rank):
            scores = np.empty((last - first, config.k[-1]), np.float32)
            ids = np.empty((last - first, config.k[-1]), np.int32)
            yield Receive(source, scores)
            yield Receive(source, ids)
            found.append((scores, ids))
        best = best_of(found, config.k[-1])
        truth = slice_csr(worker.kernels.to_host(part.labels), first, last)
        sums += worker.metric_sums(best, truth)
    return sums


def _rankers(worker: PartitionedWorker, held: Holdings, rank: int) -> list[PartitionedOutput]:
    """Return the output layers over the parts that this rank ranks, in their order."""
    rankers = []
    for index, holder in enumerate(held.holders):
        if holder == rank:
            point, settings = worker.point, worker.settings
            assert point is not None
            budget = settings.logits_budget_bytes
            weight, bias = point.labels[index]["current"]
            ranker = PartitionedOutput(worker.kernels, weight, bias, worker.spec.loss, budget)
            ranker.first_label = point.cuts[index]
            ranker.reserve(settings.config.evaluation.batch_rows)
            rankers.append(ranker)
    return rankers


def _rank_labels(
    worker: PartitionedWorker, ranker: PartitionedOutput, segment: Segment, k: int
) -> tuple[Array, Array]:
    """Return the best labels of one part by their logits, and these."""
    assert worker.part is not None
    rows, kernels = int(segment.rows.shape[0]), worker.kernels
    found = kernels.empty((rows, k)), kernels.empty((rows, k), "int32")
    hidden = worker.part.mlp.forward(tuple(with_offsets([segment])), rows, None)[-1]
    ranker.rank(hidden, *found)
    scores, ids = map(kernels.to_host, found)
    labels = worker.order.labels[np.maximum(ids, 0) + ranker.first_label * (ids >= 0)]
    return scores, np.where(ids >= 0, labels, -1).astype(np.int32)


def best_of(found: Sequence[tuple[Array, Array]], k: int) -> Array:
    """Return the best ``k`` labels of several rankings of other labels, lowest id first if equal.

    Examples
    --------
    >>> first = np.float32([[3.0, 1.0]]), np.int32([[7, 2]])
    >>> second = np.float32([[3.0, -np.inf]]), np.int32([[4, -1]])
    >>> best_of([first, second], 3)
    array([[4, 7, 2]], dtype=int32)
    """
    scores = np.concatenate([scores for scores, _ in found], axis=1)
    ids = np.concatenate([ids for _, ids in found], axis=1)
    order = np.lexsort((ids, -scores), axis=1)[:, :k]
    return np.take_along_axis(ids, order, axis=1)
