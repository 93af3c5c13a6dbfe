"""Queues of arrays to send: order, flushing, failures."""

import asyncio
import socket
import threading

import numpy as np
import pytest

from daskxml.transport.channels.protocol import host_bytes
from daskxml.transport.channels.tcp import SMALL_BYTES, TcpChannel
from daskxml.transport.endpoint import SendQueue

BIG_FLOATS = 1 << 22  # more than a connection holds


@pytest.fixture
def ends():
    """Both ends of a connection."""
    pair = [TcpChannel(end, 20.0) for end in socket.socketpair()]
    yield pair
    for channel in pair:
        asyncio.run(channel.close())


def fail(error):
    raise AssertionError(error)


def received(channel, count, dtype="f4"):
    array = np.empty(count, dtype)
    channel.receive_into(array)
    return array


def test_large_and_small_arrays_keep_their_order(ends):
    here, there = ends
    queue = SendQueue(lambda: here, fail)
    rng = np.random.default_rng(2)
    counts = [1, 100, BIG_FLOATS, 7, SMALL_BYTES, 2, 2, BIG_FLOATS, 1]
    arrays = [rng.normal(size=count).astype("f4") for count in counts]
    reader = threading.Thread(
        target=lambda: found.extend(received(there, count) for count in counts)
    )
    found = []
    reader.start()
    for array in arrays:
        queue.put(host_bytes(array))
    queue.flush()
    reader.join()
    queue.close()
    for array, arrived in zip(arrays, found, strict=True):
        np.testing.assert_array_equal(array, arrived)


def test_an_open_channel_needs_no_thread_for_small_arrays(ends):
    here, there = ends
    queue = SendQueue(lambda: here, fail, here)
    queue.put(host_bytes(np.arange(3, dtype="f4")))
    assert received(there, 3).tolist() == [0, 1, 2]
    assert not queue._thread.is_alive()
    queue.put(host_bytes(np.ones(BIG_FLOATS, "f4")))
    assert received(there, BIG_FLOATS).all()
    queue.flush()
    queue.close()


def test_after_a_flush_arrays_may_be_overwritten(ends):
    here, there = ends
    queue = SendQueue(lambda: here, fail)
    array, found = np.zeros(BIG_FLOATS, "f4"), []
    reader = threading.Thread(
        target=lambda: found.extend(received(there, BIG_FLOATS) for _ in range(3))
    )
    reader.start()
    for turn in range(3):
        array[:] = turn
        queue.put(host_bytes(array))
        queue.flush()
    array[:] = -1
    reader.join()
    assert [set(np.unique(arrived)) for arrived in found] == [{0.0}, {1.0}, {2.0}]
    queue.close()


def test_a_receiver_that_takes_nothing_is_a_failure_in_time():
    here, there = (TcpChannel(end, 0.1) for end in socket.socketpair())
    failures = []
    queue = SendQueue(lambda: here, failures.append)
    queue.put(host_bytes(np.zeros(BIG_FLOATS, "f4")))
    queue.flush()
    assert [type(failure) for failure in failures] == [TimeoutError]
    queue.close()
    for channel in (here, there):
        asyncio.run(channel.close())


def test_a_channel_that_cannot_be_opened_is_a_failure():
    def refuse():
        raise ConnectionRefusedError("nobody is there")

    failures = []
    queue = SendQueue(refuse, failures.append)
    queue.put(memoryview(b"abc"))
    queue.close()
    assert str(failures[0]) == "nobody is there"


def test_aborting_its_channel_ends_a_queue(ends):
    here, _ = ends
    failures = []
    queue = SendQueue(lambda: here, failures.append)
    for _ in range(3):
        queue.put(host_bytes(np.zeros(BIG_FLOATS, "f4")))
    waiting = threading.Thread(target=queue.flush)
    waiting.start()
    here.abort()
    waiting.join(10)
    assert not waiting.is_alive()
    assert len(failures) == 3
    queue.close()
