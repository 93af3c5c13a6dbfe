"""What a step of workers that each have a part of the labels costs, and when that pays.

The costs are those of `daskxml.simulator.cost`: batches, and messages that occupy a port for their
bytes. A run in virtual time adds jitter and the scheduler's messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from daskxml.model.partitioned import WAITING_BYTES
from daskxml.model.spec import Layout, ModelSpec
from daskxml.simulator.cost import FLOAT_BYTES, CostModel, Network, v100_cost

_PAIR_BYTES = 16  # peak and sum of exponentials of a row


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
        Batches of all workers between two merges, where the model is merged.
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
        Bytes that each worker sends.
    """

    compute_s: float
    exchange_s: float
    sent_bytes: int

    @property
    def batch_s(self) -> float:
        """Seconds in all."""
        return self.compute_s + self.exchange_s


def partitioned_batch(
    spec: ModelSpec, cost: CostModel, network: Network, setting: Setting
) -> Predicted:
    """Return what a batch costs that all workers step through together.

    Each has a part of the labels and all of the features. The gradient of its rows is on its way
    while the last weights are updated.

    Examples
    --------
    >>> spec, network = ModelSpec(features=135_909, labels=670_091), Network()
    >>> found = partitioned_batch(spec, v100_cost(spec), network, Setting(workers=4))
    >>> found.sent_bytes, round(found.batch_s, 4)
    (835584, 0.0271)
    """
    rows, others = setting.rows, setting.workers - 1
    compute_s = cost.batch_s(rows // setting.workers, rows * setting.row_nonzeros)
    if not others:
        return Predicted(compute_s, 0.0, 0)
    pairs = others * rows * _PAIR_BYTES if spec.loss == "softmax" else 0
    gradient = others * rows * spec.hidden[-1] * FLOAT_BYTES // setting.workers
    waiting = WAITING_BYTES / (FLOAT_BYTES * rows) / (spec.labels / setting.workers)
    hidden_s = min(1.0, waiting) * compute_s / 3
    latency_s = network.latency_s
    exchange_s = max(0.0, gradient / network.bandwidth_bytes_s + latency_s - hidden_s)
    exchange_s += gradient / network.bandwidth_bytes_s + latency_s
    if pairs:
        exchange_s += pairs / network.bandwidth_bytes_s + latency_s
    return Predicted(compute_s, exchange_s, pairs + 2 * gradient)


def merged_batch(spec: ModelSpec, cost: CostModel, network: Network, setting: Setting) -> Predicted:
    """Return a batch's share of what it costs where workers have replicas and merge them by a ring.

    Examples
    --------
    >>> spec, network = ModelSpec(features=135_909, labels=670_091), Network()
    >>> found = merged_batch(spec, v100_cost(spec), network, Setting(workers=4))
    >>> found.sent_bytes, round(found.batch_s, 4)
    (6230293, 0.0268)
    """
    workers, batches = setting.workers, setting.merge_batches
    compute_s = cost.batch_s(setting.rows, setting.rows * setting.row_nonzeros) / workers
    sent = 2 * (workers - 1) * Layout(spec).count * FLOAT_BYTES // workers
    merge_s = sent / network.bandwidth_bytes_s + 2 * (workers - 1) * network.latency_s
    return Predicted(compute_s, merge_s / batches, sent // batches)


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
