"""Programs in virtual time, against times worked out by hand: a message of 64 bytes takes 1 s."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.collectives.messages import Flush, Receive, ReceiveAny, Send, Worked
from daskxml.local.clock import run_programs
from daskxml.local.cost import Network

NETWORK = Network(bandwidth_bytes_s=64.0, latency_s=0.25)


def block(value=0.0):
    return np.full(16, value, np.float32)  # 64 bytes


def run(programs, network=NETWORK, **options):
    """Batches take as many seconds as they have rows."""
    return run_programs(programs, lambda rank, batch: batch.rows, network, **options)


def talk(rank, ranks, work_s, rounds=1):
    """Work, then pass blocks round a ring."""
    if work_s:
        yield Worked(rows=work_s, nonzeros=0)
    arguments = block()
    for number in range(rounds):
        yield Send((rank + 1) % ranks, block(10 * rank + number))
        yield Receive((rank - 1) % ranks, arguments)
    return arguments[0]


def test_a_ring_of_two():
    done = run([talk(0, 2, 1, rounds=2), talk(1, 2, 3, rounds=2)])
    # 0 sends in 1..2 (there at 2.25) and, when it has heard 1's, in 4.25..5.25 (there at 5.5);
    # 1 sends in 3..4 (there at 4.25) and, having heard at once, in 4..5 (there at 5.25).
    assert [end.end_s for end in done] == [5.25, 5.5]
    assert [end.result for end in done] == [11.0, 1.0]
    assert [end.busy_s for end in done] == [1.0, 3.0]
    assert [end.sent_bytes for end in done] == [128, 128]


def test_a_ring_of_three():
    done = run([talk(rank, 3, rank) for rank in range(3)], begun_s=100.0)
    assert [end.end_s for end in done] == [103.25, 101.25, 102.25]


def customer(server):
    arguments = block()
    yield Send(server, block(1.0))
    yield Receive(server, arguments)
    return arguments[0]


def test_a_star_shares_the_ports_of_its_machine():
    def serve(ranks):
        total, arguments = 0.0, block()
        for rank in range(ranks):
            yield Receive(rank, arguments)
            total += arguments[0]
        for rank in range(ranks):
            yield Send(rank, block(total))
        yield Flush()

    done = run([*(customer(3) for _ in range(3)), serve(3)], machines=[0, 1, 2, 0])
    # 0 is on the server's machine. 1 has the port in 0..1, 2 in 1..2 (there at 2.25); then the
    # answers leave in 2.25..3.25 (there at 3.5) and in 3.25..4.25 (there at 4.5).
    assert [end.end_s for end in done] == [2.25, 3.5, 4.5, 4.25]
    assert [end.result for end in done[:3]] == [3.0, 3.0, 3.0]


def visitor(work_s, server):
    yield Send(server, block())
    yield Worked(rows=work_s, nonzeros=0)
    yield Send(server, block())


def test_the_earliest_message_is_chosen_and_at_equal_times_the_lowest_rank():
    def listen(ranks):
        arguments = block()
        for rank in range(ranks):
            yield Receive(rank, arguments)
        chosen = []
        for _ in range(ranks):
            source = yield ReceiveAny(arguments)
            chosen.append(source)
        return chosen

    def chosen(*work_s, network=NETWORK):
        visitors = [visitor(s, len(work_s)) for s in work_s]
        return run([*visitors, listen(len(work_s))], network)[-1].result

    assert chosen(30, 10, 20) == [1, 2, 0]
    instant = Network(bandwidth_bytes_s=1e30, latency_s=0.0)
    assert chosen(20, 10, 10, network=instant) == [1, 2, 0]
    # Of two at the same time the first to have the port: 1 in 10..11, 2 in 11..12.
    assert chosen(20, 10, 10) == [1, 2, 0]


def test_a_flush_waits_until_the_last_byte_has_left():
    def pour():
        yield Send(1, block())
        yield Send(1, block())
        yield Flush()

    def drink():
        arguments = block()
        yield Worked(rows=9, nonzeros=0)
        yield Receive(0, arguments)
        yield Receive(0, arguments)

    assert [end.end_s for end in run([pour(), drink()])] == [2.0, 9.0]


def test_a_deadlock_is_named():
    def wait(source):
        yield Receive(source, block())

    with pytest.raises(RuntimeError, match=r"0 waits in Receive\(1\); 1 waits in Receive\(0\)"):
        run([wait(1), wait(0)])


def test_a_message_of_another_size_is_an_error():
    def say():
        yield Send(1, np.zeros(3))

    def hear():
        yield Receive(0, np.zeros(4))

    with pytest.raises(RuntimeError, match="expects"):
        run([say(), hear()])


@settings(max_examples=30, deadline=None)
@given(work_s=st.lists(st.integers(0, 4), min_size=2, max_size=5), rounds=st.integers(1, 4))
def test_no_message_arrives_before_its_bytes_could(work_s, rounds):
    ranks = len(work_s)
    done = run([talk(rank, ranks, s, rounds) for rank, s in enumerate(work_s)])
    assert [end.result for end in done] == [
        10.0 * ((rank - 1) % ranks) + rounds - 1 for rank in range(ranks)
    ]
    assert min(end.end_s for end in done) >= min(work_s) + rounds * 1.0 + 0.25
