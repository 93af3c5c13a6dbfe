"""What the parts of a drawn chart have in common: colours, dashes, words and legends.

Colours are CSS variables (``--series-0`` to ``--series-5``), so that the page around a chart may
choose them. Without such a page those of Okabe and Ito (2008) hold, which people tell apart who see
no red or no green; from the seventh line on dashes tell them apart too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from daskxml.charts.chart import Chart

WIDTH = 560
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("", "7 3", "2 3", "9 3 2 3")
LETTER, LEGEND_ROW, SAMPLE = 6.7, 18, 26  # widths and heights in pixels, of 12 px letters
_LONGEST_NAME = 40


def colour(number: int) -> str:
    """Return the CSS colour of a line, by its number."""
    place = number % len(COLOURS)
    return f"var(--series-{place}, {COLOURS[place]})"


def dash(number: int) -> str:
    """Return the dashes of a line: six are solid, then six have the next pattern."""
    return DASHES[number // len(COLOURS) % len(DASHES)]


def needs_legend(chart: Chart) -> bool:
    """Whether the title does not say it all: of one line alone it does, unless it has a band.

    Examples
    --------
    >>> from daskxml.charts import Line
    >>> needs_legend(Chart(name="c", title="", x_label="", lines=(Line(name="a", points=()),)))
    False
    """
    return len(chart.lines) > 1 or any(line.band for line in chart.lines)


def legend(names: Sequence[str], top: float, *, with_dashes: bool) -> tuple[list[str], float]:
    """Return a legend over the plot, never in it, in rows as it needs; and where it ends."""
    parts: list[str] = []
    if not names:
        return parts, top
    x, y = 0.0, top
    for number, name in enumerate(shorten(name, _LONGEST_NAME) for name in names):
        width = SAMPLE + 8 + len(name) * LETTER + 14
        if x > 0 and x + width > WIDTH:
            x, y = 0.0, y + LEGEND_ROW
        pattern = f' stroke-dasharray="{dash(number)}"' if with_dashes and dash(number) else ""
        thickness = 3 if with_dashes else 10
        parts.append(
            f'<line x1="{x:.0f}" x2="{x + SAMPLE:.0f}" y1="{y + 4:.0f}" y2="{y + 4:.0f}" '
            f'stroke="{colour(number)}" stroke-width="{thickness}"{pattern}/>'
        )
        parts.append(text(x + SAMPLE + 8, y + 8, name))
        x += width
    return parts, y + LEGEND_ROW + 4


def shorten(name: str, longest: int) -> str:
    """Return a name with its middle left out where it is too long.

    Examples
    --------
    >>> shorten("tcp://10.0.0.1:40001", 9)
    'tcp:…0001'
    """
    if len(name) <= longest:
        return name
    half = (longest - 1) // 2
    return f"{name[: longest - 1 - half]}…{name[-half:]}"


def text(
    x: float,
    y: float,
    content: str,
    kind: str = "",
    *,
    anchor: str = "start",
    opacity: float = 1.0,
    weight: str = "",
    size: int = 0,
) -> str:
    """Return a text element; ``x`` and ``y`` are of its ``anchor`` on the line it stands on."""
    extra: Iterable[str] = (
        f' class="{kind}"' if kind else "",
        f' text-anchor="{anchor}"' if anchor != "start" else "",
        f' fill-opacity="{opacity}"' if opacity < 1.0 else "",
        f' font-weight="{weight}"' if weight else "",
        f' font-size="{size}"' if size else "",
    )
    return f'<text x="{x:.1f}" y="{y:.1f}"{"".join(extra)}>{escape(content)}</text>'
