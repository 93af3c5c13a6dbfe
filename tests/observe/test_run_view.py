"""Figures that are derived from a run's events, and from its history."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskxml.observe.run_view import (
    KEPT_WORKERS,
    Course,
    Point,
    RunView,
    Thinned,
    busy_share,
    reach,
)
from harness.run_events import row


def view_of(*events, **limits):
    view = RunView(limits=limits)
    for event in events:
        view.apply(event)
    return view


def megabatches(*numbers, **other):
    return [{"kind": "megabatch", "row": row(number, **other)} for number in numbers]


def test_the_time_is_of_all_rows_and_the_best_is_remembered():
    low = [{"kind": "megabatch", "row": row(4, metrics={"P@1": 0.01, "rows": 200})}]
    view = view_of(*megabatches(1, 2, 3), *low)
    assert view.spent_s == 6.0
    assert view.best == {"P@1": (0.03, 3), "P@3": (0.015, 3)}
    assert view.measured["metrics"]["P@1"] == 0.01


def test_a_run_that_goes_back_forgets_the_best_of_what_is_undone():
    view = view_of(*megabatches(1, 2, 3, 4), {"kind": "rewound", "megabatch": 3})
    assert view.best == {}
    view.apply(*megabatches(4, metrics={"P@1": 0.01}))
    assert view.best == {"P@1": (0.01, 4)}


def test_minutes_are_of_training_and_merging_and_count_before_a_resumed_run():
    whole = view_of(*megabatches(1, 2, 3, 4, 5, 6), minutes=1.0)
    assert whole.progress() == pytest.approx(6 * 1.5 / 60)
    resumed = view_of(*megabatches(5, 6), minutes=1.0)
    assert resumed.progress() == pytest.approx((4 * 2.0 + 2 * 1.5) / 60)


def test_a_status_after_the_end_changes_nothing():
    ended = {"kind": "ended", "reason": "epochs"}
    view = view_of(ended, {"kind": "status", "state": "ending", "rows": 5})
    assert (view.state, view.is_over, view.rows) == ("ended: epochs", True, 0)


def test_workers_that_come_and_go_are_remembered_within_bounds():
    lost = [{"kind": "worker", "event": "lost", "worker": str(i)} for i in range(1500)]
    view = view_of(*lost, *megabatches(1), {"kind": "worker", "event": "joined", "worker": "1499"})
    assert len(view.lost) == KEPT_WORKERS - 1
    assert len(view.workers) == KEPT_WORKERS + 2
    assert (view.workers["1499"], view.workers["0"]) == ("joined", "")


def test_the_share_of_no_time_is_unknown():
    assert busy_share({}) is None


# --------------------------------------------------------------------- a whole history


def history_of(values):
    """Return rows of 2 s and 10 rows each; None is not evaluated."""
    return [
        {"megabatch": i, "rows": 10 * i, "epoch": i / 4, "train_s": 1.5, "merge_s": 0.5,
         "wall_s": 3.0 * i, "metrics": {} if value is None else {"P@1": value, "rows": 7}}
        for i, value in enumerate(values, 1)
    ]  # fmt: skip


LEVELS = st.one_of(st.none(), st.integers(0, 8).map(lambda eighths: eighths / 8))


@given(st.lists(LEVELS, max_size=8), st.integers(0, 9).map(lambda eighths: eighths / 8))
def test_the_first_at_the_level_or_the_best(values, level):
    found = reach(history_of(values), "P@1", level)
    measured = [(i, value) for i, value in enumerate(values, 1) if value is not None]
    if not measured:
        assert found is None
        return
    at_level = [(i, value) for i, value in measured if value >= level]
    top = max(value for _, value in measured)
    expected = at_level[0] if at_level else next((i, v) for i, v in measured if v == top)
    assert (found.megabatch, found.value) == expected
    assert found.is_reached == bool(at_level)
    assert (found.train_s, found.wall_s, found.rows) == tuple(expected[0] * k for k in (2, 3, 10))


# ------------------------------------------------------------- thinned series


def point(megabatch: int) -> Point:
    return Point(megabatch, 0.0, 0.0, {}, 0.0, 0.0, {})


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
