"""Label trees on workers of different speeds, in virtual time, and on two processes beside one.

    python benchmarks/tree_cluster.py FOLDER [--sets bibtex,...] [--processes stackex4-2k]

By set: the share of the time that workers of speeds 1, 1, 1/2 and 1/4 are busy while the run file
``tree`` is fitted, in the simulator, whose virtual seconds follow the work of the pieces. Then
``trees`` on one local process and on two, of a thread each: the processor seconds of each from the
files to the model, which do not depend on what else the machine does. ``times`` is what two would
gain if each had a core: one's seconds by those of the busier of the two. Writes
``results/tree_cluster.json``.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster

import daskxml
from machine import write_result
from trees import SETS

SPEEDS = (1.0, 1.0, 0.5, 0.25)


def simulated(files: Mapping[str, Path]) -> dict[str, Any]:
    """Return how busy the workers of different speeds are, and the pieces of each."""
    run = daskxml.simulate("tree", SPEEDS, **files)
    workers = [worker for row in run.history for worker in row["workers"].values()]
    busy_s, idle_s = (sum(worker[key] for worker in workers) for key in ("busy_s", "idle_s"))
    return {
        "busy": round(busy_s / (busy_s + idle_s), 3),
        "pieces": [worker["updates"] for worker in workers],
        "seconds": round(sum(row["train_s"] for row in run.history), 2),
    }


def on_processes(files: Mapping[str, Path], processes: int) -> list[float]:
    """Return the processor seconds of each of some local processes."""
    with (
        LocalCluster(n_workers=processes, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        daskxml.train("tree", client=client, **files)  # compiles
        before = client.run(time.process_time)
        daskxml.train("trees", client=client, **files)
        after = client.run(time.process_time)
    return [round(after[worker] - before[worker], 2) for worker in after]


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--processes", default="stackex4-2k")
    options = parser.parse_args()

    def files(name: str) -> dict[str, Path]:
        return {part: options.folder / f"{name}.{part}.txt.gz" for part in ("train", "test")}

    rows = [{"data": name, **simulated(files(name))} for name in options.sets.split(",")]
    processes = {}
    for name in options.processes.split(","):
        (one,), two = on_processes(files(name), 1), on_processes(files(name), 2)
        processes[name] = {"one_cpu_s": one, "two_cpu_s": two, "times": round(one / max(two), 2)}
        print(name, processes[name])
    write_result("tree_cluster", rows, speeds=SPEEDS, processes=processes)


if __name__ == "__main__":
    main()
