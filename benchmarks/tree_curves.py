"""Accuracy against processor time: label trees and mixtures beside other trees.

    python benchmarks/tree_curves.py FOLDER --peers PYTHON [--sets bibtex,delicious]

Every point is a model that is trained from the start by one thread, as in `trees.py`: one tree and
more of daskxml (the run file ``trees``) and of omikuji, models of PECOS with other
seeds averaged, and a mixture of ``trees`` and a network, with the weights that `mixtures.py` chose
on held-out rows. Writes ``results/tree_curves.json`` after every point, and
``results/tree_curves.png``. Points that are there are not measured again; each has its commit.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from daskxml import mix
from daskxml.data.rows import to_scipy
from machine import RESULTS, machine, write_result
from mixtures import TREES, trained
from trees import SETS, K, ours, peer, precision, read

OURS, MIXTURE = "daskxml, trees", "daskxml, trees and network"
CURVES = {  # how many trees
    OURS: (1, 2, 4, 8), "omikuji": (1, 3), "PECOS": (1, 3), "napkinXC": (1,)
}  # fmt: skip
NETWORKS = {"bibtex": "best", "delicious": "best"}  # of mixtures; for more labels "sampled"
COLORS = {
    OURS: "#0b6e99", MIXTURE: "#7b4fa3", "omikuji": "#c2571a", "PECOS": "#3f7d3a",
    "napkinXC": "#8a6d1b",
}  # fmt: skip
Point = dict[str, Any]


def mixture(folder: Path, name: str, rows: Any) -> tuple[Any, float]:
    """Train both parts on all rows; return the labels ranked and the CPU seconds of both."""
    network = NETWORKS.get(name, "sampled")
    parts, key = (TREES, network), {"data": name, "seed": 0, "network": network}.items()
    found = json.loads((RESULTS / "mixtures.json").read_text())["rows"]
    chosen = {row["model"]: row["weight"] for row in found if row.items() >= key}
    files = {f"data.{part}": [str(folder / f"{name}.{part}.txt.gz")] for part in ("train", "test")}
    whole = [trained(part, files, 0, 0.0) for part in parts]
    model = mix([model for model, _, _ in whole], weights=[chosen[part] for part in parts])
    ids, _ = model.predict_top_k(to_scipy(rows.test[0].features), k=K)
    return ids, sum(cpu_s for _, _, cpu_s in whole)


def points(name: str, done: list[Point]) -> list[tuple[str, int]]:
    """Return what is yet to be measured of a set: tool and number of trees."""
    wanted = [(tool, trees) for tool, numbers in CURVES.items() for trees in numbers]
    wanted.append((MIXTURE, 4))
    there = {(row["tool"], row["trees"]) for row in done if row["data"] == name}
    return [point for point in wanted if point not in there]


def measure(folder: Path, python: str, name: str, tool: str, trees: int, rows: Any) -> Point:
    """Train one model and score it on the test rows."""
    if tool == OURS:
        ids, found = ours("trees", rows, trees)
    elif tool == MIXTURE:
        ids, cpu_s = mixture(folder, name, rows)
        found = {"train_cpu_s": cpu_s}
    else:
        ids, found = peer(tool, python, folder / f"{name}.train.txt.gz", rows, trees)
    scores = {key: round(value, 4) for key, value in precision(ids, rows).items()}
    return {
        "data": name, "tool": tool, "trees": trees, **scores,
        "train_cpu_s": round(found["train_cpu_s"], 2), "version": found.get("version"),
        "commit": machine()["commit"], "load": os.getloadavg()[0],
    }  # fmt: skip


def draw(rows: list[Point], path: Path) -> None:
    """Draw P@1 and P@5 of every set by the seconds of training, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullFormatter

    names = [name for name in SETS.split(",") if any(row["data"] == name for row in rows)]
    figure, axes = plt.subplots(
        2, len(names), figsize=(3.1 * len(names), 5.6), squeeze=False, layout="constrained"
    )
    for column, name in enumerate(names):
        for axis, metric in zip(axes[:, column], ("P@1", "P@5"), strict=True):
            for tool, color in COLORS.items():
                own = [row for row in rows if (row["data"], row["tool"]) == (name, tool)]
                at = np.array(sorted((row["train_cpu_s"], row[metric]) for row in own))
                if own:
                    axis.plot(*at.T, "o-", color=color, label=tool, markersize=4, linewidth=1.4)
            axis.set_xscale("log")
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.xaxis.set_major_formatter("{x:g}")
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.set_ylabel(metric)
            axis.grid(alpha=0.25)
        axes[0, column].set_title(name)
        axes[1, column].set_xlabel("training, CPU seconds")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Measure what is missing, then draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peers", required=True, help="the Python that has the other tools")
    parser.add_argument("--sets", default=SETS)
    options = parser.parse_args()
    path = RESULTS / "tree_curves.json"
    rows: list[Point] = json.loads(path.read_text())["rows"] if path.exists() else []
    for name in options.sets.split(","):
        missing = points(name, rows)
        if not missing:
            continue
        read_rows = read(options.folder, name)
        ours("tree", read_rows)  # compiles
        for tool, trees in missing:
            rows.append(measure(options.folder, options.peers, name, tool, trees, read_rows))
            write_result("tree_curves", rows)
            draw(rows, RESULTS / "tree_curves.png")


if __name__ == "__main__":
    main()
