"""A thinned series against what it should be: the multiples of a stride, and the newest point."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from daskxml.observe.run_view import Course, Point, RunView, Thinned
from harness.run_events import row


def point(megabatch: int) -> Point:
    return Point(megabatch, 0.0, 0.0, {}, 0.0, 0.0, (), np.empty(0))


def thinned(bound: int, numbers: range) -> Thinned:
    series = Thinned(bound)
    for number in numbers:
        series.append(point(number))
    return series


@given(
    count=st.integers(0, 500), bound=st.integers(2, 40), first=st.integers(1, 9),
    every=st.integers(1, 9),
)  # fmt: skip
def test_it_is_even_and_ends_with_the_newest(
    count: int, bound: int, first: int, every: int
) -> None:
    numbers = range(first, first + count * every, every)
    series = thinned(bound, numbers)
    expected = [n for n in numbers if n % series.stride == 0 or n == numbers[-1]]
    assert [each.megabatch for each in series] == expected
    assert len(series) <= bound + every.bit_length()
    if series.stride > 1:  # no more was left out than had to be
        assert len([n for n in numbers if n % (series.stride // 2) == 0]) >= bound


@given(
    steps=st.lists(st.one_of(st.integers(1, 60), st.integers(-60, -1)), max_size=12),
    bound=st.integers(2, 20),
)
def test_points_that_are_undone_stay_away(steps: list[int], bound: int) -> None:
    course, view, done = Course("", is_bounded=True), RunView(), 0
    course.points.bound = bound
    for step in steps:
        if step > 0:
            for number in range(done + 1, done + step + 1):
                course.apply({"kind": "megabatch", "row": row(number)}, view)
        done = max(0, done + step)
        if step < 0:
            course.apply({"kind": "rewound", "megabatch": done}, view)
        found = [each.megabatch for each in course.points]
        assert found == sorted({*found})
        assert not found or found[-1] <= done
        assert len(found) <= bound + 1
        if step > 0:
            assert found[-1] == done
