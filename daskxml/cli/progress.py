"""What a run tells while it goes on: a live table on a terminal, else a line a mega-batch.

A run reports events, dictionaries with a ``kind``; those of other kinds are passed over.

===========  ====================================================================================
kind         keys
===========  ====================================================================================
started      ``workers`` (names), ``rows``, ``test_rows``, ``features``, ``labels``, ``parameters``,
             ``tested_on``: test, or validation where rows are held out; ``pools``: threads of
             those workers that are pools, by name; ``limits``: when it ends, see `daskxml.training`
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
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.live import Live

from daskxml.cli.picture import render, row_line
from daskxml.cli.seen import NOTES, Event, Seen

REFRESHES_PER_S = 4


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
        """Print what there is to tell of the event."""
        self.seen.apply(event)
        line = self._line(event)
        if line:
            print(line, flush=True)

    def _line(self, event: Event) -> str:
        match event.get("kind"):
            case "megabatch":
                return row_line(self.seen.row)
            case "started" if self.seen.dashboard:
                return f"{self.seen.notes[-1]}\ndashboard {self.seen.dashboard}"
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
