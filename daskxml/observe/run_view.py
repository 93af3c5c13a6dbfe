"""One reading of a run's events: every figure that is derived from them is computed here.

A run emits events, dictionaries with a ``kind``; other kinds are ignored.

===========  ====================================================================================
kind         keys
===========  ====================================================================================
started      ``workers`` (names), ``rows``, ``test_rows``, ``features``, ``labels``, ``parameters``,
             ``tested_on``: test, or validation where rows are held out; ``pools``: threads of the
             workers that are pools, by name; ``limits``: when the run ends, see
             `daskxml.session.stopping`
status       ``state``: loading, training, merging, ...; ``megabatch``, ``rows``, ``epoch`` so far
megabatch    ``row``: one of ``history.jsonl``, see `daskxml.session.history`
worker       ``event``: joined or lost; ``worker``
memory       ``text``: what a worker needs, before it begins
compiling    ``text``: kernels are compiled, which takes a while
warning      ``text``
stages       ``stages``: how the rows came to the workers; see `daskxml.core.work_stats.StageRecord`
rewound      ``megabatch`` of the checkpoint that the run continues from
ended        ``reason``; ``error`` if that is ``error``
===========  ====================================================================================

Any event may have ``dashboard``, the address of Dask's, and ``at_s``, seconds since the epoch.

`RunView` takes events one by one, in bounded memory; the functions below it take rows of a history,
whose optional keys earlier versions may not have written. A `Course` has what charts show of rows,
of a run under way in bounded memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from operator import methodcaller
from typing import Any, NamedTuple

Event = Mapping[str, Any]
Row = Mapping[str, Any]  # of a history
Worker = Mapping[str, Any]  # of a row
History = Sequence[Row]

LOST, JOINED = "lost", "joined"
KEPT_WORKERS = 1000  # that were lost, by name
NEAR_BEST = 0.95
_MEASURED = ("training_loss", "metrics")  # parts of a row that not every row has


@dataclass
class RunView:
    """The state of a run, from the events so far.

    Attributes
    ----------
    limits
        When the run ends; zero is no limit. Those of the ``started`` event replace them.
    dashboard
        Address of Dask's dashboard, or ``""``.
    state
        What the run does now, or how it ended.
    rows, epoch
        Done so far, including the mega-batch under way.
    started, ended
        The events; empty, and None, before they come.
    row, row_at_s
        The last of the history, and when it came (seconds since the epoch).
    measured
        ``metrics`` and ``training_loss`` of the last evaluation that found them.
    best
        By metric: the best value so far and its mega-batch.
    spent_s
        Seconds of training and merging so far.
    workers
        By name: ``""``, or that the worker was lost or has joined since the last row. Replaced and
        never changed, because a display reads it from another thread.
    lost
        Workers that are gone; at most the last `KEPT_WORKERS`.
    stages
        Records of the stages of the rows.

    Examples
    --------
    >>> view = RunView(limits={"epochs": 4.0})
    >>> view.apply({"kind": "status", "state": "training", "epoch": 1.0})
    >>> view.state, view.progress()
    ('training', 0.25)
    """

    limits: Mapping[str, Any] = field(default_factory=dict)
    dashboard: str = ""
    state: str = "starting"
    rows: int = 0
    epoch: float = 0.0
    started: Event = field(default_factory=dict)
    ended: Event | None = None
    row: Row = field(default_factory=dict)
    row_at_s: float = 0.0
    measured: Mapping[str, Any] = field(default_factory=dict)
    best: dict[str, tuple[float, int]] = field(default_factory=dict)
    spent_s: float = 0.0
    workers: Mapping[str, str] = field(default_factory=dict)
    lost: dict[str, None] = field(default_factory=dict)
    stages: Sequence[Mapping[str, Any]] = ()

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.ended is not None

    @property
    def megabatch(self) -> int:
        """Mega-batches merged so far."""
        return int(self.row.get("megabatch", 0))

    @property
    def metric(self) -> str:
        """The metric that the run aims at."""
        return str(self.limits.get("target_metric", "P@1"))

    def apply(self, event: Event) -> None:
        """Update the view with one event."""
        self.dashboard = event.get("dashboard") or self.dashboard
        match event.get("kind"):
            case "status" if not self.is_over:
                self.state = event.get("state", self.state)
                self.rows = event.get("rows", self.rows)
                self.epoch = event.get("epoch", self.epoch)
            case "started":
                self.started, self.limits = event, event.get("limits", self.limits)
                self.workers = dict.fromkeys(map(str, event.get("workers", ())), "")
            case "megabatch":
                self._add_row(event["row"], event.get("at_s", 0.0))
            case "worker":
                self._change_worker(str(event["worker"]), event["event"])
            case "stages":
                self.stages = event["stages"]
            case "rewound":
                done = event["megabatch"]
                self.best = {name: best for name, best in self.best.items() if best[1] <= done}
            case "ended":
                self.ended = event
                self.state = ending(event)

    def _add_row(self, row: Row, at_s: float) -> None:
        if not self.row and row.get("megabatch", 1) > 1:
            evaluated_s = row.get("wall_s", 0.0) - row.get("eval_s", 0.0)
            self.spent_s = max(0.0, evaluated_s - spent_s(row))
        self.row, self.row_at_s = row, at_s
        self.spent_s += spent_s(row)
        found = {name: row[name] for name in _MEASURED if row.get(name) not in (None, {})}
        self.measured = {**self.measured, **found}
        for name, value in scores(row).items():
            if name not in self.best or value > self.best[name][0]:
                self.best[name] = value, self.megabatch
        self.epoch = max(self.epoch, row.get("epoch", 0.0))
        present = dict.fromkeys(map(str, row.get("workers", ())), "")
        absent = [(n, what) for n, what in self.workers.items() if what and n not in present]
        self.workers = present | dict(absent[-KEPT_WORKERS:])

    def _change_worker(self, worker: str, what: str) -> None:
        self.workers = {**self.workers, worker: what}
        self.lost.pop(worker, None)
        if what == LOST:
            self.lost[worker] = None
            if len(self.lost) > KEPT_WORKERS:
                del self.lost[next(iter(self.lost))]

    def limit_shares(self) -> dict[str, float]:
        """Return how much of each limit is used up, by its name: ``epochs``, ``minutes``, ..."""
        done = {"megabatches": self.megabatch, "minutes": self.spent_s / 60.0}
        done |= dict.fromkeys(("epochs", "trees"), self.epoch)
        return {n: value / self.limits[n] for n, value in done.items() if self.limits.get(n)}

    def progress(self) -> float | None:
        """Return how much of the run is done, from 0 to 1; None where only a target ends it."""
        shares = self.limit_shares().values()
        return min(1.0, max(shares)) if shares else None

    def left_s(self, now_s: float = 0.0) -> float | None:
        """Return the seconds left at the pace so far, with evaluation; None where unknown.

        Parameters
        ----------
        now_s
            The moment, in seconds since the epoch; 0 is when the last row came.
        """
        progress = self.progress()
        if self.is_over or not (self.row and progress):
            return None
        wall_s = self.row.get("wall_s", 0.0) + max(0.0, now_s - self.row_at_s)
        return wall_s * (1.0 - progress) / progress if wall_s else None


def ending(event: Event) -> str:
    """Return why a run is over, from its last event.

    Examples
    --------
    >>> ending({"reason": "epochs"})
    'ended: epochs'
    >>> ending({"reason": "error", "error": {"type": "", "args": ["no worker"]}})
    'failed: no worker'
    """
    if event["reason"] != "error":
        return f"ended: {event['reason']}"
    return f"failed: {': '.join(str(part) for part in event['error']['args'] if part is not None)}"


# ------------------------------------------------------------------------------ one row


def spent_s(row: Row) -> float:
    """Return a mega-batch's seconds of training and merging."""
    return float(row.get("train_s", 0.0) + row.get("merge_s", 0.0))


def rows_per_s(row: Row) -> float | None:
    """Return a mega-batch's rows over its time in training and merging; None without a time.

    Examples
    --------
    >>> rows_per_s({"train_s": 1.5, "merge_s": 0.5, "workers": {"a": {"rows": 60}}})
    30.0
    """
    rows = sum(worker.get("rows", 0) for worker in row.get("workers", {}).values())
    return _ratio(rows, spent_s(row))


def scores(row: Row) -> dict[str, float]:
    """Return a row's metrics at their ranks, without the numbers of rows evaluated."""
    return {name: value for name, value in row.get("metrics", {}).items() if "@" in name}


def busy_share(worker: Worker) -> float | None:
    """Return the share of the training time in which a worker computed, from 0 to 1."""
    busy_s = worker.get("busy_s", 0.0)
    return _ratio(busy_s, busy_s + worker.get("idle_s", 0.0))


def computed_rows_per_s(worker: Worker) -> float | None:
    """Return a worker's rows over the time in which it computed."""
    return _ratio(worker.get("rows", 0), worker.get("busy_s", 0.0))


def _ratio(amount: float, time_s: float) -> float | None:
    return amount / time_s if time_s > 0.0 else None


def mean_busy_s(row: Row) -> float:
    """Return the mean worker's seconds of computing, at most those of the training phase."""
    busy = [worker.get("busy_s", 0.0) for worker in row["workers"].values()]
    return min(sum(busy) / len(busy), row["train_s"]) if busy else 0.0


def by_rank(metrics: Mapping[str, float]) -> tuple[list[int], dict[str, dict[int, float]]]:
    """Return the ranks of ``{"P@1": 0.6, ...}``, and the values by metric and rank.

    Examples
    --------
    >>> by_rank({"P@1": 0.5, "P@3": 0.25, "rows": 8})
    ([1, 3], {'P': {1: 0.5, 3: 0.25}})
    """
    cells: dict[str, dict[int, float]] = {}
    for name, value in metrics.items():
        metric, at, rank = name.partition("@")
        if at:
            cells.setdefault(metric, {})[int(rank)] = value
    return sorted({rank for row in cells.values() for rank in row}), cells


# --------------------------------------------------------------------- a whole history


def elapsed(history: History) -> list[float]:
    """Return the seconds of training and merging until the end of every mega-batch.

    Examples
    --------
    >>> elapsed([{"train_s": 1.0, "merge_s": 0.5}, {"train_s": 2.0, "merge_s": 0.0}])
    [1.5, 3.5]
    """
    return list(accumulate(map(spent_s, history)))


def last_metrics(history: History) -> dict[str, float]:
    """Return the metrics of the last evaluation; empty without one."""
    return dict(next((row["metrics"] for row in reversed(history) if row.get("metrics")), {}))


def best_value(history: History, metric: str) -> float | None:
    """Return the best value of a metric, or None if it was never measured."""
    values = (row["metrics"][metric] for row in history if metric in row["metrics"])
    return max(values, default=None)


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The first evaluation at or over a level; where none was, the best one.

    Attributes
    ----------
    is_reached
        Whether the level was reached; else all that follows is of the best evaluation.
    value
        Of the metric.
    train_s
        Seconds of training and merging until then, without evaluation.
    wall_s
        Seconds since the run began training, with evaluation.
    rows, epoch, megabatch
        Of training until then.
    """

    is_reached: bool
    value: float
    train_s: float
    wall_s: float
    rows: int
    epoch: float
    megabatch: int


def reach(history: History, metric: str, level: float) -> Reached | None:
    """Return when a metric reached a level, or its best; None if it was never measured.

    Examples
    --------
    >>> row = {"train_s": 1.0, "merge_s": 0.5, "wall_s": 2.0, "epoch": 0.5}
    >>> history = [{**row, "megabatch": i, "rows": 10 * i, "metrics": {"P@1": 0.2 * i}}
    ...            for i in (1, 2, 3)]
    >>> found = reach(history, "P@1", 0.4)
    >>> found.is_reached, found.megabatch, found.rows, found.train_s
    (True, 2, 20, 3.0)
    >>> reach(history, "P@1", 0.9).is_reached, reach(history, "P@9", 0.9)
    (False, None)
    """
    best = best_value(history, metric)
    if best is None:
        return None
    row, until_s = next(
        (row, until_s)
        for row, until_s in zip(history, elapsed(history), strict=True)
        if row["metrics"].get(metric, -math.inf) >= min(level, best)
    )
    return Reached(
        is_reached=best >= level,
        value=row["metrics"][metric],
        train_s=until_s,
        wall_s=row.get("wall_s", 0.0),
        rows=row["rows"],
        epoch=row.get("epoch", 0.0),
        megabatch=row["megabatch"],
    )


def phases(history: History) -> dict[str, float]:
    """Return the seconds of a run by what they were spent on.

    ``computing`` is the mean worker's, and ``waiting`` the rest of the training phases; ``other``
    is between the phases: leases on their way, checkpoints, lost workers.

    Examples
    --------
    >>> phases([{"train_s": 3.0, "merge_s": 0.5, "eval_s": 1.0, "wall_s": 5.0,
    ...          "workers": {"a": {"busy_s": 2.0}, "b": {"busy_s": 3.0}}}])
    {'computing': 2.5, 'waiting': 0.5, 'merging': 0.5, 'evaluating': 1.0, 'other': 0.5}
    """
    train_s = sum(row["train_s"] for row in history)
    computed_s = sum(map(mean_busy_s, history))
    merge_s = sum(row["merge_s"] for row in history)
    eval_s = sum(row.get("eval_s", 0.0) for row in history)
    wall_s = history[-1].get("wall_s", 0.0) if history else 0.0
    return {
        "computing": computed_s,
        "waiting": max(0.0, train_s - computed_s),
        "merging": merge_s,
        "evaluating": eval_s,
        "other": max(0.0, wall_s - train_s - merge_s - eval_s),
    }


# ------------------------------------------------------------------- what charts show of rows

POINTS, WORKERS = 300, 64  # that are kept of a run under way, and workers of each point


def _busy_percent(worker: Worker) -> float | None:
    share = busy_share(worker)
    return None if share is None else 100.0 * share


# What charts show of each worker: name, title, unit, and function of the worker's entry in a row.
OF_WORKERS: dict[str, tuple[str, str, Callable[[Worker], float | None]]] = {
    "batch_rows": ("Batch size", "rows of a batch", methodcaller("get", "batch_rows")),
    "updates": ("Updates", "steps in the mega-batch", methodcaller("get", "updates")),
    "lr": ("Learning rate", "before the schedule", methodcaller("get", "lr")),
    "rows_per_s": ("Throughput", "rows a second while computing", computed_rows_per_s),
    "busy": ("Busy in training", "% of the training time", _busy_percent),
    "weight": ("Merge weight", "share of the merged model", methodcaller("get", "weight")),
}


class Point(NamedTuple):
    """What charts show of a mega-batch.

    Attributes
    ----------
    megabatch
        Its number, from 1.
    until_s
        Seconds of training and merging until its end.
    loss, metrics
        As in its row, the metrics at their ranks; NaN without a loss.
    busy_percent
        Share of the training phase in which the mean worker computed; NaN without a time.
    sent_mib
        Sent by all workers.
    workers
        By name the values of `OF_WORKERS`, None where a row has none.
    """

    megabatch: int
    until_s: float
    loss: float
    metrics: Mapping[str, float]
    busy_percent: float
    sent_mib: float
    workers: Mapping[str, Sequence[float | None]]


class Thinned(list[Point]):
    """Points of mega-batches in bounded memory: when they are too many, every second one goes.

    There are those whose mega-batch is a multiple of `stride`, a power of two, and the newest.

    Examples
    --------
    >>> points = Thinned(4)
    >>> for number in range(1, 12):
    ...     points.append(Point(number, *[0.0] * 2, {}, *[0.0] * 2, {}))
    >>> [point.megabatch for point in points], points.stride
    ([4, 8, 11], 4)
    """

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound, self.stride = bound, 1

    def append(self, point: Point) -> None:
        """Add a point at the end."""
        if self and self[-1].megabatch % self.stride:
            self.pop()
        super().append(point)
        if len(self) > self.bound:
            self.stride *= 2
            self[:-1] = [each for each in self[:-1] if each.megabatch % self.stride == 0]


class Course:
    """A run's points.

    Parameters
    ----------
    name
        Of the run, in the legends of charts.
    history
        Its rows; all are kept.
    is_bounded
        Whether points of a run under way, and workers of each, are left out where they are many.

    Attributes
    ----------
    points, evaluated
        Those of all mega-batches, and those with metrics.
    """

    def __init__(self, name: str, history: History = (), *, is_bounded: bool = False) -> None:
        bound = POINTS if is_bounded else math.inf
        self.name, self._most_workers = name, WORKERS if is_bounded else None
        self.points, self.evaluated = Thinned(bound), Thinned(bound)
        for row, until_s in zip(history, elapsed(history), strict=True):
            self._add(row, until_s)

    @property
    def workers(self) -> list[str]:
        """The names of the workers, in the order in which they came."""
        return list(dict.fromkeys(name for point in self.points for name in point.workers))

    def apply(self, event: Event, view: RunView) -> None:
        """Take an event that ``view`` has read."""
        if event["kind"] == "megabatch":
            self._add(event["row"], view.spent_s)
        elif event["kind"] == "rewound":
            for points in (self.points, self.evaluated):
                points[:] = [each for each in points if each.megabatch <= event["megabatch"]]

    def _add(self, row: Row, until_s: float) -> None:
        workers = islice(row["workers"].items(), self._most_workers)
        is_timed = row.get("train_s") and row["workers"]
        point = Point(
            megabatch=row["megabatch"],
            until_s=until_s,
            loss=row.get("loss", math.nan),
            metrics=scores(row),
            busy_percent=100.0 * mean_busy_s(row) / row["train_s"] if is_timed else math.nan,
            sent_mib=(row.get("merged_bytes", 0) + row.get("moved_bytes", 0)) / 2**20,
            workers={name: [of(w) for _, _, of in OF_WORKERS.values()] for name, w in workers},
        )
        self.points.append(point)
        if point.metrics:
            self.evaluated.append(point)
