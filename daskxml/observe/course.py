"""The course of a run: what charts show of its mega-batches, all of them or in bounded memory.

A row becomes a `Point`, whether it comes with an event of a run under way or from a stored history.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from daskxml.observe.run_view import (
    Event,
    History,
    Row,
    RunView,
    Worker,
    busy_share,
    computed_rows_per_s,
    elapsed,
    mean_busy_s,
    scores,
)

POINTS, WORKERS = 300, 64  # that are kept of a run under way, and workers of each point


def _key(name: str) -> Callable[[Worker], float | None]:
    return lambda worker: worker.get(name)


def _busy_percent(worker: Worker) -> float | None:
    share = busy_share(worker)
    return None if share is None else 100.0 * share


# What charts show of each worker: name, title, unit, and function of the worker's entry in a row.
OF_WORKERS: dict[str, tuple[str, str, Callable[[Worker], float | None]]] = {
    "batch_rows": ("Batch size", "rows of a batch", _key("batch_rows")),
    "updates": ("Updates", "steps in the mega-batch", _key("updates")),
    "lr": ("Learning rate", "before the schedule", _key("lr")),
    "rows_per_s": ("Throughput", "rows a second while computing", computed_rows_per_s),
    "busy": ("Busy in training", "% of the training time", _busy_percent),
    "weight": ("Merge weight", "share of the merged model", _key("weight")),
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
    perturbed
        Whether the merge perturbed its weights.
    workers, values
        Names, and ``(workers, len(OF_WORKERS))`` float64, NaN where a row has none.
    """

    megabatch: int
    until_s: float
    loss: float
    metrics: Mapping[str, float]
    busy_percent: float
    sent_mib: float
    perturbed: bool
    workers: tuple[str, ...]
    values: NDArray[np.float64]


T = TypeVar("T")


class Thinned(Generic[T]):
    """A series of any length in bounded memory: when it grows too long, every second point goes.

    Iterating yields the points whose number, counted from 0, is a multiple of `stride`, a power of
    two, and then the last one of all if that is none of them.

    Parameters
    ----------
    bound
        Of the points kept, at least 2; the last one is kept besides.

    Examples
    --------
    >>> series = Thinned(4)
    >>> for number in range(11):
    ...     series.append(number)
    >>> list(series), series.stride
    ([0, 4, 8, 10], 4)
    """

    def __init__(self, bound: float) -> None:
        self.bound, self.stride, self.count = max(2, bound), 1, 0
        self._kept: list[tuple[int, T]] = []  # with their numbers
        self._last: tuple[int, T] | None = None

    def append(self, point: T) -> None:
        """Add a point at the end."""
        self._last = self.count, point
        if self.count % self.stride == 0:
            self._kept.append(self._last)
        self.count += 1
        if len(self._kept) > self.bound:
            self.stride *= 2
            self._kept = [kept for kept in self._kept if kept[0] % self.stride == 0]

    def drop(self, is_dropped: Callable[[T], bool]) -> None:
        """Drop points at the end; the next are numbered on from the last that is kept."""
        kept = [kept for kept in self._all() if not is_dropped(kept[1])]
        self._last = kept[-1] if kept else None
        self.count = kept[-1][0] + 1 if kept else 0
        self._kept = [kept for kept in kept if kept[0] % self.stride == 0]

    def _all(self) -> list[tuple[int, T]]:
        if self._last is None or (self._kept and self._kept[-1] is self._last):
            return self._kept
        return [*self._kept, self._last]

    def __iter__(self) -> Iterator[T]:
        return (point for _, point in self._all())

    def __len__(self) -> int:
        return len(self._all())


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
        self.points: Thinned[Point] = Thinned(bound)
        self.evaluated: Thinned[Point] = Thinned(bound)
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
            for series in (self.points, self.evaluated):
                series.drop(lambda point: point.megabatch > event["megabatch"])

    def _add(self, row: Row, until_s: float) -> None:
        workers = dict(list(row["workers"].items())[: self._most_workers])
        values = [[value(worker) for _, _, value in OF_WORKERS.values()]
                  for worker in workers.values()]  # fmt: skip
        is_timed = row.get("train_s") and row["workers"]
        point = Point(
            megabatch=row["megabatch"],
            until_s=until_s,
            loss=row.get("loss", math.nan),
            metrics=scores(row),
            busy_percent=100.0 * mean_busy_s(row) / row["train_s"] if is_timed else math.nan,
            sent_mib=(row.get("merged_bytes", 0) + row.get("moved_bytes", 0)) / 2**20,
            perturbed=bool(row.get("perturbed")),
            workers=tuple(workers),
            values=np.array(values, dtype=np.float64).reshape(len(workers), len(OF_WORKERS)),
        )
        self.points.append(point)
        if point.metrics:
            self.evaluated.append(point)
