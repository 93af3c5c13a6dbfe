"""What the dashboard keeps of one run: its whole course, in bounded memory.

A `RunSeries` reads the run's event log at its own pace into a `RunView`, thinned series of
mega-batches, evaluations and memory, and the latest events as text. It outlives the run, whose
other memory is freed when the run is forgotten.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from daskxml.cluster.event_log import EventLog
from daskxml.cluster.timeline import Timeline
from daskxml.config import RunConfig
from daskxml.observe.run_view import (
    Event,
    Row,
    RunView,
    Worker,
    busy_share,
    scores,
    trained_rows_per_s,
)
from daskxml.observe.wording import ending, event_lines
from daskxml.session.stopping import limits_of

POINTS = 300  # of each series; a row is one point, whatever the number of workers
LINES = 200  # of text
WORKERS = 64  # of a row whose values are kept
WORKER_VALUES: dict[str, Callable[[Worker], float]] = {
    "batch_rows": itemgetter("batch_rows"),
    "updates": itemgetter("updates"),
    "lr": itemgetter("lr"),
    "rows_per_s": lambda worker: trained_rows_per_s(worker) or 0.0,
    "busy_share": lambda worker: busy_share(worker) or 0.0,
    "weight": itemgetter("weight"),
}

Point = TypeVar("Point")


class Thinned(Generic[Point]):
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

    def __init__(self, bound: int) -> None:
        self.bound, self.stride, self.count = max(2, bound), 1, 0
        self._kept: list[tuple[int, Point]] = []  # with their numbers
        self._last: tuple[int, Point] | None = None

    def append(self, point: Point) -> None:
        """Add a point at the end."""
        self._last = self.count, point
        if self.count % self.stride == 0:
            self._kept.append(self._last)
        self.count += 1
        if len(self._kept) > self.bound:
            self.stride *= 2
            self._kept = [kept for kept in self._kept if kept[0] % self.stride == 0]

    def drop(self, is_dropped: Callable[[Point], bool]) -> None:
        """Drop points at the end; the next are numbered on from the last that is kept."""
        kept = [kept for kept in self._all() if not is_dropped(kept[1])]
        self._last = kept[-1] if kept else None
        self.count = kept[-1][0] + 1 if kept else 0
        self._kept = [kept for kept in kept if kept[0] % self.stride == 0]

    def _all(self) -> list[tuple[int, Point]]:
        if self._last is None or (self._kept and self._kept[-1] is self._last):
            return self._kept
        return [*self._kept, self._last]

    def __iter__(self) -> Iterator[Point]:
        return (point for _, point in self._all())

    def __len__(self) -> int:
        return len(self._all())


@dataclass(frozen=True, slots=True, eq=False)
class Megabatch:
    """The part of a history's row that is drawn.

    Attributes
    ----------
    megabatch, wall_s, loss, perturbed, sent_bytes
        As in the history; bytes of merge and training together.
    workers
        Names.
    values
        ``(workers, len(WORKER_VALUES))`` float32.
    """

    megabatch: int
    wall_s: float
    loss: float
    perturbed: bool
    sent_bytes: int
    workers: tuple[str, ...]
    values: NDArray[np.float32]


class Evaluation(NamedTuple):
    """The metrics after a mega-batch."""

    megabatch: int
    wall_s: float
    metrics: Mapping[str, float]


class MemorySample(NamedTuple):
    """Memory and traffic of some workers at one moment.

    ``host_bytes`` and ``device_bytes`` are in use, NaN where unknown; ``sent_bytes`` counts from
    the start of the run. Each is ``(workers,)`` float64.
    """

    at_s: float
    workers: tuple[str, ...]
    host_bytes: NDArray[np.float64]
    device_bytes: NDArray[np.float64]
    sent_bytes: NDArray[np.float64]


class RunSeries:
    """One run.

    Parameters
    ----------
    run, config
        Its name and its run file.
    log, timeline
        Its events, released when it ends, and the work of its workers.
    out
        Its directory, as the workers see it; "" if it has none.
    stop
        Ends it at the next merge; None where its page may not.

    Attributes
    ----------
    view
        The state of the run.
    lines
        The latest events: when (seconds since the epoch), and a line of text.
    version
        Changes with everything that is shown, except for work and memory.
    """

    def __init__(
        self,
        run: str,
        config: RunConfig,
        log: EventLog,
        timeline: Timeline,
        out: str = "",
        stop: Callable[[], None] | None = None,
    ) -> None:
        self.run, self.config, self.timeline = run, config, timeline
        self.out, self.stop = out, stop
        self.begun_s = time.time()
        self.view = RunView(limits=limits_of(config))
        self.megabatches: Thinned[Megabatch] = Thinned(POINTS)
        self.evaluations: Thinned[Evaluation] = Thinned(POINTS)
        self.memory: Thinned[MemorySample] = Thinned(POINTS)
        self.lines: deque[tuple[float, str]] = deque(maxlen=LINES)
        self.version = 0
        self._log: EventLog | None = log
        self._read = 0

    @property
    def title(self) -> str:
        """The run's name in its run file, or that of its algorithm."""
        return self.config.run.name or self.config.algorithm

    @property
    def state(self) -> str:
        """What the run does now, or how it ended."""
        return ending(self.view.ended) if self.view.ended else self.view.state

    def now_s(self) -> float:
        """Return the time up to which the run is shown: now, or when it ended."""
        return float(self.view.ended["at_s"]) if self.view.ended else time.time()

    def left_s(self, now_s: float) -> float | None:
        """Return the seconds left at a moment (since the epoch); None where unknown."""
        if self.view.is_over or not self.view.row:
            return None
        return self.view.left_s(max(0.0, now_s - self.view.row_at_s))

    def update(self) -> None:
        """Read the new events of the log."""
        if self._log is None:
            return
        for event in self._log.events[self._read :]:
            self._read += 1
            self._apply(event)
        self.view.apply(self._log.status)
        if self.view.is_over:
            self._log = None

    def give_up(self) -> None:
        """End the series of a run that is gone without an ``ended`` event."""
        self.update()
        if not self.view.is_over:
            self._apply({"kind": "ended", "at_s": time.time(), "reason": "given up"})
            self._log = None

    def _apply(self, event: Event) -> None:
        self.version += 1
        self.lines.extend((event["at_s"], line) for line in event_lines(event))
        self.view.apply(event)
        if event["kind"] == "megabatch":
            row = event["row"]
            self.megabatches.append(_megabatch(row))
            if found := scores(row):
                self.evaluations.append(Evaluation(row["megabatch"], row["wall_s"], found))
        elif event["kind"] == "rewound":
            done = event["megabatch"]
            self.megabatches.drop(lambda point: point.megabatch > done)
            self.evaluations.drop(lambda point: point.megabatch > done)


def _megabatch(row: Row) -> Megabatch:
    workers = dict(list(row["workers"].items())[:WORKERS])
    values = [[value(worker) for value in WORKER_VALUES.values()] for worker in workers.values()]
    return Megabatch(
        megabatch=row["megabatch"],
        wall_s=row["wall_s"],
        loss=row.get("loss", float("nan")),
        perturbed=row["perturbed"],
        sent_bytes=row["merged_bytes"] + row["moved_bytes"],
        workers=tuple(workers),
        values=np.array(values, dtype=np.float32).reshape(len(workers), len(WORKER_VALUES)),
    )
