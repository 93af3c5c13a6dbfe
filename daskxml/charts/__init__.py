"""Charts as plain values, drawn as SVG without any package, or as PNG by Matplotlib."""

from daskxml.charts.chart import Chart, Line, bars
from daskxml.charts.svg import draw_svg

__all__ = ["Chart", "Line", "bars", "draw_svg"]
