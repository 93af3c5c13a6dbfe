"""Merging between workers on one GPU: the ring over ucx beside tcp, and what a copy takes.

    pip install '.[cuda12]'
    python benchmarks/gpu/cluster.py [--mib 16 128 512] [--piece-mib 1 8] [--rounds 5]

A cluster of one worker and one of two, each a process with a CUDA context of its own on the first
GPU. Over ucx the pieces go from device memory to device memory, over tcp by way of the host, and
the merged models must have the same bits, with pieces of any size. Channels stay open from merge to
merge, as in a run. The model is merged with momentum, as Adaptive SGD does. Beside each time stands
that of copying the model once inside the GPU; the least that two ranks can do is to read and to
write it three times each. The result is ``benchmarks/results/gpu_cluster.json``. Where there is no
GPU, or no UCX, it says so in a line and ends with status 2.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, Nanny, Scheduler, SpecCluster, get_worker

from daskxml.collectives.ring import all_reduce
from daskxml.core.errors import ConfigError
from daskxml.kernels import get_kernels
from daskxml.transport.communicator import CollectiveId, Communicator, ProcessGroup

sys.path.append(str(Path(__file__).parent.parent))
from machine import write_result

MIB = 2**20
FLOAT_BYTES = 4
MOMENTUM = 0.9
POOL_BYTES = 12 << 30
FIRST_GPU = {"CUDA_VISIBLE_DEVICES": "0"}


@contextmanager
def cluster(workers: int, protocol: str) -> Iterator[Client]:
    """Workers that share the first GPU, which dask-cuda's own cluster does not allow."""
    place = {"host": "127.0.0.1", "protocol": protocol}
    options = {**place, "nthreads": 1, "memory_limit": 0, "env": FIRST_GPU}
    scheduler = {**place, "port": 0, "dashboard_address": ":0"}
    with (
        SpecCluster(
            {number: {"cls": Nanny, "options": options} for number in range(workers)},
            {"cls": Scheduler, "options": scheduler},
            silence_logs=logging.ERROR,
        ) as made,
        Client(made) as client,
    ):
        client.wait_for_workers(workers)
        client.run(use_pool)
        yield client


def use_pool() -> None:
    """Let RMM have a pool, and CuPy take its memory from there, as dask-cuda does for workers."""
    import cupy
    import rmm
    from rmm.allocators.cupy import rmm_cupy_allocator

    rmm.reinitialize(pool_allocator=True, initial_pool_size=POOL_BYTES)
    cupy.cuda.set_allocator(rmm_cupy_allocator)


def open_port(size: int, dask_worker: Any = None) -> None:
    """Give a worker its port, its kernels and its models on the GPU."""
    kernels = get_kernels("cuda", 1)
    own = np.random.default_rng(sum(map(ord, str(dask_worker.name))))  # each rank's is another
    common = np.random.default_rng(0)
    models = [
        kernels.to_device(rng.standard_normal(size, dtype=np.float32))
        for rng in (own, own, common, common)
    ]
    dask_worker.daskxml_benchmark = Communicator(dask_worker), kernels, models


async def close_port(dask_worker: Any = None) -> None:
    await dask_worker.daskxml_benchmark[0].close()


async def merge(number: int, rank: int, addresses: list[str], piece: int, follows: int) -> float:
    """Take part in one merge, by the channels of the last; return its seconds."""
    communicator, kernels, (replica, scratch, current, previous) = get_worker().daskxml_benchmark

    def finish(part: slice) -> None:
        kernels.momentum(scratch[part], current[part], previous[part], MOMENTUM)

    ranks = len(addresses)
    ring = all_reduce(rank, ranks, scratch, replica, 1 / ranks, kernels, finish, piece)
    begun_s = time.perf_counter()
    key = CollectiveId(run="benchmark", number=number)
    await communicator.run_programs(ProcessGroup(key, tuple(addresses), (), follows), {rank: ring})
    kernels.to_host(scratch[-1:])  # waits for the GPU
    return time.perf_counter() - begun_s


def digest_of(dask_worker: Any = None) -> str:
    """Return a digest of the merged model; while it is computed, a worker takes part in nothing."""
    _, kernels, (_, scratch, *_) = dask_worker.daskxml_benchmark
    return sha256(kernels.to_host(scratch).tobytes()).hexdigest()[:12]


def copy_s(turns: int, dask_worker: Any = None) -> float:
    """Seconds of one copy of the model inside the GPU, among several in a row."""
    _, kernels, (replica, scratch, *_) = dask_worker.daskxml_benchmark
    for _ in range(2):  # the first warms up
        begun_s = time.perf_counter()
        for _ in range(turns):
            kernels.copy(scratch, replica)
        kernels.to_host(scratch[-1:])
    return (time.perf_counter() - begun_s) / turns


def merge_times(
    client: Client, piece: int, rounds: int, first: int
) -> tuple[float, list[float], str]:
    """Seconds of the first merge, which connects, and of others, each the slowest rank's.

    And the digest of the merged model, which all ranks have each time.
    """
    workers = client.scheduler_info(n_workers=-1)["workers"]
    addresses = sorted(workers, key=lambda address: workers[address]["name"])
    times_s, digests = [], set()
    for number in range(first, first + rounds + 1):
        follows = number - 1 if number > first else 0
        futures = [
            client.submit(
                merge, number, rank, addresses, piece, follows, workers=[address], pure=False
            )
            for rank, address in enumerate(addresses)
        ]
        times_s.append(max(client.gather(futures)))
        digests |= {*client.run(digest_of).values()}
    (digest,) = digests
    return times_s[0], times_s[1:], digest


def rows(
    workers: int, protocol: str, mibs: Sequence[int], pieces_mib: Sequence[int], rounds: int
) -> Iterator[dict[str, Any]]:
    with cluster(workers, protocol) as client:
        for mib in mibs:
            client.run(open_port, mib * MIB // FLOAT_BYTES)
            copied_s = max(client.run(copy_s, 20).values())
            for turn, piece_mib in enumerate(pieces_mib):
                piece = piece_mib * MIB // FLOAT_BYTES
                first = 1 + turn * (rounds + 1)
                first_s, times_s, digest = merge_times(client, piece, rounds, first)
                merged_s = statistics.median(times_s)
                yield {
                    "workers": workers,
                    "protocol": protocol,
                    "MiB": mib,
                    "piece MiB": piece_mib,
                    "first ms": round(first_s * 1e3, 2),
                    "merge ms": round(merged_s * 1e3, 2),
                    "digest": digest,
                    "copy ms": round(copied_s * 1e3, 3),
                    "copy GB/s": round(2 * mib * MIB / copied_s / 1e9, 1),
                    "merge over copy": round(merged_s / copied_s, 1),
                }
            client.run(close_port)


def refusal() -> str:
    """Why this cannot run here; "" if it can."""
    if find_spec("distributed_ucxx") is None:
        return "UCX is not installed: pip install 'daskxml[cuda12]'"
    try:
        get_kernels("cuda", 1)
    except ConfigError as error:
        return str(error.message)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, nargs="+", default=[16, 128, 512], help="model sizes")
    parser.add_argument(
        "--piece-mib", type=int, nargs="+", default=[1, 8, 64], help="sizes of pieces"
    )
    parser.add_argument("--rounds", type=int, default=5, help="merges of each (default 5)")
    options = parser.parse_args()
    if why := refusal():
        print(why, file=sys.stderr)
        return 2
    found = [
        row
        for workers, protocol in ((1, "ucx"), (2, "ucx"), (2, "tcp"))
        for row in rows(workers, protocol, options.mib, options.piece_mib, options.rounds)
    ]
    write_result("gpu_cluster", found, rounds=options.rounds)
    digests = {(row["workers"], row["MiB"]): row["digest"] for row in found}
    wrong = [row for row in found if row["digest"] != digests[row["workers"], row["MiB"]]]
    print(*(f"other contents: {row}" for row in wrong), sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
