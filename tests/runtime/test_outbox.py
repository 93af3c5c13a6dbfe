"""Sending from where arrays lie: order, flushing without a receiver, failures."""

import asyncio
import socket
import threading

import numpy as np
import pytest

from daskxml.runtime.outbox import Outbox
from daskxml.runtime.payloads import host_bytes
from daskxml.runtime.socket_link import SMALL_BYTES, SocketLink

BIG_FLOATS = 1 << 22  # more than a connection holds


@pytest.fixture
def ends():
    """Both ends of a connection."""
    pair = [SocketLink(end, 20.0) for end in socket.socketpair()]
    yield pair
    for link in pair:
        asyncio.run(link.close())


def fail(error):
    raise AssertionError(error)


def received(link, count, dtype="f4"):
    array = np.empty(count, dtype)
    link.receive_into(array)
    return array


def test_large_and_small_arrays_keep_their_order(ends):
    here, there = ends
    outbox = Outbox(lambda: here, fail, 20.0)
    rng = np.random.default_rng(2)
    counts = [1, 100, BIG_FLOATS, 7, SMALL_BYTES, 2, 2, BIG_FLOATS, 1]
    arrays = [rng.normal(size=count).astype("f4") for count in counts]
    reader = threading.Thread(
        target=lambda: found.extend(received(there, count) for count in counts)
    )
    found = []
    reader.start()
    for array in arrays:
        outbox.put(host_bytes(array))
    outbox.drain()
    reader.join()
    outbox.close()
    outbox.join()
    for array, arrived in zip(arrays, found, strict=True):
        np.testing.assert_array_equal(array, arrived)


def test_a_link_that_is_open_needs_no_thread_for_what_is_small(ends):
    here, there = ends
    outbox = Outbox(lambda: here, fail, 20.0, here)
    outbox.put(host_bytes(np.arange(3, dtype="f4")))
    assert received(there, 3).tolist() == [0, 1, 2]
    assert outbox._thread is None
    outbox.put(host_bytes(np.ones(BIG_FLOATS, "f4")))
    assert received(there, BIG_FLOATS).all()
    outbox.drain()
    outbox.close()
    outbox.join()


def test_after_a_flush_arrays_may_be_overwritten_though_nobody_has_received(ends):
    here, there = ends
    outbox = Outbox(lambda: here, fail, 20.0)
    array = np.zeros(BIG_FLOATS, "f4")
    for turn in range(3):
        array[:] = turn
        outbox.put(host_bytes(array))
        outbox.flush()
    array[:] = -1
    for turn in range(3):
        assert (received(there, BIG_FLOATS) == turn).all()
    outbox.drain()
    outbox.close()
    outbox.join()


def test_a_receiver_that_takes_nothing_is_told_of_in_time(ends):
    here, _ = ends
    failures = []
    outbox = Outbox(lambda: here, failures.append, 0.1)
    outbox.put(host_bytes(np.zeros(BIG_FLOATS, "f4")))
    outbox.join()
    assert [type(failure) for failure in failures] == [TimeoutError]


def test_a_link_that_cannot_be_opened_is_told_of():
    def refuse():
        raise ConnectionRefusedError("nobody is there")

    failures = []
    outbox = Outbox(refuse, failures.append, 20.0)
    outbox.put(memoryview(b"abc"))
    outbox.join()
    assert str(failures[0]) == "nobody is there"


def test_closing_lets_go_who_waits(ends):
    here, _ = ends
    outbox = Outbox(lambda: here, fail, 20.0)
    outbox.put(host_bytes(np.zeros(BIG_FLOATS, "f4")))
    waiting = threading.Thread(target=outbox.drain)
    waiting.start()
    outbox.close()
    waiting.join(10)
    assert not waiting.is_alive()
    outbox.join()
