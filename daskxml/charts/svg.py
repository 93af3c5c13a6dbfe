"""Charts as SVG text, without any package: for a page that is one file, and for notebooks.

Ink is ``currentColor``, so that a chart fits a light and a dark ground.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from daskxml.charts.chart import Chart, Line, spell, ticks
from daskxml.charts.look import (
    LEGEND_ROW,
    SAMPLE,
    WIDTH,
    colour,
    dash,
    legend,
    needs_legend,
    shorten,
    text,
)

PLOT_HEIGHT = 220
_LEFT, _RIGHT, _BOTTOM = 62, 18, 44
_HOVERS = 400  # points of a chart that tell their values
_DOTTED = 40  # points of a line, beyond which they have no dots
_BAR, _BAR_STEP = 16, 42
_TARGET_LOOK = 'stroke="currentColor" stroke-dasharray="3 4" stroke-opacity="0.8"'


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """The rectangle that is drawn in, and the values at its edges."""

    top: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    @property
    def bottom(self) -> float:
        return self.top + PLOT_HEIGHT

    def x(self, value: float) -> float:
        low, high = self.x_range
        return _LEFT + (value - low) / (high - low) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.bottom - (value - low) / (high - low) * PLOT_HEIGHT


def draw_svg(chart: Chart, *, titled: bool = True) -> str:
    """Return a chart as an ``<svg>`` element, or ``""`` if there is nothing to draw.

    Parameters
    ----------
    chart
        What is shown.
    titled
        Its title is written over it.

    Examples
    --------
    >>> line = Line(name="a", points=((0.0, 0.0), (1.0, 0.5)))
    >>> svg = draw_svg(Chart(name="c", title="P@1 & time", x_label="s", lines=(line,)))
    >>> svg[:4], "P@1 &amp; time" in svg, draw_svg(Chart(name="c", title="", x_label=""))
    ('<svg', True, '')
    """
    if chart.is_empty:
        return ""
    draw = _draw_bars if chart.bars else _draw_lines
    head = 28 if titled else 4
    body, height = draw(chart, head)
    title = [text(0, 14, chart.title, "chart-title", weight="600", size=14)] if titled else []
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'width="{WIDTH}" height="{height:.0f}" fill="currentColor" '
        f'font-family="system-ui, sans-serif" font-size="12" '
        f'style="max-width:100%;height:auto" aria-label="{escape(chart.title)}">'
    )
    return "\n".join([opening, *title, *body, "</svg>"])


# ----------------------------------------------------------------------------- lines


def _draw_lines(chart: Chart, head: float) -> tuple[list[str], float]:
    """Return the elements of a chart of lines, and its height."""
    names = [line.name for line in chart.lines] if needs_legend(chart) else []
    signs, top = legend(names, head, with_dashes=True)
    for sample, name in _other_signs(chart):
        signs += [sample.format(y=top + 4), text(SAMPLE + 8, top + 8, name)]
        top += LEGEND_ROW
    frame, y_ticks = _frame(chart, top + (24 if chart.y_label else 10))
    parts = [text(0, top + 12, chart.y_label, opacity=0.75)] if chart.y_label else []
    parts += [*signs, *_axes(frame, y_ticks), _x_label(frame, chart.x_label)]
    if chart.target is not None:
        parts.append(_target(frame, chart.target))
    hovers = max(8, _HOVERS // len(chart.lines))
    for number, line in enumerate(chart.lines):
        parts += _line(frame, line, number, hovers)
    return parts, frame.bottom + _BOTTOM


def _frame(chart: Chart, top: float) -> tuple[_Frame, list[float]]:
    (left, right), (low, high) = chart.ranges()
    if 0.0 <= left <= right / 3:
        left = 0.0
    if not right > left:
        left, right = left - 0.5, right + 0.5
    y_ticks = ticks(low, high)
    y_range = (y_ticks[0], y_ticks[-1])
    return _Frame(top=top, x_range=(left, right), y_range=y_range), y_ticks


def _axes(frame: _Frame, y_ticks: Sequence[float]) -> Iterator[str]:
    for value in y_ticks:
        y = frame.y(value)
        yield (
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="currentColor" stroke-opacity="0.15"/>'
        )
        yield text(_LEFT - 8, y + 4, spell(value), anchor="end")
    left, right = frame.x_range
    for value in ticks(left, right, 6):
        if left <= value <= right:
            x = frame.x(value)
            yield (
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{frame.bottom}" y2="{frame.bottom + 4}" '
                'stroke="currentColor" stroke-opacity="0.5"/>'
            )
            yield text(x, frame.bottom + 18, spell(value), anchor="middle")


def _x_label(frame: _Frame, label: str) -> str:
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    return text(middle, frame.bottom + 36, label, anchor="middle", opacity=0.75)


def _other_signs(chart: Chart) -> Iterator[tuple[str, str]]:
    """Yield what is drawn beside the lines: a sample for the legend, at a height, and its name."""
    if chart.target is not None:
        yield f'<path d="M0,{{y}}h{SAMPLE}" {_TARGET_LOOK}/>', chart.target_name
    if chart.mark_meaning and any(line.marked for line in chart.lines):
        yield f'<g transform="translate({SAMPLE / 2},{{y}})">{_mark(0, 0)}</g>', chart.mark_meaning


def _target(frame: _Frame, value: float) -> str:
    return f'<path d="M{_LEFT},{frame.y(value):.1f}H{WIDTH - _RIGHT}" {_TARGET_LOOK}/>'


def _line(frame: _Frame, line: Line, number: int, hovers: int) -> Iterator[str]:
    if not line.points:
        return
    ink = colour(number)
    if line.band:
        yield _band(frame, line, ink)
    pattern = f' stroke-dasharray="{dash(number)}"' if dash(number) else ""
    yield (
        f'<path d="{_path(frame, line)}" fill="none" stroke="{ink}" stroke-width="1.8" '
        f'stroke-linejoin="round"{pattern}/>'
    )
    yield from _dots(frame, line, ink, hovers)
    for x, y in line.marked:
        yield _mark(frame.x(x), frame.y(y))


def _path(frame: _Frame, line: Line) -> str:
    corners = [(frame.x(x), frame.y(y)) for x, y in line.points]
    pieces = [f"M{corners[0][0]:.1f},{corners[0][1]:.1f}"]
    for x, y in corners[1:]:
        pieces.append(f"H{x:.1f}V{y:.1f}" if line.steps else f"L{x:.1f},{y:.1f}")
    return "".join(pieces)


def _band(frame: _Frame, line: Line, ink: str) -> str:
    xs = [frame.x(x) for x, _ in line.points]
    lower = [f"{x:.1f},{frame.y(low):.1f}" for x, (low, _) in zip(xs, line.band, strict=True)]
    upper = [f"{x:.1f},{frame.y(high):.1f}" for x, (_, high) in zip(xs, line.band, strict=True)]
    return f'<polygon points="{" ".join(lower + upper[::-1])}" fill="{ink}" fill-opacity="0.2"/>'


def _dots(frame: _Frame, line: Line, ink: str, hovers: int) -> Iterator[str]:
    """Yield what can be pointed at to read a value: dots where there is room, else unseen ones."""
    every = -(-len(line.points) // hovers)
    is_dotted = len(line.points) <= _DOTTED
    look = f'r="2.2" fill="{ink}"' if is_dotted else 'r="5" fill-opacity="0"'
    for x, y in line.points[::every]:
        told = escape(f"{line.name}: {spell(round(y, 6))} at {spell(round(x, 3))}")
        place = f'cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}"'
        yield f"<circle {place} {look}><title>{told}</title></circle>"


def _mark(x: float, y: float) -> str:
    """Return a hollow diamond: a mark that no line's dots are taken for."""
    return (
        f'<path d="M{x:.1f},{y - 4.5:.1f}l4.5,4.5l-4.5,4.5l-4.5,-4.5z" fill="none" '
        'stroke="currentColor" stroke-width="1.2"/>'
    )


# ------------------------------------------------------------------------------ bars


def _draw_bars(chart: Chart, head: float) -> tuple[list[str], float]:
    """Return the elements of stacked horizontal bars, and the chart's height."""
    assert chart.bars
    names = list(next(iter(chart.bars.values())))
    parts, top = legend(names, head, with_dashes=False)
    most = max(sum(bar.values()) for bar in chart.bars.values()) or 1.0
    scale = (WIDTH - 90) / most
    for row, (name, bar) in enumerate(chart.bars.items()):
        parts += _bar(top + 6 + row * _BAR_STEP, name, bar, scale)
    bottom = top + 6 + len(chart.bars) * _BAR_STEP
    parts.append(text(0, bottom + 10, chart.x_label, opacity=0.75))
    return parts, bottom + 18


def _bar(top: float, name: str, bar: Mapping[str, float], scale: float) -> Iterator[str]:
    yield text(0, top + 10, shorten(name, 80))
    x = 0.0
    for number, (part, value) in enumerate(bar.items()):
        width = value * scale
        if width > 0.05:
            told = escape(f"{name}, {part}: {spell(round(value, 3))}")
            yield (
                f'<rect x="{x:.1f}" y="{top + 15:.1f}" width="{width:.1f}" height="{_BAR}" '
                f'fill="{colour(number)}"><title>{told}</title></rect>'
            )
        x += width
    yield text(x + 6, top + 15 + _BAR - 4, spell(float(f"{sum(bar.values()):.4g}")))
