"""How far a step taken in parallel is from the same batches taken one after the other.

Figure 2 of Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2021 (section
3.7), on a model whose Hessian is known exactly. Every worker has a batch ``b_i`` with the gradient
``g_i`` and the Hessian ``H_i`` at the common model. Sequential SGD at the rate ``alpha`` would see

    s_1 = g_1,    s_i = g_i - alpha * H_i (s_1 + ... + s_(i-1))

(the paper's equation 2), and go by ``-alpha * sum_i s_i``. The baseline goes by ``-alpha * sum_i
g_i``, Adasum by ``-alpha * Adasum(g_1 ... g_n)``. The rate is the one that the paper derives Adasum
with, ``1 / ||g||**2`` (appendix A.2), with the mean of the workers' squared norms.

This file needs NumPy only; how gradients are combined is passed in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Combine = Callable[[Sequence[Floats]], Floats]


@dataclass(frozen=True)
class Batch:
    """Rows ``(rows, features)`` and one-hot labels ``(rows, classes)``."""

    x: Floats
    y: Floats


def probabilities(weights: Floats, x: Floats) -> Floats:
    """Softmax of ``x @ weights``, ``(rows, classes)``; weights are ``(features, classes)``."""
    logits = x @ weights
    grown = np.exp(logits - logits.max(axis=1, keepdims=True))
    return grown / grown.sum(axis=1, keepdims=True)


def gradient(weights: Floats, batch: Batch) -> Floats:
    """Gradient of the batch's mean negative log likelihood, as flat as the weights are not."""
    error = probabilities(weights, batch.x) - batch.y
    return (batch.x.T @ error / len(batch.x)).reshape(-1)


def hessian_product(weights: Floats, batch: Batch, vector: Floats) -> Floats:
    """The exact Hessian of the same loss, times a flat vector.

    A row's Hessian is ``(diag(p) - p p^T)`` between classes and ``x x^T`` between features.
    """
    p = probabilities(weights, batch.x)
    moved = batch.x @ vector.reshape(weights.shape)
    curved = p * moved - p * (p * moved).sum(axis=1, keepdims=True)
    return (batch.x.T @ curved / len(batch.x)).reshape(-1)


def sequential_step(weights: Floats, batches: Sequence[Batch], rate: float) -> Floats:
    """What sequential SGD would subtract from the weights, divided by the rate (equation 2)."""
    passed = np.zeros(weights.size)
    for batch in batches:
        correction = hessian_product(weights, batch, passed)
        passed += gradient(weights, batch) - rate * correction
    return passed


def optimal_rate(gradients: Sequence[Floats]) -> float:
    """``1 / ||g||**2`` (appendix A.2), of the mean squared norm."""
    return 1.0 / float(np.mean([g @ g for g in gradients]))


@dataclass(frozen=True)
class Errors:
    """Distances from the sequential step, relative to its length, step by step of a run."""

    adasum: Floats
    total: Floats


def emulation_errors(
    batches: Sequence[Sequence[Batch]],
    weights: Floats,
    combine: Combine,
    rate: float | None = None,
) -> Errors:
    """Train along the combined steps, and compare each with the sequential one.

    Parameters
    ----------
    batches
        For every step one batch for each worker.
    weights
        ``(features, classes)``, where the run starts.
    combine
        Adasum.
    rate
        Of every step; by default each step's `optimal_rate`.
    """
    weights, found = weights.copy(), []
    for step in batches:
        gradients = [gradient(weights, batch) for batch in step]
        alpha = optimal_rate(gradients) if rate is None else rate
        sequential = sequential_step(weights, step, alpha)
        combined = combine(gradients)
        length = np.linalg.norm(sequential)
        found.append(
            [
                np.linalg.norm(combined - sequential) / length,
                np.linalg.norm(sum(gradients) - sequential) / length,
            ]
        )
        weights -= alpha * combined.reshape(weights.shape)
    adasum, total = np.array(found).T
    return Errors(adasum, total)


def clustered_batches(
    steps: int, workers: int, rows: int, *, features: int = 20, classes: int = 10, seed: int = 0
) -> list[list[Batch]]:
    """Rows of unit length around one center for each class, and a feature that is always 1."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(classes, features - 1))

    def batch() -> Batch:
        labels = rng.integers(classes, size=rows)
        x = centers[labels] + rng.normal(size=(rows, features - 1))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        return Batch(np.hstack([x, np.ones((rows, 1))]), np.eye(classes)[labels])

    return [[batch() for _ in range(workers)] for _ in range(steps)]
