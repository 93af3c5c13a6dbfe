"""Charts as PNG files, by Matplotlib, which comes with the extra ``report``."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from daskxml.charts.chart import Chart, Line
from daskxml.charts.look import COLOURS, DASHES, needs_legend, shorten
from daskxml.errors import ConfigError

INCHES, DOTS_PER_INCH = (8.0, 4.8), 150
_LONGEST_NAME = 48


def has_matplotlib() -> bool:
    """Whether PNGs can be drawn here."""
    return importlib.util.find_spec("matplotlib") is not None


def draw_png(chart: Chart, path: Path) -> None:
    """Draw a chart on white into a file, in the place of what was there.

    Parameters
    ----------
    chart
        Not empty.
    path
        Of the file.

    Raises
    ------
    ConfigError
        If Matplotlib is not installed.
    """
    if not has_matplotlib():
        raise ConfigError("PNGs need Matplotlib: pip install 'daskxml[report]'")
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    (_draw_bars if chart.bars else _draw_lines)(axes, chart)
    figure.suptitle(chart.title, x=0.01, ha="left", fontweight="bold")
    if chart.bars or needs_legend(chart) or chart.target is not None:
        _legend(figure, axes)
    figure.savefig(path, metadata={"Software": "daskxml"})


def _draw_lines(axes: Any, chart: Chart) -> None:
    axes.grid(axis="y", alpha=0.25)
    for number, line in enumerate(chart.lines):
        if line.points:
            _draw_line(axes, line, number)
    marked = [point for line in chart.lines for point in line.marked]
    if marked:
        look = {"marker": "D", "facecolors": "none", "edgecolors": "black", "s": 22, "zorder": 3}
        axes.scatter(*zip(*marked, strict=True), label=chart.mark_meaning, **look)
    if chart.target is not None:
        axes.axhline(chart.target, color="0.4", ls=":", label=chart.target_name)
    if chart.from_zero:
        axes.set_ylim(bottom=0)


def _draw_line(axes: Any, line: Line, number: int) -> None:
    colour = COLOURS[number % len(COLOURS)]
    dashes = DASHES[number // len(COLOURS) % len(DASHES)]
    xs, ys = zip(*line.points, strict=True)
    style = (0, tuple(map(float, dashes.split()))) if dashes else "-"
    look = {"marker": "o", "markersize": 3} if len(xs) <= 40 else {}
    drawn = {"color": colour, "linestyle": style, "drawstyle": _STEPS[line.steps], **look}
    axes.plot(xs, ys, label=shorten(line.name, _LONGEST_NAME), **drawn)
    if line.band:
        lower, upper = zip(*line.band, strict=True)
        axes.fill_between(xs, lower, upper, color=colour, alpha=0.2, linewidth=0)


_STEPS = {False: "default", True: "steps-post"}


def _draw_bars(axes: Any, chart: Chart) -> None:
    assert chart.bars
    names = [shorten(name, _LONGEST_NAME) for name in chart.bars]
    places, left = range(len(names)), [0.0] * len(names)
    for number, part in enumerate(next(iter(chart.bars.values()))):
        widths = [bar[part] for bar in chart.bars.values()]
        axes.barh(places, widths, left=left, color=COLOURS[number % len(COLOURS)], label=part)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(places, names)
    axes.invert_yaxis()  # the first on top


def _legend(figure: Any, axes: Any) -> None:
    """Put the legend under the plot, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, min(len(labels), 110 // (max(map(len, labels)) + 6)))
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, frameon=False)
