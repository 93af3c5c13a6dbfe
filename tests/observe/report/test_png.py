"""Charts as pictures."""

from __future__ import annotations

import struct

import pytest

from daskxml.core.errors import ConfigError
from daskxml.observe.chart import Chart, Series, bars
from daskxml.observe.report import write as pictures

pytest.importorskip("matplotlib", reason="PNGs are drawn by Matplotlib")
CHARTS = [
    Chart(
        name="lines",
        title="Lines",
        x_label="s",
        series=(
            Series(name="a", points=((0.0, 1.0), (1.0, 2.0)), marked=((1.0, 2.0),)),
            Series(name="gone", points=()),
            Series(name="b", points=((0.0, 2.0),), band=((1.0, 3.0),)),
        ),
        target=1.5,
        mark_meaning="marked",
        from_zero=True,
    ),
    Chart(name="bars", title="Bars", x_label="s", bars=bars({"a": {"x": 1.0}, "b": {"y": 2.0}})),
]


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_a_picture_has_its_size_and_more_than_ground(chart, tmp_path):
    path = tmp_path / "chart.png"
    pictures.draw_png(chart, path)
    head = path.read_bytes()
    assert head.startswith(b"\x89PNG")
    width, height = (size * pictures.DOTS_PER_INCH for size in pictures.INCHES)
    assert struct.unpack(">II", head[16:24]) == (width, height)
    from matplotlib.image import imread

    colours = {tuple(pixel) for row in imread(path)[::4] for pixel in row[::4].round(2)}
    assert len(colours) > 5


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "has_matplotlib", lambda: False)
    with pytest.raises(ConfigError, match=r"pip install 'daskxml\[report\]'"):
        pictures.draw_png(CHARTS[0], tmp_path / "chart.png")
