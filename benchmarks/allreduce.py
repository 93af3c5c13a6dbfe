"""All-reduce of a model between two worker processes: the ring over tcp beside torch's gloo.

    python benchmarks/allreduce.py [--mib 128] [--rounds 7] [--piece-kib 1024]

Rounds are interleaved, so that a noisy machine disturbs all alike; a time is the slower rank's,
and a row gives the median. gloo only sums, over connections that it keeps; the ring also applies
weights and momentum, and connects anew for each merge, as it must when workers come and go.
The floor is what must be copied (each rank's bytes into the kernel and out of it) at the rate at
which both cores together copy memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from distributed import Client, LocalCluster, get_worker

from daskxml.ops import get_kernels
from daskxml.runtime.ring import RingOptions, RingPort

MIB_FLOATS = 2**18
RINGS = 4  # in one go, the first of which is not counted


def copy_seconds(size: int) -> float:
    """Time for what an all-reduce between two ranks must copy, measured as plain copies."""
    # Filled, both of them: a first touch of fresh pages costs more than the copy.
    pairs = [(np.ones(size, np.float32), np.ones(size, np.float32)) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        started_s = time.perf_counter()
        for _ in range(2):  # each rank: its bytes in and as many out
            list(threads.map(lambda pair: np.copyto(pair[1], pair[0]), pairs))
        return time.perf_counter() - started_s


def open_port(size: int, options: RingOptions, dask_worker: Any = None) -> None:
    """Give a worker its port and its models, all allocated beforehand."""
    kernels = get_kernels("cpu", 1)
    port = RingPort(dask_worker, options)
    models = [np.full(size, value, np.float32) for value in (1.0, 3.0, 2.0, 0.0)]
    dask_worker.daskxml_benchmark = port, models, kernels


async def close_port(dask_worker: Any = None) -> None:
    await dask_worker.daskxml_benchmark[0].close()


async def ring(generation: int, rank: int, addresses: list[str], gamma: float) -> list[float]:
    """Ring several times; seconds of each but the first."""
    port, (replica, current, previous, scratch), kernels = get_worker().daskxml_benchmark
    times_s = []
    for turn in range(generation, generation + RINGS):
        stats = await port.all_reduce(
            "benchmark", turn, 0, rank, addresses, [0.5, 0.5],
            replica, current, previous, scratch, gamma, kernels,
        )  # fmt: skip
        times_s.append(stats.total_s)
    if abs(float(scratch[-1]) - (1.0 + gamma)) > 1e-6:
        raise SystemExit(f"wrong sum: {scratch[-1]} instead of {1.0 + gamma}")
    return times_s[1:]


class Rings:
    """Times rings on a cluster of two workers."""

    def __init__(self, client: Client, size: int, options: RingOptions) -> None:
        self.client, self.generation = client, 0
        self.addresses = sorted(client.scheduler_info()["workers"])
        client.run(open_port, size, options)

    def seconds(self, gamma: float) -> list[float]:
        """Times of several rings, the slower rank's."""
        futures = [
            self.client.submit(
                ring, self.generation, rank, self.addresses, gamma,
                workers=[address], pure=False,
            )
            for rank, address in enumerate(self.addresses)
        ]  # fmt: skip
        self.generation += RINGS
        return slower(self.client.gather(futures))


def gloo_rank(rank: int, size: int, port: int, pipe: Connection) -> None:
    """Answer each message with the seconds of several all-reduces (a process's main function)."""
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", address, rank=rank, world_size=2)
    model = torch.ones(size)
    while pipe.recv():
        times_s = []
        for _ in range(RINGS):
            torch.distributed.barrier()
            started_s = time.perf_counter()
            torch.distributed.all_reduce(model)
            times_s.append(time.perf_counter() - started_s)
            model.fill_(1.0)
        pipe.send(times_s[1:])
    torch.distributed.destroy_process_group()


@contextmanager
def gloo(size: int) -> Iterator[Callable[[], list[float]]]:
    """Two processes with gloo; yields a function that gives seconds."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(2)]
    ranks = [
        context.Process(target=gloo_rank, args=(rank, size, port, theirs), daemon=True)
        for rank, (_, theirs) in enumerate(ends)
    ]
    for process in ranks:
        process.start()

    def seconds() -> list[float]:
        for ours, _ in ends:
            ours.send(True)
        return slower([ours.recv() for ours, _ in ends])

    yield seconds
    for (ours, _), process in zip(ends, ranks, strict=True):
        ours.send(False)
        process.join()


def slower(by_rank: list[list[float]]) -> list[float]:
    return [max(times) for times in zip(*by_rank, strict=True)]


def measure(rounds: int, subjects: dict[str, Callable[[], list[float]]]) -> dict[str, float]:
    """Median seconds of each subject, the rounds interleaved."""
    times_s: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, subject in subjects.items():
            times_s[name] += subject()
    return {name: statistics.median(times) for name, times in times_s.items()}


def medians(mib: int, rounds: int, piece_kib: int) -> dict[str, float]:
    size = mib * MIB_FLOATS
    subjects: dict[str, Callable[[], list[float]]] = {
        "copies (floor)": lambda: [copy_seconds(size) for _ in range(RINGS - 1)]
    }
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit=0, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        rings = Rings(client, size, RingOptions(piece_bytes=piece_kib * 1024))
        subjects["ring, weighted"] = lambda: rings.seconds(0.0)
        subjects["ring, weighted and momentum"] = lambda: rings.seconds(0.9)
        try:
            import torch.distributed  # noqa: F401
        except ImportError:
            found = measure(rounds, subjects)
        else:
            with gloo(size) as gloo_seconds:
                found = measure(rounds, {**subjects, "gloo, plain sum": gloo_seconds})
        client.run(close_port)
    return found


def rows_of(mib: int, found: dict[str, float]) -> list[dict[str, Any]]:
    gloo_s = found.get("gloo, plain sum")
    return [
        {
            "what": name,
            "ms": round(seconds * 1e3, 1),
            "MiB/s sent by each": round(mib / seconds),
            "time over gloo's": round(seconds / gloo_s, 2) if gloo_s else None,
        }
        for name, seconds in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=128, help="size of the model (default 128)")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (default 7)")
    parser.add_argument("--piece-kib", type=int, default=1024, help="piece size (default 1024)")
    options = parser.parse_args()
    from machine import write_result

    found = medians(options.mib, options.rounds, options.piece_kib)
    write_result(
        "allreduce", rows_of(options.mib, found), mib=options.mib, piece_kib=options.piece_kib
    )


if __name__ == "__main__":
    main()
