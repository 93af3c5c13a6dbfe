"""Payloads of device arrays: through the host where they must, else from device to device.

The device here is a stand-in of host memory that counts what crosses its border; a real one is
`benchmarks/gpu/cluster.py`'s.
"""

import asyncio
import socket
import struct

import numpy as np
import pytest

from daskxml.transport.channels import protocol
from daskxml.transport.channels.dask_comm import UcxChannel
from daskxml.transport.channels.protocol import (
    copy_payload,
    host_bytes,
    is_on_device,
    payload_of,
    write_payload,
)
from daskxml.transport.channels.shared_memory import ShmReceiver, ShmSender
from daskxml.transport.channels.shm_arrays import MappingCache
from daskxml.transport.channels.tcp import TcpChannel

TIMEOUT_S = 20.0


class Gpu:
    """What happened to a device."""

    def __init__(self):
        self.downloads = self.uploads = self.waits = 0

    def synchronize(self):
        self.waits += 1


GPU = Gpu()


class DeviceArray(np.ndarray):
    """As much of a device array as is used."""

    __cuda_array_interface__ = {"version": 3}  # noqa: RUF012
    device = GPU

    def get(self):
        GPU.downloads += 1
        return np.array(self, subok=False)

    def set(self, array):
        assert type(array) is np.ndarray
        GPU.uploads += 1
        np.copyto(self.view(np.ndarray), array)


def on_device(values):
    return np.array(values, np.float32).view(DeviceArray)


@pytest.fixture(autouse=True)
def _fresh():
    GPU.__init__()


def test_through_the_host_an_array_is_downloaded_once_and_not_before_it_is_computed():
    data = payload_of(on_device([1, 2, 3]), is_direct=False)
    assert isinstance(data, memoryview)
    assert bytes(data) == np.array([1, 2, 3], np.float32).tobytes()
    assert (GPU.downloads, GPU.waits) == (1, 1)


def test_a_direct_channel_keeps_it_on_the_device():
    array = on_device([[1, 2], [3, 4]])
    data = payload_of(array, is_direct=True)
    assert is_on_device(data)
    assert len(data) == 16
    copied = copy_payload(data[4:])
    assert is_on_device(copied)
    array[...] = 0
    into = on_device([0, 0, 0])
    write_payload(copied, into)
    assert into.tolist() == [2, 3, 4]
    assert GPU.downloads == GPU.uploads == 0


@pytest.mark.parametrize("to_device", [True, False])
@pytest.mark.parametrize("from_device", [True, False])
def test_arrived_payloads_are_written_to_host_and_device(from_device, to_device):
    sent = np.arange(3, dtype=np.float32)
    arrived = sent.view(np.uint8)
    into = np.zeros(3, np.float32)
    write_payload(
        arrived.view(DeviceArray) if from_device else arrived.tobytes(),
        into.view(DeviceArray) if to_device else into,
    )
    np.testing.assert_array_equal(into, sent)
    assert GPU.downloads == (from_device and not to_device)
    assert GPU.uploads == (to_device and not from_device)


@pytest.mark.parametrize("kind", ["socket", "shared memory"])
def test_channels_of_the_host_take_device_arrays(kind):
    here, there = socket.socketpair()
    if kind == "socket":
        out, into = TcpChannel(here, TIMEOUT_S), TcpChannel(there, TIMEOUT_S)
    else:
        out = ShmSender(here, TIMEOUT_S)
        into = ShmReceiver(there, TIMEOUT_S, MappingCache())
    out.send(payload_of(on_device(np.arange(5000)), is_direct=False))
    room = on_device(np.zeros(5000))
    assert into.borrow(room) is room  # kernels of a device cannot read the host's memory
    np.testing.assert_array_equal(room.view(np.ndarray), np.arange(5000))
    out.flush()
    for channel in (out, into):
        asyncio.run(channel.close())


class QueueComm:
    """What a channel uses of a comm of UCX: an endpoint that sends and receives bytes in order."""

    def __init__(self, sent, received):
        self.ep, self.handshake_options, self.send = self, {}, sent.put
        self._received, self.closed, self.abort = received, bool, bool

    async def recv(self, into):
        part = await self._received.get()
        assert isinstance(part, DeviceArray) == isinstance(into, DeviceArray)
        memoryview(into.view(np.ndarray) if is_on_device(into) else into)[:] = memoryview(part)

    async def close(self):
        await self.send(struct.pack("?Q", True, 0))  # as Dask does


@pytest.mark.parametrize("takes_device", [True, False])
def test_ucx_keeps_device_arrays_as_they_are_where_the_receiver_takes_them(
    takes_device, monkeypatch
):
    make = lambda size: np.zeros(size, np.uint8).view(DeviceArray)  # noqa: E731
    monkeypatch.setattr(protocol, "new_on_device", make)

    async def run():
        loop, queues = asyncio.get_running_loop(), (asyncio.Queue(), asyncio.Queue())
        out = UcxChannel(QueueComm(*queues), loop, TIMEOUT_S)
        into = UcxChannel(QueueComm(*queues[::-1]), loop, TIMEOUT_S)
        out.takes_device = takes_device
        array, rooms = on_device(np.arange(5)), np.zeros((2, 5), np.float32)
        rooms = [room.view(DeviceArray) if takes_device else room for room in rooms]
        for room in rooms:
            await asyncio.to_thread(out.send, payload_of(array, is_direct=True))
            await asyncio.to_thread(out.flush)
            await asyncio.to_thread(into.receive_into, room)
        out.prepare_reuse()  # nothing that `into` has still to receive
        await out.close()
        with pytest.raises(OSError, match="closed"):
            await asyncio.to_thread(into.receive_into, rooms[0])
        await into.close()
        return [room.view(np.ndarray) for room in rooms]

    np.testing.assert_array_equal(asyncio.run(run()), np.tile(np.arange(5), (2, 1)))
    assert (GPU.downloads, GPU.uploads) == (0 if takes_device else 2, 0)


def test_host_arrays_are_not_touched():
    array = np.arange(3, dtype=np.float32)
    data = payload_of(array, is_direct=True)
    assert data == host_bytes(array)
    assert np.shares_memory(np.frombuffer(data, np.float32), array)
