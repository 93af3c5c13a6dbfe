"""The page of a report: one HTML file with everything in it, for light and dark screens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from daskxml._version import __version__
from daskxml.charts import Chart, draw_svg
from daskxml.charts.chart import spell
from daskxml.reports.runs import RunRecord
from daskxml.reports.tables import differences, metrics_table, summary

TEMPLATE = "page.html.jinja"
_MOST_EVENTS = 100


@dataclass(frozen=True)
class Section:
    """A run with the charts of its workers."""

    run: RunRecord
    charts: Sequence[Chart]

    @property
    def events(self) -> list[str]:
        """What happened to its workers, in words."""
        return [tell(row, event) for row in self.run.history for event in row.get("events", [])]


def render_page(
    runs: Sequence[RunRecord],
    charts: Sequence[Chart],
    sections: Sequence[Section],
    metric: str,
    level: float | None,
) -> str:
    """Return the page.

    Parameters
    ----------
    runs
        What it is about.
    charts
        Of all runs over each other.
    sections
        One for each run.
    metric, level
        What is compared, and the level whose time is told; None where nothing was measured.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "number": number, "score": _score, "svg": _svg, "json": _json, "value": _value,
    }  # fmt: skip
    source = files("daskxml.reports").joinpath(TEMPLATE).read_text(encoding="utf-8")
    return environment.from_string(source).render(
        version=__version__,
        date=datetime.now(UTC).isoformat(timespec="minutes"),
        runs=runs,
        charts=charts,
        sections=sections,
        metric=metric,
        level=level,
        summary=summary(runs, metric, level),
        metrics=metrics_table(runs),
        differences=differences(runs) if len(runs) > 1 else {},
        most_events=_MOST_EVENTS,
    )


def tell(row: Mapping[str, Any], event: Mapping[str, Any]) -> str:
    """Return an event of a history's row in words.

    Examples
    --------
    >>> tell({"megabatch": 3}, {"kind": "lost", "worker": "1", "after_s": 2.5,
    ...                         "rows_returned": 640})
    'mega-batch 3, after 2.5 s: worker 1 lost, 640 rows given to others'
    """
    when = f"mega-batch {row['megabatch']}"
    if "after_s" in event:
        when += f", after {number(event['after_s'])} s"
    text = f"worker {event.get('worker', '?')} {event.get('kind', '')}"
    if event.get("rows_returned"):
        text += f", {event['rows_returned']:,} rows given to others"
    known = ("kind", "worker", "after_s", "rows_returned")
    others = [f"{key} {value}" for key, value in event.items() if key not in known]
    return ", ".join([f"{when}: {text}", *others])


def number(value: float | int | None, digits: int = 4) -> str:
    """Return a number for a table: four significant digits, a dash for None.

    Examples
    --------
    >>> number(1234567), number(0.123456), number(12345.6), number(None)
    ('1,234,567', '0.1235', '12,346', '-')
    """
    if value is None:
        return "-"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return spell(float(f"{value:.{digits}g}"))


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _svg(chart: Chart) -> Markup:
    return Markup(draw_svg(chart))  # it escapes its own texts


def _json(value: Any) -> str:
    return json.dumps(value, indent=2)


def _value(value: Any) -> str:
    """Return a setting as its run file has it."""
    if value is None:
        return "-"
    return json.dumps(value) if isinstance(value, bool | list) else str(value)
