"""Many trainings in one process: what grows of memory, descriptors, threads and shared memory.

In turns without a cluster (``daskxml.api.in_process``, what `XMLClassifier` does) and on one local
cluster of two worker processes, whose scheduler is in this process; then on another one, in which
Dask's own records of what happened lately are shorter. Figures of this process and of the workers
together, after a collection of garbage.

    python benchmarks/speed/repeated.py [--trainings 1000] [--rows 20]
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dask
import psutil
from distributed import Client, LocalCluster, Scheduler

import daskxml
from daskxml.api.in_process import train_here
from daskxml.data.synthetic import SyntheticSpec, write_xml

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import write_result

SETTINGS = {
    "model": {"hidden": [8]},
    "strategy": {"batch_max": 16, "megabatch_batches": 4},
    "training": {"megabatches": 2},
    "cluster": {"threads": 1},
}
SHORT = {  # entries of Dask's records: by default 10,000, 1,000, and 7,200 for an hour
    "distributed.admin.log-length": 50,
    "distributed.admin.low-level-log-length": 50,
    "distributed.admin.system-monitor.log-length": 50,
}
MIB = 1 << 20


def anonymous_bytes(pid: int) -> int:
    """Return the memory of a process that no file backs."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))


def shared_of(pids: list[int]) -> set[str]:
    """Return the pieces of shared memory that processes have mapped."""
    maps = [Path(f"/proc/{pid}/maps").read_text().splitlines() for pid in pids]
    names = {line.split(maxsplit=5)[-1] for lines in maps for line in lines}
    return {name for name in names if name.startswith(("/dev/shm/", "/memfd:"))}


def spans_of(dask_scheduler: Scheduler) -> int:
    """Return how many spans and task groups Dask keeps, and notes of where tasks came from."""
    spans = dask_scheduler.extensions["spans"].spans.values()
    notes = sum(len(span.metadata["collections"]) for span in spans if span.metadata)
    return notes + sum(1 + len(span.groups) for span in spans)


def state(client: Client | None) -> dict[str, Any]:
    """Return what this process and the workers hold now."""
    gc.collect()
    own = psutil.Process()
    workers = list(client.run(os.getpid).values()) if client else []
    if client:
        client.run(gc.collect)
    return {
        "MiB": anonymous_bytes(own.pid) / MIB,
        "descriptors": own.num_fds(),
        "threads": threading.active_count(),
        "shared": len(shared_of([own.pid, *workers])),
        "workers' MiB": sum(map(anonymous_bytes, workers)) / MIB,
        "workers' descriptors": sum(psutil.Process(pid).num_fds() for pid in workers),
        "workers' threads": sum(psutil.Process(pid).num_threads() for pid in workers),
        "Dask's spans and groups": client.run_on_scheduler(spans_of) if client else 0,
    }


def measured(
    name: str, train: Callable[[], object], client: Client | None, trainings: int, rows: int
) -> Iterator[dict[str, Any]]:
    """Train again and again; yield a row of the results every so often."""
    began_s = time.monotonic()
    for done in range(1, trainings + 1):
        train()
        if done == 1 or done % max(1, trainings // rows) == 0:
            spent_s = time.monotonic() - began_s
            yield {"trainings": done, "where": name, "seconds": round(spent_s), **state(client)}


def measured_on_cluster(
    name: str, records: Mapping[str, int], paths: Mapping[str, str], counts: tuple[int, int]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the results of a cluster with these settings of Dask's records."""
    with (
        dask.config.set(records),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        train = lambda: daskxml.train(SETTINGS, client=client, **paths)  # noqa: E731
        yield from measured(name, train, client, *counts)


def main() -> None:
    """Train, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainings", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=20, help="of the results, for each way")
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        spec = SyntheticSpec(rows=200, test_rows=50, features=40, labels=20, seed=1)
        paths = {
            part: str(write_xml(Path(folder) / f"{part}.txt", spec, part))
            for part in ("train", "test")
        }
        counts = (options.trainings, options.rows)
        for row in measured("here", lambda: train_here(SETTINGS, **paths), None, *counts):
            found.append(row)
            write_result("repeated", found, settings=SETTINGS)
        for name, records in (("cluster", {}), ("cluster, short records", SHORT)):
            for row in measured_on_cluster(name, records, paths, counts):
                found.append(row)
                write_result("repeated", found, settings=SETTINGS)


if __name__ == "__main__":
    main()
