"""Rows handed out and taken back, and the strategy's events that come of it."""

from __future__ import annotations

import pytest

from daskxml.strategies import protocol
from daskxml.strategies.protocol import Share
from daskxml.strategies.schemes import Mirrored
from daskxml.training.dealing import Dealer
from daskxml.training.history import MegabatchLog
from daskxml.training.ledger import Ledger, Span
from daskxml.training.orders import GangReport, GangResult, LeaseReport
from daskxml.training.placement import Placement

ROWS = 100


@pytest.fixture
def log():
    return MegabatchLog(1, 0.0)


@pytest.fixture
def dealer():
    placement = Placement(True, (ROWS,), ())
    return Dealer(Ledger(placement.streams()), placement, 0)


def gang(dealer, rows, *, begins=True, now_s=0.0):
    shares = {name: Share(count, 10, 0.5) for name, count in rows.items()}
    return dealer.gather(protocol.Gang(shares, Mirrored()), begins=begins, now_s=now_s)


def result(**notes):
    told = {name: (value, 1) for name, value in notes.items()}
    return GangResult(loss_sum=2.0, nonzeros=70, busy_s=1.5, sent_bytes=100, notes=told)


def test_a_lease_and_its_report(dealer, log):
    order = dealer.lease(protocol.Lease("a", 25, 10, 0.5))
    assert [sum(s.rows for s in batch) for batch in order.batches] == [10, 10, 5]
    event = dealer.lease_done(LeaseReport(order.lease, 3.0, 0.5, 40, 3), log)
    assert event == protocol.LeaseDone("a", 25, 3, 0.5)
    assert (log.tallies["a"].rows, log.tallies["a"].nonzeros) == (25, 40)
    assert dealer.lease_done(LeaseReport(order.lease, 3.0, 0.5, 40, 3), log) is None


def test_a_gangs_rows_are_each_ranks_own(dealer, log):
    order = gang(dealer, {"a": 20, "b": 10, "c": 0}, now_s=5.0)
    assert order.workers == ("a", "b", "c")
    assert order.batches == (
        ((Span(0, 0, 0, 10),), (Span(0, 0, 10, 20),)),
        ((Span(0, 0, 20, 30),),),
        (),
    )
    assert (order.steps, order.step_rows(0), order.step_rows(1)) == (2, (10, 10, 0), (10, 0, 0))
    assert (order.begins, order.rewinds) == (True, False)
    results = (result(x=1.0), result(x=3.0), result())
    event = dealer.gang_done(GangReport(order.gang, results), log, 9.0)
    assert event == protocol.GangDone(
        took_s=4.0,
        rows={"a": 20, "b": 10, "c": 0},
        updates={"a": 2, "b": 1, "c": 0},
        busy_s={"a": 1.5, "b": 1.5, "c": 1.5},
    )
    assert (log.rows, log.moved_bytes, log.notes) == (30, 300, {"x": (4.0, 2)})


def test_with_one_worker_the_work_of_all_is_undone(dealer, log):
    first = gang(dealer, {"a": 20, "b": 20})
    dealer.gang_done(GangReport(first.gang, (result(x=1.0), result())), log, 1.0)
    second = gang(dealer, {"a": 20, "b": 20}, begins=False)
    assert dealer.is_open(second.gang)
    assert dealer.take_back_all(log) == 80
    assert not dealer.is_open(second.gang)
    assert (log.rows, log.notes) == (0, {})
    assert dealer.gang_done(GangReport(second.gang, (result(), result())), log, 2.0) is None
    again = gang(dealer, {"a": 80})
    assert again.rewinds
    assert again.rows_of(0) == 80
    spans = sorted(span for batch in again.batches[0] for span in batch)
    assert [(s.start, s.stop) for s in spans] == [(i, i + 10) for i in range(0, 80, 10)]
    assert not gang(dealer, {"a": 10}, begins=False).rewinds


def test_nothing_done_is_nothing_to_rewind(dealer, log):
    assert dealer.take_back_all(log) == 0
    assert not gang(dealer, {"a": 10}).rewinds


def test_a_lost_worker_gives_back_its_own_leases_only(dealer, log):
    first = dealer.lease(protocol.Lease("a", 20, 10, 0.5))
    second = dealer.lease(protocol.Lease("b", 20, 10, 0.5))
    dealer.lease_done(LeaseReport(second.lease, 1.0, 0.1, 5, 1), log)
    assert dealer.take_back("a", log) == 20
    assert dealer.lease_done(LeaseReport(first.lease, 1.0, 0.1, 5, 1), log) is None
    assert log.rows == 20


def test_where_the_model_is_shared_only_open_leases_go_back(dealer, log):
    done, open_ = (dealer.lease(protocol.Lease("a", 20, 10, 0.5)) for _ in range(2))
    other = dealer.lease(protocol.Lease("b", 10, 10, 0.5))
    dealer.lease_done(LeaseReport(done.lease, 3.0, 0.5, 40, 8), log)  # a pool of four threads
    assert log.tallies["a"].updates == 8
    assert dealer.take_back_open("a") == 20
    assert dealer.take_back_open("a") == 0
    assert dealer.lease_done(LeaseReport(open_.lease, 3.0, 0.5, 40, 8), log) is None
    assert log.rows == 20
    again = dealer.lease(protocol.Lease("b", 20, 10, 0.5))
    assert again.batches == open_.batches
    for order in (other, again):
        dealer.lease_done(LeaseReport(order.lease, 3.0, 0.5, 40, 2), log)
    settled = dealer.ledger.settle()
    assert {
        name: sum(s.rows for lease in held for s in lease) for name, held in settled.items()
    } == {
        "a": 20,
        "b": 30,
    }
