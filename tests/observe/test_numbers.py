"""What is a number and not a chart: series with one point, and values that do not change."""

from __future__ import annotations

import math

import pytest

from daskxml.observe.charts import Chart, Series

NAN = math.nan
MANY = [str(number) for number in range(6)]


def chart_of(values, names, **options):
    series = tuple(
        Series(name=name, points=tuple((float(x), y) for x, y in enumerate(line)))
        for name, line in zip(names, values, strict=True)
    )
    return Chart(name="c", title="", x_label="", series=series, **options)


@pytest.mark.parametrize(
    ("values", "names", "words"),
    [
        ([[64.0]], ["a"], "64"),  # one point
        ([[64.0, 64.0, 64.0]], ["a"], "64"),
        ([[64.0, 63.0]], ["a"], None),
        ([[64.0, 64.0], [64.0, 64.0]], ["a", "b"], "64"),
        ([[64.0, 64.0], [32.0, 32.0]], ["a", "b"], "64 (a), 32 (b)"),
        ([[NAN, 64.0], [32.0, NAN]], ["a", "b"], "64 (a), 32 (b)"),  # joined, and lost
        ([[64.0, 64.0], [32.0, 31.0]], ["a", "b"], None),
        ([[0.0, 0.0]], ["a"], ""),  # it does not apply to this run
        ([[0.0], [NAN]], ["a", "b"], ""),
        ([[NAN, NAN]], ["a"], ""),
        ([[]], ["a"], ""),
        ([], [], ""),
        ([[float(number)] for number in range(6)], MANY, "0 to 5"),
        ([[0.123456]], ["a"], "0.1235"),
    ],
)
def test_what_does_not_change_is_told_in_words(values, names, words):
    assert chart_of(values, names).numbers == words


def test_a_target_and_bars_are_drawn():
    assert chart_of([[0.5]], ["a"], target=0.6).numbers is None
    assert Chart(name="c", title="", x_label="", bars={"a": {"x": 1.0}}).numbers is None
