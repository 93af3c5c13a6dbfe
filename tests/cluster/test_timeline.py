"""What the workers of a run do, in bounded memory."""

import pytest

from daskxml.cluster.timeline import JOINED_S, KEPT, Timeline, Work


def test_leases_that_follow_each_other_are_one_piece_of_work() -> None:
    timeline = Timeline()
    for _ in range(3):
        timeline.lease_given("0", now_s=100.0)
    timeline.lease_done("0", busy_s=1.0, now_s=101.0)
    timeline.lease_done("0", busy_s=0.99, now_s=102.0)
    timeline.lease_done("0", busy_s=0.5, now_s=102.5 + 2 * JOINED_S)
    first, second = timeline.recent(0.0, now_s=103.0)
    assert (first.begin_s, first.end_s) == (100.0, 102.0)
    assert second.begin_s == pytest.approx(102.0 + 2 * JOINED_S)


def test_what_goes_on_ends_now() -> None:
    timeline = Timeline()
    timeline.lease_given("0", now_s=5.0)
    timeline.lease_given("0", now_s=5.1)
    assert timeline.recent(0.0, now_s=7.0) == [Work("0", "lease", 5.0, 7.0)]
    timeline.lease_done("0", busy_s=1.9, now_s=7.0)
    assert timeline.recent(0.0, now_s=8.0)[-1] == Work("0", "lease", 7.0, 8.0)
    timeline.lease_done("0", busy_s=0.0, now_s=8.5)  # the worker is lost
    assert [work.end_s for work in timeline.recent(0.0, now_s=99.0)] == [7.0]
    with timeline.doing("merge", "0"):
        (going,) = timeline.recent(1e6, now_s=2e12)
        assert (going.what, going.end_s) == ("merge", 2e12)
    assert [work.what for work in timeline.recent(0.0)] == ["lease", "merge"]


def test_what_breaks_off_has_ended() -> None:
    timeline = Timeline()
    with pytest.raises(OSError, match="gone"), timeline.doing("eval", "1"):
        raise OSError("gone")
    assert [work.what for work in timeline.recent(0.0)] == ["eval"]


def test_a_long_run_is_not_remembered_whole() -> None:
    timeline = Timeline()
    for number in range(KEPT + 500):
        timeline.lease_given(str(number % 7), now_s=float(number))
        timeline.lease_done(str(number % 7), busy_s=0.5, now_s=number + 0.5)
    assert len(timeline.done) == KEPT
    assert timeline.recent(KEPT + 490.0, now_s=1e9)[0].end_s == KEPT + 490.5
