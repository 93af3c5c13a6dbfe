"""How long a merge by a quorum waits: until those that are not in are overdue."""

import pytest

from daskxml.session.grace import MERGES, Grace
from daskxml.strategies.protocol import WorkDone

SPEEDS = {"d": 8.0}


def grace_with(delay_s, given_s=None):
    """Return one that knows mega-batches of 8 s in which a lease of 8 rows was so much too late."""
    grace = Grace(given_s)
    for number in range(MERGES):
        grace.report(WorkDone.alone("d", 8, 1, 1.0 + delay_s), SPEEDS, (), 8.0 * number + 8.0)
        grace.end(set(), 8.0 * number, 8.0 * number + 8.0)
    return grace


def waited_s(grace, given_s, waits_for="others", begun_s=32.0, speed=8.0):
    """Return for how long from 40 s on a worker is waited for that was given 8 rows then."""
    leases = {"d": [(given_s, 8)]}
    grace.wait(waits_for, begun_s, 40.0, leases, {"d": speed})
    return pytest.approx(grace.until_s - 40.0)


def test_a_worker_has_twice_as_long_beyond_its_time_as_was_lately_needed():
    assert waited_s(grace_with(0.5), given_s=39.5) == 1.5  # due at 40.5
    assert waited_s(grace_with(0.01), given_s=39.5) == 0.75  # no hiccup makes a worker late
    assert waited_s(grace_with(7.0), given_s=39.5) == 2.0  # a quarter of the mega-batch at most
    assert waited_s(Grace(), given_s=38.9) == 1.9  # nothing is known of delays
    assert waited_s(grace_with(0.5), given_s=39.5, speed=0.0) == 2.0


def test_nobody_waits_for_who_was_overdue_before():
    assert waited_s(grace_with(0.5), given_s=36.0) == 0.0
    assert waited_s(grace_with(0.5), given_s=38.5) == 0.5


def test_a_given_grace_begins_with_the_wait():
    found = [waited_s(grace_with(0.5, 0.1), 39.5, what) for what in ("others", "quorum", "work")]
    assert found == [0.1, 0.4, 2.0]


@pytest.mark.parametrize(
    ("missing", "report_s", "expected_s"),
    [
        ({"d"}, 41.4, 1.8),  # 0.4 s beyond its time: a slight delay
        ({"d"}, 60.0, 1.25),  # frozen for longer than the mega-batch
        (set(), 45.0, 1.25),  # left behind in its silence
    ],
)
def test_the_delay_of_a_late_worker(missing, report_s, expected_s):
    grace = grace_with(0.01)
    grace.end(missing, 32.0, 40.0)
    grace.report(WorkDone.alone("d", 8, 1, report_s - 40.0), SPEEDS, ("d",), report_s)
    leases = {"d": [(report_s, 8)]}
    grace.wait("others", report_s - 8.0, report_s, leases, SPEEDS)
    assert grace.until_s - report_s == pytest.approx(expected_s)
