"""What workers that each have a part of the labels do together, as programs of messages.

A gang is steps: see `daskxml.worker.partitioned_step`. At a *merge* each worker keeps a copy of its
part, and sends another to a worker on another machine, if there is one. After a loss all go back to
that, and the part of the lost worker comes from its copy. When shares change, labels move before
the next gang: `deal_labels`. Who has which labels is asked of all workers each time, and not
concluded from names.
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
from daskxml.metrics import MetricSums, metric_sums
from daskxml.model.batch import with_offsets
from daskxml.model.partitioned import PartitionedOutput, cut_labels
from daskxml.session.commands import Evaluate, MergeReplicas, RunGang
from daskxml.session.part_holders import buddies
from daskxml.strategies.protocol import Partitioned
from daskxml.worker.batch_runner import scheduled_rate, settled
from daskxml.worker.label_part import LabelPart, MergePoint
from daskxml.worker.partitioned_step import RowParts, step_program
from daskxml.worker.partitioned_worker import PartitionedWorker
from daskxml.worker.resident_rows import Batch

_COPY, _OWN = 1, 2  # how a rank holds a part


# ------------------------------------------------------------------------ a gang


def partitioned_gang(worker: PartitionedWorker, command: RunGang, rank: int) -> Program[WorkStats]:
    """Return one rank's part in a gang."""
    assert isinstance(command.pattern, Partitioned)
    if command.begins or command.rewinds:
        yield from deal_labels(worker, command, rank)
    part, result, config = worker.part, WorkStats(), worker.settings.config
    assert part is not None
    for step in range(command.steps):
        batches = [each[step] if step < len(each) else () for each in command.batches]
        whole = [span for batch in batches for span in batch]
        first = next(number for number, batch in enumerate(batches) if batch)
        rate = scheduled_rate(worker.settings, command.lrs[first], batches[first])
        work = yield from step_program(
            part,
            worker.rows.batch(whole, {}),
            _row_parts(batches),
            rank,
            rate,
            worker.rows.noise_key(whole),
            config.combine.transfer,
            worker.spec.labels,
        )
        result += settled(work, rate)
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


def find_holdings(
    worker: PartitionedWorker, rank: int, ranks: int, wanted: tuple[int, ...] = ()
) -> Program[Holdings | None]:
    """Ask all ranks what they hold; the answer is the same on all.

    None where each rank has its own part of a cut that is ``wanted``.

    Raises
    ------
    TrainingError
        If nobody has a part.
    """
    point = worker.point
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


def deal_labels(worker: PartitionedWorker, command: RunGang, rank: int) -> Program[None]:
    """Give every rank its part of the labels; with ``rewinds`` as of the last merge.

    Moments move along with the labels; those of a lost worker, and after `rewinds` all, are 0.
    """
    assert isinstance(command.pattern, Partitioned)
    ranks, cuts = len(command.workers), cut_labels(worker.spec.labels, command.pattern.shares)
    held = yield from find_holdings(worker, rank, ranks, () if command.rewinds else cuts)
    if held is None:
        return
    if not held.cuts:
        yield from _found(worker, held, cuts, rank)
    else:
        deal = _Deal(worker, held, LabelPart(worker.settings, worker.kernels, cuts, rank))
        yield from deal.run(rank, with_moments=not command.rewinds)
        worker.part = deal.new


def _found(
    worker: PartitionedWorker, held: Holdings, cuts: tuple[int, ...], rank: int
) -> Program[None]:
    """Begin with the run's first model; the first rank that has it sends it to those without."""
    ranks = len(cuts) - 1
    without = [other for other in range(ranks) if other not in held.founders]
    if worker.is_source:
        worker.part = worker.begin_part(cuts, rank)
    for other in without:
        if rank == held.founders[0]:
            part = worker.begin_part(cuts, other)
            for flat in part.flats(with_moments=True).values():
                yield Send(other, flat)
            yield Flush()
        elif rank == other:
            worker.part = LabelPart(worker.settings, worker.kernels, cuts, rank)
            for flat in worker.part.flats(with_moments=True).values():
                yield Receive(held.founders[0], flat)


class _Deal:
    """Moves labels from those who hold them after the last merge to a new part of each rank."""

    def __init__(self, worker: PartitionedWorker, held: Holdings, new: LabelPart) -> None:
        self.worker, self.held, self.new = worker, held, new

    def run(self, rank: int, *, with_moments: bool) -> Program[None]:
        """Send and receive."""
        names = tuple(self.new.flats(with_moments=with_moments))
        for name in names:
            yield from self._send(rank, name)
        for name in names:
            yield from self._receive(rank, name)
        yield from self._steps(rank, with_moments)
        yield Flush()

    def _moves(self, name: str) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield every move: from and to which rank, of which old part, which places."""
        old, new = self.held.cuts, self.new.cuts
        sources = self.held.holders if name == "current" else self.held.owners
        for part, source in enumerate(sources):
            for to in range(len(new) - 1):
                start, stop = max(old[part], new[to]), min(old[part + 1], new[to + 1])
                if source >= 0 and start < stop:
                    yield source, to, part, start, stop

    def _old_pieces(self, name: str, part: int, start: int, stop: int) -> Iterator[Array]:
        point, old = self.worker.point, self.worker.part
        if name == "current":
            assert point is not None
            return point.pieces(part, start, stop)
        assert old is not None
        return old.pieces(old.optimizer.state()[name], start, stop)

    def _old_lower(self, name: str) -> Array:
        point, old = self.worker.point, self.worker.part
        assert point is not None
        assert old is not None
        return point.lower if name == "current" else old.lower_of(old.optimizer.state()[name])

    def _send(self, rank: int, name: str) -> Program[None]:
        if rank == self.held.first:
            for other in self._newcomers():
                yield Send(other, self._old_lower(name))
        for source, to, part, start, stop in self._moves(name):
            if source == rank != to:
                for piece in self._old_pieces(name, part, start, stop):
                    yield Send(to, piece)

    def _receive(self, rank: int, name: str) -> Program[None]:
        flat = self.new.flats(with_moments=True)[name]
        if rank in self._newcomers():
            yield Receive(self.held.first, self.new.lower_of(flat))
        else:
            self.new.kernels.copy(self.new.lower_of(flat), self._old_lower(name))
        for source, to, part, start, stop in self._moves(name):
            if to != rank:
                continue
            pieces = self.new.pieces(flat, start, stop)
            if source != rank:
                for piece in pieces:
                    yield Receive(source, piece)
                continue
            old = self._old_pieces(name, part, start, stop)
            for piece, known in zip(pieces, old, strict=True):
                self.new.kernels.copy(piece, known)

    def _newcomers(self) -> list[int]:
        ranks = range(len(self.new.cuts) - 1)
        return [rank for rank in ranks if rank not in self.held.owners]

    def _steps(self, rank: int, with_moments: bool) -> Program[None]:
        steps = self.new.optimizer.state().get("steps")
        if steps is None or not with_moments:
            return
        if rank not in self._newcomers():
            assert self.worker.part is not None
            steps[:] = self.worker.part.optimizer.state()["steps"]
        if rank == self.held.first:
            for other in self._newcomers():
                yield Send(other, steps)
        elif rank in self._newcomers():
            yield Receive(self.held.first, steps)


# ---------------------------------------------------------------------- a merge


def keep_copies(
    worker: PartitionedWorker, command: MergeReplicas, rank: int, hosts: tuple[str, ...]
) -> Program[Means]:
    """Keep a copy of the own part, and of another worker's; a commit makes it the last merge."""
    part, ranks = worker.part, len(hosts)
    index = np.array([part.index if part else -1], np.int64)
    every = yield from all_gather_small(rank, range(ranks), index)
    having = sorted((int(each[0]), number) for number, each in enumerate(every) if each[0] >= 0)
    members = [number for _, number in having]
    copy_of = {members[i]: members[b] for i, b in buddies([hosts[m] for m in members]).items()}
    if part is None:
        yield Flush()
        return {}
    flat = part.flat.copy()
    views = part.layout.views(flat)
    labels = {part.index: (views["output.weight"], views["output.bias"])}
    if rank in copy_of:
        for array in labels[part.index]:
            yield Send(copy_of[rank], array)
    for source in (member for member in members if copy_of.get(member) == rank):
        number = int(every[source][0])
        width = part.cuts[number + 1] - part.cuts[number]
        arrays = part.kernels.empty((width, part.spec.hidden[-1])), part.kernels.empty(width)
        for array in arrays:
            yield Receive(source, array)
        labels[number] = arrays
    yield Flush()
    worker.staged = MergePoint(part.cuts, part.index, part.lower_of(flat), labels)
    return {}


# ------------------------------------------------------------------- evaluation


def evaluate_together(
    worker: PartitionedWorker, command: Evaluate, rank: int, ranks: int, target: int
) -> Program[MetricSums]:
    """Rank labels of pieces of the test rows; each rank ranks the labels that it has.

    The rank ``target`` merges the rankings, and returns the sums of all; others return none.
    """
    config = worker.settings.config.evaluation
    held = yield from find_holdings(worker, rank, ranks)
    assert held is not None
    sums = MetricSums.zero(config.k)
    rankers = _rankers(worker, held, rank)
    for part, first, last in worker.batches_of(command.pieces, worker.rows.tests):
        segment = Segment(part, np.arange(first, last))
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
        truth = slice_csr(part.labels, first, last)
        sums += metric_sums(best, truth, worker.inverse_propensity, config.k)
    return sums


def _rankers(worker: PartitionedWorker, held: Holdings, rank: int) -> list[PartitionedOutput]:
    """Return the output layers over the parts that this rank ranks, in their order."""
    rankers = []
    for index, holder in enumerate(held.holders):
        if holder == rank:
            point, settings = worker.point, worker.settings
            assert point is not None
            budget = settings.logits_budget_bytes
            arrays = *point.labels[index], worker.spec.loss, budget
            ranker = PartitionedOutput(worker.kernels, *arrays)
            ranker.first_label = point.cuts[index]
            ranker.reserve(settings.config.evaluation.batch_rows)
            rankers.append(ranker)
    return rankers


def _rank_labels(
    worker: PartitionedWorker, ranker: PartitionedOutput, segment: Segment, k: int
) -> tuple[Array, Array]:
    """Return the best labels of one part by their logits, and these."""
    assert worker.part is not None
    rows = int(segment.rows.shape[0])
    scores, ids = np.empty((rows, k), np.float32), np.empty((rows, k), np.int32)
    hidden = worker.part.mlp.forward(tuple(with_offsets([segment])), rows, None)[-1]
    ranker.rank(hidden, scores, ids)
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
