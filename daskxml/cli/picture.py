"""A run as a terminal shows it: a line for a mega-batch, or a picture with a table of workers."""

from __future__ import annotations

import itertools
from typing import Any

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from daskxml.cli.seen import JOINED, LOST, Event, Seen, worker_title

_NOTES = 3  # of the latest, shown under the table
_WORKERS = 20  # shown; a table that is higher than the terminal shows nothing of its end
_BAR_CHARACTERS, _STATE_CHARACTERS = 30, 10  # so that columns stay where they are
_STYLES = {LOST: "red", JOINED: "green"}


def render(seen: Seen) -> Group:
    """Return the picture of a run."""
    parts: list[Any] = [_headline(seen)]
    if seen.row:
        parts.append(Text(row_line({**seen.row, **seen.measured}) + _best(seen)))
    if seen.workers:
        parts.append(_worker_table(seen))
    parts += [Text(note, style="yellow") for note in seen.notes[-_NOTES:]]
    if seen.dashboard and not seen.is_over:  # a local cluster ends with its run
        parts.append(Text(f"dashboard {seen.dashboard}", style="dim"))
    return Group(*parts)


def _headline(seen: Seen) -> Table:
    """Return title, state, and how much is done."""
    line = Table.grid(padding=(0, 2))
    rows = f"{seen.rows:,} rows" if seen.rows else ""
    cells: list[Any] = [Text(seen.title, "bold"), Text(seen.state, "cyan"), rows]
    share, left_s = seen.share_done(), seen.left_s()
    if share is not None and not seen.is_over:
        bar = ProgressBar(total=1.0, completed=share, width=_BAR_CHARACTERS)
        left = f"{share:.0%}" if left_s is None else f"{share:.0%}, {spell_time(left_s)} left"
        cells += [bar, left]
    line.add_row(*(cell for cell in cells if cell != ""))
    return line


def _best(seen: Seen) -> str:
    if seen.best is None or seen.best[1] == seen.row.get("megabatch"):
        return ""
    value, megabatch = seen.best
    return f"  (best {seen.metric} {value:.4f} at {megabatch})"


def spell_time(seconds: float) -> str:
    """Return a span of time in its two largest units.

    Examples
    --------
    >>> spell_time(7.6), spell_time(125), spell_time(7325), spell_time(200_000)
    ('8 s', '2 min 5 s', '2 h 2 min', '2 d 7 h')
    """
    whole = round(seconds)
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    for (name, size), (smaller, part) in itertools.pairwise(units):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


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


def _measured(row: Event) -> list[str]:
    """Return what an evaluation has found, as short texts."""
    metrics = row.get("metrics", {}).items()
    loss = [f"training loss {row['training_loss']:.4f}"] if "training_loss" in row else []
    return loss + [f"{name} {value:.4f}" for name, value in metrics if name.startswith("P@")]


def _worker_table(seen: Seen) -> Table:
    """Return a line for every worker: of the last mega-batch, and those that came or went since."""
    table = Table(box=None, pad_edge=False)
    table.add_column("worker")
    table.add_column("state", min_width=_STATE_CHARACTERS)
    for header in ("batch rows", "rows/s", "busy", "updates", "rows", "rate", "weight"):
        table.add_column(header, justify="right")
    told = seen.row.get("workers", {})
    names = [*told, *(name for name in seen.workers if name not in told)]
    for name in names[:_WORKERS]:
        worker, news = told.get(name, {}), seen.workers.get(str(name), "")
        state = Text(news, _STYLES.get(news, "")) if news else Text(_state(seen))
        title = worker_title(str(name), worker.get("pool_threads", 0))
        table.add_row(title, state, *_cells(worker))
    if len(names) > _WORKERS:
        table.add_row(f"and {len(names) - _WORKERS} more")
    return table


def _state(seen: Seen) -> str:
    return "" if seen.is_over else seen.state


def _cells(worker: Event) -> tuple[str, ...]:
    """Return a worker's figures of the last mega-batch; none if it had no part in it."""
    if not worker:
        return ()
    busy_s = worker.get("busy_s", 0.0)
    return (
        f"{worker.get('batch_rows', 0):,}",
        f"{worker.get('rows', 0) / busy_s:,.0f}" if busy_s > 0 else "",
        f"{busy_share(worker):.0%}",
        f"{worker.get('updates', 0):,}",
        f"{worker.get('rows', 0):,}",
        f"{worker.get('lr', 0.0):.3g}",
        f"{worker.get('weight', 0.0):.3f}",
    )
