"""How long two local workers take to start, ready to train: spawned, and forked.

    python benchmarks/speed/worker_start.py [--repeats 5]

Both kinds in turns; the first forked cluster starts the process that all others are forked from.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster

from daskxml.cluster.connection import forked_workers

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import write_result


def imports() -> int:
    """Import what a worker needs, as the first task of a run does."""
    import daskxml.cluster.worker_tasks
    import daskxml.kernels.cpu.kernels

    assert daskxml
    return os.getpid()


def start(kind: str) -> float:
    """Start two workers, let them import, and return the seconds until both have."""
    starting: Any = forked_workers() if kind == "forked" else contextlib.nullcontext()
    begun_s = time.perf_counter()
    with (
        starting,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.run(imports)
        return time.perf_counter() - begun_s


def main() -> None:
    """Measure both kinds in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    dask.config.set({"logging.distributed": "error"})
    seconds: dict[str, list[float]] = {"spawned": [], "forked": []}
    for _ in range(repeats):
        for kind, found in seconds.items():
            found.append(start(kind))
    rows = [
        {
            "workers": kind,
            "first_s": found[0],
            "median_s": statistics.median(found),
            "max_s": max(found),
        }
        for kind, found in seconds.items()
    ]
    write_result("worker_start", rows, repeats=repeats)


if __name__ == "__main__":
    main()
