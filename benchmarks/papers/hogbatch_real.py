"""Hogbatch on this machine: a pool of one thread beside one process with large batches.

    python benchmarks/papers/hogbatch_real.py --data FOLDER

The four algorithms of the simulated figures on a local Dask cluster, for the same number of
seconds of training each, from the same model, with the rates in proportion to the rows of a step,
and with the rate that the simulated runs chose (``hogbatch_fig05.py`` comes first). Rounds go
through all algorithms of a set before the next, so that a busy neighbour meets them alike.
"""

from pathlib import Path
from typing import Any

import daskxml
from curves import elapsed_s
from hogbatch_study import (
    ALGORITHMS,
    SETS,
    UNITS,
    HogbatchSet,
    chosen_lr,
    initial_job,
    losses,
    simulate_job,
    strategy_of,
)
from output import arguments, panels, save, scale_log, write_csv
from simulations import History, run_all
from study import RESULTS

SECONDS = 25.0
MEGABATCH_ROWS = 40_960  # five batches: a replica worker holds two, and the pool gets the others
POOL_MEGABATCH_ROWS = 4096  # of the pool alone, which is slower by so much


def train(data: HogbatchSet, algorithm: str, lr: float, folder: Path) -> History:
    """Train on a local cluster, and return the history."""
    style = ALGORITHMS[algorithm]
    strategy = strategy_of(data, algorithm, "proportional", lr)
    rows = MEGABATCH_ROWS if style.has_gpu else POOL_MEGABATCH_ROWS
    strategy["megabatch_batches"] = rows // strategy["batch_max"]
    del strategy["lease_s"]  # a message costs milliseconds here
    source = {
        "run": {"name": f"hogbatch-{algorithm}"},
        "data": {"train": [str(folder / f"{data.name}.train.txt.gz")], "residency": "replicate"},
        "model": {"hidden": [UNITS] * data.layers, "activation": "sigmoid"},
        "strategy": strategy,
        "training": {"minutes": SECONDS / 60.0},
        "evaluation": {"training_loss": True},
        "cluster": {
            "workers": int(style.has_gpu), "pools": int(style.has_pool), "threads": 1,
            "pool_threads": int(style.has_pool),
        },
    }  # fmt: skip
    return daskxml.train(source).history


def points(data: str, algorithm: str, lr: float, history: History) -> list[dict[str, Any]]:
    """Return every point of a curve, with what both workers had done by then."""
    found, done = [], {"cpu_updates": 0, "cpu_rows": 0, "gpu_updates": 0, "gpu_rows": 0}
    for time_s, row in zip(elapsed_s(history), history, strict=True):
        for worker in row["workers"].values():
            kind = "cpu" if worker["pool_threads"] else "gpu"
            for key in ("updates", "rows"):
                done[f"{kind}_{key}"] += worker[key]
        if "training_loss" in row:
            found.append({
                "data": data, "algorithm": algorithm, "lr": lr, "time_s": round(time_s, 2),
                "epoch": round(row["epoch"], 4), "loss": round(row["training_loss"], 5), **done,
            })  # fmt: skip
    return found


def draw(rows: list[dict[str, Any]], first: dict[str, float], sets: list[str]) -> None:
    """Draw a panel for each set, normalised over the lowest loss in it."""
    figure, axes = panels(1, len(sets))
    for axis, data in zip(axes[0], sets, strict=True):
        mine = [row for row in rows if row["data"] == data]
        best = min(row["loss"] for row in mine)
        for algorithm, style in ALGORITHMS.items():
            curve = [(0.0, first[data])]
            curve += [(r["time_s"], r["loss"]) for r in mine if r["algorithm"] == algorithm]
            axis.plot(
                [time_s for time_s, _ in curve], [loss / best for _, loss in curve], marker=".",
                markersize=4, color=style.color, label=style.title,
            )  # fmt: skip
        axis.set_title(f"{SETS[data].title}, rate {mine[0]['lr']:g}", fontsize=9)
        scale_log(axis)
        axis.set_xlabel("measured seconds of training")
    axes[0][0].set_ylabel("training loss / lowest")
    save(figure, "hogbatch_real", axes[0][0])


def main() -> None:
    """Train and draw."""
    options = arguments(__doc__, SETS)
    known = run_all([initial_job(data) for data in options.sets], options.data, simulate_job)
    first = {job.data: losses(history)[0]["loss"] for job, history in known.items()}
    rows = []
    for data in options.sets:
        for algorithm in options.algorithms or ALGORITHMS:
            lr = chosen_lr(data, "proportional")
            rows += points(data, algorithm, lr, train(SETS[data], algorithm, lr, options.data))
            print(rows[-1], flush=True)
    write_csv(RESULTS / "hogbatch_real.csv", rows)
    draw(rows, first, options.sets)


if __name__ == "__main__":
    main()
