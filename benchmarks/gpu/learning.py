"""Part (c): a training run on the device and on a CPU from the same seed, and both curves."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskxml.core.arrays import Segment
from daskxml.models.network.spec import ModelSpec, initial_parameters
from daskxml.optim import OptimizerConfig
from daskxml.worker.replica import Replica
from made_up import planted_rows

BATCH_ROWS = 64
RUN_ROWS = 2048


def train_curve(
    kernels: Any, optimizer: str, loss: str, epochs: int, seed: int = 0,
    rows: int = RUN_ROWS, features: int = 600, labels: int = 200,
) -> list[float]:  # fmt: skip
    """The mean loss of every epoch, each row by the model of its time."""
    spec = ModelSpec(features=features, labels=labels, hidden=(32,), loss=loss)
    replica = Replica(spec, OptimizerConfig(name=optimizer), kernels, max_batch_rows=BATCH_ROWS)
    kernels.copy(replica.flat, kernels.to_device(initial_parameters(spec, seed)))
    part = kernels.to_device(planted_rows(seed, rows, features, labels))
    rates = {"sgd": 2.0, "adam": 0.005}
    curve = []
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(rows).astype(np.int64)
        results = [
            replica.step([Segment(part, kernels.to_device(chosen))], rates[optimizer], key=0)
            for chosen in np.split(order, rows // BATCH_ROWS)
        ]
        curve.append(sum(float(result.loss_sum) for result in results) / rows)
    return curve


def compare_curves(ours: list[float], cpu: list[float], goal: float) -> dict[str, Any]:
    """Whether two curves differ by less than 2 % of where they begin, and reach a loss.

    Examples
    --------
    >>> compare_curves([2.0, 1.0], [2.0, 1.01], goal=1.5)["ok"]
    True
    >>> compare_curves([2.0, 1.9], [2.0, 1.9], goal=1.5)["ok"]
    False
    """
    gap = max(abs(a - b) for a, b in zip(ours, cpu, strict=True)) / cpu[0]
    return {"first": ours[0], "last": ours[-1], "last_cpu": cpu[-1], "gap": gap, "goal": goal,
            "ok": bool(gap < 0.02 and ours[-1] < goal)}  # fmt: skip


def simulated_run(device: str, epochs: int, seed: int = 0) -> list[float]:
    """The loss of every mega-batch of a run of the single-process executor.

    Raises
    ------
    ImportError
        If what that needs is not installed.
    """
    from daskxml.api.simulate import simulate

    part = planted_rows(seed, RUN_ROWS, 600, 200)
    values = {
        "run": {"seed": seed}, "model": {"hidden": [32]}, "cluster": {"device": device},
        "strategy": {"name": "adaptive-sgd", "batch_max": 64, "megabatch_batches": 4, "lr": 2.0},
        "training": {"epochs": epochs}, "checkpoint": {"every": 0},
    }  # fmt: skip
    run = simulate(values, speeds=[1.0, 0.5], train=_InMemory(part))
    return [row["loss"] for row in run.history]


class _InMemory:
    """Rows that are there already."""

    sample_weight = None

    def __init__(self, part: Any) -> None:
        self._part = part

    def partitions(self) -> list[Any]:
        return [self._part]
