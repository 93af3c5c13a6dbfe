"""One worker's part in a run that fits label trees: pieces of the tree under way, whole trees.

A lease names pieces by their numbers in the ledger: the epoch is the tree. A fitted piece is kept
*packed*, as one array of bytes, which merges send and checkpoints store.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np

from daskxml.collectives.all_gather import all_gather
from daskxml.collectives.messages import Flush, Program, Receive, Send
from daskxml.core.arrays import Array, Partition, Segment
from daskxml.core.errors import ModelError, TrainingError
from daskxml.core.work_stats import Means, WorkStats
from daskxml.metrics import LossSum
from daskxml.models.trees.forest import ARRAYS, Forest, assemble_tree
from daskxml.models.trees.nodes import (
    NodeBlock,
    TreeRows,
    fit_blocks,
    pack_blocks,
    piece_work,
    plan_pieces,
    unpack_blocks,
)
from daskxml.models.trees.shape import TreeShape
from daskxml.models.trees.spec import TreeSpec
from daskxml.session.ledger import Span
from daskxml.worker.batch_runner import BatchBoundary, ignore_boundary
from daskxml.worker.resident_rows import Batch, Fetched
from daskxml.worker.run_worker import RunWorker
from daskxml.worker.settings import WorkerSettings

PieceId = tuple[int, int]  # tree, and number in its plan
Pieces = dict[PieceId, Array]  # packed


class TreeWorker(RunWorker):
    """A worker that fits pieces of label trees.

    Attributes
    ----------
    orders
        ``(trees, labels)`` int32: the labels in the order of each tree's leaves.
    fitted
        Its own pieces since the last merge.
    gathered
        The pieces of all workers, which a commit adds to the global model.
    """

    shared = None

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings)
        spec = settings.data.spec
        assert isinstance(spec, TreeSpec)
        self.spec: TreeSpec = spec
        self.shape = TreeShape.of(spec)
        self.orders: Array = np.empty((0, spec.labels), np.int32)
        self.fitted: Pieces = {}
        self.gathered: Pieces = {}
        self._pieces: Pieces = {}  # of trees that are not complete
        self._trees: dict[str, Array] = {}  # of those that are, by the names of `ARRAYS`
        self._forest: Forest | None = None
        self._plans: dict[int, list[list[NodeBlock]]] = {}
        self._seen: tuple[int, TreeRows] | None = None
        self._label_weights: Array | None = None
        self._lock = threading.Lock()  # a joining worker reads while others commit

    def close(self) -> None:
        """Do nothing: no memory is shared."""

    def initialize(self) -> None:
        """Start without any tree."""
        self.set_models({}, 0, 0)

    def warm_up(self) -> float:
        """Return 0: the speed is not known before rows are here."""
        return 0.0

    def weigh_labels(self, weights: Array | None) -> None:
        """Set what a row's labels count at the leaves, ``(labels,)`` float32; None: all count 1."""
        self._label_weights = weights

    def announce_memory(self) -> str:
        """Return the line for the user before the run begins: also what was chosen."""
        fit = self.spec.fit
        steps = f"SGD at rate {fit.lr:g}"
        if fit.solver == "dual":
            steps = f"dual coordinate descent, C = {fit.cost:g}"
        return (
            f"nodes are fitted by {fit.passes} passes of {steps}; each worker holds all rows, the "
            "trees, and one node's weights at a time"
        )

    # ------------------------------------------------------------------- model

    def host_models(self) -> tuple[int, dict[str, Array]]:
        """Return the generation, and the global model's arrays."""
        with self._lock:
            pieces = {f"tree{tree}.piece{n}": packed for (tree, n), packed in self._pieces.items()}
            return self.generation, self._trees | pieces

    def set_models(self, models: Mapping[str, Array], generation: int, best: int) -> None:
        """Start from what `host_models` returned; ``best`` is the number of its best model.

        Raises
        ------
        ModelError
            If it is of another kind.
        """
        trees, pieces = {}, {}
        for name, array in models.items():
            tree, _, part = name.partition(".")
            if part in ARRAYS:
                trees[name] = array
            elif part.startswith("piece"):
                pieces[int(tree[4:]), int(part[5:])] = array
            else:
                raise ModelError(
                    "the model to go on with is no label tree: leave [model] kind as it was"
                )
        with self._lock:
            self._trees, self._pieces, self._forest = trees, pieces, None
            self.generation, self.fitted, self.best = generation, {}, best

    def keep_best(self, megabatch: int) -> None:
        """Note that the trees of the first mega-batches, one each, rank best so far."""
        self.best = megabatch

    def restore_best(self, megabatch: int) -> bool:
        """Drop the trees after the best ones; return False where those are not the ones of then."""
        if self.best != megabatch:
            return False
        with self._lock:
            kept = {f"tree{tree}" for tree in range(megabatch)}
            self._trees = {n: a for n, a in self._trees.items() if n.partition(".")[0] in kept}
            self._forest = None
        return True

    @property
    def model_bytes(self) -> int:
        """Bytes of the trees and of pieces of other trees."""
        return sum(int(array.nbytes) for array in self.host_models()[1].values())

    def model_arrays(self) -> dict[str, Array]:
        """Return the arrays of complete trees, for a file.

        Raises
        ------
        TrainingError
            If there is none.
        """
        if not self._trees:
            raise TrainingError(
                "the run ended before its first tree was complete: give it more minutes"
            )
        return self._trees

    def commit(self, generation: int) -> None:
        """Add the gathered pieces to the global model; complete trees are assembled."""
        if generation == self.generation:
            return  # a repeated message
        if generation != self.generation + 1:
            raise TrainingError(f"merge {generation} cannot follow merge {self.generation}")
        with self._lock:
            self._pieces |= self.gathered
            for tree in sorted({tree for tree, _ in self.gathered}):
                self._complete(tree)
            self.generation, self.fitted, self.gathered = generation, {}, {}

    def _complete(self, tree: int) -> None:
        """Assemble a tree if all of its pieces are there."""
        plan = self.plan(tree)
        if any((tree, number) not in self._pieces for number in range(len(plan))):
            return
        blocks = []
        for number, piece in enumerate(plan):
            fitted = unpack_blocks(self._pieces.pop((tree, number)), len(piece))
            blocks += list(zip(piece, fitted, strict=True))
        arrays = assemble_tree(self.orders[tree], self.shape, blocks)
        self._trees |= {f"tree{tree}.{name}": array for name, array in arrays.items()}
        self._forest = None

    @contextmanager
    def global_model(self) -> Iterator[Forest]:
        """Return the complete trees, which rank labels while the context is open."""
        with self._lock:
            if self._forest is None:
                self._forest = Forest(self.spec, self._trees, self.kernels)
            forest = self._forest
        yield forest

    def local_state(self) -> dict[str, Array]:
        """Return nothing: workers do not differ between merges."""
        return {}

    def training_loss(self, pieces: Sequence[object], fetched: object) -> LossSum:
        """Return no loss, which trees do not have over all rows."""
        return LossSum()

    # -------------------------------------------------------------------- work

    def plan(self, tree: int) -> list[list[NodeBlock]]:
        """Return the blocks of every piece of a tree."""
        if tree not in self._plans:
            counts, pieces = self.label_counts[self.orders[tree]], self.settings.strategy.pieces
            rows = self.settings.data.rows
            self._plans[tree] = plan_pieces(self.shape, counts, rows, pieces)
        return self._plans[tree]

    def work_of(self, tree: int, number: int) -> float:
        """Return the work of a piece, in products of a pass; see `piece_work`."""
        plan = self.plan(tree)
        if number >= len(plan):
            return 0.0
        counts = self.label_counts[self.orders[tree]]
        return piece_work(self.shape, counts, self.settings.data.rows, plan[number])

    def lease(
        self,
        batches: Sequence[Batch],
        lr: float,
        fetched: Fetched,
        batch_boundary: BatchBoundary = ignore_boundary,
    ) -> WorkStats:
        """Fit pieces; ``lr`` and ``fetched`` are not used, as all rows are resident."""
        begun_s = time.perf_counter()
        spans = [span for batch in batches for span in batch]
        for tree, of_tree in itertools.groupby(spans, key=lambda span: span.epoch):
            self._fit(tree, of_tree, batch_boundary)
        pieces = sum(span.rows for span in spans)
        return WorkStats(rows=pieces, updates=pieces, busy_s=time.perf_counter() - begun_s)

    def _fit(self, tree: int, spans: Iterable[Span], batch_boundary: BatchBoundary) -> None:
        """Fit pieces of one tree, as many together as the device takes."""
        plan, numbers = self.plan(tree), list[int]()

        def blocks() -> Iterator[NodeBlock]:
            for span in spans:
                for number in range(span.start, min(span.stop, len(plan))):  # small trees: fewer
                    numbers.append(number)
                    yield from plan[number]
                batch_boundary(span.rows)

        seed = self.settings.config.run.seed
        fitted = iter(fit_blocks(self._rows_of(tree), self.spec, self.shape, blocks(), seed, tree))
        for number in numbers:
            self.fitted[tree, number] = pack_blocks(
                list(itertools.islice(fitted, len(plan[number])))
            )

    def _rows_of(self, tree: int) -> TreeRows:
        if self._seen is None or self._seen[0] != tree:
            self._seen = None  # its rows are freed first
            rows = TreeRows(
                self.kernels,
                self._part,
                self.orders[tree],
                self.spec.power_of(tree),
                self._label_weights,
                self._hard_negatives if tree and self.spec.hard_negatives else None,
            )
            self._seen = tree, rows
        return self._seen[1]

    @cached_property
    def _hard_negatives(self) -> Array:
        """What the first tree ranks highest for each row, ``(rows, count)``."""
        first = {name: array for name, array in self._trees.items() if name.startswith("tree0.")}
        (part,) = self.rows.streams.values()  # on the device
        rows = self.kernels.to_device(np.arange(part.rows))
        forest = Forest(self.spec, first, self.kernels)
        ids, _ = forest.top_k([Segment(part, rows)], self.spec.hard_negatives)
        return ids

    @cached_property
    def _part(self) -> Partition:
        (part,) = self.rows.streams.values()
        return self.kernels.to_host(part)


def gather_pieces(worker: TreeWorker, rank: int, ranks: int) -> Program[Means]:
    """Return one rank's part in a merge: afterwards every rank has the pieces of all.

    Raises
    ------
    TrainingError
        If two ranks have fitted the same piece.
    """
    own = sorted(worker.fitted.items())
    sizes = np.array([len(own), sum(packed.shape[0] for _, packed in own)], np.int64)
    counts = yield from all_gather(rank, range(ranks), sizes)
    names = np.array([(*piece, packed.shape[0]) for piece, packed in own], np.int64).reshape(-1, 3)
    payload = np.concatenate([packed for _, packed in own]) if own else np.empty(0, np.uint8)
    gathered: Pieces = dict(own)
    for turn in range(1, ranks):
        to, source = (rank + turn) % ranks, (rank - turn) % ranks
        if own:
            yield Send(to, names)
            yield Send(to, payload)
        pieces, nbytes = counts[source].tolist()
        if not pieces:
            continue
        their_names, theirs = np.empty((pieces, 3), np.int64), np.empty(nbytes, np.uint8)
        yield Receive(source, their_names)
        yield Receive(source, theirs)
        ends = np.cumsum(their_names[:, 2])
        for (tree, number, size), end in zip(their_names.tolist(), ends.tolist(), strict=True):
            if (tree, number) in gathered:
                raise TrainingError(f"piece {number} of tree {tree} was fitted twice")
            gathered[tree, number] = theirs[end - size : end]
    yield Flush()
    worker.gathered = gathered
    return {}
