"""The ring between real worker processes; symbols and sockets are tested next door."""

import asyncio
import os
import signal
import socket
import time

import numpy as np
import pytest
from distributed import Client, LocalCluster, WorkerPlugin, get_worker
from distributed.comm import connect

from daskxml.combine import merge_weighted
from daskxml.combine.weighted import NaiveMergeKernels
from daskxml.errors import ClusterError, ConfigError
from daskxml.runtime.ring import RingOptions, RingPort

OPTIONS = RingOptions(piece_bytes=1 << 16, connect_timeout_s=1.0, idle_timeout_s=20.0)
GAMMA = 0.9


class PortPlugin(WorkerPlugin):
    name = "ring-port"

    def setup(self, worker):
        self.port = RingPort(worker, OPTIONS)

    async def teardown(self, worker):
        await self.port.close()


class FatalKernels(NaiveMergeKernels):
    """Kills its process, as the kernel's out-of-memory killer would, at the n-th addition."""

    def __init__(self, additions):
        self.additions = additions

    def add_scaled(self, out, x, factor):
        self.additions -= 1
        if self.additions < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        super().add_scaled(out, x, factor)


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(PortPlugin())
        yield client


@pytest.fixture(autouse=True)
def _nothing_left_behind(client):
    yield
    idle = client.run(lambda dask_worker: dask_worker.plugins["ring-port"].port.is_idle)
    assert all(idle.values())


@pytest.fixture
def addresses(client):
    client.wait_for_workers(4)
    return sorted(client.scheduler_info(n_workers=-1)["workers"])


def models_of(rank, size):
    """One rank's replica, and everybody's two global models."""
    replica = np.random.default_rng(rank).normal(size=size).astype(np.float32)
    return replica, *np.random.default_rng(99).normal(size=(2, size)).astype(np.float32)


async def merge(key, rank, addresses, weights, size, kernels=None):
    """One rank's part, as a task: the merged bytes or the failure's message, and its seconds."""
    port = get_worker().plugins["ring-port"].port
    scratch = np.full(size, np.nan, np.float32)
    started_s = time.perf_counter()
    try:
        await port.all_reduce(
            *key, rank, addresses, weights, *models_of(rank, size), scratch, GAMMA,
            kernels or NaiveMergeKernels(),
        )  # fmt: skip
    except ClusterError as error:
        return error.message, time.perf_counter() - started_s
    return scratch.tobytes(), time.perf_counter() - started_s


async def merge_two_runs(rank, addresses, sizes):
    """Two rings at once on one worker."""
    weights = [1.0] * len(addresses)
    parts = [
        merge((run, 1, 0), rank, addresses, weights, size)
        for run, size in zip("ab", sizes, strict=True)
    ]
    return await asyncio.gather(*parts)


def merge_all(client, key, addresses, weights, size):
    futures = [
        client.submit(merge, key, rank, addresses, weights, size, workers=[address], pure=False)
        for rank, address in enumerate(addresses)
    ]
    return [merged for merged, _ in client.gather(futures)]


def plain_merge(weights, size):
    replicas = [models_of(rank, size)[0] for rank in range(len(weights))]
    out = np.empty(size, np.float32)
    merge_weighted(out, replicas, weights, *models_of(0, size)[1:], GAMMA, NaiveMergeKernels())
    return out


@pytest.mark.parametrize(
    ("weights", "size"),
    [
        ([0.7], 1000),
        ([0.5, 0.5], 100_003),
        ([0.9, 0.0], 5),
        ([0.2, 0.3, 0.55], 100_003),
        ([0.1, 0.2, 0.3, 0.4], 65_536),
        ([0.1, 0.0, 0.5, 0.4], 3),
        ([0.5, 0.25, 0.25], 0),
    ],
)
def test_every_worker_gets_the_bits_of_the_plain_merge_every_time(client, addresses, weights, size):
    ring = addresses[: len(weights)]
    expected = plain_merge(weights, size).tobytes()
    for attempt in range(2):
        merged = merge_all(client, (f"{weights} {size}", 1, attempt), ring, weights, size)
        assert merged == [expected] * len(ring)


def test_equals_the_sum_in_float64(client, addresses):
    weights, size = [0.15, 0.25, 0.6], 70_001
    merged = merge_all(client, ("float64", 1, 0), addresses[:3], weights, size)
    _, current, previous = (model.astype("f8") for model in models_of(0, size))
    expected = GAMMA * (current - previous)
    for rank, weight in enumerate(weights):
        expected += weight * models_of(rank, size)[0].astype("f8")
    for part in merged:
        np.testing.assert_allclose(np.frombuffer(part, "f4"), expected, rtol=1e-5, atol=1e-5)


def test_two_runs_at_once_do_not_mix(client, addresses):
    ring, sizes = addresses[:2], (300_000, 200_000)
    futures = [
        client.submit(merge_two_runs, rank, ring, sizes, workers=[address], pure=False)
        for rank, address in enumerate(ring)
    ]
    for results in client.gather(futures):
        for (merged, _), size in zip(results, sizes, strict=True):
            assert merged == plain_merge([1.0, 1.0], size).tobytes()


def test_abort_fails_a_ring_that_waits_for_its_neighbours(client, addresses):
    key = ("aborted", 3, 0)
    waiting = client.submit(
        merge, key, 0, addresses[:2], [1.0, 1.0], 100, workers=[addresses[0]], pure=False
    )

    def abort(dask_worker):
        dask_worker.plugins["ring-port"].port.abort(*key)

    client.run(abort, workers=addresses[:2])
    message, _ = waiting.result(timeout=10)
    assert message.startswith("merge 3 (attempt 0) of run aborted")
    merged = merge_all(client, ("aborted", 3, 1), addresses[:2], [1.0, 1.0], 100)
    assert merged == [plain_merge([1.0, 1.0], 100).tobytes()] * 2


def test_stale_attempts_are_refused(client, addresses):
    ring, weights = addresses[:2], [1.0, 1.0]
    merge_all(client, ("stale", 2, 1), ring, weights, 100)
    for key in (("stale", 2, 1), ("stale", 2, 0), ("stale", 1, 5)):
        for message in merge_all(client, key, ring, weights, 100):
            assert "start a new attempt" in message

    async def call(generation, attempt):
        comm = await connect(ring[0])
        ids = {"run": "stale", "generation": generation, "attempt": attempt, "rank": 1}
        await comm.write({"op": "daskxml_ring", "reply": False, **ids})
        answer = await asyncio.wait_for(comm.read(), 10)
        await comm.close()
        return answer

    assert asyncio.run(call(2, 1)) == {"status": "refused"}
    assert asyncio.run(call(1, 7)) == {"status": "refused"}


def test_a_run_that_is_forgotten_may_start_anew(client, addresses):
    merge_all(client, ("again", 5, 0), addresses[:2], [1.0, 1.0], 10)
    client.run(lambda dask_worker: dask_worker.plugins["ring-port"].port.forget("again"))
    merged = merge_all(client, ("again", 1, 0), addresses[:2], [1.0, 1.0], 10)
    assert merged == [plain_merge([1.0, 1.0], 10).tobytes()] * 2


def test_a_worker_that_cannot_be_reached_fails_all_others(client, addresses):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ring = [*addresses[:3], f"tcp://127.0.0.1:{port}"]  # nobody listens there any more
    futures = [
        client.submit(
            merge, ("gone", 1, 0), rank, ring, [1.0] * 4, 1000, workers=[address], pure=False
        )
        for rank, address in enumerate(addresses[:3])
    ]
    for message, seconds in client.gather(futures):
        assert "start a new attempt" in message
        assert seconds < OPTIONS.idle_timeout_s / 2


@pytest.mark.parametrize("additions", [0, 20])
def test_a_worker_killed_in_the_middle_fails_the_others_who_may_ring_again(
    client, addresses, additions
):
    ring, weights, size = addresses[:3], [0.2, 0.3, 0.5], 3_000_000
    key = (f"killed at {additions}", 1, 0)
    victim = client.submit(
        merge, key, 1, ring, weights, size, FatalKernels(additions),
        workers=[ring[1]], pure=False, retries=0,
    )  # fmt: skip
    survivors = [
        client.submit(merge, key, rank, ring, weights, size, workers=[ring[rank]], pure=False)
        for rank in (0, 2)
    ]
    for message, seconds in client.gather(survivors):
        assert message.startswith(f"merge 1 (attempt 0) of run killed at {additions}")
        assert seconds < OPTIONS.idle_timeout_s / 2
    victim.release()
    left = [ring[0], ring[2]]
    merged = merge_all(client, (key[0], 1, 1), left, [0.4, 0.6], 1000)
    assert merged == [plain_merge([0.4, 0.6], 1000).tobytes()] * 2


def test_a_neighbour_that_never_starts_is_not_waited_for_for_ever(client, addresses):
    impatient = RingOptions(idle_timeout_s=0.2)

    def set_options(options, dask_worker):
        dask_worker.plugins["ring-port"].port.options = options

    client.run(set_options, impatient)
    part = client.submit(
        merge, ("idle", 1, 0), 0, addresses[:2], [1.0] * 2, 10, workers=addresses[:1], pure=False
    )
    message, _ = part.result(timeout=10)
    client.run(set_options, OPTIONS)
    assert "gone or silent (" in message  # whose patience ends first is open


def test_options_are_checked():
    with pytest.raises(ConfigError, match="piece_bytes = 3: must be at least 4"):
        RingOptions(piece_bytes=3)
    with pytest.raises(ConfigError, match="idle_timeout_s = 0: must be above 0"):
        RingOptions(idle_timeout_s=0)
