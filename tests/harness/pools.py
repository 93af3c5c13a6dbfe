"""Clusters with pools, on one machine or on two, and what their processes have in memory."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from distributed import Client, Nanny, Scheduler, SpecCluster
from distributed.utils import get_ip

from harness.clusters import PROTOCOL
from harness.deaths import die_in

REPLICA: dict[str, Any] = {}
POOL = {"resources": {"cpu-pool": 1}}
THREADS = min(2, len(os.sched_getaffinity(0)))
POOL_OF_ALL_CORES = {"resources": {"cpu-pool": THREADS}}
# Another machine, as far as addresses tell. UCX reaches only the first address of a device.
ELSEWHERE = {"host": "127.0.0.2" if PROTOCOL == "tcp" else get_ip()}


@contextlib.contextmanager
def cluster_of(folder: Path, workers: Mapping[str, Mapping[str, Any]]) -> Iterator[Client]:
    """A client of a cluster of processes, by name; one that dies is started again."""
    common = {
        "host": "127.0.0.1", "nthreads": 1, "local_directory": str(folder), "silence_logs": 50,
        "memory_limit": 0,
    }  # fmt: skip
    spec = {name: {"cls": Nanny, "options": {**common, **own}} for name, own in workers.items()}
    options = {"host": "127.0.0.1", "port": 0, "dashboard_address": ":0"}
    with (
        SpecCluster(spec, {"cls": Scheduler, "options": options}, silence_logs=50) as cluster,
        Client(cluster) as client,
    ):
        yield client


def address_of(client: Client, name: str) -> str:
    """Where a worker listens."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return next(address for address, worker in workers.items() if worker["name"] == name)


def pid_of(client: Client, name: str) -> int:
    """The process of a worker."""
    (pid,) = client.run(os.getpid, workers=[address_of(client, name)]).values()
    return int(pid)


def arm(client: Client, name: str, method: str, at_call: int) -> None:
    """Make a worker kill itself in a call of a `TrainingWorker` method."""
    client.run(die_in(method, at_call), workers=[address_of(client, name)])


def shared_memory(pid: int, kind: str = "daskxml-model") -> set[str]:
    """What is shared and a process has in memory, by name: models, or all with "daskxml"."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # it is gone
        return set()
    names = (line.partition("/memfd:")[2].split(" ")[0] for line in maps.splitlines())
    return {name for name in names if name.startswith(kind)}


def named_memory(pid: int) -> set[Path]:
    """The segments with a name that a process has in memory.

    Without the semaphores (32 bytes each) that Python gives to Dask's nannies.
    """
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    paths = {Path(line[line.index("/dev/shm/") :]) for line in lines if "/dev/shm/" in line}
    return {path for path in paths if not path.name.startswith("sem.mp-")}


def mapped(client: Client) -> dict[str, set[str]]:
    """The shared models that each worker has in memory, by the worker's name."""
    pids = client.run(os.getpid)
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return {workers[at]["name"]: shared_memory(pid) for at, pid in pids.items()}


def add_workers(client: Client, workers: Mapping[str, Mapping[str, Any]]) -> None:
    """Let workers come to a cluster of `cluster_of`, by name; they end with it."""
    cluster = client.cluster
    common = next(iter(cluster.worker_spec.values()))["options"]
    spec = {name: {"cls": Nanny, "options": {**common, **own}} for name, own in workers.items()}
    cluster.worker_spec.update(spec)
    cluster.loop.add_callback(cluster._correct_state)  # as `cluster.scale` does
