"""Figure 2 of Adasum: how near Adasum and the sum come to steps taken one after the other.

    python benchmarks/papers/adasum_fig02.py --data FOLDER

64 nodes have a batch of 32 rows each and compute gradients g_i at the same model w. Had they
stepped one after the other, to first order node i would have used (equation 2)

    g'_i = g_i - alpha H_i sum_{j<i} g'_j

with the exact Hessian H_i of its batch; only products of it with vectors are needed, and a complex
step gives them to the last digit: H v = Im grad(w + i h v) / h. The relative error of a combination
c is ||c - sum g'_i|| / ||sum g'_i||. The model is small, in float64: delicious with its 50 most
frequent labels, 16 hidden units (ReLU, softmax), and it is moved by Adasum's combination; alpha is
the rate of a grid that gives the least loss after all steps. Layers are combined on their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from daskxml.collectives.adasum import adasum_recursive
from daskxml.local import read_rows
from output import arguments, pyplot, save, write_csv
from study import RESULTS, Job, resolve

NODES, BATCH_ROWS, STEPS = 64, 32, 100
LABELS, HIDDEN = 50, 16
RATES = (0.1, 0.3, 1.0, 3.0, 10.0)
TINY = 1e-30  # of the complex step: no digits are lost to it

Array = np.ndarray
Batch = tuple[Array, Array]  # features (rows, features), targets (rows, labels)


def read_dense(folder: Path) -> Batch:
    """Return dense features, and targets y / |y| over the most frequent labels."""
    rows = read_rows(resolve(Job(data="delicious", algorithm="elastic", lr=1.0), folder), 1)
    features, labels = (
        np.concatenate([_dense(getattr(part, name)) for part in rows.train])
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


def deal(data: Batch, rng: np.random.Generator) -> list[Batch]:
    """Return the batches of all nodes."""
    chosen = rng.choice(len(data[0]), NODES * BATCH_ROWS, replace=False)
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
        batches = deal(data, rng)
        found = [loss_and_gradient(w, batch) for batch in batches]
        gradients = [gradient for _, gradient in found]
        combined = adasum_recursive(gradients, "tree", segments)
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


def draw(table: Sequence[dict[str, float]], rate: float) -> None:
    """Draw both errors over the steps."""
    figure, axis = pyplot().subplots(figsize=(6.4, 3.4))
    steps = [row["step"] for row in table]
    for name, label, color in (
        ("sum", "Sum (synchronous SGD)", "tab:blue"), ("adasum", "Adasum", "tab:red"),
    ):  # fmt: skip
        axis.plot(steps, [row[name] for row in table], color=color, label=label)
    axis.set_title(f"{NODES} nodes, alpha = {rate:g}", fontsize=9)
    axis.set_xlabel("steps")
    axis.set_ylabel("relative error")
    axis.set_ylim(bottom=0.0)
    save(figure, "adasum_fig02", axis)


def main() -> None:
    """Choose the rate, compute and draw."""
    data = read_dense(arguments(__doc__).data)
    losses = {rate: last_loss(train(data, rate, measures=False)) for rate in RATES}
    print({rate: round(loss, 4) for rate, loss in losses.items()})
    rate = min(RATES, key=losses.__getitem__)
    table = train(data, rate, measures=True)
    write_csv(RESULTS / "adasum_fig02.csv", [{"alpha": rate, **row} for row in table])
    draw(table, rate)


if __name__ == "__main__":
    main()
