"""What a step of workers that each have a part of the labels costs, and when that pays.

The costs are those of `daskxml.local.cost`: batches, and messages that occupy a port for their
bytes. A run in virtual time adds jitter and the scheduler's messages. `check_steps` compares the
prediction for a run's second half, with costs fitted to the first, with what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from daskxml.local.calibration import Fitted, History, fit_history
from daskxml.local.cost import FLOAT_BYTES, CostModel, Network, v100_cost
from daskxml.models.network.partitioned import WAITING_BYTES
from daskxml.models.network.spec import Layout, ModelSpec

_PAIR_BYTES = 16  # peak and sum of exponentials of a row
_FEWEST_ROWS = 4  # of a history, to predict the second half from the first


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Equal workers, and the batches that they compute.

    Attributes
    ----------
    workers
        At least 1.
    rows, row_nonzeros
        Rows of a batch, and the stored features of each.
    merge_batches
        Batches of all workers between two merges, where the model is merged, or parts are copied.
    """

    workers: int
    rows: int = 1024
    row_nonzeros: int = 76
    merge_batches: int = 100


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a batch costs.

    Attributes
    ----------
    compute_s, exchange_s
        Seconds of work, and of waiting for messages.
    sent_bytes
        Bytes that each worker sends in a step.
    merge_s, merged_bytes
        A batch's share of the seconds of a merge, and of the bytes that each worker sends in it.
    """

    compute_s: float
    exchange_s: float
    sent_bytes: int
    merge_s: float = 0.0
    merged_bytes: int = 0

    @property
    def batch_s(self) -> float:
        """Seconds in all."""
        return self.compute_s + self.exchange_s + self.merge_s


def partitioned_batch(
    spec: ModelSpec, cost: CostModel, network: Network, setting: Setting
) -> Predicted:
    """Return what a batch costs that all workers step through together.

    Each has a part of the labels and all of the features. The gradient of its rows is on its way
    while the last weights are updated. At a merge it sends its part, without moments, to another.

    Examples
    --------
    >>> spec, network = ModelSpec(features=135_909, labels=670_091), Network()
    >>> found = partitioned_batch(spec, v100_cost(spec), network, Setting(workers=4))
    >>> found.sent_bytes, found.merged_bytes, round(found.batch_s, 4)
    (835584, 864417, 0.0271)
    """
    rows, others = setting.rows, setting.workers - 1
    compute_s = cost.batch_s(rows // setting.workers, rows * setting.row_nonzeros)
    if not others:
        return Predicted(compute_s, 0.0, 0)
    pairs, gradient = _sent_bytes(setting.workers, rows, spec.loss, spec.hidden[-1] * FLOAT_BYTES)
    waiting = WAITING_BYTES / (FLOAT_BYTES * rows) / (spec.labels / setting.workers)
    hidden_s = min(1.0, waiting) * compute_s / 3
    latency_s = network.latency_s
    exchange_s = max(0.0, gradient / network.bandwidth_bytes_s + latency_s - hidden_s)
    exchange_s += gradient / network.bandwidth_bytes_s + latency_s
    if pairs:
        exchange_s += pairs / network.bandwidth_bytes_s + latency_s
    copied = spec.labels * (spec.hidden[-1] + 1) * FLOAT_BYTES // setting.workers
    merge_s = (copied / network.bandwidth_bytes_s + latency_s) / setting.merge_batches
    merged = copied // setting.merge_batches
    return Predicted(compute_s, exchange_s, pairs + 2 * gradient, merge_s, merged)


def _sent_bytes(workers: int, rows: int, loss: str, row_bytes: int) -> tuple[int, int]:
    """Return what each worker sends in a step: for softmax, and of gradients, which it does twice.

    ``row_bytes`` are those of a row's gradient by the hidden layer.
    """
    pairs = (workers - 1) * rows * _PAIR_BYTES if loss == "softmax" else 0
    return pairs, (workers - 1) * rows * row_bytes // workers


def merged_batch(spec: ModelSpec, cost: CostModel, network: Network, setting: Setting) -> Predicted:
    """Return a batch's share of what it costs where workers have replicas and merge them by a ring.

    Examples
    --------
    >>> spec, network = ModelSpec(features=135_909, labels=670_091), Network()
    >>> found = merged_batch(spec, v100_cost(spec), network, Setting(workers=4))
    >>> found.merged_bytes, round(found.batch_s, 4)
    (6230293, 0.0268)
    """
    workers, batches = setting.workers, setting.merge_batches
    compute_s = cost.batch_s(setting.rows, setting.rows * setting.row_nonzeros) / workers
    sent = 2 * (workers - 1) * Layout(spec).count * FLOAT_BYTES // workers
    merge_s = sent / network.bandwidth_bytes_s + 2 * (workers - 1) * network.latency_s
    return Predicted(compute_s, 0.0, 0, merge_s / batches, sent // batches)


def crossing_labels(
    spec: ModelSpec,
    network: Network,
    setting: Setting,
    cost_of: Callable[[ModelSpec], CostModel] = v100_cost,
    most: int = 100_000_000,
) -> int | None:
    """Return from how many labels on a partitioned output layer has more rows a second.

    None where it has not with ``most`` labels either.

    Examples
    --------
    >>> spec = ModelSpec(features=135_909, labels=1)
    >>> setting = Setting(workers=4)
    >>> crossing_labels(spec, Network(bandwidth_bytes_s=125e6), setting)
    1
    """

    def pays(labels: int) -> bool:
        shaped = replace(spec, labels=labels)
        args = shaped, cost_of(shaped), network, setting
        return partitioned_batch(*args).batch_s <= merged_batch(*args).batch_s

    low, high = 1, most
    if pays(low):
        return low
    if not pays(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


@dataclass(frozen=True, slots=True)
class StepCheck:
    """A step in a run's second half, in the median over its mega-batches.

    Attributes
    ----------
    predicted_s, measured_s
        Seconds.
    predicted_bytes, measured_bytes
        Sent by each worker, on average.
    """

    predicted_s: float
    measured_s: float
    predicted_bytes: float
    measured_bytes: float

    def __str__(self) -> str:
        return (
            f"a step took {self.measured_s * 1e3:,.3g} ms, predicted {self.predicted_s * 1e3:,.3g}"
            f" ms; each worker sent {self.measured_bytes / 1e6:,.3g} MB, predicted "
            f"{self.predicted_bytes / 1e6:,.3g} MB"
        )


def check_steps(
    history: History, loss: str, units: int, transfer: str = "float32"
) -> StepCheck | None:
    """Compare steps with what the cost model predicts for them.

    Bytes follow from the workers and the rows of a step. Seconds are those of the slowest worker,
    by costs, speeds and bandwidth that are fitted to the first half of the history, and those of
    its bytes.

    Parameters
    ----------
    history
        Of a run with a partitioned output layer.
    loss, units, transfer
        ``model.loss``, the width of the last hidden layer, and ``combine.transfer``.

    Returns
    -------
    StepCheck or None
        None for a history that is too short, or of one worker.

    Examples
    --------
    >>> def row(rows, busy_s):
    ...     worker = {"updates": 10, "rows": 10 * rows, "nonzeros": 50 * rows, "busy_s": busy_s}
    ...     return {"workers": {"0": worker, "1": worker}, "train_s": busy_s + 0.1, "merge_s": 0.1,
    ...             "merged_bytes": 0, "moved_bytes": 20 * (2 * rows * 16 + 2 * rows * 2 * 4)}
    >>> print(check_steps([row(8, 1.0), row(8, 1.0), row(8, 1.1), row(8, 1.1)], "softmax", units=2))
    a step took 120 ms, predicted 110 ms; each worker sent 0.000384 MB, predicted 0.000384 MB
    """
    half = len(history) // 2
    rows = [row for row in history[half:] if len(row["workers"]) > 1 and _steps(row)]
    if len(history) < _FEWEST_ROWS or not rows:
        return None
    try:
        fitted = fit_history(history[:half])
    except ValueError:  # nobody did anything
        return None
    row_bytes = units * (2 if transfer == "bfloat16" else FLOAT_BYTES)
    predicted = [_predicted(row, fitted, loss, row_bytes) for row in rows]
    return StepCheck(
        predicted_s=median(each.batch_s for each in predicted),
        measured_s=median(row["train_s"] / _steps(row) for row in rows),
        predicted_bytes=median(each.sent_bytes for each in predicted),
        measured_bytes=median(
            row["moved_bytes"] / len(row["workers"]) / _steps(row) for row in rows
        ),
    )


def _steps(row: Mapping[str, Any]) -> int:
    return max(int(worker["updates"]) for worker in row["workers"].values())


def _predicted(row: Mapping[str, Any], fitted: Fitted, loss: str, row_bytes: int) -> Predicted:
    """Predict a step of a mega-batch from its workers and their rows."""
    steps, workers = _steps(row), row["workers"]
    rows = round(sum(worker["rows"] for worker in workers.values()) / steps)
    busy_s = max(
        fitted.cost.batch_s(worker["rows"] // steps, worker["nonzeros"] // steps)
        / fitted.speeds.get(name, 1.0)
        for name, worker in workers.items()
    )
    pairs, gradient = _sent_bytes(len(workers), rows, loss, row_bytes)
    sent = pairs + 2 * gradient
    return Predicted(busy_s, sent / fitted.network.bandwidth_bytes_s, sent)
