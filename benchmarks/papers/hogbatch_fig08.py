"""Figure 8 of Hogbatch: the shares of the updates by the pool and by the GPU.

python benchmarks/papers/hogbatch_fig08.py --data FOLDER
"""

from typing import Any

from hogbatch_study import ALGORITHMS, SETS, HogbatchJob, chosen, histories
from output import arguments, panels, save, write_csv
from simulations import History
from study import RESULTS


def shares(job: HogbatchJob, history: History) -> dict[str, Any]:
    """Return the updates and rows of both over the whole run."""
    sums = {
        f"{name}_{key}": sum(row["workers"][name][key] for row in history)
        for name in ("cpu", "gpu") for key in ("updates", "rows")
    }  # fmt: skip
    share = sums["cpu_updates"] / (sums["cpu_updates"] + sums["gpu_updates"])
    return {"data": job.data, "algorithm": job.algorithm, **sums, "cpu_share": round(share, 4)}


def main() -> None:
    """Simulate and draw."""
    options = arguments(__doc__, SETS)
    found = histories(options.sets, options.data)
    rows = [
        shares(job, found[job]) for data in options.sets for job in chosen(found)
        if (job.data, job.rule) == (data, "proportional")
        and job.algorithm in ("cpu-gpu", "adaptive")
    ]  # fmt: skip
    write_csv(RESULTS / "hogbatch_fig08.csv", rows)
    figure, axes = panels(1, 2, sharey=True)
    for algorithm, axis in zip(("cpu-gpu", "adaptive"), axes[0], strict=True):
        mine = [row for row in rows if row["algorithm"] == algorithm]
        names, share = [row["data"] for row in mine], [row["cpu_share"] for row in mine]
        axis.bar(names, share, 0.6, color="tab:blue", label="pool of 56 threads")
        axis.bar(names, [1 - s for s in share], 0.6, bottom=share, color="gray", label="GPU")
        axis.set_title(ALGORITHMS[algorithm].title, fontsize=9)
        axis.tick_params(axis="x", labelsize=7)
        for name, value in zip(names, share, strict=True):
            axis.annotate(f"{value:.0%}", (name, value / 2), ha="center", color="white")
    axes[0][0].set_ylabel("share of the updates")
    save(figure, "hogbatch_fig08", axes[0][0])


if __name__ == "__main__":
    main()
