"""Figure 7 of Hogbatch: how far pool and GPU are used, mega-batch by mega-batch, on one set.

    python benchmarks/papers/hogbatch_fig07.py --data FOLDER

A pool is used while it works; of the GPU's time only the arithmetic counts, not a batch's fixed
cost, so that small batches use it less.
"""

from typing import Any

from curves import elapsed_s
from hogbatch_study import ALGORITHMS, SETS, HogbatchJob, chosen, histories
from output import arguments, panels, save, write_csv
from simulations import History
from study import RESULTS

EPOCHS = 3.0
KINDS = {"cpu": "pool of 56 threads", "gpu": "GPU"}


def use_of(job: HogbatchJob, history: History) -> list[dict[str, Any]]:
    """Return the use of both devices in every mega-batch of the first epochs of the GPU alone."""
    rows, begun_s = [], 0.0
    for row, ended_s in zip(history, elapsed_s(history), strict=True):
        workers, took_s = row["workers"], ended_s - begun_s
        found = {"algorithm": job.algorithm, "begin": round(begun_s, 4), "end": round(ended_s, 4)}
        row_s = SETS[job.data].cost.per_row_s
        arithmetic_s = workers["gpu"]["rows"] * row_s if "gpu" in workers else 0.0
        found["gpu"] = round(min(1.0, arithmetic_s / took_s), 4)
        found["cpu"] = round(workers["cpu"]["busy_s"] / took_s if "cpu" in workers else 0.0, 4)
        for name in ("gpu", "cpu"):
            worker = workers.get(name, {"batch_rows": 0, "updates": 0})
            found |= {f"{name}_{key}": worker[key] for key in ("batch_rows", "updates")}
        if begun_s < EPOCHS:
            rows.append(found)
        begun_s = ended_s
    return rows


def main() -> None:
    """Simulate and draw."""
    options = arguments(__doc__, ["w8a"])
    found = histories(options.sets, options.data)
    data = options.sets[0]
    jobs = [job for job in chosen(found) if (job.data, job.rule) == (data, "proportional")]
    rows = {job: use_of(job, found[job]) for job in jobs}
    write_csv(RESULTS / "hogbatch_fig07.csv", [row for mine in rows.values() for row in mine])
    figure, axes = panels(1, 2, sharey=True)
    for (kind, title), axis in zip(KINDS.items(), axes[0], strict=True):
        for number, (job, mine) in enumerate(rows.items()):
            style = ALGORITHMS[job.algorithm]
            edges = [row["begin"] for row in mine] + [mine[-1]["end"]]
            shift = 0.006 * (number - 1.5)  # so that lines that lie on each other are seen
            axis.stairs(
                [row[kind] + shift for row in mine], edges, baseline=None, color=style.color,
                label=style.title, linewidth=1.6,
            )  # fmt: skip
        axis.set_title(f"{data}: {title}", fontsize=9)
        axis.set_xlabel("time, in epochs of the GPU alone")
        axis.set_ylim(-0.03, 1.05)
    axes[0][0].set_ylabel("share of the time")
    save(figure, "hogbatch_fig07", axes[0][0], columns=2)


if __name__ == "__main__":
    main()
