"""A run that is over, as a notebook shows it: its figures, and a small chart of its history."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from daskxml.observe.chart import Chart, Series, thin
from daskxml.observe.run_view import History, by_rank, spent_s, worker_names
from daskxml.observe.svg import draw_svg
from daskxml.observe.wording import exact

_RANKS = 3  # metrics that are shown beside each other
# Between light and dark: a notebook does not say which of them its background is.
_COLOURS = "--series-0:#3b8fd0;--series-1:#e0702c;--series-2:#1fa07a"


def run_html(history: History, metrics: Mapping[str, float], reason: str, out: str) -> str:
    """Return a run as HTML that fits light and dark notebooks; it loads nothing.

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
    place = f'<div style="opacity:.7">{escape(out)}</div>' if out else ""
    chart = draw_svg(_chart(history, metrics), titled=False)
    return (
        f'<div style="font-family:system-ui,sans-serif;max-width:560px;{_COLOURS}">'
        f"<div><b>daskxml run</b>: {escape(', '.join(facts))}</div>{place}"
        f"{_table(metrics)}{chart}</div>"
    )


def _table(metrics: Mapping[str, float]) -> str:
    """Return the metrics with a row each and a column for each rank."""
    ranks, cells = by_rank(metrics)
    if not cells:
        return ""
    head = "".join(f"<th>@{rank}</th>" for rank in ranks)
    rows = [
        f"<tr><th>{escape(metric)}</th>"
        + "".join(f"<td>{row[k]:.4f}</td>" if k in row else "<td></td>" for k in ranks)
        + "</tr>"
        for metric, row in cells.items()
    ]
    return f"<table style='color:inherit'><tr><th></th>{head}</tr>{''.join(rows)}</table>"


def _chart(history: History, metrics: Mapping[str, float]) -> Chart:
    """Return P@1, 3 and 5, or whatever was measured, against mega-batches; else the loss."""
    names = [name for name in metrics if name.startswith("P@")][:_RANKS]
    names = names or [name for name in metrics if "@" in name][:_RANKS]
    values = {
        name: [(row, row["metrics"][name]) for row in history if name in row["metrics"]]
        for name in names
    } or {"loss": [(row, row["loss"]) for row in history]}
    return Chart(
        name="run",
        title="The run's metrics" if names else "The run's loss",
        x_label="mega-batches",
        y_label="" if names else "loss",
        series=tuple(
            Series(name=name, points=thin([(float(row["megabatch"]), y) for row, y in pairs]))
            for name, pairs in values.items()
        ),
    )
