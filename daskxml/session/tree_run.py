"""A run of label trees: which task is next, the row of the history for each tree, when it ends.

A `TreeRun` is a pure state machine, as a `daskxml.session.session.Session` is: results with their
times in, steps out. A cluster executes the steps as Dask tasks, a process by threads, and the
simulator on virtual clocks. For each tree::

    plan ─▶ fit its pieces ─▶ put together ─▶ rank the test rows ─▶ store ─▶ its row is closed

Trees are closed in their order. The pieces of the next tree begin as soon as no piece of this one
is left to begin, so that nobody waits for the slowest; a run that ends drops what it has of trees
that are not put together.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from daskxml.config import RunConfig
from daskxml.metrics import MetricSums
from daskxml.models.trees.fitting import FitSettings
from daskxml.models.trees.spec import TreeSpec
from daskxml.session.commands import EndRun
from daskxml.session.history import worker_event
from daskxml.session.setup import check_untested
from daskxml.session.stopping import StoppingRules, trained_s
from daskxml.strategies.batches import apportion

AHEAD = 2  # trees that are not closed, at most


@dataclass(frozen=True, slots=True)
class PlanTree:
    """Order the labels of a tree, and cut it into pieces."""

    tree: int


@dataclass(frozen=True, slots=True)
class FitPiece:
    """Fit a piece of a tree; ``work`` is in products of a pass."""

    tree: int
    number: int
    work: float


@dataclass(frozen=True, slots=True)
class PutTogether:
    """Make a tree of its pieces."""

    tree: int


@dataclass(frozen=True, slots=True)
class RankRows:
    """Rank the test rows by the first trees, so many."""

    trees: int


@dataclass(frozen=True, slots=True)
class StoreTree:
    """Write a tree with its row of the history."""

    tree: int
    row: dict[str, Any]


Step = PlanTree | PutTogether | RankRows | StoreTree | EndRun


@dataclass(frozen=True, slots=True)
class Planned:
    """A tree's plan: the work of each of its pieces."""

    tree: int
    works: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A worker has fitted a piece."""

    tree: int
    number: int
    worker: str
    busy_s: float


@dataclass(frozen=True, slots=True)
class Done:
    """A tree was put together, or stored."""

    step: PutTogether | StoreTree


@dataclass(frozen=True, slots=True)
class Ranked:
    """The sums of all test rows' metrics."""

    trees: int
    sums: MetricSums


Result = Planned | Fitted | Done | Ranked


@dataclass
class _Tree:
    """A tree that is not closed; ``fitted`` says which worker took how long for each piece."""

    number: int
    works: tuple[float, ...] = ()
    pending: deque[int] = field(default_factory=deque)
    fitted: dict[int, tuple[str, float]] = field(default_factory=dict)
    stage: Literal["fit", "put together", "wait", "rank", "store"] = "fit"
    begun_s: float = math.inf
    fitted_s: float = math.inf
    overlaps: bool = False
    events: list[dict[str, Any]] = field(default_factory=list)
    row: dict[str, Any] = field(default_factory=dict)


class TreeRun:
    """The decisions of one run.

    Parameters
    ----------
    rules
        When to evaluate and to stop.
    trees, rows
        Trees to fit, and training rows.
    has_tests
        Whether there are rows to evaluate on.
    history
        Rows of the trees that are there already.

    Attributes
    ----------
    history
        The rows of closed trees.
    slots
        Tasks that each worker computes at a time, by name; the driver keeps it up to date.
    stop_reason
        Why the run ends; "" while it goes on.
    """

    def __init__(
        self,
        rules: StoppingRules,
        trees: int,
        rows: int,
        *,
        has_tests: bool,
        history: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.rules, self.trees, self.rows, self._has_tests = rules, trees, rows, has_tests
        self.history: list[dict[str, Any]] = [dict(row) for row in history]
        self.slots: dict[str, int] = {}
        self.stop_reason = ""
        self._open: list[_Tree] = []
        self._started_s, self._last_fitted_s, self._ranked_s = 0.0, -math.inf, 0.0
        self._wall_before_s = self.history[-1]["wall_s"] if self.history else 0.0
        self._events: list[dict[str, Any]] = []  # before the first tree
        self._beside = defaultdict[str, float](float)  # seconds of other tasks since the last tree

    @classmethod
    def of(
        cls, config: RunConfig, rows: int, *, has_tests: bool, can_store: bool,
        history: Sequence[Mapping[str, Any]] = (),
    ) -> TreeRun:  # fmt: skip
        """Return the run of a run file."""
        if not has_tests:
            check_untested(config)
        limits = (int(config.training.epochs), config.training.megabatches or math.inf)
        rules = StoppingRules.of(config, can_checkpoint=can_store)
        return cls(rules, int(min(limits)), rows, has_tests=has_tests, history=history)

    # ------------------------------------------------------------------ progress

    @property
    def stage(self) -> str:
        """What the first open tree waits for, as a state for the user."""
        stage = self._open[0].stage if self._open else "over"
        return {"rank": "evaluating", "store": "writing a tree", "over": "ending"}.get(
            stage, "training"
        )

    @property
    def epoch(self) -> float:
        """Trees so far, and the share that is fitted of those under way."""
        done = sum(
            sum(tree.works[number] for number in tree.fitted) / sum(tree.works)
            for tree in self._open
            if tree.works
        )
        return len(self.history) + done

    @property
    def best(self) -> int:
        """How many trees rank best, where the best model is kept; 0: all are."""
        found = self.rules.best_megabatch(self.history) if self.rules.keeps_best else 0
        return 0 if found == len(self.history) else found

    def wants(self, tree: int) -> bool:
        """Whether a tree is to be fitted still."""
        return any(each.number == tree and each.stage == "fit" for each in self._open)

    def has_pending(self) -> int:
        """Return how many planned pieces have not begun."""
        return sum(len(tree.pending) for tree in self._open)

    def time_left_s(self, now_s: float) -> float:
        """Return how long the run may still fit; infinite where nothing limits it."""
        if self.stop_reason or not self.rules.train_s:
            return math.inf
        done_s = trained_s(self.history)
        done_s += sum(self._train_s(tree, now_s) for tree in self._open if tree.begun_s < math.inf)
        return self.rules.train_s - done_s

    def _train_s(self, tree: _Tree, now_s: float) -> float:
        """Return the seconds of fitting a tree, without those of the one before."""
        earlier = [each.fitted_s for each in self._open if each.number < tree.number]
        before_s = max([self._last_fitted_s, *earlier])
        return max(0.0, min(tree.fitted_s, now_s) - max(tree.begun_s, min(before_s, now_s)))

    # ------------------------------------------------------------------ steps

    def begin(self, slots: Mapping[str, int], now_s: float) -> list[Step]:
        """Begin, or go on after the trees that are there."""
        self.slots, self._started_s = dict(slots), now_s
        self.stop_reason = self.rules.reached(self.history)
        return [EndRun(self.stop_reason)] if self.stop_reason else self._plan_next()

    def take(self, now_s: float) -> FitPiece | None:
        """Return the piece that is to begin now; None if there is none."""
        for tree in self._open:
            if tree.pending:
                number = tree.pending.popleft()
                tree.begun_s = min(tree.begun_s, now_s)
                return FitPiece(tree.number, number, tree.works[number])
        return None

    def give_back(self, piece: FitPiece) -> None:
        """Let a piece be taken again: its worker was lost before it was fitted."""
        for tree in self._open:
            if tree.number == piece.tree and tree.stage == "fit":
                tree.pending.appendleft(piece.number)

    def worked(self, worker: str, busy_s: float) -> None:
        """Count a task that is no piece: a worker is busy then, too."""
        self._beside[worker] += busy_s

    def lose(self, worker: str) -> None:
        """Let the pieces be fitted again that a lost worker alone had."""
        for tree in self._open:
            lost = [n for n, (name, _) in sorted(tree.fitted.items()) if name == worker]
            if tree.stage == "fit":
                for number in reversed(lost):
                    del tree.fitted[number]
                    tree.pending.appendleft(number)

    def handle(self, result: Result, now_s: float) -> list[Step]:
        """Count a result; return the steps that follow. Those of dropped trees are ignored."""
        number = result.trees - 1 if isinstance(result, Ranked) else _tree_of(result)
        tree = next((each for each in self._open if each.number == number), None)
        if tree is None:
            return []
        match result:
            case Planned() if not tree.works:
                tree.works, tree.pending = result.works, deque(range(len(result.works)))
                return self._plan_next()
            case Fitted() if tree.stage == "fit":
                return self._count(tree, result, now_s)
            case Done(PutTogether()) if tree.stage == "put together":
                tree.stage = "wait"
                self._make_row(tree, now_s)
                return self._advance(now_s)
            case Ranked() if tree.stage == "rank":
                return self._evaluated(tree, result, now_s)
            case Done(StoreTree()) if tree.stage == "store":
                return self._close(tree, now_s)
        return []

    def stop(self, reason: str, now_s: float) -> list[Step]:
        """End the run; trees that are not fitted yet are dropped."""
        self.stop_reason = self.stop_reason or reason
        self._open = [tree for tree in self._open[:1] if tree.stage != "fit"]
        return [] if self._open else [EndRun(self.stop_reason)]

    def _plan_next(self) -> list[Step]:
        """Plan one more tree, unless enough are open or one is being planned."""
        number = len(self.history) + len(self._open)
        if len(self._open) == AHEAD or number == self.trees or self.stop_reason:
            return []
        if any(not tree.works for tree in self._open):
            return []
        self._open.append(_Tree(number))
        return [PlanTree(number)]

    def _count(self, tree: _Tree, result: Fitted, now_s: float) -> list[Step]:
        tree.fitted[result.number] = result.worker, result.busy_s
        if len(tree.fitted) < len(tree.works):
            return []
        tree.stage, tree.fitted_s = "put together", now_s
        return [PutTogether(tree.number)]

    def _make_row(self, tree: _Tree, now_s: float) -> None:
        train_s, waited_s = self._train_s(tree, now_s), now_s - tree.fitted_s
        is_beside = any(each.begun_s < now_s for each in self._open if each is not tree)
        tree.events = [*self._events, *tree.events]
        self._events = []
        tree.row = {
            "megabatch": tree.number + 1,
            "rows": self.rows * (tree.number + 1),
            "epoch": float(tree.number + 1),
            "wall_s": 0.0,
            "train_s": train_s,
            "merge_s": 0.0 if is_beside else waited_s,
            "overlapped_s": waited_s if is_beside else 0.0,
            "eval_s": 0.0,
            "metrics": {},
            "pieces": len(tree.works),
            "workers": self._shares(tree, train_s),
            "perturbed": False,
            "merged_bytes": 0,
            "moved_bytes": 0,
            "notes": {},
            "events": tree.events,
        }

    def _shares(self, tree: _Tree, train_s: float) -> dict[str, dict[str, Any]]:
        """Return what each worker did of a tree; rows are shared out by the work of its pieces."""
        names = dict.fromkeys([*self.slots, *(name for name, _ in tree.fitted.values())])
        done = {n: sorted(p for p, (each, _) in tree.fitted.items() if each == n) for n in names}
        works = {name: sum(tree.works[piece] for piece in done[name]) for name in names}
        rows, whole = apportion(self.rows, works), sum(tree.works)
        shares = {}
        for name, pieces in done.items():
            busy_s = sum(tree.fitted[piece][1] for piece in pieces) + self._beside.pop(name, 0.0)
            busy_s = min(busy_s / self.slots.get(name, 1), train_s)  # some was before or after
            shares[name] = {
                "updates": len(pieces),
                "rows": rows[name],
                "batch_rows": 0,
                "lr": 0.0,
                "weight": works[name] / whole,
                "busy_s": busy_s,
                "idle_s": max(0.0, train_s - busy_s),
                "leases": [],
                "pieces": pieces,
            }
        return shares

    def _advance(self, now_s: float) -> list[Step]:
        """Go on with the first open tree, if it waits."""
        tree = self._open[0] if self._open else None
        if tree is None or tree.stage != "wait":
            return []
        self.stop_reason = self.stop_reason or self.rules.reached([*self.history, tree.row])
        is_due = self.rules.is_evaluation_due(
            [*self.history, tree.row], has_tests=self._has_tests, is_last=bool(self.stop_reason)
        )
        if not is_due:
            return self._complete(tree, now_s)
        tree.stage, self._ranked_s = "rank", now_s
        return [RankRows(tree.number + 1)]

    def _evaluated(self, tree: _Tree, result: Ranked, now_s: float) -> list[Step]:
        metrics = result.sums.result() if result.sums.rows else {}
        tree.row |= {"metrics": metrics, "eval_s": now_s - self._ranked_s}
        if by_frequency := result.sums.by_frequency():
            tree.row["by_frequency"] = by_frequency
        if metrics and self.rules.is_target_met(metrics):
            self.stop_reason = self.stop_reason or "target"
        if self.rules.is_patience_over([*self.history, tree.row]):
            self.stop_reason = self.stop_reason or "patience"
        return self._complete(tree, now_s)

    def _complete(self, tree: _Tree, now_s: float) -> list[Step]:
        tree.row["wall_s"] = self._wall_before_s + now_s - self._started_s
        if not self.rules.can_checkpoint:
            return self._close(tree, now_s)
        tree.stage = "store"
        return [StoreTree(tree.number, tree.row)]

    def _close(self, tree: _Tree, now_s: float) -> list[Step]:
        self.history.append(tree.row)
        self._open.remove(tree)
        self._last_fitted_s = tree.fitted_s
        if self.stop_reason:
            return [EndRun(self.stop_reason)]
        return self._plan_next() + self._advance(now_s)

    # ------------------------------------------------------------------ workers

    def change_worker(self, kind: str, worker: str, now_s: float) -> None:
        """Note in the history that a worker "joined" or was "lost"."""
        tree = self._open[0] if self._open else None
        begun_s = self._started_s if tree is None else min(tree.begun_s, now_s)
        events = self._events if tree is None else tree.events
        events.append(worker_event(kind, worker, now_s - begun_s))


def _tree_of(result: Planned | Fitted | Done) -> int:
    return result.step.tree if isinstance(result, Done) else result.tree


def fit_settings(config: RunConfig, spec: TreeSpec, rows: int) -> FitSettings:
    """Return what the tasks of a run have in common."""
    data, evaluation = config.data, config.evaluation
    return FitSettings(
        spec=spec,
        seed=config.run.seed,
        rows=rows,
        class_weight=config.training.class_weight,
        label_base=data.label_base,
        propensity_a=data.propensity_a,
        propensity_b=data.propensity_b,
        ks=tuple(evaluation.k),
        batch_rows=evaluation.batch_rows,
        exact=config.gpu.exact,
    )


def announce_trees(spec: TreeSpec) -> str:
    """Return the line for the user before the run begins: also what was chosen."""
    fit = spec.fit
    steps = f"SGD at rate {fit.lr:g}"
    if fit.solver == "dual":
        steps = f"dual coordinate descent, C = {fit.cost:g}"
    return (
        f"nodes are fitted by {fit.passes} passes of {steps}; each worker holds all rows, the "
        "trees, and one node's weights at a time"
    )
