"""All-reduce of a model between worker processes: each way for arrays beside torch's gloo.

    python benchmarks/speed/allreduce.py [--mib 1 16 128 512] [--workers 2 3 4] [--rounds 7]

The ring runs in shared memory (what workers of one machine do), over tcp and, where
distributed-ucxx is installed, over ucx; Adasum runs in shared memory. Rounds are interleaved, so
that a noisy machine disturbs all alike, but for those over ucx, whose workers poll; a time is the
slowest rank's, and a row gives the median. gloo only sums, over connections that it keeps; ours are
what a merge runs, with weights or with Adasum's dot products layer by layer, over channels that are
kept from the first, which is not counted, as merges of the same workers keep them. The floor is
what a ring over sockets must copy (each rank's bytes into the kernel and out of it) at the rate at
which all cores together copy memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster, get_worker

from daskxml.collectives.adasum import Vector
from daskxml.collectives.adasum_linear import adasum_linear
from daskxml.collectives.adasum_tree import adasum_tree
from daskxml.collectives.messages import Program
from daskxml.collectives.ring import all_reduce
from daskxml.kernels import get_kernels
from daskxml.transport.channels.shm_arrays import shared_zeros
from daskxml.transport.communicator import CollectiveId, Communicator, ProcessGroup

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import write_result

MIB_FLOATS = 2**18
TURNS = 4  # in one go, the first of which is not counted
SHARED, TCP, UCX = "ring, shared memory", "ring, tcp", "ring, ucx"
RINGS = (SHARED, TCP, UCX)
TREE, LINEAR, GLOO = "Adasum, tree", "Adasum, linear", "gloo, plain sum"
LAYERS = {"first": 0.45, "bias": 0.451, "output": 0.999, "output bias": 1.0}  # where each ends


def copy_seconds(size: int, workers: int) -> float:
    """Time for what an all-reduce must copy, measured as plain copies."""
    # Filled, both of them: a first touch of fresh pages costs more than the copy.
    pairs = [(np.ones(size, np.float32), np.ones(size, np.float32)) for _ in range(workers)]
    share = 2 * (workers - 1) / workers  # of the model, that each rank sends, and receives
    with ThreadPoolExecutor(workers) as threads:
        started_s = time.perf_counter()
        list(threads.map(lambda pair: np.copyto(pair[1], pair[0]), pairs))
        return 2 * share * (time.perf_counter() - started_s)


def spans(size: int) -> list[tuple[str, int, int]]:
    """Layers in the proportions of a model of this kind."""
    ends = [int(size * share) for share in LAYERS.values()]
    return [(name, a, b) for name, a, b in zip(LAYERS, [0, *ends], ends, strict=False)]


def open_communicator(size: int, dask_worker: Any = None) -> None:
    """Give a worker its communicator and its arrays, all allocated beforehand."""
    replica, scratch, change = np.ones(size, np.float32), shared_zeros(size), shared_zeros(size)
    change[:] = np.random.default_rng(os.getpid()).normal(size=size)
    arrays = replica, scratch, change
    dask_worker.daskxml_benchmark = Communicator(dask_worker), arrays, get_kernels("cpu", 1)


async def close_communicator(dask_worker: Any = None) -> None:
    await dask_worker.daskxml_benchmark[0].close()


def program(what: str, rank: int, ranks: int) -> Program[Any]:
    """Return one rank's part."""
    _, (replica, scratch, change), kernels = get_worker().daskxml_benchmark
    if what in RINGS:
        return all_reduce(rank, ranks, scratch, replica, 1 / ranks, kernels)
    combine = adasum_tree if what == TREE else adasum_linear
    return combine(Vector(rank, change, spans(change.size), kernels, work=scratch), ranks)


async def reduce_repeatedly(
    what: str, number: int, rank: int, addresses: list[str]
) -> tuple[list[float], float]:
    """All-reduce several times; seconds of each but the first, and a number of the result."""
    communicator, (_, scratch, change), _ = get_worker().daskxml_benchmark
    communicator.shares_memory = what != TCP
    times_s = []
    for turn in range(number, number + TURNS):
        key, part = CollectiveId(run="benchmark", number=turn), program(what, rank, len(addresses))
        follows = 0 if turn == number else turn - 1
        started_s = time.perf_counter()
        group = ProcessGroup(key, tuple(addresses), (), follows)
        await communicator.run_programs(group, {rank: part})
        times_s.append(time.perf_counter() - started_s)
    return times_s[1:], float((scratch if what in RINGS else change)[-1])


class Reductions:
    """Times programs on a cluster."""

    def __init__(self, client: Client, size: int) -> None:
        self.client, self.number = client, 1
        self.addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
        client.run(open_communicator, size)

    def seconds(self, what: str) -> list[float]:
        """Times of several reductions, the slowest rank's."""
        futures = [
            self.client.submit(
                reduce_repeatedly, what, self.number, rank, self.addresses,
                workers=[address], pure=False,
            )
            for rank, address in enumerate(self.addresses)
        ]  # fmt: skip
        self.number += TURNS
        answers = self.client.gather(futures)
        found = {value for _, value in answers}
        if len(found) > 1 or (what in RINGS and abs(found.pop() - 1.0) > 1e-6):
            raise SystemExit(f"{what}: wrong or different results: {answers}")
        return slowest([times_s for times_s, _ in answers])


@contextmanager
def cluster(protocol: str, size: int, workers: int) -> Iterator[Reductions]:
    """Worker processes that are joined by a protocol."""
    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, memory_limit=0, dashboard_address=":0",
            protocol=f"{protocol}://",
        ) as made,
        Client(made) as client,
    ):  # fmt: skip
        yield Reductions(client, size)
        client.run(close_communicator)


def gloo_rank(rank: int, ranks: int, size: int, port: int, pipe: Connection) -> None:
    """Answer each message with the seconds of several all-reduces (a process's main function)."""
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", address, rank=rank, world_size=ranks)
    model = torch.ones(size)
    while pipe.recv():
        times_s = []
        for _ in range(TURNS):
            torch.distributed.collective()
            started_s = time.perf_counter()
            torch.distributed.all_reduce(model)
            times_s.append(time.perf_counter() - started_s)
            model.fill_(1.0)
        pipe.send(times_s[1:])
    torch.distributed.destroy_process_group()


@contextmanager
def gloo(size: int, ranks: int) -> Iterator[Callable[[], list[float]]]:
    """Processes with gloo; yields a function that gives seconds."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(ranks)]
    processes = [
        context.Process(target=gloo_rank, args=(rank, ranks, size, port, theirs), daemon=True)
        for rank, (_, theirs) in enumerate(ends)
    ]
    for process in processes:
        process.start()

    def seconds() -> list[float]:
        for ours, _ in ends:
            ours.send(True)
        return slowest([ours.recv() for ours, _ in ends])

    yield seconds
    for (ours, _), process in zip(ends, processes, strict=True):
        ours.send(False)
        process.join()


def slowest(by_rank: list[list[float]]) -> list[float]:
    return [max(times) for times in zip(*by_rank, strict=True)]


def measure(rounds: int, subjects: dict[str, Callable[[], list[float]]]) -> dict[str, float]:
    """Median seconds of each subject, the rounds interleaved."""
    times_s: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, subject in subjects.items():
            times_s[name] += subject()
    return {name: statistics.median(times) for name, times in times_s.items()}


def medians(mib: int, workers: int, rounds: int) -> dict[str, float]:
    size = mib * MIB_FLOATS
    subjects: dict[str, Callable[[], list[float]]] = {
        "copies (floor)": lambda: [copy_seconds(size, workers) for _ in range(TURNS - 1)]
    }
    with ExitStack() as stack:
        tcp = stack.enter_context(cluster("tcp", size, workers))
        subjects |= {name: partial(tcp.seconds, name) for name in (SHARED, TCP, TREE, LINEAR)}
        if find_spec("torch"):
            subjects[GLOO] = stack.enter_context(gloo(size, workers))
        found = measure(rounds, subjects)
    if find_spec("distributed_ucxx"):  # apart: its workers poll, also while they do nothing
        with cluster("ucx", size, workers) as ucx:
            found |= measure(rounds, {UCX: partial(ucx.seconds, UCX)})
    return found


def rows_of(mib: int, workers: int, found: dict[str, float]) -> list[dict[str, Any]]:
    def over(name: str, seconds: float) -> float | None:
        return round(seconds / found[name], 2) if name in found else None

    return [
        {
            "MiB": mib,
            "workers": workers,
            "what": name,
            "ms": round(seconds * 1e3, 1),
            "time over tcp's": over(TCP, seconds),
            "time over gloo's": over(GLOO, seconds),
        }
        for name, seconds in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 16, 128, 512], help="model sizes")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 3, 4], help="processes")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (default 7)")
    parser.add_argument("--most-mib", type=int, default=1024, help="at most, of all workers")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for mib in options.mib:
        for workers in options.workers:
            if workers * mib <= options.most_mib:
                rows += rows_of(mib, workers, medians(mib, workers, options.rounds))
                write_result("allreduce", rows, rounds=options.rounds)  # a part, if it breaks off


if __name__ == "__main__":
    main()
