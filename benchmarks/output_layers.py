"""A network after few epochs: rules of the output layer's steps, and where the layers start.

    python benchmarks/output_layers.py FOLDER [--sets stackex4-2k,nvd-product]

The run file ``best`` on one thread with fewer epochs, less dropout, a sample of the labels by
chance and few merges, which with one worker change nothing; without a tenth of the training rows,
on which the rates were chosen; then on the test rows. Starts: of the first layer, the directions in
which labels differ most, as label trees find them, and their opposites; of the output layer, the
labels' mean activations in that first layer over the activations' covariance (a linear
discriminant), a tenth of it. Their seconds are counted. Writes ``results/output_layers.json`` and
``results/output_layers.md`` after every run. Runs that are there are not measured again.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import argparse
import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from daskxml.config import RunConfig
from daskxml.core.arrays import Array, Partition
from daskxml.data.rows import concatenate, to_scipy
from daskxml.local import Rows
from daskxml.models.network.spec import Layout, initial_parameters
from daskxml.models.store import ModelHeader
from daskxml.models.trained import Model
from daskxml.models.trees.clustering import projection_of
from machine import RESULTS, machine, write_result
from shortlists import KS, Settings, sampled, train
from trees import read

BLOCK_ROWS, SHARE = 4096, 0.1  # of activations at a time; of the discriminant's weights
Case = tuple[Settings, str]


def case(
    epochs: int, rule: str = "adam", lr: float = 1.0, start: str = "random", dropout: float = 0.2
) -> Case:
    """Return settings of ``best`` and the name of a start; ``lr`` is a factor of the rate."""
    values = {"training.epochs": epochs, "model.dropout": dropout}
    return values | {"optimizer.output": rule, "optimizer.output_lr": lr}, start


CASES: dict[str, tuple[int, tuple[int, ...], tuple[Case, ...]]] = {  # labels of a batch, seeds
    "stackex4-2k": (400, (0, 1, 2), (
        case(4, dropout=0.6), case(3), case(3, "sgd", 300.0), case(3, "row-rms", 0.3),
        case(3, start="directions"), case(3, start="both"),
        case(3, "row-rms", 0.3, "directions"), case(3, "row-rms", 0.3, "both"),
    )),
    "nvd-product": (1000, (0, 1), (
        case(4), case(4, "row-rms", 0.3), case(4, "sgd", 3000.0),
        case(8), case(8, "row-rms", 0.3), case(8, "sgd", 1000.0),
        case(4, start="directions"), case(4, "row-rms", 0.3, "directions"),
        case(8, dropout=0.6),
    )),
}  # fmt: skip
SHOWN = ("data", "epochs", "dropout", "output", "output_lr", "start")


def started(config: RunConfig, rows: Rows, has_centroids: bool) -> Model:
    """Return the model that training begins with."""
    spec, part = rows.model_spec(config), concatenate(rows.train)
    views = Layout(spec).views(initial_parameters(spec, config.run.seed))
    set_directions(views["hidden0.weight"], part, config.run.seed)
    if has_centroids:
        set_centroids(views, part, spec.dropout)
    return Model(ModelHeader(spec=spec, training_rows=part.rows), views, rows.label_counts)


def set_directions(weight: Array, part: Partition, seed: int) -> None:
    """Set the first layer to directions whose activations spread as those of its weights."""
    x, y = to_scipy(part.features), _targets(part)
    features, units = weight.shape
    generator = np.random.default_rng(seed)
    drawn = generator.standard_normal((features, units // 2), dtype=np.float32)
    vectors = y.T @ (x @ drawn)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    found = projection_of(x.T @ (y @ vectors))
    found *= weight.std() / np.maximum((x[:BLOCK_ROWS] @ found).std(axis=0), 1e-9)
    weight[:] = np.hstack([found, -found])


def set_centroids(views: Mapping[str, Array], part: Partition, dropout: float) -> None:
    """Set the output layer to a share of a linear discriminant, whose noise is the dropout's."""
    x, y = to_scipy(part.features), _targets(part)
    counts = np.asarray(y.sum(axis=0)).reshape(-1, 1)
    units = views["hidden0.bias"].shape[0]
    sums, total, squares = np.zeros((len(counts), units)), np.zeros(units), np.zeros((units, units))
    for start in range(0, part.rows, BLOCK_ROWS):
        span = slice(start, start + BLOCK_ROWS)
        hidden = np.maximum(x[span] @ views["hidden0.weight"] + views["hidden0.bias"], 0.0)
        sums += y[span].T @ hidden
        total += hidden.sum(axis=0)
        squares += hidden.T @ hidden
    mean, squares = total / part.rows, squares / part.rows
    centroids = np.where(counts > 0, sums / np.maximum(counts, 1) - mean, 0.0)
    noise = np.diag(squares) * dropout / (1.0 - dropout) + 1e-4 * np.trace(squares) / units
    covariance = squares - np.outer(mean, mean) + np.diag(noise)
    weight = SHARE * np.linalg.solve(covariance, centroids.T).T
    views["output.weight"][:] = weight
    views["output.bias"][:] -= (weight * (centroids / 2 + mean)).sum(axis=1)


def _targets(part: Partition) -> Any:
    targets = to_scipy(part.labels).astype(np.float32)
    targets.data[:] = 1.0
    return targets


STARTS = {
    "random": None,
    "directions": partial(started, has_centroids=False),
    "both": partial(started, has_centroids=True),
}


def measure(name: str, path: Path, test: Partition, active: int, seed: int, case: Case) -> Settings:
    """Train one network and score it."""
    values, start = case
    given = {"run.seed": seed, "strategy.megabatch_batches": 1000, **sampled("random", active)}
    model, found = train("best", path, given | values, STARTS[start])
    result = model.evaluate(test)
    return {
        **described(name, case), "seed": seed, **found,
        **{f"P@{k}": round(result[f"P@{k}"], 4) for k in KS},
        "commit": machine()["commit"], "load": os.getloadavg()[0],
    }  # fmt: skip


def described(name: str, case: Case) -> Settings:
    """Return what distinguishes a case."""
    values, start = case
    shown = {key.rpartition(".")[2]: value for key, value in values.items()}
    return {key: ({"data": name, "start": start} | shown)[key] for key in SHOWN}


def write(rows: list[Settings]) -> None:
    """Write both results."""
    write_result("output_layers", rows)
    lines = [
        "# A network after few epochs: rules of the output layer, and starts",
        "",
        "Written by `python benchmarks/output_layers.py`: the run file `best` with fewer epochs",
        "and a sample of the labels by chance (400 of stackex4-2k, 1,000 of nvd-product), one",
        "thread, without a tenth of the training rows. Means over seeds, each of which holds out",
        "other rows; of processor seconds the least, as others used the machine too. The rate is",
        "a factor of the first layer's. Starts: `directions`, of the first layer: those in which",
        "labels differ most; `both`: and a tenth of a linear discriminant, of the output layer.",
        "",
        "| data | epochs | dropout | rule | rate | start | seeds | P@1 held out | P@1 | P@3 | P@5 "
        "| training, CPU s |",
        "|---|---:|---:|---|---:|---|---:|---:|---:|---:|---:|---:|",
        *map(line, by_case(rows)),
    ]  # fmt: skip
    (RESULTS / "output_layers.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


def by_case(rows: list[Settings]) -> Iterator[list[Settings]]:
    """Yield the seeds of each case, in the order of `CASES`."""
    for name, (_, _, cases) in CASES.items():
        for case in cases:
            if found := [row for row in rows if row.items() >= described(name, case).items()]:
                yield found


def line(rows: list[Settings]) -> str:
    """Return a case's line of the table."""
    first, scores = rows[0], ("held P@1", *(f"P@{k}" for k in KS))
    means = [f"{np.mean([row[score] for row in rows]):.4f}" for score in scores]
    shown = [f"{first[key]:g}" if key == "output_lr" else str(first[key]) for key in SHOWN]
    least_s = min(row["train_cpu_s"] for row in rows)
    return f"| {' | '.join([*shown, str(len(rows)), *means])} | {least_s:.1f} |"


def main() -> None:
    """Measure what is missing, a seed after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=",".join(CASES))
    options = parser.parse_args()
    path = RESULTS / "output_layers.json"
    rows: list[Settings] = json.loads(path.read_text())["rows"] if path.exists() else []
    for name in options.sets.split(","):
        active, seeds, cases = CASES[name]
        test = concatenate(read(options.folder, name).test)
        train_path = options.folder / f"{name}.train.txt.gz"
        for seed, case in ((seed, case) for seed in seeds for case in cases):
            known = {**described(name, case), "seed": seed}
            if not any(row.items() >= known.items() for row in rows):
                rows.append(measure(name, train_path, test, active, seed, case))
                write(rows)


if __name__ == "__main__":
    main()
