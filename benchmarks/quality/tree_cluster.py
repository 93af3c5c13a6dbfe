"""Label trees on workers of different speeds, in virtual time, and on two processes beside one.

    python benchmarks/quality/tree_cluster.py FOLDER [--sets bibtex,...] [--processes stackex4-2k]
        [--unequal nvd-product,generated-200000]

By set: the share of the time that workers of speeds 1, 1, 1/2 and 1/4 are busy while the run file
``tree`` is fitted, in the simulator, whose virtual seconds follow the work of the pieces. Then
``trees`` on one local process and on two, of a thread each: the seconds of training by the clock,
which are those of idle cores or none, and the processor seconds of each process from the files to
the model. At last ``trees`` on four processes of those speeds: Linux lets them have these shares of
0.6 of a core, where this user may say so (root). ``generated-200000`` has so many labels and
Amazon-670k's shape otherwise, and one tree is fitted. Writes ``results/tree_cluster.json``.
"""

from __future__ import annotations

import os
import sys

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

import argparse
import atexit
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster

import daskxml
from trees import SETS, write_generated

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import write_result

SPEEDS = (1.0, 1.0, 0.5, 0.25)
FASTEST = 0.6  # of a core: all four together have 1.65, beside the scheduler
PERIOD_US = 10_000  # in which a process has its share


def simulated(files: Mapping[str, Path]) -> dict[str, Any]:
    """Return how busy the workers of different speeds are, and the pieces of each."""
    return shares(daskxml.simulate("tree", SPEEDS, **files).history)


def shares(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how busy the workers of a run were, and how many pieces each has fitted."""
    workers = [worker for row in history for worker in row["workers"].values()]
    busy_s, idle_s = (sum(worker[key] for worker in workers) for key in ("busy_s", "idle_s"))
    pieces = Counter[str]()
    for row in history:
        pieces.update({name: worker["updates"] for name, worker in row["workers"].items()})
    return {
        "busy": round(busy_s / (busy_s + idle_s), 3),
        "pieces": [*pieces.values()],
        "seconds": round(sum(row["train_s"] for row in history), 2),
    }


def on_processes(files: Mapping[str, Path], processes: int) -> dict[str, Any]:
    """Return the seconds of training, and the processor seconds of each local process."""
    with (
        LocalCluster(n_workers=processes, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        daskxml.train("tree", client=client, **files)  # compiles
        before = client.run(time.process_time)
        run = daskxml.train("trees", client=client, **files)
        after = client.run(time.process_time)
    return {
        "train_s": round(sum(row["train_s"] for row in run.history), 2),
        "cpu_s": [round(after[worker] - before[worker], 2) for worker in after],
    }


def on_unequal_processes(run_file: str, files: Mapping[str, Path]) -> dict[str, Any]:
    """Return how busy four local processes of different speeds are, and the pieces of each."""
    with (
        LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        daskxml.train("tree", client=client, **files)  # compiles
        for (name, pid), speed in zip(client.run(os.getpid).items(), SPEEDS, strict=True):
            limit(pid, FASTEST * speed)
            print(f"{name} has {FASTEST * speed:g} of a core")
        return shares(daskxml.train(run_file, client=client, **files).history)


def limit(pid: int, cores: float) -> None:
    """Let a process have so much of a core, by a control group of its own."""
    groups = Path("/sys/fs/cgroup")
    quota = str(round(cores * PERIOD_US))
    if (groups / "cpu").exists():
        group = groups / "cpu" / f"tree_cluster-{pid}"
        limits = {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": quota}
    else:
        group, limits = groups / f"tree_cluster-{pid}", {"cpu.max": f"{quota} {PERIOD_US}"}
    group.mkdir()
    for name, text in limits.items():
        (group / name).write_text(text)
    (group / "cgroup.procs").write_text(str(pid))
    atexit.register(group.rmdir)  # it is empty when its process has ended


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--processes", default="stackex4-2k,nvd-product")
    parser.add_argument("--unequal", default="nvd-product,generated-200000")
    options = parser.parse_args()

    def files(name: str, folder: Path = options.folder) -> dict[str, Path]:
        return {part: folder / f"{name}.{part}.txt.gz" for part in ("train", "test")}

    rows = [
        {"data": name, **simulated(files(name))} for name in filter(None, options.sets.split(","))
    ]
    processes = {}
    for name in options.processes.split(","):
        one, two = (on_processes(files(name), count) for count in (1, 2))
        times = round(one["train_s"] / two["train_s"], 2)
        processes[name] = {"one": one, "two": two, "times": times}
        print(name, processes[name])
    unequal = {}
    with tempfile.TemporaryDirectory() as made:
        for name in options.unequal.split(","):
            run_file, folder = "trees", options.folder
            if name.startswith("generated-"):
                run_file, folder = "tree", Path(made)
                write_generated(folder, name, int(name.partition("-")[2]))
            unequal[name] = on_unequal_processes(run_file, files(name, folder))
            print(name, unequal[name])
    facts = {"speeds": SPEEDS, "processes": processes, "unequal_processes": unequal}
    write_result("tree_cluster", rows, **facts, load=os.getloadavg()[0])


if __name__ == "__main__":
    main()
