"""The events of a run in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Event = Mapping[str, Any]


def in_words(event: Event) -> Iterator[str]:
    """Yield what an event of a run's journal means to a reader; mostly one line or none.

    Parameters
    ----------
    event
        See `daskxml.runtime.journal`.

    Examples
    --------
    >>> list(in_words({"kind": "worker", "event": "lost", "worker": "1"}))
    ['worker 1 was lost']
    """
    match event["kind"]:
        case "started":
            yield _started(event)
        case "worker":
            yield f"worker {event['worker']} {'was lost' if _is_loss(event) else 'joined'}"
        case "megabatch":
            yield from _returned(event["row"])
        case "rewound":
            yield f"the run goes on after mega-batch {event['megabatch']}, from its checkpoint"
        case "warning":
            yield str(event["text"])
        case "ended":
            yield ended_in_words(event)


def ended_in_words(event: Event) -> str:
    """Say why a run is over.

    Examples
    --------
    >>> ended_in_words({"reason": "epochs"})
    'ended: epochs'
    >>> ended_in_words({"reason": "error", "error": {"type": "", "args": ["no worker"]}})
    'failed: no worker'
    """
    if event["reason"] != "error":
        return f"ended: {event['reason']}"
    told = [str(part) for part in event["error"]["args"] if part is not None]
    return f"failed: {': '.join(told)}"


def _started(event: Event) -> str:
    workers = len(event["workers"])
    return f"training begins with {workers} worker{'s' * (workers != 1)}"


def _is_loss(event: Event) -> bool:
    return bool(event["event"] == "lost")


def _returned(row: Event) -> Iterator[str]:
    """Tell of rows that a lost worker had, and that others did again."""
    for event in row["events"]:
        if event.get("rows_returned"):
            yield (
                f"{event['rows_returned']:,} rows of worker {event['worker']} were leased again, "
                f"in mega-batch {row['megabatch']}"
            )
