"""Every row of every epoch is done once, whoever takes, loses or keeps it."""

import json
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from daskxml.session.ledger import Ledger, Span, cut_batches
from harness.virtual_executor import rows_of

WORKERS = st.sampled_from("abc")
SPANS = st.lists(
    st.builds(
        lambda epoch, stream, start, rows: Span(epoch, stream, start, start + rows),
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(0, 50),
        st.integers(0, 40),
    ),
    max_size=6,
)


class LedgerMachine(RuleBasedStateMachine):
    """A ledger beside its naive twin: sets of single rows."""

    @initialize(stream_rows=st.lists(st.integers(1, 12), min_size=1, max_size=4))
    def begin(self, stream_rows):
        self.ledger = Ledger(tuple(stream_rows))
        self.total = sum(stream_rows)
        self.held = {name: [] for name in "abc"}
        self.settled: Counter = Counter()
        self.settled_rows = 0
        self.returned: set = set()

    @rule(worker=WORKERS, rows=st.integers(1, 30), preferred=st.sets(st.integers(0, 3)))
    def take(self, worker, rows, preferred):
        preferred = {p for p in preferred if p < len(self.ledger.stream_rows)}
        taken = rows_of(self.ledger.take(worker, rows, preferred))
        assert len(taken) == rows == len(set(taken))
        again = set(taken) & self.returned
        assert len(again) == min(rows, len(self.returned)), "what came back is leased first"
        self.returned -= again
        self.held[worker] += taken

    @rule(worker=WORKERS)
    def give_back(self, worker):
        assert self.ledger.give_back(worker) == len(self.held[worker])
        self.returned |= set(self.held[worker])
        self.held[worker] = []

    @rule(worker=WORKERS, number=st.integers(0, 9))
    def give_back_a_lease(self, worker, number):
        leases = self.ledger.held.get(worker, [])
        if leases:
            lease = leases[number % len(leases)]
            rows = rows_of(lease)
            assert self.ledger.give_back_lease(worker, lease) == len(rows)
            self.returned |= set(rows)
            self.held[worker] = [row for row in self.held[worker] if row not in set(rows)]

    @rule()
    def settle(self):
        for worker, leases in self.ledger.settle().items():
            done = [row for spans in leases for row in rows_of(spans)]
            assert done == self.held[worker]
            self.settled.update(done)
        assert sum(map(len, self.held.values())) == self.settled.total() - self.settled_rows
        self.settled_rows = self.settled.total()
        self.held = {name: [] for name in "abc"}

    @rule()
    def store_and_restore(self):
        if not any(self.held.values()):
            self.ledger.settle()  # workers that hold nothing
            plain = json.loads(json.dumps(self.ledger.plain()))
            assert Ledger.restore(plain) == self.ledger
            self.ledger = Ledger.restore(plain)

    @invariant()
    def every_row_is_somewhere_once(self):
        everywhere = self.settled + Counter(self.returned)
        for held in self.held.values():
            everywhere.update(held)
        assert all(count == 1 for count in everywhere.values())
        leased = sum(self.ledger.cursors) + self.ledger.epoch * self.total
        assert everywhere.total() == leased
        whole = {row for row in everywhere if row[0] < self.ledger.epoch}
        assert len(whole) == self.ledger.epoch * self.total  # no epoch leaves a row behind


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_the_remainder_of_an_epoch_is_carried_over():
    ledger = Ledger((10,))
    assert ledger.take("a", 8) == [Span(0, 0, 0, 8)]
    assert ledger.take("a", 5) == [Span(0, 0, 8, 10), Span(1, 0, 0, 3)]
    assert ledger.settle() == {"a": [[Span(0, 0, 0, 8)], [Span(0, 0, 8, 10), Span(1, 0, 0, 3)]]}
    assert ledger.take("a", 30)[-1] == Span(4, 0, 0, 3)  # a lease of many epochs
    assert ledger.epoch == 4


def test_preferred_streams_come_first_and_change_with_the_epoch():
    ledger = Ledger((4, 4, 4))
    assert ledger.take("a", 6, preferred=(1, 2)) == [Span(0, 1, 0, 4), Span(0, 2, 0, 2)]
    assert ledger.take("b", 1, preferred=(0,)) == [Span(0, 0, 0, 1)]
    # its own are gone: from the stream with the most left
    assert ledger.take("b", 4, preferred=(1,)) == [Span(0, 0, 1, 4), Span(0, 2, 2, 3)]
    assert ledger.take("b", 1) == [Span(0, 2, 3, 4)]
    assert ledger.take("a", 5, preferred=(1, 2)) == [Span(1, 2, 0, 4), Span(1, 1, 0, 1)]


def test_what_a_lost_worker_held_is_leased_first_and_split():
    ledger = Ledger((100,))
    ledger.take("a", 30)
    ledger.take("b", 30)
    assert ledger.give_back("a") == 30
    assert ledger.give_back("a") == 0
    assert ledger.take("b", 20) == [Span(0, 0, 0, 20)]
    assert ledger.take("b", 20) == [Span(0, 0, 20, 30), Span(0, 0, 60, 70)]


def test_one_lease_of_a_lost_worker_goes_back_and_the_others_stay():
    ledger = Ledger((100,))
    done, lost = ledger.take("a", 30), ledger.take("a", 20)
    ledger.take("b", 10)
    assert ledger.give_back_lease("a", lost) == 20
    assert ledger.take("b", 25) == [Span(0, 0, 30, 50), Span(0, 0, 60, 65)]
    assert ledger.settle()["a"] == [done]
    again = ledger.take("a", 5)
    ledger.give_back_lease("a", again)
    assert ledger.plain()["returned"] == [[0, 0, 65, 70]]


def test_a_ledger_with_rows_given_back_can_be_stored():
    ledger = Ledger((100,))
    ledger.take("a", 30)
    ledger.give_back("a")
    restored = Ledger.restore(json.loads(json.dumps(ledger.plain())))
    assert restored.take("b", 40) == [Span(0, 0, 0, 30), Span(0, 0, 30, 40)]


def test_rows_that_are_held_when_a_ledger_is_stored_go_back():
    ledger = Ledger((100,))
    ledger.take("a", 30)
    ledger.take("late", 20)
    assert ledger.settle(["late"]).keys() == {"a"}
    assert ledger.held_rows == 20
    stored = Ledger.restore(ledger.plain())
    assert stored.take("b", 30) == [Span(0, 0, 30, 50), Span(0, 0, 50, 60)]
    assert ledger.held_rows == 20  # which goes on


@given(SPANS, st.integers(1, 30))
@settings(max_examples=150, deadline=None)
def test_batches_are_full_but_the_last_and_keep_the_order(spans, batch_rows):
    batches = cut_batches(spans, batch_rows)
    sizes = [sum(span.rows for span in batch) for batch in batches]
    assert all(size == batch_rows for size in sizes[:-1])
    assert all(1 <= size <= batch_rows for size in sizes)
    assert rows_of(span for batch in batches for span in batch) == rows_of(spans)
    assert all(span.rows for batch in batches for span in batch)
