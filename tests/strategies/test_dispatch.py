"""Leases: never too many, never too long, and a short wait at the end of a mega-batch."""

import heapq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.strategies.dispatch import IN_FLIGHT, LONGEST_LEASE_S, Load, next_lease_rows

SPEEDS = st.floats(0.05, 1000.0)
LOADS = st.builds(
    Load,
    batch_rows=st.integers(1, 200),
    rows_per_s=st.one_of(st.just(0.0), SPEEDS),
    leased_rows=st.integers(0, 1000),
    leases=st.integers(0, IN_FLIGHT),
)
FLEETS = st.dictionaries(st.sampled_from("abcdef"), LOADS, min_size=1)


def fleet(batch_rows, speeds):
    return {str(i): Load(batch_rows, speed, 0, 0) for i, speed in enumerate(speeds)}


def offers(loads, remaining):
    return {name: next_lease_rows(name, loads, remaining) for name in loads}


def race(speeds, batches, rows, known=True):
    """Play a mega-batch in virtual time at constant speeds; return its end and every lease."""
    names = range(len(speeds))
    measured = list(speeds) if known else [0.0] * len(speeds)
    leased, free_s = [0] * len(speeds), [0.0] * len(speeds)
    running: list[tuple[float, int, int]] = []
    waiting = [0] * len(speeds)
    lengths, now_s = [], 0.0
    while rows or running:
        changed = True
        while changed:
            changed = False
            for i in sorted(names, key=lambda i: waiting[i]):
                loads = {
                    str(j): Load(batches[j], measured[j], leased[j], waiting[j]) for j in names
                }
                taken = next_lease_rows(str(i), loads, rows)
                if taken:
                    free_s[i] = max(free_s[i], now_s) + taken / speeds[i]
                    heapq.heappush(running, (free_s[i], i, taken))
                    rows, leased[i], waiting[i] = rows - taken, leased[i] + taken, waiting[i] + 1
                    lengths.append((i, taken))
                    changed = True
                    break
        assert running, f"{rows} rows are left and nobody takes them"
        now_s, i, taken = heapq.heappop(running)
        leased[i], waiting[i], measured[i] = leased[i] - taken, waiting[i] - 1, speeds[i]
    return now_s, lengths


@given(FLEETS, st.integers(0, 5000))
@settings(max_examples=200, deadline=None)
def test_no_lease_is_too_much(loads, remaining):
    for name, rows in offers(loads, remaining).items():
        load = loads[name]
        assert 0 <= rows <= remaining
        assert rows % load.batch_rows == 0 or rows == remaining  # whole batches, or the rest
        if load.leases == IN_FLIGHT:
            assert rows == 0
        if load.rows_per_s == 0.0:
            assert rows <= load.batch_rows  # ask for little, learn much
        else:
            assert rows <= max(load.batch_rows, LONGEST_LEASE_S * load.rows_per_s)


@given(FLEETS, st.integers(1, 5000))
@settings(max_examples=300, deadline=None)
def test_somebody_takes_rows_when_nobody_has_any(loads, remaining):
    idle = {name: Load(o.batch_rows, o.rows_per_s, 0, 0) for name, o in loads.items()}
    assert any(offers(idle, remaining).values())


@pytest.mark.parametrize("speed", [0.3, 1.0, 7.0])
@pytest.mark.parametrize("remaining", [1, 9, 10, 15, 20])
def test_equal_workers_do_not_leave_the_last_rows_to_each_other(speed, remaining):
    assert any(offers(fleet(10, [speed] * 3), remaining).values())


@given(st.lists(SPEEDS, min_size=1, max_size=5), st.integers(1, 3000), st.integers(1, 3000))
@settings(max_examples=200, deadline=None)
def test_leases_shrink_as_the_rows_run_out(speeds, few, more):
    loads = fleet(1, speeds)
    few, more = sorted((few, more))
    for name in loads:
        assert next_lease_rows(name, loads, few) <= next_lease_rows(name, loads, more)


def test_leases_by_hand():
    # 2,000 rows at 100, 200 and 100 rows a second: half of what is left is 1,000, of which a
    # quarter, a half and a quarter are 250, 500 and 250; no lease is longer than a second, so 100,
    # 200 and 100; in whole batches of 30 that is 90, 180 and 90.
    assert offers(fleet(30, [100.0, 200.0, 100.0]), 2000) == {"0": 90, "1": 180, "2": 90}
    # 400 rows are left: 50, 100, 50, in whole batches 30, 90, 30
    assert offers(fleet(30, [100.0, 200.0, 100.0]), 400) == {"0": 30, "1": 90, "2": 30}
    # 20 rows are left, less than a batch: only the fastest takes them
    assert offers(fleet(30, [100.0, 200.0, 100.0]), 20) == {"0": 0, "1": 20, "2": 0}
    # an unmeasured worker gets one batch, whatever is left
    assert offers(fleet(30, [0.0, 200.0]), 2000) == {"0": 30, "1": 180}


def test_a_slow_worker_leaves_the_last_batch_to_a_busy_fast_one():
    # The fast one ends its 20 rows after 0.1 s and the last ten after 0.15; the slow one needs 1 s.
    loads = {"fast": Load(10, 200.0, 20, 1), "slow": Load(10, 10.0, 0, 0)}
    assert offers(loads, 10) == {"fast": 10, "slow": 0}
    # With 400 rows on the fast one it is the slow one that ends sooner.
    loads = {"fast": Load(10, 200.0, 400, 2), "slow": Load(10, 10.0, 0, 0)}
    assert offers(loads, 10) == {"fast": 0, "slow": 10}


def test_a_short_megabatch_is_not_all_with_who_is_asked_first():
    # 1,000 rows are 5 ms of two equal workers, less than the shortest lease: a takes its half, and
    # of the other half b takes half at once.
    loads = {"a": Load(10, 1e5, 0, 0), "b": Load(10, 1e5, 0, 0)}
    assert next_lease_rows("a", loads, 1000) == 500
    loads["a"] = Load(10, 1e5, 500, 1)
    assert next_lease_rows("b", loads, 500) == 250
    # 1,250 rows are not done, 300 of them with nobody: of its 625 a holds 500, so 125 are left.
    loads = {"a": Load(10, 1e5, 500, 1), "b": Load(10, 1e5, 450, 1)}
    assert offers(loads, 300) == {"a": 120, "b": 150}


@given(st.lists(st.floats(0.1, 50.0), min_size=1, max_size=6), st.integers(1, 40), st.data())
@settings(max_examples=150, deadline=None)
def test_the_merge_waits_for_at_most_a_batch(speeds, batch_rows, data):
    """Against the ideal, at which all end together: a batch of the slowest worker later."""
    rows = data.draw(st.integers(1, 100)) * batch_rows + data.draw(st.integers(0, batch_rows - 1))
    end_s, lengths = race(speeds, [batch_rows] * len(speeds), rows)
    assert sum(length for _, length in lengths) == rows
    assert end_s <= rows / sum(speeds) + batch_rows / min(speeds) + 1e-9


@given(st.lists(st.floats(0.1, 50.0), min_size=1, max_size=6), st.integers(1, 40), st.data())
@settings(max_examples=150, deadline=None)
def test_batches_in_proportion_to_speed_end_within_one_of_the_ideal(speeds, rows_per_s, data):
    """Batches as Algorithm 1 makes them take equally long everywhere, but for rounding."""
    sizes = [max(1, round(speed * rows_per_s)) for speed in speeds]
    rows = data.draw(st.integers(1, 30)) * sum(sizes)
    end_s, _ = race(speeds, sizes, rows)
    longest_s = max(size / speed for size, speed in zip(sizes, speeds, strict=True))
    assert end_s <= rows / sum(speeds) + longest_s + 1e-9


@given(st.lists(st.floats(0.1, 50.0), min_size=1, max_size=6), st.integers(1, 40), st.data())
@settings(max_examples=100, deadline=None)
def test_speeds_that_are_still_unknown_cost_no_more_than_the_first_batches(speeds, size, data):
    rows = data.draw(st.integers(1, 3000))
    end_s, _ = race(speeds, [size] * len(speeds), rows, known=False)
    first_s = IN_FLIGHT * size / min(speeds)
    assert end_s <= rows / sum(speeds) + first_s + size / min(speeds) + 1e-9
