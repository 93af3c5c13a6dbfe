"""A partitioned output layer against its goals: exactness, rows a second, busy time, bytes.

Virtual clocks have the costs of `v100_cost` at Amazon-670k's shape; the arithmetic under them is
that of fewer labels, which changes neither the share of each worker nor the bytes of a step. The
copies of a merge are smaller by as much; their time is computed. Two processes on this machine are
measured against one::

    python benchmarks/partitioned.py [--skip-cluster]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

import daskxml
from daskxml.api.simulate import simulate
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.model.spec import ModelSpec
from daskxml.simulator.cost import Network, v100_cost
from daskxml.simulator.partitioning import (
    Setting,
    crossing_labels,
    merged_batch,
    partitioned_batch,
)
from daskxml.strategies.partitioned import PartitionedSgd
from daskxml.strategies.protocol import Begin, Gang, GangDone, Merged, Started
from machine import write_result

AMAZON = ModelSpec(features=135_909, labels=670_091, hidden=(128,))
BATCH, NONZEROS = 1024, 76
LINKS = {"25 GB/s": 25e9, "10 Gbit/s": 1.25e9, "1 Gbit/s": 125e6}


def amazon_cost(spec: Any) -> Any:
    """Return the costs of a V100 at Amazon-670k's shape, without jitter."""
    return replace(v100_cost(AMAZON), jitter=0.0)


def data(rows: int, labels: int, features: int, per_row: float) -> dict[str, Any]:
    """Return generated rows."""
    spec = SyntheticSpec(
        rows=rows, test_rows=64, features=features, labels=labels, features_per_row=per_row, seed=4
    )
    names = zip(("train", "test"), generate(spec), strict=True)
    return {n: daskxml.Matrices(to_scipy(p.features), to_scipy(p.labels)) for n, p in names}


def values(batch: int, steps: int, megabatches: int, **sections: Any) -> dict[str, Any]:
    """Return a run file of synchronous steps."""
    return {
        "run": {"seed": 3},
        "model": {"hidden": [128], "output": "partitioned"},
        "strategy": {"lr": 0.5, "batch_max": batch, "megabatch_batches": steps},
        "training": {"megabatches": megabatches},
        "evaluation": {"every": megabatches},
        **sections,
    }


def exactness() -> dict[str, Any]:
    """Compare the models of four unequal workers and of one after 100 steps."""
    rows = data(4000, 2000, 1000, 20)
    settings = values(64, 25, 4)
    one, four = (simulate(settings, s, **rows) for s in ([1.0], [1.0, 1.0, 0.5, 0.25]))
    named = zip(one.model.parameters.values(), four.model.parameters.values(), strict=True)
    largest = max(float(np.abs(a - b).max()) for a, b in named)
    same = all(a["metrics"] == b["metrics"] for a, b in zip(one.history, four.history, strict=True))
    return {
        "goal": "one worker's model after 100 steps, largest difference",
        "wanted": "1e-5",
        "found": largest,
        "note": f"metrics {'equal' if same else 'differ'}",
    }


def throughput() -> list[dict[str, Any]]:
    """Compare rows a second of four workers and one, and bytes a step, on virtual clocks."""
    rows, network = data(4096, 4096, 5000, NONZEROS), Network(bandwidth_bytes_s=25e9)
    settings = values(BATCH, 20, 2)
    speeds = {}
    for workers in (1, 4):
        run = simulate(settings, [1.0] * workers, **rows, cost=amazon_cost, network=network)
        last = run.history[-1]
        speeds[workers] = 20 * BATCH / last["train_s"]
        sent = last["moved_bytes"] / 20 / workers
    typical = replace(Setting(workers=4), rows=BATCH, row_nonzeros=NONZEROS)
    told = partitioned_batch(AMAZON, v100_cost(AMAZON), network, typical)
    copies_s = 4 * AMAZON.labels // 4 * 129 / 25e9
    with_merge = 100 * BATCH / (100 * BATCH / speeds[4] + copies_s)
    return [
        {
            "goal": "four equal workers, times one worker's rows a second (25 GB/s)",
            "wanted": "3.4",
            "found": speeds[4] / speeds[1],
            "note": f"predicted {BATCH / told.batch_s:,.0f} rows a second, virtual clocks "
            f"{speeds[4]:,.0f}; {with_merge:,.0f} with a merge's copies every 100 batches",
        },
        {
            "goal": "MB that a worker sends for a batch of 1,024 rows",
            "wanted": "1.1",
            "found": sent / 1e6,
            "note": f"predicted {told.sent_bytes / 1e6:.3f}; merging the model every 100 batches "
            f"{merged_batch(AMAZON, v100_cost(AMAZON), network, typical).sent_bytes / 1e6:.1f}",
        },
    ]


def unequal() -> dict[str, Any]:
    """Return how busy workers of speeds 1, 1, 1/2, 1/4 are once labels are cut by speed."""
    rows = data(4096, 8192, 5000, NONZEROS)
    run = simulate(values(BATCH, 10, 4), [1.0, 1.0, 0.5, 0.25], **rows, cost=amazon_cost)
    last = run.history[-1]
    busy = sum(worker["busy_s"] for worker in last["workers"].values())
    return {
        "goal": "busy share with speeds 1, 1, 1/2, 1/4",
        "wanted": "0.95",
        "found": busy / (len(last["workers"]) * last["train_s"]),
        "note": "virtual clocks, the fourth mega-batch",
    }


def slowdown(steps: int = 10) -> dict[str, Any]:
    """Return after how many steps workers are busy 95 % again when one is half as fast."""
    machine = PartitionedSgd(PartitionedSgd.Config(batch_max=BATCH, megabatch_batches=steps))
    speeds = dict.fromkeys("abcd", 1.0)
    state, _ = machine.step(machine.initial_state(), Started(tuple(speeds)))
    taken = 0
    for megabatch in range(12):
        if megabatch == 6:
            speeds["b"], taken = 0.5, 0
        state, commands = machine.step(state, Begin())
        while commands and isinstance(commands[0], Gang):
            gang, cost = commands[0], v100_cost(AMAZON)
            shares = dict(zip(gang.parts, gang.pattern.shares, strict=True))  # type: ignore[union-attr]
            rows = {name: part.rows for name, part in gang.parts.items()}
            count = sum(rows.values()) // BATCH
            busy = {
                name: count
                * cost.batch_s(round(BATCH * share / sum(shares.values())), BATCH * NONZEROS)
                / speeds[name]
                for name, share in shares.items()
            }
            longest = max(busy.values())
            if megabatch >= 6 and sum(busy.values()) / (len(busy) * longest) >= 0.95:
                return {
                    "goal": "steps until 95 % busy again, after one worker slows down to a half",
                    "wanted": "20",
                    "found": taken,
                    "note": f"the strategy with predicted times, mega-batches of {steps} steps",
                }
            taken += count
            updates = dict.fromkeys(rows, count)
            state, commands = machine.step(state, GangDone(longest, rows, updates, busy))
        state, _ = machine.step(state, Merged())
    raise AssertionError("never balanced again")


def crossing() -> list[dict[str, Any]]:
    """Return from how many labels on a partitioned layer has more rows a second, by link."""
    found = []
    for name, bandwidth in LINKS.items():
        network = Network(bandwidth_bytes_s=bandwidth)
        row: dict[str, Any] = {"link": name}
        for workers in (2, 4, 16):
            setting = Setting(workers=workers, rows=BATCH, row_nonzeros=NONZEROS)
            row[f"{workers} workers"] = crossing_labels(AMAZON, network, setting) or "never"
        found.append(row)
    return found


def measured_crossing() -> list[dict[str, Any]]:
    """Return rows a second of both on virtual clocks around a crossing, where models are small."""
    spec = ModelSpec(features=2000, labels=1, hidden=(32,))
    setting = Setting(workers=4, rows=128, row_nonzeros=30, merge_batches=100)
    network = Network(bandwidth_bytes_s=30e6, latency_s=1e-6, message_s=0.0)
    predicted = crossing_labels(spec, network, setting)
    found = []
    for labels in (4000, 8000, 12_000, 16_000, 20_000):
        rows, rates = data(1280, labels, spec.features, setting.row_nonzeros), {}
        for name, merged in (("partitioned", False), ("merged", True)):
            settings = values(setting.rows, setting.merge_batches, 2, model={"hidden": [32]})
            settings["strategy"]["name"] = "elastic" if merged else "partitioned"
            run = simulate(
                settings, [1.0] * 4, **rows, network=network,
                cost=lambda shaped: replace(v100_cost(shaped), jitter=0.0),
            )  # fmt: skip
            last = run.history[-1]
            whole_s = last["train_s"] + (last["merge_s"] if merged else 0.0)
            rates[name] = round(setting.rows * setting.merge_batches / whole_s)
        found.append({"labels": labels, **rates, "predicted crossing": predicted})
    return found


def measured(labels: int = 100_000, batch: int = 256, steps: int = 6) -> list[dict[str, Any]]:
    """Compare two processes with one: rows a second, and seconds of a processor."""
    rows = data(4096, labels, 5000, NONZEROS)
    settings = values(batch, steps, 5, cluster={"threads": 1}, checkpoint={"every": 100})
    best, cpu_s, sent = {}, {}, 0.0
    for workers in (1, 2):
        times: list[dict[str, float]] = []
        with (
            tempfile.TemporaryDirectory() as out,
            LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as made,
            Client(made) as client,
        ):

            def on_megabatch(row: Any, client: Client = client, times: Any = times) -> None:
                times.append(client.run(time.process_time))

            run = daskxml.train(settings, client=client, out=out, on_megabatch=on_megabatch, **rows)
            best[workers] = max(steps * batch / row["train_s"] for row in run.history)
            sent = run.history[-1]["moved_bytes"] / steps / workers
        megabatches = len(times) - 1
        cpu_s[workers] = max(times[-1][w] - times[0][w] for w in times[0]) / megabatches
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return [
        {
            "goal": "two processes, times one process's rows a second",
            "wanted": "1.7",
            "found": best[2] / best[1],
            "note": f"{labels:,} labels, batches of {batch}: {best[1]:,.0f} and {best[2]:,.0f} "
            f"rows a second, the best of 5 mega-batches, {load:.1f} processes ready for a core; "
            f"{sent / 1e6:.3f} MB sent a step and worker",
        },
        {
            "goal": "one process's processor seconds, times those of the busier one of two",
            "wanted": "1.7",
            "found": cpu_s[1] / cpu_s[2],
            "note": f"{cpu_s[1]:.2f} s and {cpu_s[2]:.2f} s a mega-batch of {steps} steps, all "
            "that a process does",
        },
    ]


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--skip-cluster", action="store_true", help="virtual clocks only")
    options = parser.parse_args()
    rows = [exactness(), *throughput(), unequal(), slowdown()]
    if not options.skip_cluster:
        rows += measured()
    write_result("partitioned", rows, crossing=crossing(), measured_crossing=measured_crossing())


if __name__ == "__main__":
    main()
