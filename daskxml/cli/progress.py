"""What a run tells while it goes on: a live table on a terminal, else a line a mega-batch.

A run reports events, dictionaries with a ``kind``; those of other kinds are passed over.

===========  ====================================================================================
kind         keys
===========  ====================================================================================
started      ``workers`` (names), ``rows``, ``test_rows``, ``features``, ``labels``, ``parameters``,
             ``tested_on``: test, or validation where rows are held out; ``pools``: threads of
             those workers that are pools, by name
status       ``state``: loading, training, merging, ...; ``megabatch``, ``rows`` (done so far)
megabatch    ``row``: one of ``history.jsonl``
worker       ``event``: joined or lost; ``worker``
memory       ``text``: what a worker needs, before it begins
warning      ``text``
rewound      ``megabatch`` that the run goes on after
ended        ``reason``
===========  ====================================================================================

Any event may have ``dashboard``, the address of Dask's.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

REFRESHES_PER_S = 4
MEASURED = ("training_loss", "metrics")  # parts of a history row that not every row has
_NOTES = 3  # of the latest, shown under the table

Event = Mapping[str, Any]

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
    """What the events so far have said."""

    title: str
    state: str = "starting"
    rows: int = 0
    dashboard: str = ""
    row: Event = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)  # by the last evaluation
    notes: list[str] = field(default_factory=list)

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
        elif kind == "megabatch":
            self.row = event["row"]
            found = {name: self.row.get(name) for name in MEASURED}
            self.measured |= {name: what for name, what in found.items() if what not in (None, {})}
        elif kind in NOTES:
            told = NOTES[kind].format_map({"tested_on": "test", **event})
            self.notes.append(told + _pools(event.get("pools", {})))
        elif kind == "ended":
            self.rows, self.state = 0, f"ended: {event.get('reason', '')}".rstrip(": ")


class Progress(Protocol):
    """Somebody who shows a run's events; a context that is left when the run ends."""

    seen: Seen

    def __enter__(self) -> Progress:
        """Start showing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop showing."""

    def __call__(self, event: Event) -> None:
        """Show an event; called from any thread."""


class PlainProgress:
    """A line for every mega-batch, change of state and change of workers."""

    def __init__(self, title: str) -> None:
        self.seen = Seen(title)
        self._told_states: set[str] = set()

    def __enter__(self) -> PlainProgress:
        """Start showing."""
        return self

    def __exit__(self, *error: object) -> None:
        """Stop showing."""

    def __call__(self, event: Event) -> None:
        """Print the event's line, if it has one."""
        self.seen.apply(event)
        line = self._line(event)
        if line:
            print(line, flush=True)

    def _line(self, event: Event) -> str:
        match event.get("kind"):
            case "megabatch":
                return row_line(self.seen.row)
            case kind if kind in NOTES:
                return self.seen.notes[-1]
            # Every mega-batch passes through several states: only those before the first are news.
            case "status" if self.seen.state not in self._told_states and not self.seen.row:
                self._told_states.add(self.seen.state)
                return self.seen.state
            case "ended" if event.get("reason") != "error":  # the error is told by itself
                return self.seen.state
        return ""


class LiveProgress:
    """A table that is drawn over and over on a terminal."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        self.seen = Seen(title)
        self._live = Live(
            console=console,
            get_renderable=lambda: render(self.seen),
            refresh_per_second=REFRESHES_PER_S,
        )

    def __enter__(self) -> LiveProgress:
        """Start drawing."""
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the last picture standing."""
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Take the event in; the next picture shows it."""
        self.seen.apply(event)


def make_progress(title: str) -> Progress:
    """Return the display that suits stdout."""
    return LiveProgress(title) if sys.stdout.isatty() else PlainProgress(title)


def rows_per_s(row: Event) -> float:
    """Return a mega-batch's rows over its time in training and merging.

    Examples
    --------
    >>> rows_per_s({"train_s": 1.5, "merge_s": 0.5, "workers": {"a": {"rows": 60}}})
    30.0
    """
    rows = sum(worker.get("rows", 0) for worker in row.get("workers", {}).values())
    spent_s = row.get("train_s", 0.0) + row.get("merge_s", 0.0)
    return rows / spent_s if spent_s > 0 else 0.0


def busy_share(worker: Event) -> float:
    """Return the share of its time that a worker computed, from 0 to 1."""
    spent_s = worker.get("busy_s", 0.0) + worker.get("idle_s", 0.0)
    return worker.get("busy_s", 0.0) / spent_s if spent_s > 0 else 0.0


def row_line(row: Event) -> str:
    """Return a mega-batch as one line.

    Examples
    --------
    >>> row_line({"megabatch": 2, "epoch": 0.5, "rows": 6400, "loss": 4.25,
    ...           "metrics": {"P@1": 0.5}, "workers": {}})
    'mega-batch 2  epoch 0.50  6,400 rows  0 rows/s  loss 4.2500  P@1 0.5000'
    """
    parts = [
        f"mega-batch {row.get('megabatch', 0)}",
        f"epoch {row.get('epoch', 0):.2f}",
        f"{row.get('rows', 0):,} rows",
        f"{rows_per_s(row):,.0f} rows/s",
        f"loss {row.get('loss', float('nan')):.4f}",
        *_measured(row),
    ]
    return "  ".join(parts)


def render(seen: Seen) -> Group:
    """Return the picture of a run."""
    row = seen.row
    done = f"  {seen.rows:,} rows" if seen.rows else ""
    parts: list[Any] = [Text.assemble((seen.title, "bold"), "  ", (seen.state, "cyan"), done)]
    if row:
        figures = row_line({**row, **seen.measured})
        parts += [Text(figures), _worker_table(row.get("workers", {}))]
    parts += [Text(note, style="yellow") for note in seen.notes[-_NOTES:]]
    if seen.dashboard:
        parts.append(Text(f"dashboard {seen.dashboard}", style="dim"))
    return Group(*parts)


def _measured(row: Event) -> list[str]:
    """Return what an evaluation has found, as short texts."""
    metrics = row.get("metrics", {}).items()
    loss = [f"training loss {row['training_loss']:.4f}"] if "training_loss" in row else []
    return loss + [f"{name} {value:.4f}" for name, value in metrics if name.startswith("P@")]


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


def _worker_table(workers: Mapping[str, Event]) -> Table:
    table = Table(box=None, pad_edge=False)
    for header in ("worker", "batch rows", "updates", "rows", "rate", "weight", "busy"):
        table.add_column(header, justify="left" if header == "worker" else "right")
    for name, worker in workers.items():
        table.add_row(
            worker_title(str(name), worker.get("pool_threads", 0)),
            f"{worker.get('batch_rows', 0):,}",
            f"{worker.get('updates', 0):,}",
            f"{worker.get('rows', 0):,}",
            f"{worker.get('lr', 0.0):.3g}",
            f"{worker.get('weight', 0.0):.3f}",
            f"{busy_share(worker):.0%}",
        )
    return table
