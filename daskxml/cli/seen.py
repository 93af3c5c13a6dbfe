"""What a run's events so far have said; see `daskxml.cli.progress` for the events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Event = Mapping[str, Any]
MEASURED = ("training_loss", "metrics")  # parts of a history row that not every row has
LOST, JOINED = "lost", "joined"

# Events that are a line of text.
NOTES = {
    "started": (
        "{rows:,} rows and {test_rows:,} {tested_on} rows, {features:,} features, "
        "{labels:,} labels, {parameters:,} parameters"
    ),
    "worker": "worker {worker} {event}",
    "memory": "{text}",
    "warning": "{text}",
    "rewound": "going on after mega-batch {megabatch}",
}


@dataclass
class Seen:
    """What the events so far have said.

    Attributes
    ----------
    state
        Of the run, in words.
    rows, epoch
        Done so far, in the mega-batch under way too.
    row
        The last of the history.
    measured
        What the last evaluation found.
    best
        The best value so far of the metric that the run aims at, and its mega-batch.
    spent_s
        Training and merging, of the mega-batches that were seen.
    limits
        When the run ends, as `daskxml.config` has it.
    workers
        By name, what sets a worker apart from the others: that it was lost, or has just joined.
        Replaced and never changed, because a display reads it from another thread.
    """

    title: str
    state: str = "starting"
    rows: int = 0
    epoch: float = 0.0
    dashboard: str = ""
    row: Event = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)
    best: tuple[float, int] | None = None
    spent_s: float = 0.0
    limits: Event = field(default_factory=dict)
    workers: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def metric(self) -> str:
        """The metric that the run aims at."""
        return str(self.limits.get("target_metric", "P@1"))

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.state.startswith("ended")

    def apply(self, event: Event) -> None:
        """Take one event in.

        Examples
        --------
        >>> seen = Seen("demo")
        >>> seen.apply({"kind": "status", "state": "loading"})
        >>> seen.state
        'loading'
        """
        self.dashboard = event.get("dashboard") or self.dashboard
        kind = event.get("kind")
        if kind == "status":
            self.state, self.rows = event.get("state", self.state), event.get("rows", self.rows)
            self.epoch = event.get("epoch", self.epoch)
        elif kind == "megabatch":
            self._megabatch(event["row"])
        elif kind == "started":
            self.limits = event.get("limits", {})
            self.workers = dict.fromkeys(map(str, event.get("workers", [])), "")
        elif kind == "worker":
            self.workers = {**self.workers, str(event["worker"]): event["event"]}
        elif kind == "ended":
            self.rows, self.state = 0, f"ended: {event.get('reason', '')}".rstrip(": ")
        if kind in NOTES:
            told = NOTES[kind].format_map({"tested_on": "test", **event})
            self.notes.append(told + _pools(event.get("pools", {})))

    def _megabatch(self, row: Event) -> None:
        self.row = row
        found = {name: row.get(name) for name in MEASURED}
        self.measured |= {name: what for name, what in found.items() if what not in (None, {})}
        value = row.get("metrics", {}).get(self.metric)
        if value is not None and (self.best is None or value > self.best[0]):
            self.best = value, row.get("megabatch", 0)
        self.spent_s += row.get("train_s", 0.0) + row.get("merge_s", 0.0)
        self.epoch = max(self.epoch, row.get("epoch", 0.0))
        there = dict.fromkeys(map(str, row.get("workers", {})), "")
        news = {name: what for name, what in self.workers.items() if what and name not in there}
        self.workers = there | news

    def share_done(self) -> float | None:
        """Return how much of the run is done, from 0 to 1; None where only a target ends it.

        Examples
        --------
        >>> seen = Seen("demo", epoch=1.0, limits={"epochs": 4.0, "megabatches": 0})
        >>> seen.share_done()
        0.25
        """
        limits = self.limits
        shares = [
            done / limits[name]
            for name, done in (
                ("epochs", self.epoch),
                ("megabatches", self.row.get("megabatch", 0)),
                ("minutes", self.spent_s / 60.0),
            )
            if limits.get(name)
        ]
        return min(1.0, max(shares)) if shares else None

    def left_s(self) -> float | None:
        """Return the seconds that the rest will take at the pace so far, with evaluation."""
        share, wall_s = self.share_done(), self.row.get("wall_s", 0.0)
        return wall_s * (1.0 - share) / share if share and wall_s else None


def _pools(pools: Mapping[str, int]) -> str:
    named = ", ".join(worker_title(name, threads) for name, threads in pools.items())
    return f"; pools: {named}" if pools else ""


def worker_title(name: str, pool_threads: int) -> str:
    """Return what a worker is called in the display.

    Examples
    --------
    >>> worker_title("0", 0), worker_title("pool-0", 4)
    ('0', 'pool-0 (4 threads)')
    """
    threads = f" ({pool_threads} thread{'s' * (pool_threads > 1)})"
    return name + threads * (pool_threads > 0)
