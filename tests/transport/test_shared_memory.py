"""Channels over shared memory: what is copied and what is not, what is left behind."""

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
import socket
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from daskxml.core.errors import ClusterError
from daskxml.transport.channels.protocol import host_bytes
from daskxml.transport.channels.shared_memory import INLINE_BYTES, ShmReceiver, ShmSender
from daskxml.transport.channels.shm_arrays import (
    MappingCache,
    can_read,
    locate,
    own_memory,
    shared_zeros,
)

TIMEOUT_S = 20.0
SIZE = 50_000


def ends(timeout_s=TIMEOUT_S, mappings=None):
    here, there = socket.socketpair()
    return ShmSender(here, timeout_s), receiver(there, timeout_s, mappings)


def receiver(there, timeout_s=TIMEOUT_S, mappings=None):
    return ShmReceiver(there, timeout_s, mappings or MappingCache())


@pytest.fixture
def channel():
    """Both ends of a channel."""
    both = ends()
    yield both
    for end in both:
        asyncio.run(end.close())


def filled(value, size=SIZE):
    array = shared_zeros(size)
    array[:] = value
    return array


def in_background(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_shared_array_is_read_in_place(channel):
    here, there = channel
    array, room = filled(3), np.zeros(SIZE // 2, np.float32)
    here.send(host_bytes(array[1000 : 1000 + SIZE // 2]))
    arrived = there.borrow(room)
    assert arrived[0] == 3
    array[:] = 5  # not allowed: it shows that there is no copy
    assert arrived[0] == arrived[-1] == 5
    assert not room.any()


@pytest.mark.parametrize("make", [filled, lambda value: np.full(SIZE, value, np.float32)])
def test_a_flush_waits_while_an_array_is_being_read(channel, make):
    here, there = channel
    here.send(host_bytes(make(3)))
    arrived = there.borrow(np.zeros(SIZE, np.float32))
    flushed = threading.Event()
    waiting = in_background(lambda: (here.flush(), flushed.set()))
    assert not flushed.wait(0.2)
    assert (arrived == 3).all()
    there.release()
    waiting.join(TIMEOUT_S)
    assert flushed.is_set()


def test_large_and_small_arrays_keep_their_order(channel):
    here, there = channel
    arrays = [filled(turn) if turn % 2 else np.full(2, turn, np.float32) for turn in range(10)]
    for array in arrays:
        here.send(host_bytes(array))
    for turn, array in enumerate(arrays):
        received = np.empty_like(array)
        there.receive_into(received)
        assert (received == turn).all()
    here.flush()


def pass_private_arrays(channel, numbers):
    """Send and receive an array of each number, one after the other."""
    here, there = channel
    array, room = np.zeros(SIZE, np.float32), np.full(SIZE, -1, np.float32)
    for turn in numbers:
        array[:] = turn
        here.send(host_bytes(array))
        there.receive_into(room)
        assert (room == turn).all()


def test_private_arrays_pass_through_few_buffers_that_are_reused(channel):
    pass_private_arrays(channel, range(20))
    assert len(channel[1]._copies) == 1


def test_a_channel_prepared_for_reuse_has_no_copies_and_still_works(channel):
    here, there = channel
    for turn in range(3):
        pass_private_arrays(channel, [turn])
        here.flush()
        assert here._buffers
        assert len(there._copies)
        here.prepare_reuse()
        there.prepare_reuse()
        assert not here._buffers
        assert not len(there._copies)


def test_more_messages_than_the_socket_holds_wait_for_room():
    here, there = ends(timeout_s=0.2)
    small, sent = np.zeros(1, np.float32), 0
    while here.send_now(host_bytes(small)):
        sent += 1
        small += 1
    assert sent > 10
    room = np.empty(1, np.float32)
    for number in range(sent):
        there.receive_into(room)
        assert room[0] == number
    assert here.send_now(host_bytes(small)) == 4
    for end in (here, there):
        asyncio.run(end.close())


@pytest.mark.parametrize("nbytes", [0, 1, INLINE_BYTES, INLINE_BYTES + 1, 3 * INLINE_BYTES])
def test_arrays_of_any_length_arrive(channel, nbytes):
    here, there = channel
    array = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    here.send(host_bytes(array))
    room = np.empty(nbytes, np.uint8)
    there.receive_into(room)
    np.testing.assert_array_equal(room, array)


def test_a_message_of_another_size_is_an_error(channel):
    here, there = channel
    here.send(host_bytes(np.zeros(3, np.float32)))
    with pytest.raises(ConnectionError, match="12 bytes came where 16 were expected"):
        there.receive_into(np.zeros(4, np.float32))


def test_both_ends_time_out():
    here, there = ends(timeout_s=0.1)
    with pytest.raises(TimeoutError):
        there.receive_into(np.zeros(3))
    here.send(host_bytes(np.zeros(SIZE)))
    with pytest.raises(TimeoutError):
        here.flush()
    array = filled(1)
    here.send(host_bytes(array))
    there.receive_into(np.empty(SIZE))
    there.borrow(np.empty(SIZE, np.float32))
    with pytest.raises(TimeoutError):
        here.flush()
    for end in (here, there):
        asyncio.run(end.close())


def test_abort_wakes_a_sender_that_waits_for_its_receiver(channel):
    here, there = channel
    here.send(host_bytes(filled(1)))
    there.borrow(np.empty(SIZE, np.float32))
    there.abort()
    with pytest.raises(ConnectionResetError):
        here.flush()


def open_files():
    """How many descriptors of memory and pipes there are; sockets are of the tests' clusters."""
    gc.collect()
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed by another thread since
            found += str(descriptor.readlink()).startswith(("/memfd:", "/dev/shm", "pipe:"))
    return found


def test_a_sender_s_own_memory_stays_mapped_for_later_rounds_and_a_copy_does_not():
    mappings, array, found = MappingCache(), filled(1), set()
    for value in (2, 3):
        here, there = ends(mappings=mappings)
        array[:] = value
        for sent in (array, np.full(SIZE, value, np.float32)):
            here.send(host_bytes(sent))
            room = np.empty_like(sent)
            there.receive_into(room)
            assert (room == value).all()
        for end in (here, there):
            asyncio.run(end.close())
        mappings.purge()
        found.add(id(mappings.find(locate(host_bytes(array))[0])))
    assert len(found) == len(mappings) == 1


def test_memory_that_its_owner_has_closed_is_unmapped():
    before, mappings, array = open_files(), MappingCache(), filled(1)
    handle, _ = locate(host_bytes(array))
    memory = mappings.find(handle).flat
    del array
    gc.collect()
    mappings.purge()
    assert (memory == 1).all()  # an array over it stays valid
    del memory
    assert open_files() == before
    with pytest.raises(ClusterError, match="cannot be opened"):
        mappings.find(handle)


def test_nothing_stays_open(channel):
    before = open_files()
    here, there = ends()
    array = filled(1)
    for sent in (array, np.zeros(SIZE)):
        here.send(host_bytes(sent))
        there.receive_into(np.empty_like(sent))
    here.flush()
    for end in (here, there):
        asyncio.run(end.close())
    place = locate(host_bytes(array))
    assert place is not None
    del array, sent, here, there, end
    assert open_files() == before


def test_memory_of_another_machine_or_container_is_not_read():
    own = own_memory()
    assert can_read(own)
    assert not can_read(replace(own, name="daskxml-probe-0123456789abcdef-1-0"))
    assert not can_read(replace(own, fd=1 << 20))
    for damaged in ({"pid": "../.."}, {"pid": -1}, {"fd": "0"}, {"size": 2}):
        assert not can_read(replace(own, **damaged))
    with Path("/proc/self/stat").open() as other_file:
        assert not can_read(replace(own, fd=other_file.fileno()))


# ----------------------------------------------------------------- deaths


def send_all(here):
    array = filled(7)
    while True:
        here.send(host_bytes(array))
        here.flush()


def receive_all(there):
    while True:
        there.release()
        there.receive_into(np.empty(SIZE, np.float32))


def talk_until_killed(connection, offers):
    """Send for ever; the main function of a process."""
    offers.recv()
    send_all(ShmSender(connection, TIMEOUT_S))


def listen_until_killed(connection, offers):
    """Read for ever; the main function of a process."""
    there = receiver(connection)
    offers.send("ready")
    receive_all(there)


@pytest.fixture
def started():
    """Start a process with one end; our socket, and a pipe to it."""
    context, processes = multiprocessing.get_context("spawn"), []

    def start(main):
        (ours, theirs), (offers, their_offers) = socket.socketpair(), context.Pipe()
        processes.append(context.Process(target=main, args=(theirs, their_offers)))
        processes[0].start()
        theirs.close()
        return ours, offers, processes[0]

    yield start
    for process in processes:
        process.kill()
        process.join()


def test_the_death_of_the_sender_ends_what_its_receiver_waits_for(started):
    connection, offers, process = started(talk_until_killed)
    there = receiver(connection)
    offers.send("opened")
    room = np.empty(SIZE, np.float32)
    there.receive_into(room)
    assert (room == 7).all()
    arrived = there.borrow(room)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert (arrived == 7).all()  # the memory lives as long as it is mapped
    with pytest.raises(OSError, match=r".+"):
        receive_all(there)
    asyncio.run(there.close())


def test_the_death_of_the_receiver_ends_what_its_sender_waits_for(started):
    connection, offers, process = started(listen_until_killed)
    offers.recv()
    here, array = ShmSender(connection, TIMEOUT_S), filled(1)
    here.send(host_bytes(array))
    here.flush()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with pytest.raises(OSError, match=r".+"):
        send_all(here)
    asyncio.run(here.close())
