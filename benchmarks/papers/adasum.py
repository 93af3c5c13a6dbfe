"""Figures 1, 2 and 6 and tables 2 and 3 of Adasum.

Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2021. Each function of
`KINDS` makes the figures whose TOML file names it:

``schedule``  Figure 6. The paper (section 5.4) trains LeNet-5 on MNIST with momentum SGD, batches
    of 32 rows, and a learning rate that rises and falls linearly from zero to zero, in as few
    epochs as one worker needs. Here the set is delicious (12,920 rows: 404 steps an epoch on one
    worker, 13 on 32; MNIST has 1,875 and 58), the model has 128 hidden units with ReLU and a
    softmax. First one worker: the fewest epochs with which the best learning rate comes within
    two percent of the best accuracy, on held-out rows. Then more workers with that rate
    ("untuned"), and with the best of a grid around it on held-out rows ("tuned"), the same grid for
    Adasum and the sum. Shown is P@1 on the test rows after the last epoch, mean and range of the
    seeds. All workers are equally fast; they combine what one step changed.
``orthogonality``  Figure 1, with the schedule of one worker. Orthogonality is
    ||Adasum(g_1..g_n)||^2 / sum ||g_i||^2 (section 3.6): 1 for orthogonal gradients, 1/n for
    equal ones; the history of every run with that rule has it.
``hessian``  Figure 2. 64 nodes have a batch of 32 rows each and compute gradients g_i at the same
    model w. Had they stepped one after the other, to first order node i would have used (equation
    2)

        g'_i = g_i - alpha H_i sum_{j<i} g'_j

    with the exact Hessian H_i of its batch; only products of it with vectors are needed, and a
    complex step gives them to the last digit: H v = Im grad(w + i h v) / h. The relative error of
    a combination c is ||c - sum g'_i|| / ||sum g'_i||. The model is small, in float64: delicious
    with its 50 most frequent labels, 16 hidden units (ReLU, softmax), and it is moved by Adasum's
    combination; alpha is the rate of the grid with the least loss after all steps. Layers are
    combined on their own.
``targets``  Tables 2 and 3, on delicious: some epochs at a constant rate, which for
    each column is the one of its grid with the best P@1 on held-out rows within half of them. (A
    rate that falls to zero would decide itself when a run reaches its target.) The target is 98 %
    of the best P@1 on the test rows that any column of the table reaches. Each number is a mean
    over ``seeds``, "+-" half the 95 % interval of the mean; rates are chosen with the first.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import scipy.sparse

from daskxml.collectives.adasum import ParameterSpan, coefficients
from daskxml.local import read_rows
from drawing import (
    RESULTS,
    Figure,
    best,
    draw,
    points,
    reaching,
    spread,
    table_lines,
    write_csv,
)
from study import HERE, History, Job, resolve, run_all

DATA_NAME = "delicious"
BATCH_ROWS = 32
MEGABATCH_BATCHES = 128  # four steps of 32 workers
WARMUP = 0.17  # of all epochs, as in the paper
NEVER_S = 1e6  # the epochs end a run, not the time


def schedule_of(epochs: float) -> tuple[tuple[str, Any], ...]:
    """Return the settings of momentum SGD whose rate rises and falls linearly in so many epochs."""
    return (
        ("optimizer.name", "momentum"),
        ("schedule.name", "linear"),
        ("schedule.warmup_epochs", WARMUP * epochs),
        ("training.epochs", epochs),
    )


def scheduled_job(
    workers: int, rule: str, lr: float, epochs: float, *, validates: bool = False, seed: int = 0
) -> Job:
    """Return a run of so many epochs, scored now and then and at its end."""
    return Job(
        data=DATA_NAME, algorithm="adasum", lr=lr, speeds=(1.0,) * workers, validates=validates,
        train_s=NEVER_S, every=4,
        overrides=(
            ("run.seed", seed),
            ("strategy.batch_max", BATCH_ROWS),
            ("strategy.megabatch_batches", MEGABATCH_BATCHES),
            ("strategy.local_steps", 1),
            ("combine.rule", rule),
            *schedule_of(epochs),
        ),
    )  # fmt: skip


def gradient_job(data: str, workers: int, lr: float, epochs: float) -> Job:
    """Return a run that combines gradients by Adasum, with a row of history for every step."""
    return Job(
        data=data, algorithm="adasum-gradients", lr=lr, speeds=(1.0,) * workers,
        train_s=NEVER_S, every=1000,
        overrides=(
            ("strategy.batch_max", BATCH_ROWS),
            ("strategy.megabatch_batches", workers),
            ("strategy.divide", False),
            *schedule_of(epochs),
        ),
    )  # fmt: skip


NEAR = 0.98
RULES = ("adasum", "sum")


def last_precision(history: History) -> float:
    """Return P@1 of the last evaluation; 0 for a run whose weights did not stay finite."""
    measured = [row["metrics"]["P@1"] for row in history if row["metrics"]]
    return measured[-1] if measured else 0.0


def sequential_schedule(folder: Path) -> tuple[float, float, list[dict[str, Any]]]:
    """Return epochs and peak rate of one worker, and all that was tried."""
    given = tomllib.loads((HERE / "adasum_fig06.toml").read_text())
    jobs = {
        (epochs, peak): scheduled_job(1, "adasum", peak, epochs, validates=True)
        for epochs, peak in itertools.product(given["epochs"], given["peaks"])
    }
    histories = run_all(list(jobs.values()), folder)
    scores = {place: last_precision(histories[job]) for place, job in jobs.items()}
    enough = NEAR * max(scores.values())
    epochs = min(epochs for (epochs, _), score in scores.items() if score >= enough)
    peak = max(given["peaks"], key=lambda peak: scores[epochs, peak])
    tried = [
        {"workers": 1, "rule": "", "epochs": e, "lr": p, "P@1": round(score, 5)}
        for (e, p), score in scores.items()
    ]
    return epochs, peak, tried


def tuned_rates(
    epochs: float, peak: float, figure: Figure
) -> tuple[dict[tuple[int, str], float], list[dict[str, Any]]]:
    """Return the best rate for every number of workers and rule, and all that was tried."""
    counts, factors = figure.given["counts"], figure.given["factors"]
    jobs = {
        (count, rule, factor): scheduled_job(count, rule, peak * factor, epochs, validates=True)
        for count, rule, factor in itertools.product(counts, RULES, factors)
    }
    histories = run_all(list(jobs.values()), figure.folder)
    scores = {place: last_precision(histories[job]) for place, job in jobs.items()}
    found = {
        (count, rule): peak * max(factors, key=lambda f: scores[count, rule, f])
        for count, rule in itertools.product(counts, RULES)
    }
    tried = [
        {"workers": n, "rule": rule, "epochs": epochs, "lr": peak * f, "P@1": round(score, 5)}
        for (n, rule, f), score in scores.items()
    ]
    return found, tried


def final_rows(
    epochs: float, rates: dict[tuple[int, str, str], float], seeds: Sequence[int], folder: Path
) -> list[dict[str, Any]]:
    """Return accuracy on the test rows: mean, least and most of the seeds."""
    jobs: dict[tuple[int, str, str], list[Job]] = {
        (n, rule, kind): [scheduled_job(n, rule, lr, epochs, seed=seed) for seed in seeds]
        for (n, rule, kind), lr in rates.items()
    }
    histories = run_all(list(itertools.chain(*jobs.values())), folder)
    table = []
    for (count, rule, kind), runs in jobs.items():
        found = [last_precision(histories[job]) for job in runs]
        table.append(
            {
                "workers": count, "rule": rule, "rate": kind, "lr": rates[count, rule, kind],
                "epochs": epochs, "P@1": round(sum(found) / len(found), 5),
                "least": round(min(found), 5), "most": round(max(found), 5),
            }
        )  # fmt: skip
    return table


def schedule(figure: Figure) -> None:
    """Make figure 6."""
    folder, counts = figure.folder, figure.given["counts"]
    epochs, peak, tried = sequential_schedule(folder)
    tuned, more = tuned_rates(epochs, peak, figure)
    write_csv(RESULTS / "adasum_fig06_learning_rates.csv", [*tried, *more])
    rates = {(1, "adasum", "untuned"): peak}
    for count, rule in itertools.product(counts, RULES):
        rates[count, rule, "untuned"] = peak
        rates[count, rule, "tuned"] = tuned[count, rule]
    table = final_rows(epochs, rates, figure.given["seeds"], folder)
    figure.write(table)
    shown = [{**row, "combined by": f"{row['rule']}, {row['rate']} rate"} for row in table]
    draw(figure.name, shown, [("workers", "P@1")], line="combined by", marker="o")


NOTE = "orthogonality/"


def orthogonality_of(job: Job, history: History) -> list[dict[str, Any]]:
    """Return the orthogonality of every layer at every step, and their mean."""
    table = []
    for row in history:
        layers = {
            name.removeprefix(NOTE): round(value, 5)
            for name, value in row["notes"].items() if name.startswith(NOTE)
        }  # fmt: skip
        mean = round(sum(layers.values()) / max(1, len(layers)), 5)
        table.append(
            {
                "data": job.data, "step": row["megabatch"], "epoch": round(row["epoch"], 4),
                "loss": round(row["loss"], 5), **layers, "mean": mean,
            }
        )  # fmt: skip
    return table


def orthogonality(figure: Figure) -> None:
    """Make figure 1."""
    workers = figure.given["workers"]
    _, peak, _ = sequential_schedule(figure.folder)
    jobs = [gradient_job(data, workers, peak, figure.given["epochs"][data]) for data in figure.sets]
    histories = run_all(jobs, figure.folder)
    tables = [orthogonality_of(job, histories[job]) for job in jobs]
    figure.write([row for table in tables for row in table])
    layers = [
        {**row, "layer": name, "orthogonality": row[name]}
        for table in tables for row in table for name in row
        if name not in ("data", "step", "epoch", "loss")
    ]  # fmt: skip
    draw(figure.name, layers, [("epoch", "orthogonality")], line="layer", across="data")


NODES, NODE_ROWS, STEPS = 64, 32, 100
LABELS, HIDDEN = 50, 16
TINY = 1e-30  # of the complex step: no digits are lost to it

Array = np.ndarray
Batch = tuple[Array, Array]  # features (rows, features), targets (rows, labels)


def read_dense(folder: Path) -> Batch:
    """Return dense features, and targets y / |y| over the most frequent labels."""
    rows = read_rows(resolve(Job(data="delicious", algorithm="elastic", lr=1.0), folder), 1)
    features, labels = (
        np.concatenate([_dense(getattr(part, name)) for part in rows.train.parts])
        for name in ("features", "labels")
    )
    labels = labels[:, np.argsort(-labels.sum(axis=0), kind="stable")[:LABELS]]
    labeled = labels.sum(axis=1) > 0
    targets = labels[labeled] / labels[labeled].sum(axis=1, keepdims=True)
    return features[labeled], targets


def _dense(csr: Any) -> Array:
    values = np.ones(csr.indices.size) if csr.data is None else csr.data.astype(np.float64)
    shape = (csr.indptr.size - 1, csr.columns)
    return scipy.sparse.csr_matrix((values, csr.indices, csr.indptr), shape).toarray()


def shapes_of(features: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return the layers in the order of the flat array."""
    return [
        ("hidden.weight", (features, HIDDEN)), ("hidden.bias", (HIDDEN,)),
        ("output.weight", (HIDDEN, LABELS)), ("output.bias", (LABELS,)),
    ]  # fmt: skip


def segments_of(features: int) -> list[tuple[str, int, int]]:
    """Return name, first element and the one behind the last of each layer."""
    sizes = [int(np.prod(shape)) for _, shape in shapes_of(features)]
    stops = np.cumsum(sizes).tolist()
    names = [name for name, _ in shapes_of(features)]
    return list(zip(names, [0, *stops], stops, strict=False))


def loss_and_gradient(w: Array, batch: Batch) -> tuple[Any, Array]:
    """Return the mean cross-entropy and its gradient; ``w`` may be complex."""
    x, targets = batch
    places = zip(segments_of(x.shape[1]), shapes_of(x.shape[1]), strict=True)
    w1, b1, w2, b2 = (w[start:stop].reshape(shape) for (_, start, stop), (_, shape) in places)
    z = x @ w1 + b1
    active = z.real > 0
    h = z * active
    scores = h @ w2 + b2
    scores = scores - scores.real.max(axis=1, keepdims=True)
    total = np.exp(scores).sum(axis=1, keepdims=True)
    loss = (targets * (np.log(total) - scores)).sum() / len(x)
    error = (np.exp(scores) / total - targets) / len(x)
    back = (error @ w2.T) * active
    parts = (x.T @ back, back.sum(axis=0), h.T @ error, error.sum(axis=0))
    return loss, np.concatenate([part.ravel() for part in parts])


def hessian_product(w: Array, batch: Batch, v: Array) -> Array:
    """Return H v, exactly."""
    return loss_and_gradient(w + 1j * TINY * v, batch)[1].imag / TINY


def emulate(w: Array, batches: Sequence[Batch], gradients: Sequence[Array], rate: float) -> Array:
    """Return the sum of what the nodes would have used one after the other (equation 2)."""
    total = np.zeros_like(w)
    for batch, gradient in zip(batches, gradients, strict=True):
        total += gradient - rate * hessian_product(w, batch, total)
    return total


def follow(w: Array, batches: Sequence[Batch], rate: float) -> Array:
    """Return the sum of the gradients of steps really taken one after the other."""
    at, total = w.copy(), np.zeros_like(w)
    for batch in batches:
        gradient = loss_and_gradient(at, batch)[1]
        at -= rate * gradient
        total += gradient
    return total


def adasum_of(vectors: Sequence[Array], spans: Sequence[ParameterSpan]) -> Array:
    """Combine as many vectors as a power of two: neighbours, then pairs; each layer on its own."""
    while len(vectors) > 1:
        pairs, vectors = zip(vectors[::2], vectors[1::2], strict=True), []
        for a, b in pairs:
            out = np.zeros_like(a)
            for _, start, stop in spans:
                x, y = a[start:stop], b[start:stop]
                of_x, of_y = coefficients(x @ y, x @ x, y @ y)
                out[start:stop] = of_x * x + of_y * y
            vectors.append(out)
    return vectors[0]


def draw_batches(data: Batch, rng: np.random.Generator) -> list[Batch]:
    """Return the batches of all nodes."""
    chosen = rng.choice(len(data[0]), NODES * NODE_ROWS, replace=False)
    return [(data[0][rows], data[1][rows]) for rows in np.split(chosen, NODES)]


def first_weights(features: int) -> Array:
    """Return the initial model."""
    rng = np.random.default_rng(0)
    parts = [
        rng.normal(size=shape) / np.sqrt(HIDDEN) if len(shape) == 2 else np.zeros(shape)
        for _, shape in shapes_of(features)
    ]
    return np.concatenate([part.ravel() for part in parts])


def train(data: Batch, rate: float, *, measures: bool) -> list[dict[str, float]]:
    """Return a row for every step; errors are only computed if asked for."""
    features = data[0].shape[1]
    w, segments, rng = first_weights(features), segments_of(features), np.random.default_rng(1)
    table = []
    for step in range(STEPS):
        batches = draw_batches(data, rng)
        found = [loss_and_gradient(w, batch) for batch in batches]
        gradients = [gradient for _, gradient in found]
        combined = adasum_of(gradients, segments)
        row = {"step": step, "loss": float(np.mean([loss for loss, _ in found]))}
        if measures:
            emulated = emulate(w, batches, gradients, rate)
            candidates = {
                "adasum": combined, "sum": np.sum(gradients, axis=0),
                "really_sequential": follow(w, batches, rate),
            }  # fmt: skip
            for name, value in candidates.items():
                error = np.linalg.norm(value - emulated) / np.linalg.norm(emulated)
                row[name] = round(float(error), 6)
        table.append(row)
        w -= rate * combined
    return table


def last_loss(table: Sequence[dict[str, float]]) -> float:
    """Return the mean loss of the last ten steps; infinite if it is not finite."""
    loss = float(np.mean([row["loss"] for row in table[-10:]]))
    return loss if np.isfinite(loss) else np.inf


def hessian(figure: Figure) -> None:
    """Choose the rate, and make figure 2."""
    data, rates = read_dense(figure.folder), figure.given["rates"]
    losses = {rate: last_loss(train(data, rate, measures=False)) for rate in rates}
    print({rate: round(loss, 4) for rate, loss in losses.items()})
    rate = min(rates, key=losses.__getitem__)
    table = train(data, rate, measures=True)
    figure.write([{"alpha": rate, **row} for row in table])
    errors = [
        {**row, "combined by": name, "relative error": row[name]}
        for row in table for name in ("sum", "adasum")
    ]  # fmt: skip
    draw(figure.name, errors, [("step", "relative error")], line="combined by")


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table: what it is called, its workers, its settings and its rates."""

    title: str
    workers: int
    settings: tuple[tuple[str, Any], ...]
    rates: tuple[float, ...]
    epochs: float
    slowdown: float = 1.0

    @property
    def step_rows(self) -> int:
        """Rows between two exchanges, of all workers."""
        given = dict(self.settings)
        return int(self.workers * given["strategy.batch_max"] * given["strategy.local_steps"])

    def job(self, lr: float, validates: bool, seed: int = 0) -> Job:
        """Return a run with a learning rate; half of one, to choose the rate by."""
        epochs = self.epochs / 2 if validates else self.epochs
        return Job(
            data=DATA_NAME, algorithm="adasum", lr=lr, speeds=(1.0,) * self.workers,
            validates=validates, train_s=NEVER_S, slowdown=self.slowdown, seed=seed,
            overrides=(*self.settings, ("training.epochs", epochs)),
        )  # fmt: skip


def chosen_rates(columns: Iterable[Column], folder: Path) -> dict[str, float]:
    """Return the rate of every column with the best P@1 on held-out rows."""
    jobs = {(c.title, lr): c.job(lr, True) for c in columns for lr in c.rates}
    histories = run_all(list(jobs.values()), folder)
    return {
        column.title: max(column.rates, key=lambda lr: best(histories[jobs[column.title, lr]]))
        for column in columns
    }


def column_row(column: Column, lr: float, runs: Sequence[History], target: float) -> dict[str, Any]:
    """Return a column of the table as a row: what reaching the target took."""
    ends = [points(history)[-1] for history in runs]
    found = [point for history in runs if (point := reaching(history, target))]
    exchanges = [-(-int(point["rows"]) // column.step_rows) for point in found]
    return {
        "column": column.title,
        "workers": column.workers,
        "rows_between_exchanges": column.step_rows,
        "lr": lr,
        **spread("best_P@1", [best(history) for history in runs], 4),
        "target_P@1": round(target, 4),
        "seconds_an_epoch": round(fmean(end["time_s"] / end["epoch"] for end in ends), 3),
        "seeds": len(runs),
        "reach_it": len(found),
        **spread("epochs_to_target", [point["epoch"] for point in found], 2),
        **spread("exchanges_to_target", exchanges, 1),
        **spread("seconds_to_target", [point["time_s"] for point in found], 2),
    }


def make_table(
    columns: Sequence[Column], seeds: Sequence[int], folder: Path
) -> list[dict[str, Any]]:
    """Tune, simulate, and return a row for each column."""
    rates = chosen_rates(columns, folder)
    jobs = {c.title: [c.job(rates[c.title], False, seed) for seed in seeds] for c in columns}
    histories = run_all(list(itertools.chain(*jobs.values())), folder)
    runs = {title: [histories[job] for job in own] for title, own in jobs.items()}
    target = NEAR * max(fmean(map(best, own)) for own in runs.values())
    return [column_row(c, rates[c.title], runs[c.title], target) for c in columns]


def targets(figure: Figure) -> None:
    """Make table 2 or 3."""
    columns = [
        Column(
            title=given["title"], workers=given["workers"], settings=tuple(given["set"].items()),
            rates=tuple(given["rates"]), slowdown=given.get("slowdown", 1.0),
            epochs=figure.given["epochs"],
        )
        for given in figure.given["column"]
    ]  # fmt: skip
    table = make_table(columns, figure.given["seeds"], figure.folder)
    figure.write(table, table_lines(table))


KINDS = {
    "schedule": schedule, "orthogonality": orthogonality, "hessian": hessian, "targets": targets,
}  # fmt: skip
