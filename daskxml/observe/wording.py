"""The texts that are shown of a run: numbers, durations, workers and events."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from daskxml.core.text import counted
from daskxml.core.work_stats import DONE
from daskxml.observe.run_view import JOINED, LOST, Event, Row, RunView, ending


def duration(seconds: float) -> str:
    """Return a span of time in its two largest units.

    Examples
    --------
    >>> duration(7.6), duration(125), duration(7325), duration(200_000)
    ('8 s', '2 min 5 s', '2 h 2 min', '2 d 7 h')
    """
    whole = max(0, round(seconds))
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    for (name, size), (smaller, part) in itertools.pairwise(units):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def exact(value: float) -> str:
    """Return a number with all its digits, grouped by thousands.

    Examples
    --------
    >>> [exact(v) for v in (0.0, 0.25, 1500.0, 2e6, 1e-5)]
    ['0', '0.25', '1,500', '2,000,000', '1e-05']
    """
    if value and not 1e-4 <= abs(value) < 1e9:
        return f"{value:g}"
    return f"{value:,.10g}" if value % 1 else f"{value:,.0f}"


def rounded(value: float, digits: int = 4) -> str:
    """Return a number with so many significant digits, and all of those before the point.

    Examples
    --------
    >>> rounded(1234567), rounded(0.123456), rounded(12345.6)
    ('1,234,567', '0.1235', '12,346')
    """
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return exact(float(f"{value:.{digits}g}"))


def worker_label(name: str, pool_threads: int) -> str:
    """Return a worker's name, with its threads if it is a pool.

    Examples
    --------
    >>> worker_label("0", 0), worker_label("pool-0", 4)
    ('0', 'pool-0 (4 threads)')
    """
    return f"{name} ({counted(pool_threads, 'thread')})" if pool_threads else name


def dotted(config: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return settings by ``section.key``.

    Examples
    --------
    >>> dotted({"run": {"seed": 3}, "model": {"hidden": [8]}})
    {'run.seed': 3, 'model.hidden': [8]}
    """
    return {f"{name}.{key}": table[key] for name, table in config.items() for key in table}


def limit_label(view: RunView) -> str:
    """Return how far a run has come towards its nearest limit.

    Examples
    --------
    >>> limit_label(RunView(limits={"epochs": 4}, epoch=1.0))
    'epoch 1.00 of 4'
    >>> [limit_label(RunView(limits={"trees": 4}, epoch=trees)) for trees in (1.3, 4.0)]
    ['tree 2 of 4', 'tree 4 of 4']
    """
    shares, limits = view.limit_shares(), view.limits
    match max(shares, key=lambda name: shares[name], default=""):
        case "epochs":
            return f"epoch {view.epoch:.2f} of {limits['epochs']:g}"
        case "trees":
            return f"tree {min(int(view.epoch) + 1, limits['trees'])} of {limits['trees']}"
        case "megabatches":
            return f"mega-batch {view.megabatch:,} of {limits['megabatches']:,}"
        case "minutes":
            return f"minute {view.spent_s / 60:.1f} of {limits['minutes']:g}"
    return f"epoch {view.epoch:.2f}, until {view.metric} is {limits['target']:g}"


# --------------------------------------------------------------------------------- events


def stage_line(stage: Mapping[str, Any]) -> str:
    """Return the line of a stage, from the fields of its record.

    Examples
    --------
    >>> stage_line({"name": "read", "outcome": "done", "rows": 1500, "nbytes": 3 << 20,
    ...             "seconds": 0.52})
    'read: 1,500 rows, 3 MiB, 0.5 s'
    >>> stage_line({"name": "read", "outcome": "shared", "rows": 1500, "nbytes": 3 << 20})
    'read: 1,500 rows, 3 MiB, shared'
    """
    name, outcome = stage["name"], stage.get("outcome", DONE)
    size = f"{stage['rows']:,} rows, {rounded(stage['nbytes'] / 2**20, 2)} MiB"
    took = f"{stage.get('seconds', 0.0):.1f} s" if outcome == DONE else outcome
    return f"{name}: {', '.join([size] * (stage['rows'] > 0) + [took])}"


def event_lines(event: Event) -> list[str]:
    """Return the lines that say what an event does, mostly one or none.

    Examples
    --------
    >>> event_lines({"kind": "worker", "event": "lost", "worker": "1"})
    ['worker 1 lost']
    """
    match event.get("kind"):
        case "started":
            return [_sizes(event)]
        case "worker":
            return [f"worker {event['worker']} {event['event']}"]
        case "megabatch":
            row = event["row"]
            return [history_event(row, each) for each in row["events"] if not _is_told(each)]
        case "stages":
            return list(map(stage_line, event["stages"]))
        case "rewound":
            return [f"going on after mega-batch {event['megabatch']}"]
        case "memory" | "compiling" | "warning":
            return [event["text"]]
        case "ended":
            return [ending(event)]
    return []


def _sizes(event: Event) -> str:
    tests = f"{event['test_rows']:,} {event.get('tested_on', 'test')} rows"
    columns = ("features", "labels", "parameters")  # trees have no parameters before the run
    sizes = [f"{event[name]:,} {name}" for name in columns if event[name]]
    text = ", ".join([f"{event['rows']:,} rows and {tests}", *sizes])
    pools = [worker_label(name, threads) for name, threads in event.get("pools", {}).items()]
    return text + (f"; pools: {', '.join(pools)}" if pools else "")


def _is_told(event: Event) -> bool:
    """Whether an event of a row came before the row, and there is nothing to add."""
    return event["kind"] in (LOST, JOINED) and not event.get("rows_returned")


def history_event(row: Row, event: Event) -> str:
    """Return the line that says what an event of a history's row is.

    Examples
    --------
    >>> history_event({"megabatch": 3}, {"kind": "lost", "worker": "1", "after_s": 2.5,
    ...                                  "rows_returned": 640})
    'mega-batch 3, after 2.5 s: worker 1 lost, 640 rows given to others'
    >>> history_event({"megabatch": 3}, {"kind": "late", "worker": "1", "after_s": -2.5})
    'mega-batch 3, 2.5 s before it: worker 1 late'
    """
    when = f"{'tree' if 'pieces' in row else 'mega-batch'} {row['megabatch']}"
    if after_s := event.get("after_s", 0.0):
        seconds = f"{rounded(abs(after_s))} s"
        when += f", after {seconds}" if after_s > 0.0 else f", {seconds} before it"
    text = f"worker {event.get('worker', '?')} {event.get('kind', '')}"
    if event.get("rows_returned"):
        text += f", {event['rows_returned']:,} rows given to others"
    known = ("kind", "worker", "after_s", "rows_returned")
    others = [f"{key} {value}" for key, value in event.items() if key not in known]
    return ", ".join([f"{when}: {text}", *others])
