"""Thinned points keep the shape, and ticks are round and cover the range."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskxml.observe.charts import Chart, Series, thin, ticks
from daskxml.observe.wording import exact

NUMBERS = st.floats(-1e6, 1e6)
POINTS = st.lists(st.tuples(st.floats(0, 1e6), st.one_of(NUMBERS, st.just(math.nan))), max_size=300)


@given(POINTS, st.integers(8, 40))
def test_thinned_points_keep_ends_and_extremes_in_order(points, most):
    points = sorted(points, key=lambda point: point[0])
    finite = [point for point in points if math.isfinite(point[1])]
    kept = [*map(tuple, thin(np.array(points).reshape(-1, 2), most).tolist())]
    assert len(kept) <= max(most, 0)
    rest = iter(finite)
    assert all(point in rest for point in kept), "a part of the points, in their order"
    if finite:
        assert (kept[0], kept[-1]) == (finite[0], finite[-1])
        values = [y for _, y in finite]
        assert {min(values), max(values)} <= {y for _, y in kept}


@given(NUMBERS, NUMBERS)
def test_ticks_are_evenly_spaced_and_cover_the_range(one, other):
    low, high = sorted((one, other))
    found = ticks(low, high)
    assert 2 <= len(found) <= 12
    step = found[1] - found[0]
    slack = 1e-9 * max(1.0, abs(low), abs(high)) + 1e-6 * step
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    assert all(b - a == pytest.approx(step, rel=1e-6) for a, b in itertools.pairwise(found))


def test_ticks_of_a_tiny_range_are_told_apart():
    found = ticks(0.61234, 0.61235)
    assert len({exact(value) for value in found}) == len(found)


def test_the_target_and_zero_count_for_the_range():
    series = Series(name="a", points=((1.0, 2.0), (2.0, 3.0)))
    chart = Chart(name="c", title="", x_label="", series=(series,), target=10.0, from_zero=True)
    assert chart.ranges() == ((1.0, 2.0), (0.0, 10.0))


@pytest.mark.parametrize(
    ("series", "bars", "is_empty"),
    [
        ((), None, True),
        ((Series(name="a", points=()),), None, True),
        ((Series(name="a", points=()), Series(name="b", points=((0.0, 0.0),))), None, True),
        ((Series(name="a", points=()), Series(name="b", points=((0.0, 1.0),))), None, False),
        ((), {"a": {"x": 1.0}}, False),
    ],
)
def test_a_chart_without_bars_and_without_points_but_zeros_is_empty(series, bars, is_empty):
    assert Chart(name="c", title="", x_label="", series=series, bars=bars).is_empty == is_empty
