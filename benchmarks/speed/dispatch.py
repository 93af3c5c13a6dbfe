"""Dispatch: are unequal workers busy, are rows split by their speeds, what does a merge cost?

Four real workers whose batches are sleeps of 5 ms, at speeds 1, 1, 0.5 and 0.25, run Adaptive SGD
through the real runtime. Reported for each mega-batch: the share of the time between merges that
the workers were busy, the largest deviation of a worker's share of the rows from its share of the
speed, leases a second, and the floor: the time that a perfect split would have taken.

A second table has the gap around a merge, from the end of a mega-batch's last lease on a worker to
the begin of the first one of the next: medians and quartiles for two workers and several models.

With ``--frozen`` instead: one of four such workers of one speed is frozen for so many seconds, with
a quorum of .75 and with a barrier, and three train undisturbed.

With ``--goodput`` instead: 64 simulated workers, 1 to 4 times as slow as the first, for so many
virtual minutes in which each is frozen for 5 % of the time, 20 or 60 s at a time, and each minute
one is lost, whose successor comes half a minute later. ``goodput`` is rows merged over those that
the workers that were there and not frozen could have done. A mega-batch has 37 batches a worker,
where ``auto`` has 25 to 50 with two. A quorum of a quarter is the nearest to Decoupled DiLoCo,
whose learners wait for a minimum quorum and a grace window.

With ``--equal`` instead: two equal workers train with the settings of the run file. Processes are
held to .7 of a core each (control groups of Linux, as root), since on two cores the scheduler and
the client need the rest; in the simulator batches have a jitter of 8 %. ``busy`` is the share of
the time in which they stepped, merges included; ``beyond 1.1`` that of the merges in which one had
made more than 1.1 times the updates of the other.

    python benchmarks/speed/dispatch.py [--megabatch-batches 1000] [--megabatches 6] [--merges 40] \
    [--frozen 60] [--goodput 10] [--equal FOLDER]
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from distributed import Client, Worker, WorkerPlugin

import daskxml
from daskxml.cluster.connection import local_cluster
from daskxml.config.sections import ClusterSection
from daskxml.data.synthetic import SyntheticSpec, write_xml
from daskxml.local import Arrival, CostModel, Freeze, Loss, Network

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import RESULTS, align, with_earlier, write_result

SPEEDS = (1.0, 1.0, 0.5, 0.25)
BATCH_S = 0.005
BATCH_ROWS = 64
HIDDEN = 64
SIMULATED_BATCH_S = 0.1  # at speed 1
AFTER_S = 10.0  # that a run goes on after a worker was frozen
WARM = 10  # mega-batches before one is measured
# Features and labels of models of so many MiB.
MODELS = {"0.3": (1_000, 200), "1": (3_000, 1_096), "16": (32_000, 33_536)}

GROUPS, PERIOD_US, SHARE = Path("/sys/fs/cgroup/cpu"), 2000, 0.7
SETS = {"bibtex": 0.4, "delicious": 0.8, "stackex4-2k": 1.5}  # ms of a batch of 64 rows


@dataclass
class Sleeping(WorkerPlugin):
    """On workers, also those that come later: a step is a sleep; lease times are recorded."""

    speeds: dict[str, float]

    def setup(self, worker: Worker) -> None:  # noqa: D102 (Dask calls it)
        from daskxml.core.work_stats import WorkStats
        from daskxml.worker.replica import Replica
        from daskxml.worker.training_worker import TrainingWorker

        pause_s = BATCH_S / self.speeds[str(worker.name)]
        overslept_s = 0.0  # a sleep is too long, by more of a short one: the next makes up for it

        def step(_: Replica, batch: Any, lr: float, key: int) -> WorkStats:
            nonlocal overslept_s
            rows = sum(len(segment.rows) for segment in batch)
            wanted_s = max(0.0, pause_s * rows / BATCH_ROWS - overslept_s)
            begun_s = time.perf_counter()
            time.sleep(wanted_s)
            overslept_s = time.perf_counter() - begun_s - wanted_s
            return WorkStats(rows=rows, nonzeros=rows)

        Replica.step = step  # type: ignore[method-assign]
        lease, worker.daskxml_leases = TrainingWorker.lease, []  # type: ignore[attr-defined]

        def recorded_lease(*args: Any) -> Any:
            begun_s = time.monotonic()  # the same clock in all processes of a machine
            result = lease(*args)
            worker.daskxml_leases.append((begun_s, time.monotonic()))  # type: ignore[attr-defined]
            return result

        TrainingWorker.lease = recorded_lease  # type: ignore[method-assign]


def take_leases(dask_worker: Worker) -> tuple[str, list[tuple[float, float]]]:
    """On a worker: return its name, and the begin and end of its leases since the last call."""
    leases, dask_worker.daskxml_leases = dask_worker.daskxml_leases, []  # type: ignore[attr-defined]
    return str(dask_worker.name), leases


def gaps_ms(history: list[dict[str, Any]], leases: dict[str, list[tuple[float, float]]]) -> Any:
    """Return the time without any training around each merge, in milliseconds.

    Examples
    --------
    >>> history = [{"workers": {"a": {"leases": [3]}, "b": {"leases": [3]}}}] * 2
    >>> gaps_ms(history, {"a": [(0.0, 1.0), (2.5, 3.0)], "b": [(0.0, 2.0), (2.25, 3.0)]})
    [250.0]
    """
    left = {name: iter(times) for name, times in leases.items()}
    spans = []
    for row in history:
        counts = {name: len(worker["leases"]) for name, worker in row["workers"].items()}
        times = [next(left[name]) for name, count in counts.items() for _ in range(count)]
        spans.append((min(begin for begin, _ in times), max(end for _, end in times)))
    return [(begin - end) * 1e3 for (_, end), (begin, _) in pairwise(spans)]


@contextmanager
def cluster_with_rows(workers: int, spec: SyntheticSpec) -> Iterator[tuple[Client, Path]]:
    """Start processes, and write training rows."""
    with (
        tempfile.TemporaryDirectory() as folder,
        local_cluster(ClusterSection(workers=workers, device="cpu"), print) as cluster,
        Client(cluster) as client,
    ):
        yield client, write_xml(Path(folder) / "train.txt", spec, "train")


def measure_gaps(merges: int) -> list[dict[str, Any]]:
    """Return the gaps around merges of two equal workers, by the model's size and strategy."""
    rows = []
    for mib, (features, labels) in MODELS.items():
        spec = SyntheticSpec(rows=3000, features=features, labels=labels, seed=1)
        with cluster_with_rows(2, spec) as (client, path):
            client.register_plugin(Sleeping({"0": 1.0, "1": 1.0}))
            for name in ("adaptive-sgd", "elastic"):
                batches = {"batch_max": BATCH_ROWS, "megabatch_batches": 20}
                settings = {
                    "strategy": {"name": name, **batches},
                    "model": {"hidden": [HIDDEN]},
                    "training": {"megabatches": merges + 2},
                }
                history = daskxml.train(settings, client=client, train=path).history
                found = gaps_ms(history, dict(client.run(take_leases).values()))[1:]
                low, middle, high = statistics.quantiles(found, n=4)
                row = {"MiB": mib, "strategy": name, "merges": len(found), "gap_ms": middle}
                rows.append({**row, "quartiles_ms": f"{low:.1f} to {high:.1f}"})
    return rows


def run(megabatch_batches: int, megabatches: int) -> list[dict[str, Any]]:
    """Return the history of a run on sleeping workers."""
    spec = SyntheticSpec(rows=5000, features=200, labels=50, seed=1)
    sizes = {"batch_max": BATCH_ROWS, "batch_min": BATCH_ROWS}
    settings = {
        "strategy": {**sizes, "megabatch_batches": megabatch_batches},
        "training": {"megabatches": megabatches},
    }
    with cluster_with_rows(4, spec) as (client, path):
        client.register_plugin(Sleeping({str(i): speed for i, speed in enumerate(SPEEDS)}))
        return daskxml.train(settings, client=client, train=path).history


def describe(row: dict[str, Any]) -> dict[str, float]:
    """Return the figures of a mega-batch."""
    workers = row["workers"]
    rows = sum(worker["rows"] for worker in workers.values())
    share = {str(i): speed / sum(SPEEDS) for i, speed in enumerate(SPEEDS)}
    deviations = [abs(w["rows"] / rows / share[name] - 1.0) for name, w in workers.items()]
    leases = sum(len(worker["leases"]) for worker in workers.values())
    busy_s = sum(worker["busy_s"] for worker in workers.values())
    return {
        "megabatch": row["megabatch"],
        "busy_share": busy_s / (len(workers) * row["train_s"]),
        "worst_deviation": max(deviations),
        "leases_per_s": leases / row["train_s"],
        "train_s": row["train_s"],
        "perfect_s": rows / BATCH_ROWS * BATCH_S / sum(SPEEDS),
        "merge_s": row["merge_s"],
    }


def freeze(workers: int, quorum: float, seconds: float) -> dict[str, Any]:
    """Return what is merged before and while one of the workers is frozen, if it is for seconds."""
    merged: list[tuple[float, int]] = []
    spec = SyntheticSpec(rows=20_000, features=2_000, labels=200, seed=1)
    settings = {
        "strategy": {"batch_max": BATCH_ROWS, "megabatch_batches": 400},
        "combine": {"quorum": quorum},
        "training": {"epochs": 1_000_000},
        "evaluation": {"every": 1_000_000},
    }
    with cluster_with_rows(workers, spec) as (client, path):
        client.register_plugin(Sleeping({str(i): 1.0 for i in range(workers)}))
        victim = list(client.run(os.getpid).values())[1]

        def follow(row: dict[str, Any]) -> Any:
            merged.append((time.monotonic(), row["rows"]))
            if len(merged) == WARM + 20 and seconds:
                os.kill(victim, signal.SIGSTOP)
                threading.Timer(seconds, os.kill, (victim, signal.SIGCONT)).start()
            is_over = merged[-1][0] > merged[: WARM + 20][-1][0] + (seconds or 20.0) + AFTER_S
            return daskxml.STOP if is_over else None

        daskxml.train(settings, client=client, train=path, on_megabatch=follow)
    found: dict[str, Any] = {"workers": workers, "quorum": quorum, "frozen_s": seconds}
    first, *others = merged[WARM + 19 :]
    during = [first, *(each for each in others if each[0] < first[0] + (seconds or 20.0) + 1.0)]
    for name, part in (("before", merged[WARM : WARM + 20]), ("then", during)):
        times, rows = zip(*part, strict=True)
        found[f"rows_per_s_{name}"] = (rows[-1] - rows[0]) / (times[-1] - times[0])
        gaps = [after - before for before, after in pairwise(times)]
        found |= {f"gap_s_{name}": statistics.median(gaps), f"longest_s_{name}": max(gaps)}
    return found | {"merged": [(round(at_s - merged[0][0], 3), rows) for at_s, rows in merged]}


def draw_frozen(found: list[dict[str, Any]], merged: list[list[tuple[float, int]]]) -> None:
    """Draw the rows merged against time, from 20 merges before a worker is frozen."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.6))
    axis = figure.subplots()
    for row, points in zip(found, merged, strict=True):
        start_s, start_rows = points[WARM + 19]
        name = "barrier" if row["quorum"] == 1.0 else f"quorum {row['quorum']}"
        name += f", {row['workers']} workers" + ", none frozen" * (not row["frozen_s"])
        times = [at_s - start_s for at_s, _ in points[WARM:]]
        counts = [(rows - start_rows) / 1e6 for _, rows in points[WARM:]]
        axis.step(times, counts, where="post", label=name)
    seconds = max(row["frozen_s"] for row in found)
    axis.axvspan(0.0, seconds, color="0.9", zorder=0, label=f"one of four frozen for {seconds:g} s")
    axis.set(xlabel="seconds", ylabel="million rows merged")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(RESULTS / "frozen.png", dpi=120)


def misfortunes(
    speeds: dict[str, float], end_s: float, freeze_s: float, seed: int
) -> tuple[list[Any], float]:
    """Return what happens to workers, and the seconds of work at speed 1 that it leaves them."""
    random, changes = Random(seed), list[Any]()
    present = {name: (0.0, speed) for name, speed in speeds.items()}
    left_s, numbers = 0.0, itertools.count(len(speeds))

    def leave(name: str, at_s: float) -> float:
        """Let a worker freeze now and then while it is there; return what it could have done."""
        came_s, speed = present.pop(name)
        frozen_s, begin_s = 0.0, came_s + random.uniform(0.0, 20.0 * freeze_s)
        while begin_s + freeze_s < at_s:
            changes.append(Freeze(begin_s, name, freeze_s))
            frozen_s += freeze_s
            begin_s += freeze_s + random.expovariate(1.0 / (19.0 * freeze_s))
        return speed * (at_s - came_s - frozen_s)

    for minute in range(1, int(end_s / 60.0)):
        lost, speed = random.choice([(name, speed) for name, (_, speed) in present.items()])
        left_s += leave(lost, 60.0 * minute)
        successor = str(next(numbers))
        changes += Loss(60.0 * minute, lost), Arrival(60.0 * minute + 30.0, successor, speed)
        present[successor] = (60.0 * minute + 30.0, speed)
    left_s += sum(leave(name, end_s) for name in list(present))
    return changes, left_s


def goodput(minutes: float, freeze_s: float, seed: int) -> list[dict[str, Any]]:
    """Return rows of the results, by the share of the workers that a merge waits for."""
    speeds = {str(n): 1.0 / (1.0 + 3.0 * n / 63.0) for n in range(64)}
    changes, left_s = misfortunes(speeds, 60.0 * minutes, freeze_s, seed)
    spec = SyntheticSpec(rows=5000, features=50, labels=10, seed=1)
    settings = {
        "model": {"hidden": [4]}, "training": {"minutes": minutes}, "cluster": {"threads": 1},
        "strategy": {"batch_max": BATCH_ROWS, "batch_min": BATCH_ROWS, "megabatch_batches": 2400},
        "evaluation": {"every": 1_000_000},
    }  # fmt: skip
    cost = CostModel(per_row_s=SIMULATED_BATCH_S / BATCH_ROWS, jitter=0.08)
    network, found = Network(message_s=0.003), []
    with tempfile.TemporaryDirectory() as folder:
        path = write_xml(Path(folder) / "train.txt", spec, "train")
        for quorum in (1.0, 0.75, 0.25):
            run = daskxml.simulate(
                settings, speeds, cost=cost, network=network, changes=changes, train=path,
                overrides={"combine.quorum": quorum},
            )  # fmt: skip
            times = [0.0, *(row["wall_s"] for row in run.history)]
            could = left_s / SIMULATED_BATCH_S * BATCH_ROWS * times[-1] / (60.0 * minutes)
            found.append({
                "workers": 64, "freeze_s": freeze_s, "seed": seed, "quorum": quorum,
                "goodput": run.history[-1]["rows"] / could, "merges": len(run.history),
                "longest_s": max(after - before for before, after in pairwise(times)),
            })  # fmt: skip
    return found


@contextmanager
def held_to_a_share(client: Client) -> Iterator[None]:
    """Let each of the workers have a share of a core."""
    groups = {pid: GROUPS / f"equal-{pid}" for pid in client.run(os.getpid).values()}
    for pid, group in groups.items():
        group.mkdir()
        (group / "cpu.shares").write_text("100000")  # what else runs here is not to hold it up
        (group / "cpu.cfs_period_us").write_text(f"{PERIOD_US}")
        (group / "cpu.cfs_quota_us").write_text(f"{int(SHARE * PERIOD_US)}")
        (group / "cgroup.procs").write_text(str(pid))
    try:
        yield
    finally:
        for pid, group in groups.items():
            (GROUPS / "cgroup.procs").write_text(str(pid))
            group.rmdir()


def equality(history: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a run's history says of equal workers."""
    did = [list(row["workers"].values()) for row in history]
    counts = [[worker["counted"] for worker in workers] for workers in did]
    busy_s = [sum(w["busy_s"] for w in workers) / len(workers) for workers in did[WARM:]]
    spent_s = [row["train_s"] + row["merge_s"] for row in history[WARM:]]
    return {
        "busy": sum(busy_s) / sum(spent_s),
        "beyond 1.1": statistics.mean(max(each) > 1.1 * min(each) for each in counts),
        "least batch": min(worker["batch_rows"] for workers in did for worker in workers),
        "train_ms": 1e3 * statistics.median(row["train_s"] for row in history[WARM:]),
        "merge_ms": 1e3 * statistics.median(row["merge_s"] for row in history[WARM:]),
    }


def train_equal(folder: Path, megabatches: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of the results, of workers in processes and of simulated ones."""
    limits = {"training.epochs": 0, "training.megabatches": megabatches}
    for data, batch_ms in SETS.items():
        run = {"train": folder / f"{data}.train.txt.gz"}
        run["overrides"] = limits | {"evaluation.every": 1_000_000}
        cost = CostModel(per_row_s=batch_ms * 1e-3 / 64, per_nonzero_s=0.0, jitter=0.08)
        found = daskxml.simulate("adaptive-sgd", speeds=[1.0, 1.0], cost=cost, **run)
        yield {"data": data, "workers": "simulated", **equality(found.history)}
        with (
            local_cluster(ClusterSection(workers=2, device="cpu"), print) as cluster,
            Client(cluster) as client,
            held_to_a_share(client),
        ):
            found = daskxml.train("adaptive-sgd", client=client, **run)
        yield {"data": data, "workers": "processes", **equality(found.history)}


def main() -> Any:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabatch-batches", type=int, default=1000)
    parser.add_argument("--megabatches", type=int, default=6)
    parser.add_argument("--merges", type=int, default=40, help="of each model (default 40)")
    parser.add_argument("--frozen", type=float, help="seconds that a worker is frozen")
    parser.add_argument("--goodput", type=float, help="virtual minutes of 64 workers")
    parser.add_argument("--equal", type=Path, help="folder with the training files of the sets")
    options = parser.parse_args()
    if options.equal:
        found = [*train_equal(options.equal, options.merges)]
        return write_result("equal_workers", with_earlier("equal_workers", found), share=SHARE)
    if minutes := options.goodput:
        cases = itertools.product([minutes], (20.0, 60.0), range(2))
        with multiprocessing.get_context("spawn").Pool() as pool:
            found = [row for rows in pool.starmap(goodput, cases, chunksize=1) for row in rows]
        return write_result("goodput", found, minutes=minutes, load=os.getloadavg())
    if seconds := options.frozen:
        found = [freeze(4, 0.75, seconds), freeze(4, 1.0, seconds), freeze(3, 0.75, 0.0)]
        merged = [row.pop("merged") for row in found]
        draw_frozen(found, merged)
        return write_result("frozen", found, load=os.getloadavg(), merged=merged)
    rows = [describe(row) for row in run(options.megabatch_batches, options.megabatches)]
    median = {key: statistics.median(row[key] for row in rows[1:]) for key in rows[0]}
    print("\n".join(align(gaps := measure_gaps(options.merges))), end="\n\n")
    return write_result(
        "dispatch", [*rows, {**median, "megabatch": "median"}], speeds=SPEEDS, gaps=gaps
    )


if __name__ == "__main__":
    main()
