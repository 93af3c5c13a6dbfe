"""A partitioned output layer against its goals: exactness, rows a second, busy time, bytes.

Virtual clocks have the costs of `v100_cost` at Amazon-670k's shape; the arithmetic under them is
that of fewer labels, which changes neither the share of each worker nor the bytes of a step. The
copies of a merge are smaller by as much; their time is computed::

    python benchmarks/partitioned.py

With ``--processes`` two processes on this machine, which must do nothing else, are measured against
one, and against two that merge replicas. With ``--large`` four processes whose memory is limited
train 3,000,000 labels, which takes 8 GiB in all, and minutes on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import tempfile
import time
from dataclasses import replace
from typing import Any

import numpy as np
from distributed import Client, LocalCluster
from scipy.sparse import csr_matrix

import daskxml
from daskxml.api.simulate import simulate
from daskxml.core.errors import ConfigError
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.local.cost import CostModel, Network, v100_cost
from daskxml.local.partitioning import (
    Setting,
    crossing_labels,
    merged_batch,
    partitioned_batch,
)
from daskxml.models.network.spec import ModelSpec
from daskxml.strategies.partitioned import PartitionedSgd
from daskxml.strategies.protocol import Begin, Gang, GangDone, Merged, Started
from machine import write_result

AMAZON = ModelSpec(features=135_909, labels=670_091, hidden=(128,))
BATCH, NONZEROS = 1024, 76
LARGE = {"labels": 3_000_000, "limit_mib": 2100, "steps": 5, "batch": 32}  # limit of each worker
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
    with_merge = BATCH / (BATCH / speeds[4] + told.merge_s)
    merged = merged_batch(AMAZON, v100_cost(AMAZON), network, typical)
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
            "note": f"predicted {told.sent_bytes / 1e6:.3f}; copies to another worker every 100 "
            f"batches are {told.merged_bytes / 1e6:.2f} more, merging the model would be "
            f"{merged.merged_bytes / 1e6:.1f}",
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
            whole_s = last["train_s"] + last["merge_s"]
            rates[name] = round(setting.rows * setting.merge_batches / whole_s)
        found.append({"labels": labels, **rates, "predicted crossing": predicted})
    return found


def measured(batch: int, steps: int, labels: int = 100_000) -> list[dict[str, Any]]:
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
            "goal": f"two processes, times one process's rows a second, batches of {batch:,}",
            "wanted": "1.7",
            "found": best[2] / best[1],
            "note": f"{labels:,} labels: {best[1]:,.0f} and {best[2]:,.0f} rows a second, the "
            f"best of 5 mega-batches, {load:.1f} processes ready for a core; "
            f"{sent / 1e6:.3f} MB sent a step and worker",
        },
        {
            "goal": "one process's processor seconds, times those of the busier of two, "
            f"batches of {batch:,}",
            "wanted": "1.7",
            "found": cpu_s[1] / cpu_s[2],
            "note": f"{cpu_s[1]:.2f} s and {cpu_s[2]:.2f} s a mega-batch of {steps} steps, all "
            "that a process does",
        },
    ]


def spent_s(values: dict[str, Any], rows: dict[str, Any]) -> dict[str, float]:
    """Return the least seconds of the mega-batches of a run of two processes, after the first."""
    place = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        tempfile.TemporaryDirectory() as out,
        LocalCluster(**place) as made,
        Client(made) as client,
    ):
        history = daskxml.train(values, client=client, out=out, **rows).history[1:]
    steps = values["strategy"]["megabatch_batches"]
    busy = [max(worker["busy_s"] for worker in row["workers"].values()) for row in history]
    rest = [row["train_s"] - busy_s for row, busy_s in zip(history, busy, strict=True)]
    return {
        "whole": min(row["train_s"] + row["merge_s"] for row in history),
        "merge": min(row["merge_s"] for row in history),
        "batch": min(busy) / steps,  # of the busiest worker
        "exchange": min(rest) / steps,
    }


def processes_crossing(
    sizes: tuple[int, ...] = (2000, 8000, 32_000, 64_000, 128_000, 256_000), batch: int = 128,
    steps: int = 20,
) -> dict[str, Any]:  # fmt: skip
    """Compare two processes that cut the labels with two that merge replicas, by labels.

    Beside it stands the crossing that the cost model predicts from the smaller half of the sizes:
    seconds of a batch and of a merge as lines in the labels, and the latency of a message.
    """
    setting = Setting(workers=2, rows=batch, row_nonzeros=30, merge_batches=steps)
    spec, found = ModelSpec(features=5000, labels=1, hidden=(64,)), []
    took: dict[str, list[dict[str, float]]] = {"merged": [], "partitioned": []}
    for labels in sizes:
        rows = data(batch * steps, labels, spec.features, setting.row_nonzeros)
        for name, each in took.items():
            settings = values(
                batch, steps, 5, model={"hidden": [64]}, cluster={"threads": 1},
                checkpoint={"every": 100},
            )  # fmt: skip
            settings["strategy"]["name"] = "elastic" if name == "merged" else "partitioned"
            each.append(spent_s(settings, rows))
        rates = {name: round(batch * steps / each[-1]["whole"]) for name, each in took.items()}
        found.append({"labels": labels, **rates})
    small = sizes[: len(sizes) // 2]
    known = {
        (name, part): [each[part] for each in took[name][: len(small)]]
        for name, part in (("merged", "batch"), ("merged", "merge"), ("partitioned", "exchange"))
    }
    label_s, fixed_s = 2 * np.polyfit(small, known["merged", "batch"], 1)  # on one worker
    label_s, fixed_s = max(1e-12, float(label_s)), max(0.0, float(fixed_s))
    merge_s = max(1e-12, float(np.polyfit(small, known["merged", "merge"], 1)[0]))
    bandwidth = (spec.hidden[0] + 1) * 4 / merge_s
    sent = partitioned_batch(spec, v100_cost(spec), Network(), setting).sent_bytes
    exchange_s = float(np.median(known["partitioned", "exchange"]))
    latency_s = max(0.0, (exchange_s - sent / bandwidth) / 3)
    network = Network(bandwidth_bytes_s=bandwidth, latency_s=latency_s)

    def cost_of(shaped: ModelSpec) -> CostModel:
        return CostModel(fixed_s=fixed_s, per_row_s=label_s * shaped.labels / batch, jitter=0.0)

    return {
        "measured": found,
        "measured crossing": crossing_of(found),
        "predicted crossing": crossing_labels(spec, network, setting, cost_of) or "never",
        "fitted": {
            "batch_s": f"{fixed_s:.3g} + {label_s:.3g} x labels",
            "bandwidth_bytes_s": bandwidth,
            "latency_s": latency_s,
        },
        "workers": 2, "batch": batch, "merge_batches": steps, "units": 64,
    }  # fmt: skip


def crossing_of(found: list[dict[str, Any]]) -> int | str:
    """Return the labels at which the ratio of the rates is 1, on a line between logarithms."""
    logs = [(np.log(row["labels"]), np.log(row["partitioned"] / row["merged"])) for row in found]
    for (x, y), (next_x, next_y) in itertools.pairwise(logs):
        if y < 0.0 <= next_y:
            return round(float(np.exp(x - y * (next_x - x) / (next_y - y))))
    return "below" if logs[0][1] >= 0.0 else "above"


def spread_labels(labels: int, used: int = 8) -> dict[str, Any]:
    """Return generated rows of a few labels, which lie far apart among all."""
    found = data(2048, used, 2000, 20)

    def spread(matrix: Any) -> Any:
        ids = matrix.indices.astype(np.int64) * (labels // used)
        return csr_matrix((matrix.data, ids, matrix.indptr), shape=(matrix.shape[0], labels))

    return {name: daskxml.Matrices(it.X, spread(it.Y)) for name, it in found.items()}


def limit_memory(nbytes: int) -> None:
    """Let this process have no more private memory than that; -1: any."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (nbytes, most))


def peak_bytes() -> int:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def larger_than_any(labels: int, limit_mib: int, steps: int, batch: int) -> dict[str, Any]:
    """Train on four workers of which none has room for a third of the model, and on one for all."""
    rows, settings = (
        spread_labels(labels),
        values(
            batch, steps, 2, cluster={"threads": 1}, checkpoint={"every": 100},
            training={"megabatches": 2, "logits_budget": 16 << 20},
            evaluation={"every": 2, "k": [1], "batch_rows": 64},
        ),
    )  # fmt: skip
    settings["strategy"]["lr"] = 1.0
    place = {"n_workers": 4, "threads_per_worker": 1, "memory_limit": 0, "dashboard_address": ":0"}
    with LocalCluster(**place) as made, Client(made) as client:

        def train() -> tuple[float, int, float]:
            with tempfile.TemporaryDirectory() as out:
                row = daskxml.train(settings, client=client, out=out, **rows).history[-1]
            peaks = client.run(peak_bytes).values()
            return row["metrics"]["P@1"], max(peaks) >> 20, row["train_s"] / steps

        client.run(limit_memory, limit_mib << 20)
        precision, peak_mib, step_s = train()
        present = list(client.scheduler_info()["workers"])
        client.retire_workers(present[3:])
        refused = "trained, which is wrong"
        try:
            train()
        except ConfigError as error:
            refused = error.message
        client.retire_workers(present[1:3])
        client.run(limit_memory, -1)
        alone, alone_mib, _ = train()
    model_mib = 4 * ModelSpec(features=2000, labels=labels).parameter_count / 2**20
    return {
        "goal": f"P@1 with {labels:,} labels, of four workers limited to {limit_mib:,} MiB each",
        "wanted": f"{alone:.4f}",
        "found": precision,
        "note": f"the model has {model_mib:,.0f} MiB; wanted is P@1 of one worker without a limit, "
        f"which had {alone_mib:,} MiB resident; of the four none had more than {peak_mib:,} MiB, "
        f"pages of files included, "
        f"and a step of {batch} rows took {step_s:.1f} s; three of them: {refused}",
    }


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", action="store_true", help="only two processes, and one")
    parser.add_argument("--large", action="store_true", help="only the labels too many for each")
    options = parser.parse_args()
    if options.large:
        write_result("partitioned_large", [larger_than_any(**LARGE)], **LARGE)
    if options.processes:
        rows = [*measured(BATCH, 3), *measured(256, 6)]
        write_result("partitioned_processes", rows, crossing=processes_crossing())
    if options.large or options.processes:
        return
    rows = [exactness(), *throughput(), unequal(), slowdown()]
    write_result("partitioned", rows, crossing=crossing(), measured_crossing=measured_crossing())


if __name__ == "__main__":
    main()
