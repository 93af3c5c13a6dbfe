"""What the dashboard remembers of one run: its whole story, in bounded memory.

A record reads the run's journal at its own pace and keeps what there is to show: thinned series
of mega-batches, evaluations and memory, the latest events in words, the last row. It outlives the
run, which frees everything else when it is forgotten.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskxml.config import RunConfig
from daskxml.dashboard.thinning import Thinned
from daskxml.dashboard.words import ended_in_words, in_words
from daskxml.runtime.activity import Activity
from daskxml.runtime.journal import Journal

POINTS = 300  # of each series, for all workers together a row is one point
WORDS = 200
WORKERS = 64  # of a row whose figures are kept
LOST = 1000  # workers that are gone, by name
FIGURES = ("batch_rows", "updates", "lr", "rows_per_s", "busy_share", "weight")


class Line(NamedTuple):
    """An event in words, and when it happened (seconds since the epoch)."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Megabatch:
    """One mega-batch as it is shown.

    Attributes
    ----------
    megabatch, wall_s, loss, perturbed, sent_bytes
        As in the history; bytes of merge and training together.
    workers
        Names.
    figures
        ``(workers, len(FIGURES))`` float32.
    """

    megabatch: int
    wall_s: float
    loss: float
    perturbed: bool
    sent_bytes: int
    workers: tuple[str, ...]
    figures: NDArray[np.float32]


class Score(NamedTuple):
    """An evaluation: after which mega-batch, when (``wall_s``), and what it found."""

    megabatch: int
    wall_s: float
    metrics: Mapping[str, float]


class Memory(NamedTuple):
    """Memory and traffic of some workers at one moment.

    ``host_bytes`` and ``device_bytes`` are in use, NaN where unknown; ``sent_bytes`` counts from
    the start of the run. Each is ``(workers,)`` float64.
    """

    at_s: float
    workers: tuple[str, ...]
    host_bytes: NDArray[np.float64]
    device_bytes: NDArray[np.float64]
    sent_bytes: NDArray[np.float64]


class Record:
    """One run.

    Parameters
    ----------
    run
        Its name.
    config
        Its run file.
    journal, activity
        What it tells and does; the former is let go of at the end.
    """

    def __init__(self, run: str, config: RunConfig, journal: Journal, activity: Activity) -> None:
        self.run, self.config, self.activity = run, config, activity
        self.began_s = time.time()
        self.ended_s: float | None = None
        self.ending = ""  # in words
        self.started: Mapping[str, Any] = {}
        self.status: Mapping[str, Any] = journal.status
        self.row: Mapping[str, Any] = {}  # the last one
        self.row_at_s = self.began_s
        self.megabatches: Thinned[Megabatch] = Thinned(POINTS)
        self.scores: Thinned[Score] = Thinned(POINTS)
        self.memory: Thinned[Memory] = Thinned(POINTS)
        self.best: dict[str, tuple[float, int]] = {}  # metric to its best value and mega-batch
        self.totals = dict.fromkeys(("train_s", "merge_s", "eval_s", "merged_bytes"), 0.0)
        self.totals |= {"moved_bytes": 0.0, "losses": 0.0, "arrivals": 0.0}
        self.words: deque[Line] = deque(maxlen=WORDS)
        self.lost: dict[str, None] = {}  # workers that are gone
        self.version = 0  # changes with everything that is shown, but for activity and memory
        self._journal: Journal | None = journal
        self._read = 0

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.ended_s is not None

    def update(self) -> None:
        """Read what is new in the journal."""
        if self._journal is None:
            return
        for event in self._journal.events[self._read :]:
            self._read += 1
            self._take(event)
        self.status = self._journal.status
        if self.is_over:
            self._journal = None

    def give_up(self) -> None:
        """Close the record of a run that ended without a word."""
        self.update()
        if not self.is_over:
            self._take({"kind": "ended", "at_s": time.time(), "reason": "given up"})
            self._journal = None

    def sample(self, memory: Memory) -> None:
        """Add what the workers use at this moment."""
        self.memory.append(memory)

    def _take(self, event: Mapping[str, Any]) -> None:
        self.version += 1
        self.words.extend(Line(event["at_s"], text) for text in in_words(event))
        match event["kind"]:
            case "started":
                self.started = event
            case "megabatch":
                self._take_row(event["row"], event["at_s"])
            case "worker":
                self._take_worker(event["worker"], is_lost=event["event"] == "lost")
            case "rewound":
                self._rewind(event["megabatch"])
            case "ended":
                self.ended_s, self.ending = event["at_s"], ended_in_words(event)

    def _take_row(self, row: Mapping[str, Any], at_s: float) -> None:
        self.row, self.row_at_s = row, at_s
        self.megabatches.append(shown(row))
        if row["metrics"]:
            found = {name: value for name, value in row["metrics"].items() if "@" in name}
            self.scores.append(Score(row["megabatch"], row["wall_s"], found))
            for name, value in found.items():
                if value > self.best.get(name, (-1.0, 0))[0]:
                    self.best[name] = value, row["megabatch"]
        for name in ("train_s", "merge_s", "eval_s", "merged_bytes", "moved_bytes"):
            self.totals[name] += row[name]

    def _take_worker(self, worker: str, *, is_lost: bool) -> None:
        self.totals["losses" if is_lost else "arrivals"] += 1
        self.lost.pop(worker, None)
        if is_lost:
            self.lost[worker] = None
            while len(self.lost) > LOST:
                del self.lost[next(iter(self.lost))]

    def _rewind(self, megabatch: int) -> None:
        """Forget mega-batches that are undone."""
        self.megabatches.drop(lambda point: point.megabatch > megabatch)
        self.scores.drop(lambda score: score.megabatch > megabatch)
        self.best = {n: best for n, best in self.best.items() if best[1] <= megabatch}


def shown(row: Mapping[str, Any]) -> Megabatch:
    """Return what is shown of a row of the history."""
    workers = dict(list(row["workers"].items())[:WORKERS])
    figures = [_figures(worker) for worker in workers.values()]
    return Megabatch(
        megabatch=row["megabatch"],
        wall_s=row["wall_s"],
        loss=row["loss"],
        perturbed=row["perturbed"],
        sent_bytes=row["merged_bytes"] + row["moved_bytes"],
        workers=tuple(workers),
        figures=np.array(figures, dtype=np.float32).reshape(len(workers), len(FIGURES)),
    )


def _figures(worker: Mapping[str, Any]) -> tuple[float, ...]:
    """Return a worker's values of ``FIGURES``."""
    spent_s = worker["busy_s"] + worker["idle_s"]
    return (
        worker["batch_rows"],
        worker["updates"],
        worker["lr"],
        worker["rows"] / spent_s if spent_s else 0.0,
        worker["busy_s"] / spent_s if spent_s else 0.0,
        worker["weight"],
    )
