"""Rows that are leased and returned, and the events that follow for the strategy."""

from itertools import count

import pytest

from daskxml.config.sections import EvaluationSection
from daskxml.core.work_stats import WorkStats
from daskxml.session.allocator import EvaluationRound, WorkAllocator
from daskxml.session.commands import WorkResult
from daskxml.session.ledger import Ledger, Span
from daskxml.session.placement import Placement
from daskxml.strategies import protocol
from daskxml.strategies.adaptive_sgd import AdaptiveSgd, Config
from daskxml.strategies.hogbatch import Config as HogbatchConfig
from daskxml.strategies.hogbatch import Hogbatch
from daskxml.strategies.protocol import Mirrored, Part

ROWS = 100


@pytest.fixture
def allocator():
    placement = Placement(True, (ROWS,), ())
    return WorkAllocator(Ledger(placement.streams()), placement, 0)


def gang(allocator, rows, *, begins=True, now_s=0.0):
    shares = {name: Part(count, 10, 0.5) for name, count in rows.items()}
    return allocator.allocate(protocol.Work(shares, Mirrored()), begins=begins, now_s=now_s)


def work(rows=0, updates=0):
    """Return what a rank of a gang did."""
    return WorkStats(rows, updates, 2.0, 70, busy_s=1.5, sent_bytes=100)


def lease(allocator, worker, rows):
    """Allocate a lease in batches of ten."""
    work = protocol.Work.alone(worker, rows, 10, 0.5)
    return allocator.allocate(work, begins=False, now_s=0.0)


def done(lease, updates):
    """Return the result of a lease."""
    return WorkResult(lease.number, (WorkStats(lease.rows_of(0), updates, 3.0, 40, busy_s=0.5),))


def test_a_lease_and_its_result(allocator):
    command = lease(allocator, "a", 25)
    assert [sum(s.rows for s in batch) for batch in command.batches[0]] == [10, 10, 5]
    event = allocator.done(done(command, 3), 0.5)
    assert event == protocol.WorkDone.alone("a", 25, 3, 0.5)
    assert allocator.done(done(command, 3), 1.0) is None


def test_a_gangs_rows_are_each_ranks_own(allocator):
    command = gang(allocator, {"a": 20, "b": 10, "c": 0}, now_s=5.0)
    assert command.workers == ("a", "b", "c")
    assert command.batches == (
        ((Span(0, 0, 0, 10),), (Span(0, 0, 10, 20),)),
        ((Span(0, 0, 20, 30),),),
        (),
    )
    assert (command.steps, command.step_rows(0), command.step_rows(1)) == (
        2,
        (10, 10, 0),
        (10, 0, 0),
    )
    assert (command.begins, command.rewinds) == (True, False)
    results = (work(20, 2), work(10, 1), work())
    event = allocator.done(WorkResult(command.number, results), 9.0)
    assert event == protocol.WorkDone(
        took_s=4.0,
        rows={"a": 20, "b": 10, "c": 0},
        updates={"a": 2, "b": 1, "c": 0},
        busy_s={"a": 1.5, "b": 1.5, "c": 1.5},
    )


def test_with_one_worker_the_work_of_all_is_undone(allocator):
    first = gang(allocator, {"a": 20, "b": 20})
    allocator.done(WorkResult(first.number, (work(20, 2), work(20, 2))), 1.0)
    second = gang(allocator, {"a": 20, "b": 20}, begins=False)
    assert allocator.is_under_way(second.number)
    assert allocator.roll_back() == 80
    assert not allocator.is_under_way(second.number)
    assert allocator.done(WorkResult(second.number, (work(), work())), 2.0) is None
    again = gang(allocator, {"a": 80})
    assert again.rewinds
    assert again.rows_of(0) == 80
    spans = sorted(span for batch in again.batches[0] for span in batch)
    assert [(s.start, s.stop) for s in spans] == [(i, i + 10) for i in range(0, 80, 10)]
    assert not gang(allocator, {"a": 10}, begins=False).rewinds


def test_nothing_done_is_nothing_to_rewind(allocator):
    assert allocator.roll_back() == 0
    assert not gang(allocator, {"a": 10}).rewinds


def test_a_lost_worker_gives_back_its_own_leases_only(allocator):
    strategy = AdaptiveSgd(Config())
    first = lease(allocator, "a", 20)
    second = lease(allocator, "b", 20)
    allocator.done(done(second, 1), 1.0)
    assert allocator.lose("a", strategy) == 20
    assert allocator.done(done(first, 1), 1.0) is None


def test_where_the_model_is_shared_only_open_leases_go_back(allocator):
    strategy = Hogbatch(HogbatchConfig())
    first, open_ = (lease(allocator, "a", 20) for _ in range(2))
    other = lease(allocator, "b", 10)
    allocator.done(done(first, 8), 1.0)  # a pool of four threads
    assert allocator.lose("a", strategy) == 20
    assert allocator.lose("a", strategy) == 0
    assert allocator.done(done(open_, 8), 1.0) is None
    again = lease(allocator, "b", 20)
    assert again.batches == open_.batches
    for command in (other, again):
        allocator.done(done(command, 2), 1.0)
    settled = allocator.ledger.settle()
    assert {
        name: sum(s.rows for lease in held for s in lease) for name, held in settled.items()
    } == {
        "a": 20,
        "b": 30,
    }


@pytest.mark.parametrize(("kind", "rows"), [("pieces", 60), ("train_pieces", ROWS)])
def test_who_is_lost_with_the_pieces_of_another_leaves_all_of_them_to_the_last(kind, rows):
    rules = EvaluationSection(training_loss=True, batch_rows=16)
    evaluation = EvaluationRound(rules, count(1), 0.0)
    commands = evaluation.begin(Placement(True, (ROWS,), (60,)), dict.fromkeys("abc", 1.0))
    commands += evaluation.reassign("a", {"b": 1.0, "c": 2.0})
    commands += evaluation.reassign("b", {"c": 2.0})
    pieces = [piece for each in commands if each.worker == "c" for piece in getattr(each, kind)]
    assert sorted(row for _, *ends in pieces for row in range(*ends)) == [*range(rows)]
    if kind == "train_pieces":  # the bits of a loss depend on the batch that its row is in
        starts = [start for each in commands for _, start, _ in each.train_pieces]
        assert all(start % 16 == 0 for start in starts)
