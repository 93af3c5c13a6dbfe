"""A thinned series against what it should be: the multiples of a stride, and the last point."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskxml.observe.run_view import Thinned


def thinned_naively(points: list[int], bound: int) -> list[int]:
    """Keep everything, and choose at the end."""
    stride = 1
    while len(points[::stride]) > bound:
        stride *= 2
    kept = points[::stride]
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]


@given(count=st.integers(0, 500), bound=st.integers(2, 40))
def test_it_is_what_one_would_choose_who_had_kept_everything(count: int, bound: int) -> None:
    series: Thinned[int] = Thinned(bound)
    for point in range(count):
        series.append(point)
    assert list(series) == thinned_naively(list(range(count)), bound)
    assert len(series) == len(list(series)) <= bound + 1


@given(
    steps=st.lists(st.one_of(st.integers(1, 60), st.integers(-60, -1)), max_size=12),
    bound=st.integers(2, 20),
)
def test_points_that_are_dropped_stay_away(steps: list[int], bound: int) -> None:
    series: Thinned[int] = Thinned(bound)
    true: list[int] = []
    for step in steps:
        if step > 0:
            for _ in range(step):
                series.append(len(true))
                true.append(len(true))
        else:
            del true[step:]
            length = len(true)
            series.drop(lambda point, length=length: point >= length)
        found = list(series)
        assert set(found) <= set(true)
        assert found == sorted(found)
        assert len(found) <= bound + 1
    if steps and steps[-1] > 0:
        assert list(series)[-1] == true[-1]


@pytest.mark.parametrize("count", [10**5])
def test_it_stays_small(count: int) -> None:
    series: Thinned[int] = Thinned(300)
    for point in range(count):
        series.append(point)
    found = list(series)
    assert 150 <= len(found) <= 301
    assert found[-1] == count - 1
    assert {b - a for a, b in itertools.pairwise(found[:-1])} == {series.stride}
