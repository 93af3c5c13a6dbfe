"""Drawn charts are well-formed, stay inside their frame, and keep labels off the lines."""

from xml.etree import ElementTree

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from daskxml.core.text import printable
from daskxml.observe.charts import Chart, Series
from daskxml.observe.html import WIDTH, draw

SVG = "{http://www.w3.org/2000/svg}"
TEXTS = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=60)


def elements(svg, tag):
    return list(ElementTree.fromstring(svg).iter(SVG + tag))


def texts(drawn):
    return list(ElementTree.fromstring(drawn).itertext())


def labels(svg):
    return [text.strip() for text in texts(svg)]


def plot(svg):
    (found,) = elements(svg, "svg")
    return found


def chart_of(*lines, **values):
    return Chart(name="c", title="T", x_label="seconds", series=lines, **values)


@given(TEXTS, TEXTS, st.lists(st.tuples(TEXTS, st.floats(-1e3, 1e6)), min_size=1, max_size=15))
def test_any_texts_and_values_are_drawn_inside(title, label, named):
    assume(any(value for _, value in named))
    lines = [Series(name=name, points=((0.0, value), (5.0, value / 2))) for name, value in named]
    svg = draw(Chart(name="c", title=title, x_label=label, y_label=label, series=tuple(lines)))
    height = float(plot(svg).get("height"))
    assert plot(svg).get("aria-label") == printable(title)
    circles = elements(svg, "circle")
    assert len(circles) == 2 * len(lines)
    for circle in circles:
        assert 0 <= float(circle.get("cx")) <= WIDTH
        assert 0 <= float(circle.get("cy")) <= height
    assert all(0 <= float(text.get("y")) <= height for text in elements(svg, "text"))


def test_the_legend_is_over_the_plot_and_wraps():
    names = [f"a rather long name of run {i}" for i in range(9)]
    drawn = draw(chart_of(*(Series(name=n, points=((0.0, 0.0), (1.0, 1.0))) for n in names)))
    parts = [element.get("class") for element in ElementTree.fromstring(drawn)]
    assert parts == ["chart-title", "legend", "plot"]
    (legend,) = (each for each in ElementTree.fromstring(drawn) if each.get("class") == "legend")
    assert "flex-wrap:wrap" in legend.get("style")
    assert [entry.text or "".join(entry.itertext()).strip() for entry in legend] == names
    assert [line.get("stroke") for line in legend.iter("line")] == [
        path.get("stroke") for path in elements(drawn, "path")
    ]


def test_series_are_distinguished_by_colour_and_dash():
    lines = [Series(name=str(i), points=((0.0, i), (1.0, i))) for i in range(18)]
    paths = list(elements(draw(chart_of(*lines)), "path"))
    styles = {(path.get("stroke"), path.get("stroke-dasharray")) for path in paths}
    assert len(styles) == 18


def test_the_target_is_in_the_legend():
    line = Series(name="a", points=((1.0, 0.2), (2.0, 0.3)))
    assert "P@1 of 0.5" in labels(draw(chart_of(line, target=0.5, target_name="P@1 of 0.5")))


def test_a_line_alone_has_no_legend():
    points = ((0.0, 1.0), (1.0, 2.0))
    assert "a" not in labels(draw(chart_of(Series(name="a", points=points))))


def test_parts_of_a_bar_are_as_wide_as_their_values():
    totals = {"one": {"busy": 3.0, "idle": 1.0}, "<two>": {"busy": 1.0, "idle": 0.0}}
    drawn = draw(Chart(name="c", title="T", x_label="s", bars=totals))
    found = [element.get("style") for element in ElementTree.fromstring(drawn).iter("i")]
    widths = [float(style.split("%")[0].removeprefix("width:")) for style in found[2:]]
    assert [w / widths[-1] for w in widths] == pytest.approx([3, 1, 1], rel=0.01)
    assert max(widths[0] + widths[1], widths[2]) < 100
    assert {"one", "<two>", "4", "1"} <= {text.strip() for text in texts(drawn)}
    assert {"busy", "idle", "T", "s"} <= {text.strip() for text in texts(drawn)}


def test_bars_of_no_length_are_drawn():
    drawn = draw(Chart(name="c", title="T", x_label="s", bars={"one": {"busy": 0.0}}))
    assert len(list(ElementTree.fromstring(drawn).iter("i"))) == 1  # in the legend
    assert "0" in texts(drawn)


def test_many_points_have_few_elements():
    points = tuple((float(x), float(x % 9)) for x in range(600))
    svg = draw(chart_of(*(Series(name=str(i), points=points) for i in range(12))))
    assert len(elements(svg, "circle")) <= 450
