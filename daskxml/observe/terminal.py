"""A run on a terminal: its progress, live or line by line, and the tables when it is over."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from daskxml.core.text import cleaned, printable
from daskxml.observe import run_view
from daskxml.observe.wording import duration, event_lines, worker_label

REFRESHES_PER_S = 4
_NOTES = 3  # of the latest, shown under the table
_WORKERS = 20  # shown; the end of a table that is higher than the terminal would not be seen
_BAR_CHARACTERS, _STATE_CHARACTERS = 30, 10  # so that columns stay where they are
_STYLES = {run_view.LOST: "red", run_view.JOINED: "green"}
# Of a worker, in the last mega-batch.
_COLUMNS: dict[str, Callable[[run_view.Worker], str]] = {
    "batch rows": lambda worker: f"{worker.get('batch_rows', 0):,}",
    "rows/s": lambda worker: (
        "" if (n := run_view.computed_rows_per_s(worker)) is None else f"{n:,.0f}"
    ),
    "busy": lambda worker: f"{run_view.busy_share(worker) or 0.0:.0%}",
    "updates": lambda worker: f"{worker.get('updates', 0):,}",
    "rows": lambda worker: f"{worker.get('rows', 0):,}",
    "rate": lambda worker: f"{worker.get('lr', 0.0):.3g}",
    "weight": lambda worker: f"{worker.get('weight', 0.0):.3f}",
}


class PlainProgress:
    """Prints a line for every mega-batch, new state and change of workers.

    It is called with the run's events, from any thread; see `daskxml.observe.run_view`.
    """

    def __init__(self) -> None:
        self.view = run_view.RunView()
        self._shown_states: set[str] = set()

    def __call__(self, event: run_view.Event) -> None:
        """Print the event's line, if it has one."""
        event = cleaned(event)
        self.view.apply(event)
        if line := self._line(event):
            print(line, flush=True)

    def _line(self, event: run_view.Event) -> str:
        view = self.view
        match event.get("kind"):
            case "megabatch":
                return row_line(view.row)
            case "started" if view.dashboard:
                return "\n".join([*event_lines(event), f"dashboard {view.dashboard}"])
            # Every mega-batch passes through several states: those before the first are shown.
            case "status" if view.state not in self._shown_states and not view.row:
                self._shown_states.add(view.state)
                return view.state
            case "ended":
                return view.state if event.get("reason") != "error" else ""  # which is raised
        return "\n".join(event_lines(event))


class LiveProgress(Live):
    """A table on a terminal that is redrawn several times a second; used as `PlainProgress` is.

    At the end of a ``with`` block it is drawn for the last time, and stays on the screen.
    """

    def __init__(self, title: str, console: Console | None = None) -> None:
        self.title, self.view = title, run_view.RunView()
        self._notes: deque[str] = deque(maxlen=_NOTES)
        super().__init__(console=console, refresh_per_second=REFRESHES_PER_S)

    def __call__(self, event: run_view.Event) -> None:
        """Apply the event; the next drawing shows it."""
        event = cleaned(event)
        self.view.apply(event)
        if event.get("kind") not in ("megabatch", "ended"):  # which the table shows
            self._notes.extend(event_lines(event))

    def get_renderable(self) -> Group:
        """Return what is drawn now."""
        view = self.view
        parts: list[Any] = [self._headline()]
        if view.row:
            parts.append(Text(row_line({**view.row, **view.measured}) + _best(view)))
        if view.workers:
            parts.append(_worker_table(view))
        parts += [Text(line, style="yellow") for line in list(self._notes)]
        if view.dashboard and not view.is_over:  # a local cluster ends with its run
            parts.append(Text(f"dashboard {view.dashboard}", style="dim"))
        return Group(*parts)

    def _headline(self) -> Table:
        """Return title, state and progress."""
        view, line = self.view, Table.grid(padding=(0, 2))
        cells: list[Any] = [Text(self.title, "bold"), Text(view.state, "cyan")]
        if view.rows and not view.is_over:
            cells.append(f"{view.rows:,} rows")
        share, left_s = view.progress(), view.left_s()
        if share is not None and not view.is_over:
            bar = ProgressBar(total=1.0, completed=share, width=_BAR_CHARACTERS)
            left = f"{share:.0%}" if left_s is None else f"{share:.0%}, {duration(left_s)} left"
            cells += [bar, left]
        line.add_row(*cells)
        return line


def make_progress(title: str) -> AbstractContextManager[PlainProgress | LiveProgress]:
    """Return the display that suits stdout, as a context that is left when the run ends."""
    return LiveProgress(title) if sys.stdout.isatty() else nullcontext(PlainProgress())


def notebook_progress() -> PlainProgress | None:
    """Return a display for the notebook that runs this; None outside of notebooks.

    Examples
    --------
    >>> notebook_progress() is None
    True
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return PlainProgress() if hasattr(shell, "kernel") else None


def row_line(row: run_view.Row) -> str:
    """Return a mega-batch as one line, or a tree, which has no loss.

    Examples
    --------
    >>> row_line({"megabatch": 2, "epoch": 0.5, "rows": 6400, "loss": 4.25,
    ...           "metrics": {"P@1": 0.5}, "workers": {}})
    'mega-batch 2  epoch 0.50  6,400 rows  0 rows/s  loss 4.2500  P@1 0.5000'
    """
    number, is_tree = row.get("megabatch", 0), "loss" not in row
    parts = [
        f"tree {number}" if is_tree else f"mega-batch {number}  epoch {row.get('epoch', 0):.2f}",
        f"{row.get('rows', 0):,} rows",
        f"{run_view.rows_per_s(row) or 0.0:,.0f} rows/s",
    ]
    if "loss" in row:
        parts.append(f"loss {row['loss']:.4f}")
    if "training_loss" in row:
        parts.append(f"training loss {row['training_loss']:.4f}")
    metrics = row.get("metrics", {}).items()
    parts += [f"{name} {value:.4f}" for name, value in metrics if name.startswith("P@")]
    return "  ".join(parts)


def _best(view: run_view.RunView) -> str:
    """Return the best value of the target metric, if it is not that of the last row."""
    value, megabatch = view.best.get(view.metric, (0.0, view.megabatch))
    is_last = megabatch == view.megabatch
    return "" if is_last else f"  (best {view.metric} {value:.4f} at {megabatch})"


def _worker_table(view: run_view.RunView) -> Table:
    """Return a line for each worker of the last mega-batch, and for those lost or joined since."""
    table = Table(box=None, pad_edge=False)
    table.add_column("worker")
    table.add_column("state", min_width=_STATE_CHARACTERS)
    for header in _COLUMNS:
        table.add_column(header, justify="right")
    trained = view.row.get("workers", {})
    names = [*trained, *(name for name in view.workers if name not in trained)]
    for name in names[:_WORKERS]:
        worker, change = trained.get(name, {}), view.workers.get(str(name), "")
        state = Text(change or ("" if view.is_over else view.state), _STYLES.get(change, ""))
        title = worker_label(str(name), worker.get("pool_threads", 0))
        cells = [write(worker) for write in _COLUMNS.values() if worker]  # none if it had no part
        table.add_row(Text(title), state, *cells)
    if len(names) > _WORKERS:
        table.add_row(f"and {len(names) - _WORKERS} more")
    return table


# ------------------------------------------------------------------- when a run is over


def print_metrics(metrics: Mapping[str, float]) -> None:
    """Print metrics as a table, and how many rows were evaluated.

    Examples
    --------
    >>> print_metrics({"P@1": 0.5, "rows": 1024, "rows_without_labels": 3})
    ┏━━━┳━━━━━━━━┓
    ┃   ┃     @1 ┃
    ┡━━━╇━━━━━━━━┩
    │ P │ 0.5000 │
    └───┴────────┘
    1,024 rows, 3 of them without labels
    """
    ranks, cells = run_view.by_rank(metrics)
    table = Table()
    table.add_column("")
    for k in ranks:
        table.add_column(f"@{k}", justify="right")
    for metric, values in cells.items():
        table.add_row(metric, *(f"{values[k]:.4f}" if k in values else "" for k in ranks))
    Console(highlight=False).print(table)
    if "rows" in metrics:
        without = int(metrics.get("rows_without_labels", 0))
        print(f"{int(metrics['rows']):,} rows, {without:,} of them without labels")


def print_lines(lines: Mapping[str, str]) -> None:
    """Print names and values, aligned; long values are not broken.

    Examples
    --------
    >>> print_lines({"run": "runs/first", "dashboard": ""})
    run  runs/first
    """
    shown = {name: value for name, value in lines.items() if value}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        print(f"{name:<{width}}  {printable(value)}")
