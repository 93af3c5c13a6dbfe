"""Programs driven between real worker processes."""

import asyncio
import gc
import os
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from distributed import WorkerPlugin, get_worker
from distributed.comm import connect

from daskxml.collectives.messages import Flush, Receive, ReceiveAny, Send, Worked
from daskxml.collectives.ring import all_reduce
from daskxml.core.errors import ClusterError, TrainingError
from daskxml.transport.channels.shm_arrays import shared_zeros
from daskxml.transport.communicator import CollectiveId, Communicator, ProcessGroup, Timeouts
from harness.clusters import PROTOCOL, local_client
from harness.idle import is_idle
from harness.naive_kernels import NaiveKernels
from harness.naive_merge import merge_weighted
from harness.pools import shared_memory

TIMEOUTS = Timeouts(connect_s=1.0 if PROTOCOL == "tcp" else 8.0, idle_s=20.0)
PIECE_FLOATS = 1 << 14
BIG_FLOATS = 1 << 22  # more than a connection holds


class CommunicatorPlugin(WorkerPlugin):
    name = "communicator"

    def setup(self, worker):
        self.communicator = Communicator(worker, TIMEOUTS)

    async def teardown(self, worker):
        await self.communicator.close()


class FatalKernels(NaiveKernels):
    """Kills its process, as the kernel's out-of-memory killer would, at the n-th addition."""

    def __init__(self, additions):
        self.additions = additions

    def add_scaled(self, out, x, factor):
        self._count()
        super().add_scaled(out, x, factor)

    def axpby(self, out, x, a, y, b):
        self._count()
        super().axpby(out, x, a, y, b)

    def _count(self):
        self.additions -= 1
        if self.additions < 0:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def client():
    with local_client(4) as client:
        client.register_plugin(CommunicatorPlugin())
        yield client


@pytest.fixture(autouse=True)
def _nothing_left_behind(client):
    yield
    idle = client.run(lambda dask_worker: is_idle(dask_worker.plugins["communicator"].communicator))
    assert all(idle.values())


SHARING = [True, False] if PROTOCOL == "tcp" else [False]


@pytest.fixture(params=SHARING, ids=lambda shares: "shared-memory" if shares else "sockets")
def addresses(client, request):
    """Workers that share memory, or are joined by sockets."""
    client.wait_for_workers(4)

    async def renew_communicator(shares_memory, dask_worker):
        plugin = dask_worker.plugins["communicator"]
        await plugin.communicator.close()
        plugin.communicator = Communicator(dask_worker, TIMEOUTS, shares_memory=shares_memory)

    client.run(renew_communicator, request.param)
    return sorted(client.scheduler_info(n_workers=-1)["workers"])


# -------------------------------------------------------------- programs


def replica_of(rank, size):
    return np.random.default_rng(rank).normal(size=size).astype(np.float32)


def ring(rank, weights, size, kernels=None):
    """The merged bytes."""
    out, ranks = shared_zeros(size) if size else np.empty(0, np.float32), len(weights)
    out[:] = np.nan
    yield from all_reduce(
        rank, ranks, out, replica_of(rank, size), weights[rank], kernels or NaiveKernels(),
        piece_size=PIECE_FLOATS,
    )  # fmt: skip
    return out.tobytes()


def exchange(rank, size):
    """Both send before they receive, more than a connection holds."""
    mine, theirs = np.full((2, size), rank, np.float32), np.empty((2, size), np.float32)
    mine[1] += 2
    for array in mine:
        yield Send(1 - rank, array)
    for array in theirs:
        yield Receive(1 - rank, array)
    yield Flush()
    return float(theirs[0, 0]), float(theirs[0, -1]), float(theirs[1, 0]), float(theirs[1, -1])


def client_of(rank, server, turns):
    """Ask the server so many times; the first message makes it listen."""
    answer = np.empty(1)
    yield Send(server, np.array([0.0]))
    for turn in range(turns):
        yield Worked(1, 1)
        yield Send(server, np.array([rank + 10.0 * turn]))
        yield Receive(server, answer)
    return float(answer[0])


def serve(turns):
    """Add up what comes, and answer with the sum of the sender so far."""
    inbox, sums = np.empty(1), np.zeros(len(turns))
    for rank in range(len(turns)):
        yield Receive(rank, inbox)
    for _ in range(sum(turns)):
        rank = yield ReceiveAny(inbox)
        sums[rank] += inbox[0]
        yield Send(rank, sums[rank : rank + 1])
        yield Flush()
    return sums.tolist()


def fail(rank):
    """Rank 1 raises; the others wait for it."""
    if rank == 1:
        raise TrainingError("the loss is not finite")
    yield Receive(1, np.empty(1))


async def take_part(run, number, addresses, programs, follows=None):
    """Programs of one worker, as a task: their results, or the failure's message; seconds."""
    communicator = get_worker().plugins["communicator"].communicator
    collective = CollectiveId(run=run, number=number, what="merge 7")
    group = ProcessGroup(collective, tuple(addresses), (), follows)
    begun_s = time.perf_counter()
    try:
        made = {number: make(*args) for number, (make, *args) in programs.items()}
        done = await communicator.run_programs(group, made)
    except (ClusterError, TrainingError) as error:
        return error.message, time.perf_counter() - begun_s
    return [part.result for part in done], done[0].sent_bytes


def start(client, run, number, addresses, make, *args, follows=None):
    """Start one program a rank."""
    return [
        client.submit(
            take_part, run, number, addresses, {rank: (make, rank, *args)}, follows,
            workers=[address], pure=False, retries=0,
        )
        for rank, address in enumerate(addresses)
    ]  # fmt: skip


def merge_all(client, run, number, addresses, weights, size, follows=None):
    futures = start(client, run, number, addresses, ring, weights, size, follows=follows)
    merged = [results for results, _ in client.gather(futures)]
    assert all(isinstance(results, list) for results in merged), merged  # else it says what failed
    return [only for (only,) in merged]


def messages(client, futures):
    return [message for message, _ in client.gather(futures)]


def plain_merge(weights, size):
    replicas = [replica_of(rank, size) for rank in range(len(weights))]
    out, zero = np.empty(size, np.float32), np.zeros(size, np.float32)
    merge_weighted(out, replicas, weights, zero, zero, 0.0, NaiveKernels())
    return out.tobytes()


# ----------------------------------------------------------------- results


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
def test_every_worker_gets_the_bits_of_the_plain_merge(client, addresses, weights, size):
    ranks = addresses[: len(weights)]
    merged = merge_all(client, f"{weights} {size}", 1, ranks, weights, size)
    assert merged == [plain_merge(weights, size)] * len(ranks)


def test_sending_on_both_sides_before_either_receives_is_no_deadlock(client, addresses):
    futures = start(client, "exchange", 1, addresses[:2], exchange, BIG_FLOATS)
    for rank, ((received,), sent_bytes) in enumerate(client.gather(futures)):
        assert received == (1 - rank, 1 - rank, 3 - rank, 3 - rank)
        assert sent_bytes == 2 * 4 * BIG_FLOATS


def test_a_server_in_the_process_of_the_first_rank_receives_from_all_to_the_end(client, addresses):
    turns, where = [1, 5, 3], addresses[:3]
    parts = [{rank: (client_of, rank, 3, turns[rank])} for rank in range(3)]
    parts[0][3] = serve, turns
    futures = [
        client.submit(
            take_part, "server", 1, [*where, where[0]], part, workers=[address], pure=False
        )
        for part, address in zip(parts, where, strict=True)
    ]
    expected = [sum(rank + 10.0 * turn for turn in range(turns[rank])) for rank in range(3)]
    (first, served), *others = [results for results, _ in client.gather(futures)]
    assert served == expected
    assert [first, *(part for (part,) in others)] == expected


def test_two_runs_at_once_do_not_mix(client, addresses):
    sizes = {"a": 300_000, "b": 200_000}
    futures = {
        run: start(client, run, 1, addresses[:2], ring, [1.0, 1.0], size)
        for run, size in sizes.items()
    }
    for run, size in sizes.items():
        for (merged,), _ in client.gather(futures[run]):
            assert merged == plain_merge([1.0, 1.0], size)


# ----------------------------------------------------------------- failures


def await_loss(client, address):
    """Wait until the scheduler has lost a worker."""

    async def look(dask_scheduler):
        while address in dask_scheduler.workers:
            await asyncio.sleep(0.01)

    client.run_on_scheduler(look)


def abort(client, run, number):
    """Do what the scheduler does as soon as one of the workers fails."""

    async def act(dask_worker):
        await dask_worker.plugins["communicator"].communicator.abort(run, number)

    client.run(act)


def test_an_error_of_a_program_is_raised_and_the_others_are_aborted(client, addresses):
    futures = start(client, "fails", 1, addresses[:3], fail)
    assert futures[1].result()[0] == "the loss is not finite"
    abort(client, "fails", 1)
    for message in messages(client, futures[::2]):  # one may not have begun yet
        assert message.startswith("merge 7 (round 1) of run fails")
        assert message.endswith((" failed, it was aborted: start a new one",
                                 " is over here: start a new one"))  # fmt: skip


def test_abort_ends_a_collective_that_waits_for_others(client, addresses):
    waiting = client.submit(
        take_part, "aborted", 3, addresses[:2], {0: (ring, 0, [1.0, 1.0], 100)},
        workers=addresses[:1], pure=False,
    )  # fmt: skip

    abort(client, "aborted", 3)
    message, _ = waiting.result(timeout=10)
    assert message.startswith("merge 7 (round 3) of run aborted")
    merged = merge_all(client, "aborted", 4, addresses[:2], [1.0, 1.0], 100)
    assert merged == [plain_merge([1.0, 1.0], 100)] * 2


def test_stale_collectives_are_refused(client, addresses):
    ranks, weights = addresses[:2], [1.0, 1.0]
    merge_all(client, "stale", 2, ranks, weights, 100)
    for number in (2, 1):
        futures = start(client, "stale", number, ranks, ring, weights, 100)
        for message in messages(client, futures):
            assert "is over here" in message

    async def call(number):
        comm = await connect(ranks[0])
        ids = {"run": "stale", "number": number, "sender": 1, "receiver": 0}
        await comm.write({"op": "daskxml_connect", "reply": False, **ids})
        answer = await asyncio.wait_for(comm.read(), 10)
        await comm.close()
        return answer

    assert asyncio.run(call(2)) == {"status": "refused"}


def test_a_run_that_is_forgotten_may_start_anew(client, addresses):
    async def forget(dask_worker):
        await dask_worker.plugins["communicator"].communicator.forget("again")
        gc.collect()
        return os.getpid()

    merge_all(client, "again", 5, addresses[:2], [1.0, 1.0], BIG_FLOATS)
    pids = client.run(forget).values()
    assert not set().union(*(shared_memory(pid, "daskxml-array") for pid in pids))
    merged = merge_all(client, "again", 1, addresses[:2], [1.0, 1.0], 10)
    assert merged == [plain_merge([1.0, 1.0], 10)] * 2


# -------------------------------------------------------------- channels that are kept


def kept_channels(client, run):
    """The channels that each worker keeps, by their sockets, or where they have a comm by that."""

    def look(dask_worker):
        kept = dask_worker.plugins["communicator"].communicator._cache.get(run)
        ends = kept.channels.values() if kept else ()
        channels = [one for end in ends for one in (*end.receivers.values(), *end.senders.values())]
        if PROTOCOL != "tcp":
            return {id(channel._comm) for channel in channels}
        return {os.fstat(channel.socket.fileno()).st_ino for channel in channels}

    return client.run(look)


def open_files(client):
    return client.run(lambda: {path.stat().st_ino for path in Path("/dev/fd").iterdir()
                               if path.exists()})  # fmt: skip


def forget(client, run):
    async def leave(dask_worker):
        await dask_worker.plugins["communicator"].communicator.forget(run)

    client.run(leave)


def test_collectives_that_follow_one_another_reuse_channels(client, addresses):
    ranks, weights = addresses[:3], [0.2, 0.3, 0.5]
    found = []
    for number, size in ((1, 100_003), (2, 50), (3, BIG_FLOATS), (4, 0)):
        merged = merge_all(client, "kept", number, ranks, weights, size, follows=number - 1)
        assert merged == [plain_merge(weights, size)] * 3
        found.append(kept_channels(client, "kept"))
    assert found == [found[0]] * 4
    assert [len(found[0][address]) for address in addresses] == [2, 2, 2, 0]  # a ring's
    merged = merge_all(client, "kept", 5, ranks[:2], [0.5, 0.5], 50, follows=0)
    assert merged == [plain_merge([0.5, 0.5], 50)] * 2
    now = kept_channels(client, "kept")
    assert all(now[rank] and not now[rank] & found[0][rank] for rank in ranks[:2])
    assert now[ranks[2]] == found[0][ranks[2]]  # which did not take part
    forget(client, "kept")
    if PROTOCOL == "tcp":
        left = open_files(client)
        assert not any(left[rank] & (found[0][rank] | now[rank]) for rank in ranks)


def test_a_collective_that_fails_keeps_no_channels(client, addresses):
    ranks = addresses[:3]
    merge_all(client, "broken", 1, ranks, [1.0] * 3, 50, follows=0)
    futures = start(client, "broken", 2, ranks, fail, follows=1)
    assert "the loss is not finite" in futures[1].result()[0]
    assert "gone or silent" in futures[2].result()[0]  # whose channel from rank 1 was open
    abort(client, "broken", 2)
    assert "start a new one" in futures[0].result()[0]
    assert not any(kept_channels(client, "broken").values())
    futures = start(client, "broken", 3, ranks, ring, [1.0] * 3, 50, follows=1)
    assert all("finds no links of round 1 here" in m for m in messages(client, futures))
    merged = merge_all(client, "broken", 4, ranks, [1.0] * 3, 50, follows=0)
    assert merged == [plain_merge([1.0] * 3, 50)] * 3
    forget(client, "broken")


def test_a_worker_that_dies_between_two_collectives_fails_the_next(client, addresses):
    ranks, weights = addresses[:3], [0.2, 0.3, 0.5]
    merge_all(client, "between", 1, ranks, weights, 50, follows=0)
    os.kill(client.run(os.getpid)[ranks[1]], signal.SIGKILL)
    await_loss(client, ranks[1])
    futures = [
        client.submit(
            take_part, "between", 2, ranks, {rank: (ring, rank, weights, 50)}, 1,
            workers=[ranks[rank]], pure=False, retries=0,
        )
        for rank in (0, 2)
    ]  # fmt: skip
    for message, seconds in client.gather(futures):
        assert "start a new one" in message
        assert seconds < TIMEOUTS.idle_s / 2
    assert not any(kept_channels(client, "between").values())
    merged = merge_all(client, "between", 3, [ranks[0], ranks[2]], [0.4, 0.6], 50, follows=0)
    assert merged == [plain_merge([0.4, 0.6], 50)] * 2
    forget(client, "between")


def test_a_worker_that_cannot_be_reached_fails_who_needs_it(client, addresses):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    nobody = f"{PROTOCOL}://127.0.0.1:{port}"  # nobody listens there any more
    futures = [
        client.submit(
            take_part, "gone", 1, [*addresses[:3], nobody], {rank: (ring, rank, [1.0] * 4, 1000)},
            workers=[address], pure=False,
        )
        for rank, address in enumerate(addresses[:3])
    ]  # fmt: skip
    message, seconds = futures[2].result()
    assert f"worker {nobody} is gone or silent" in message
    assert seconds < TIMEOUTS.idle_s / 2
    abort(client, "gone", 1)
    assert all("start a new one" in message for message in messages(client, futures))


@pytest.mark.parametrize("additions", [0, 20])
def test_a_worker_killed_in_the_middle_fails_the_others_who_may_begin_again(
    client, addresses, additions
):
    ranks, weights, size = addresses[:3], [0.2, 0.3, 0.5], 3_000_000
    run = f"killed at {additions}"
    programs = [(ring, rank, weights, size) for rank in range(3)]
    programs[1] = (*programs[1], FatalKernels(additions))
    futures = [
        client.submit(
            take_part, run, 1, ranks, {rank: program}, workers=[address], pure=False, retries=0
        )
        for rank, (program, address) in enumerate(zip(programs, ranks, strict=True))
    ]
    victim = futures.pop(1)
    if additions == 0:  # it may have died before it connected: the scheduler aborts
        await_loss(client, ranks[1])
        abort(client, run, 1)
    for message, seconds in client.gather(futures):
        assert message.startswith(f"merge 7 (round 1) of run {run}")
        assert seconds < TIMEOUTS.idle_s / 2
    victim.release()
    merged = merge_all(client, run, 2, [ranks[0], ranks[2]], [0.4, 0.6], 1000)
    assert merged == [plain_merge([0.4, 0.6], 1000)] * 2


def test_waiting_for_a_neighbour_that_never_starts_times_out(client, addresses):
    def set_timeouts(timeouts, dask_worker):
        dask_worker.plugins["communicator"].communicator.timeouts = timeouts

    client.run(set_timeouts, Timeouts(idle_s=0.2))
    part = client.submit(
        take_part, "idle", 1, addresses[:2], {0: (ring, 0, [1.0, 1.0], 10)},
        workers=addresses[:1], pure=False,
    )  # fmt: skip
    message, _ = part.result(timeout=10)
    client.run(set_timeouts, TIMEOUTS)
    assert "gone or silent (" in message  # either timeout may end first
