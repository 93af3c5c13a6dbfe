"""Charts as SVG text, without any package: for a page that is one file, and for notebooks.

Ink is ``currentColor``, so that a chart suits a light and a dark background. Colours are CSS
variables (``--series-0`` to ``--series-5``) with those of `chart` as defaults, so that the page
around a chart may choose them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

from daskxml.observe.chart import COLOURS, DASHES, Chart, Series, shorten, thin, ticks
from daskxml.observe.wording import exact

WIDTH, PLOT_HEIGHT = 560, 220
_LEFT, _RIGHT, _BOTTOM = 62, 18, 44
_LETTER, _LEGEND_ROW, _SAMPLE = 6.7, 18, 26  # widths and heights in pixels, of 12 px letters
_NAME_CHARACTERS = 40  # in a legend
_HOVERS = 400  # points of a chart that show their values
_DOTTED = 40  # points of a series; longer ones have no dots
_BAR, _BAR_STEP = 16, 42
_TITLE = ' class="chart-title" font-weight="600" font-size="14"'
_QUIET, _AT_MIDDLE, _AT_END = (
    ' fill-opacity="0.75"', ' text-anchor="middle"', ' text-anchor="end"'
)  # fmt: skip
_TARGET_STYLE = 'stroke="currentColor" stroke-dasharray="3 4" stroke-opacity="0.8"'


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """The rectangle that is drawn in, and the values at its edges."""

    top: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_names: tuple[str, ...] = ()

    @property
    def bottom(self) -> float:
        return self.top + PLOT_HEIGHT

    def x(self, value: float) -> float:
        low, high = self.x_range
        return _LEFT + (value - low) / (high - low) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.bottom - (value - low) / (high - low) * PLOT_HEIGHT

    def x_ticks(self) -> Sequence[float]:
        return range(len(self.x_names)) or ticks(*self.x_range, 6)

    def x_name(self, value: float) -> str:
        return self.x_names[int(value)] if self.x_names else exact(round(value, 3))


def draw_svg(chart: Chart, *, titled: bool = True) -> str:
    """Return a chart as an ``<svg>`` element, or ``""`` if there is nothing to draw.

    Parameters
    ----------
    chart
        What to draw.
    titled
        Draw its title above it.

    Examples
    --------
    >>> line = Series(name="a", points=((0.0, 0.0), (1.0, 0.5)))
    >>> svg = draw_svg(Chart(name="c", title="P@1 & time", x_label="s", series=(line,)))
    >>> svg[:4], "P@1 &amp; time" in svg, draw_svg(Chart(name="c", title="", x_label=""))
    ('<svg', True, '')
    """
    if chart.is_empty:
        return ""
    draw = _draw_bars if chart.bars else _draw_lines
    head = 28 if titled else 4
    body, height = draw(chart, head)
    title = [_text(0, 14, chart.heading, _TITLE)] if titled else []
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'width="{WIDTH}" height="{height:.0f}" fill="currentColor" '
        f'font-family="system-ui, sans-serif" font-size="12" '
        f'style="max-width:100%;height:auto" aria-label="{escape(chart.heading)}">'
    )
    return "\n".join([opening, *title, *body, "</svg>"])


# ----------------------------------------------------------------------------- lines


def _draw_lines(chart: Chart, head: float) -> tuple[list[str], float]:
    """Return the elements of a chart of lines, and its height."""
    names = [line.name for line in chart.series] if chart.needs_legend else []
    samples, top = _legend(names, head, with_dashes=True)
    for sample, name in _other_samples(chart):
        samples += [sample.format(y=top + 4), _text(_SAMPLE + 8, top + 8, name)]
        top += _LEGEND_ROW
    frame, y_ticks = _frame(chart, top + (24 if chart.y_label else 10))
    parts = [_text(0, top + 12, chart.y_label, _QUIET)] if chart.y_label else []
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    x_label = _text(middle, frame.bottom + 36, chart.x_label, _AT_MIDDLE + _QUIET)
    parts += [*samples, *_axes(frame, y_ticks), x_label]
    if chart.target is not None:
        y = frame.y(chart.target)
        parts.append(f'<path d="M{_LEFT},{y:.1f}H{WIDTH - _RIGHT}" {_TARGET_STYLE}/>')
    hovers = max(8, _HOVERS // len(chart.series))
    for number, line in enumerate(chart.series):
        drawn = line if line.band else replace(line, points=thin(line.points))
        parts += _series(frame, drawn, number, hovers)
    return parts, frame.bottom + _BOTTOM


def _frame(chart: Chart, top: float) -> tuple[_Frame, list[float]]:
    (left, right), (low, high) = chart.ranges()
    if 0.0 <= left <= right / 3:
        left = 0.0
    if not right > left:
        left, right = left - 0.5, right + 0.5
    y_ticks = ticks(low, high)
    y_range = (y_ticks[0], y_ticks[-1])
    frame = _Frame(top=top, x_range=(left, right), y_range=y_range, x_names=chart.x_names)
    return frame, y_ticks


def _axes(frame: _Frame, y_ticks: Sequence[float]) -> Iterator[str]:
    for value in y_ticks:
        y = frame.y(value)
        yield (
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="currentColor" stroke-opacity="0.15"/>'
        )
        yield _text(_LEFT - 8, y + 4, exact(value), _AT_END)
    left, right = frame.x_range
    for value in frame.x_ticks():
        if left <= value <= right:
            x = frame.x(value)
            yield (
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{frame.bottom}" y2="{frame.bottom + 4}" '
                'stroke="currentColor" stroke-opacity="0.5"/>'
            )
            yield _text(x, frame.bottom + 18, frame.x_name(value), _AT_MIDDLE)


def _other_samples(chart: Chart) -> Iterator[tuple[str, str]]:
    """Yield the legend's samples beside the series: SVG for a given ``y``, and the name."""
    if chart.target is not None:
        yield f'<path d="M0,{{y}}h{_SAMPLE}" {_TARGET_STYLE}/>', chart.target_name
    if chart.mark_meaning and any(line.marked for line in chart.series):
        yield f'<g transform="translate({_SAMPLE / 2},{{y}})">{_mark(0, 0)}</g>', chart.mark_meaning


def _series(frame: _Frame, line: Series, number: int, hovers: int) -> Iterator[str]:
    if not line.points:
        return
    ink = _colour(number)
    if line.band:
        yield _band(frame, line, ink)
    pattern = f' stroke-dasharray="{_dash(number)}"' if _dash(number) else ""
    yield (
        f'<path d="{_path(frame, line)}" fill="none" stroke="{ink}" stroke-width="1.8" '
        f'stroke-linejoin="round"{pattern}/>'
    )
    yield from _dots(frame, line, ink, hovers)
    for x, y in line.marked:
        yield _mark(frame.x(x), frame.y(y))


def _path(frame: _Frame, line: Series) -> str:
    return "M" + "L".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in line.points)


def _band(frame: _Frame, line: Series, ink: str) -> str:
    xs = [frame.x(x) for x, _ in line.points]
    lower = [f"{x:.1f},{frame.y(low):.1f}" for x, (low, _) in zip(xs, line.band, strict=True)]
    upper = [f"{x:.1f},{frame.y(high):.1f}" for x, (_, high) in zip(xs, line.band, strict=True)]
    return f'<polygon points="{" ".join(lower + upper[::-1])}" fill="{ink}" fill-opacity="0.2"/>'


def _dots(frame: _Frame, line: Series, ink: str, hovers: int) -> Iterator[str]:
    """Yield the targets of the pointer that show values: dots, or invisible circles of many."""
    every = -(-len(line.points) // hovers)
    style = f'r="2.2" fill="{ink}"' if len(line.points) <= _DOTTED else 'r="5" fill-opacity="0"'
    for x, y in line.points[::every]:
        label = escape(f"{line.name}: {exact(round(y, 6))} at {frame.x_name(x)}")
        place = f'cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}"'
        yield f"<circle {place} {style}><title>{label}</title></circle>"


def _mark(x: float, y: float) -> str:
    """Return a hollow diamond: a mark unlike the dots of a series."""
    return (
        f'<path d="M{x:.1f},{y - 4.5:.1f}l4.5,4.5l-4.5,4.5l-4.5,-4.5z" fill="none" '
        'stroke="currentColor" stroke-width="1.2"/>'
    )


# ------------------------------------------------------------------------------ bars


def _draw_bars(chart: Chart, head: float) -> tuple[list[str], float]:
    """Return the elements of stacked horizontal bars, and the chart's height."""
    assert chart.bars
    names = list(next(iter(chart.bars.values())))
    parts, top = _legend(names, head, with_dashes=False)
    most = max(sum(bar.values()) for bar in chart.bars.values()) or 1.0
    scale = (WIDTH - 90) / most
    for row, (name, bar) in enumerate(chart.bars.items()):
        parts += _bar(top + 6 + row * _BAR_STEP, name, bar, scale)
    bottom = top + 6 + len(chart.bars) * _BAR_STEP
    parts.append(_text(0, bottom + 10, chart.x_label, _QUIET))
    return parts, bottom + 18


def _bar(top: float, name: str, bar: Mapping[str, float], scale: float) -> Iterator[str]:
    yield _text(0, top + 10, shorten(name, 80))
    x = 0.0
    for number, (part, value) in enumerate(bar.items()):
        width = value * scale
        if width > 0.05:
            label = escape(f"{name}, {part}: {exact(round(value, 3))}")
            yield (
                f'<rect x="{x:.1f}" y="{top + 15:.1f}" width="{width:.1f}" height="{_BAR}" '
                f'fill="{_colour(number)}"><title>{label}</title></rect>'
            )
        x += width
    yield _text(x + 6, top + 15 + _BAR - 4, exact(float(f"{sum(bar.values()):.4g}")))


# ---------------------------------------------------------------------- what both have


def _colour(number: int) -> str:
    """Return the CSS colour of a series, by its number."""
    place = number % len(COLOURS)
    return f"var(--series-{place}, {COLOURS[place]})"


def _dash(number: int) -> str:
    """Return the dashes of a series: six are solid, then six have the next pattern."""
    return DASHES[number // len(COLOURS) % len(DASHES)]


def _legend(names: Sequence[str], top: float, *, with_dashes: bool) -> tuple[list[str], float]:
    """Return the elements of a legend above the plot, in rows, and its lower edge."""
    parts: list[str] = []
    if not names:
        return parts, top
    x, y = 0.0, top
    for number, name in enumerate(shorten(name, _NAME_CHARACTERS) for name in names):
        width = _SAMPLE + 8 + len(name) * _LETTER + 14
        if x > 0 and x + width > WIDTH:
            x, y = 0.0, y + _LEGEND_ROW
        pattern = f' stroke-dasharray="{_dash(number)}"' if with_dashes and _dash(number) else ""
        thickness = 3 if with_dashes else 10
        parts.append(
            f'<line x1="{x:.0f}" x2="{x + _SAMPLE:.0f}" y1="{y + 4:.0f}" y2="{y + 4:.0f}" '
            f'stroke="{_colour(number)}" stroke-width="{thickness}"{pattern}/>'
        )
        parts.append(_text(x + _SAMPLE + 8, y + 8, name))
        x += width
    return parts, y + _LEGEND_ROW + 4


def _text(x: float, y: float, content: str, attributes: str = "") -> str:
    """Return a text element whose baseline is at ``y`` and whose anchor is at ``x``."""
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(content)}</text>'
