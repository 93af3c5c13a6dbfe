"""A run that is over as a notebook shows it: its figures and a small chart of its history."""

from __future__ import annotations

from collections.abc import Mapping

from daskxml.core.text import counted
from daskxml.observe.charts import learning_charts
from daskxml.observe.html import render
from daskxml.observe.run_view import Course, History, by_rank, spent_s
from daskxml.observe.wording import exact

_RANKS = 3  # metrics that are shown beside each other
# Between light and dark: a notebook does not say which of them its background is.
_COLOURS = "--series-0:#3b8fd0;--series-1:#e0702c;--series-2:#1fa07a"


def run_html(history: History, metrics: Mapping[str, float], reason: str, out: str) -> str:
    """Return a run that is over as HTML that fits light and dark notebooks; it loads nothing.

    Its chart has P@1, 3 and 5, or whatever was measured, against mega-batches; else the loss.

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
    last, course = history[-1] if history else {}, Course("", history)
    total_s = sum(map(spent_s, history))
    done = [counted(len(history), "tree" if "pieces" in last else "mega-batch")]
    if "pieces" not in last:
        done.append(f"{last.get('epoch', 0.0):.2f} epochs")
    facts = [
        *done,
        counted(last.get("rows", 0), "row"),
        f"{exact(float(f'{total_s:.3g}'))} s of training",
        counted(len(course.workers), "worker"),
        f"ended by {reason}",
    ]
    names = [name for name in metrics if name.startswith("P@")]
    names = (names or [name for name in metrics if "@" in name])[:_RANKS]
    _, metric, _, loss = learning_charts([course], names or [""])
    ranks, cells = by_rank(metrics)
    return render(
        "notebook.html.jinja", facts=facts, out=out, ranks=ranks, cells=cells, colours=_COLOURS,
        chart=metric if names else loss,
    )  # fmt: skip
