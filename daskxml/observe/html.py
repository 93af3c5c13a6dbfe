"""Pages and parts of pages, from templates that escape whatever is put into them; and charts.

Charts are SVG or bars, under a legend. Ink is ``currentColor``, so that a chart suits a light and a
dark background. Colours are CSS variables (``--series-0`` to ``--series-5``) with those of `chart`
as defaults, so that the page around a chart may choose them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daskxml._version import __version__
from daskxml.core.text import printable
from daskxml.observe.charts import COLOURS, DASHES, Chart, Series, shorten, thin, ticks
from daskxml.observe.wording import exact, rounded

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
WIDTH, PLOT_HEIGHT = 560, 220
_LEFT, _RIGHT, _BOTTOM = 62, 18, 44
_NAME_CHARACTERS = 40  # in a legend
_HOVERS = 400  # points of a chart that show their values
_DOTTED = 40  # points of a series; longer ones have no dots


def render(template: str, **values: Any) -> str:
    """Return what a template of `TEMPLATES` makes of values.

    Examples
    --------
    >>> render("events.html.jinja", lines=[("10:15:00", "<b> was lost")])
    '<div class="events"><div><time>10:15:00</time>&lt;b&gt; was lost</div></div>'
    """
    date = datetime.now(UTC).isoformat(timespec="minutes")
    return _environment().get_template(template).render(version=__version__, date=date, **values)


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FileSystemLoader(TEMPLATES),
        finalize=lambda value: value if isinstance(value, Markup) else _printable_lines(str(value)),
    )
    environment.filters |= {
        "number": _number,
        "score": lambda value: "-" if value is None else f"{value:.4f}",
        "drawn": lambda chart, **options: Markup(draw(chart, **options)),  # escaped already
        "colour": lambda n: f"var(--series-{n % len(COLOURS)}, {COLOURS[n % len(COLOURS)]})",
        "dash": lambda n: DASHES[n // len(COLOURS) % len(DASHES)],  # six are solid
        "exact": exact,
        "shortened": lambda name: shorten(name, _NAME_CHARACTERS),
        "pixels": "{:.1f}".format,
        "json": lambda value: json.dumps(value, indent=2),
        "value": _value,
    }
    return environment


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.expandtabs().split("\n")))


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else rounded(value, digits)


def _value(value: Any) -> str:
    """Return a setting as its run file has it."""
    if value is None:
        return "-"
    return json.dumps(value) if isinstance(value, bool | list) else str(value)


# ----------------------------------------------------------------------------- charts


def draw(chart: Chart, *, titled: bool = True) -> str:
    """Return a chart as an element of a page, or ``""`` if there is nothing to draw.

    Parameters
    ----------
    chart
        What to draw.
    titled
        Draw its title above it.

    Examples
    --------
    >>> line = Series(name="a", points=((0.0, 0.0), (1.0, 0.5)))
    >>> drawn = draw(Chart(name="c", title="P@1 & time", x_label="s", series=(line,)))
    >>> "<svg" in drawn, "P@1 &amp; time" in drawn, draw(Chart(name="c", title="", x_label=""))
    (True, True, '')
    """
    if chart.is_empty:
        return ""
    if chart.bars:
        return render("bars.html.jinja", chart=chart, titled=titled)
    frame = _Frame(chart)
    hovers = max(8, _HOVERS // len(chart.series))
    return render(
        "chart.html.jinja", chart=chart, titled=titled, frame=frame, width=WIDTH, left=_LEFT,
        right=WIDTH - _RIGHT, height=round(frame.bottom + _BOTTOM),
        lines=[_line(frame, line, hovers) for line in chart.series],
    )  # fmt: skip


class _Frame:
    """The rectangle that a chart is drawn in, and the values at its edges."""

    def __init__(self, chart: Chart) -> None:
        (left, right), (low, high) = chart.ranges()
        if 0.0 <= left <= right / 3:
            left = 0.0
        if not right > left:
            left, right = left - 0.5, right + 0.5
        self.x_range, self.y_ticks = (left, right), ticks(low, high)
        self.bottom = PLOT_HEIGHT + (24.0 if chart.y_label else 10.0)

    def x(self, value: float) -> float:
        low, high = self.x_range
        return _LEFT + (value - low) / (high - low) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return self.bottom - (value - low) / (high - low) * PLOT_HEIGHT

    def x_ticks(self) -> Iterator[float]:
        left, right = self.x_range
        return (x for x in ticks(left, right, 6) if left <= x <= right)

    def x_name(self, value: float) -> str:
        return exact(round(value, 3))


def _line(frame: _Frame, line: Series, hovers: int) -> dict[str, Any]:
    """Return a line's path, and the points that show their values."""
    points = thin(line.points).tolist()
    dots = [
        (frame.x(x), frame.y(y), f"{line.name}: {exact(round(y, 6))} at {frame.x_name(x)}")
        for x, y in points[:: -(-len(points) // hovers) or 1]
    ]
    return {
        "path": "L".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in points),
        "dots": dots,
        "dot": 'r="2.2"' if len(points) <= _DOTTED else 'r="5" fill-opacity="0"',
    }
