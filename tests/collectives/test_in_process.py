import numpy as np
import pytest

from daskxml.collectives.messages import Flush, Receive, ReceiveAny, Send, Worked
from harness.together import run_together


def test_messages_keep_their_order_and_their_contents():
    def sender():
        array = np.arange(2.0)
        yield Send(1, array)
        yield Flush()
        array += 10
        yield Send(1, array)
        yield Worked(3, 5)
        array += 10
        return "sent"

    def receiver():
        first, second = np.empty(2), np.empty(2)
        yield Receive(0, first)
        yield Receive(0, second)
        return first.tolist() + second.tolist()

    assert run_together([sender(), receiver()]) == ["sent", [0.0, 1.0, 10.0, 11.0]]


def test_receive_any_takes_the_lowest_rank_first_and_only_known_ones():
    def worker(rank):
        yield Send(3, np.full(1, float(rank)))
        if rank != 1:
            yield Send(3, np.full(1, 10.0 + rank))

    def server():
        received, into = [], np.empty(1)
        for rank in (2, 0):
            yield Receive(rank, into)
        for _ in range(2):
            source = yield ReceiveAny(into)
            received.append((source, into[0]))
        yield Receive(1, into)
        return received

    programs = [worker(0), worker(1), worker(2), server()]
    assert run_together(programs)[3] == [(0, 10.0), (2, 12.0)]


def test_a_deadlock_names_who_waits_for_whom():
    def waits(source):
        yield Receive(source, np.empty(1))

    def waits_for_any():
        yield ReceiveAny(np.empty(1))

    message = "deadlock: rank 0 waits for rank 1, rank 1 waits for rank 0, rank 2 waits for anyone"
    with pytest.raises(RuntimeError, match=message):
        run_together([waits(1), waits(0), waits_for_any()])


def test_messages_that_do_not_fit_are_refused():
    def sends(array):
        yield Send(1, array)

    def receives():
        yield Receive(0, np.empty(2, np.float32))

    with pytest.raises(RuntimeError, match=r"rank 0 sent float64 \(2,\) to rank 1"):
        run_together([sends(np.zeros(2)), receives()])
    with pytest.raises(RuntimeError, match="1 messages of rank 0 never reached rank 1"):
        run_together([sends(np.zeros(2)), iter_nothing()])


def iter_nothing():
    yield from ()


def test_two_that_wait_for_their_messages_to_be_received_before_they_receive_are_a_deadlock():
    def flushes(other):
        yield Send(other, np.zeros(1))
        yield Flush()
        yield Receive(other, np.zeros(1))

    problem = "rank 0 waits until its messages are received, rank 1 waits until its"
    with pytest.raises(RuntimeError, match=f"deadlock: {problem}"):
        run_together([flushes(1), flushes(0)])
