"""A run as a notebook shows it: its figures and a small chart of its history, live or over."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from daskxml.observe.charts import Chart, learning_charts
from daskxml.observe.html import render
from daskxml.observe.run_view import Course, Event, History, RunView, by_rank, spent_s, worker_names
from daskxml.observe.wording import duration, exact, limit_label

PERIOD_S = 0.5  # between two drawings of a run under way
_RANKS = 3  # metrics that are shown beside each other
# Between light and dark: a notebook does not say which of them its background is.
_COLOURS = "--series-0:#3b8fd0;--series-1:#e0702c;--series-2:#1fa07a"


def run_html(history: History, metrics: Mapping[str, float], reason: str, out: str) -> str:
    """Return a run that is over as HTML that fits light and dark notebooks; it loads nothing.

    Parameters
    ----------
    history
        One row a mega-batch; see `daskxml.session.history`.
    metrics
        Of the last evaluation; may be empty.
    reason
        Why it ended.
    out
        Its directory, or ``""``.

    Examples
    --------
    >>> html = run_html([], {}, "epochs", "runs/<first>")
    >>> "ended by epochs" in html, "runs/&lt;first&gt;" in html
    (True, True)
    """
    last = history[-1] if history else {}
    total_s = sum(map(spent_s, history))
    facts = [
        f"{len(history):,} mega-batches",
        f"{last.get('epoch', 0.0):.2f} epochs",
        f"{last.get('rows', 0):,} rows",
        f"{exact(float(f'{total_s:.3g}'))} s of training",
        f"{len(worker_names(history))} workers",
        f"ended by {reason}",
    ]
    return _html(Course("", history), metrics, "daskxml run", facts, out=out)


def _html(
    course: Course,
    metrics: Mapping[str, float],
    title: str,
    facts: list[str],
    *,
    out: str = "",
    progress: float | None = None,
) -> str:
    ranks, cells = by_rank(metrics)
    return render(
        "notebook.html.jinja", title=title, facts=facts, out=out, progress=progress, ranks=ranks,
        cells=cells, colours=_COLOURS, chart=_chart(course, metrics),
    )  # fmt: skip


def _chart(course: Course, metrics: Mapping[str, float]) -> Chart:
    """Return P@1, 3 and 5, or whatever was measured, against mega-batches; else the loss."""
    names = [name for name in metrics if name.startswith("P@")]
    names = (names or [name for name in metrics if "@" in name])[:_RANKS]
    _, metric, _, loss = learning_charts([course], names or [""])
    return metric if names else loss


class NotebookProgress:
    """A run in a cell's output, updated during the run; used as a terminal's display is.

    Parameters
    ----------
    title
        What the run is called.
    """

    def __init__(self, title: str = "daskxml run") -> None:
        self.title, self.view = title, RunView()
        self._course = Course("", is_bounded=True)
        self._handle: Any = None
        self._not_before_s = 0.0

    def __call__(self, event: Event) -> None:
        """Apply an event; draw what has changed, unless that was done just now."""
        self.view.apply(event)
        self._course.apply(event, self.view)
        if self.view.is_over or time.monotonic() >= self._not_before_s:
            self._not_before_s = time.monotonic() + PERIOD_S
            self._draw()

    def _draw(self) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(self, display_id=True)
        else:
            self._handle.update(self)

    def _repr_html_(self) -> str:
        """Return what is shown now."""
        view, left_s = self.view, self.view.left_s()
        rows = max(view.rows, view.row.get("rows", 0))
        facts = [view.state, f"{rows:,} rows", limit_label(view) if view.limits else ""]
        if left_s is not None and not view.is_over:
            facts.append(f"about {duration(left_s)} left")
        progress = None if view.is_over else view.progress()
        metrics = view.measured.get("metrics", {})
        shown = [fact for fact in facts if fact]
        return _html(self._course, metrics, self.title, shown, progress=progress)

    def __repr__(self) -> str:
        return f"<{self.title}: {self.view.state}>"


def notebook_progress(title: str = "daskxml run") -> NotebookProgress | None:
    """Return a display of a run in the notebook that runs this; None outside of notebooks.

    Examples
    --------
    >>> notebook_progress() is None
    True
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return NotebookProgress(title) if hasattr(shell, "kernel") else None
