"""The costs of a simulated run: batches, messages, evaluation, checkpoints; and its devices.

Every duration is a whole number of ticks of 2^-30 s, about a nanosecond. Sums and differences of
such times are exact for a hundred days, so a duration does not depend on when it is measured, and
a run that is resumed sees the very times of one that was not interrupted.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from daskxml.config import RunConfig
from daskxml.core.errors import ConfigError
from daskxml.core.fields import Checked, bounded
from daskxml.data.order import derive_key
from daskxml.models.kinds import TRAINED
from daskxml.models.protocol import Spec
from daskxml.strategies.protocol import WorkerDevice

TICK_S = 2.0**-30

# NVIDIA Tesla V100 (data sheet, 2020): 14 TFLOP/s in float32 and 900 GB/s, which dense products
# and passes over large arrays reach to about a half, gathering rows of a matrix to about a third.
V100_FLOP_S, V100_STREAM_BYTES_S, V100_GATHER_BYTES_S = 7e12, 450e9, 300e9
LAUNCHES, LAUNCH_S = 40, 5e-6  # kernels of a step
OUTPUT_PASSES = 5  # scores written, reduced, made probabilities, read by two products
FLOAT_BYTES = 4


def whole_ticks(seconds: float) -> float:
    """Return the nearest duration that is a whole number of ticks.

    Examples
    --------
    >>> whole_ticks(0.1) == 0.1, (whole_ticks(0.1) + 1000.0) - 1000.0 == whole_ticks(0.1)
    (False, True)
    """
    return round(seconds / TICK_S) * TICK_S


@dataclass(frozen=True, kw_only=True)
class CostModel(Checked):
    """Seconds of a batch on a worker of speed 1: ``fixed + per row + per non-zero``, with jitter.

    Attributes
    ----------
    fixed_s, per_row_s, per_nonzero_s
        The batch takes ``fixed_s + rows * per_row_s + nonzeros * per_nonzero_s``, over the
        worker's speed.
    jitter
        Standard deviation of the logarithm of a factor with mean 1 that each batch's time is
        multiplied by; seeded.
    evaluation_share
        Of that time for rows that are only scored: the forward pass is a third of a step.
    storage_bytes_s
        At which checkpoints are written.

    Examples
    --------
    >>> CostModel(fixed_s=0.5, per_row_s=0.25, per_nonzero_s=0.0).batch_s(rows=2, nonzeros=9)
    1.0
    """

    fixed_s: float = bounded(0.0, low=0)
    per_row_s: float = bounded(0.0, low=0)
    per_nonzero_s: float = bounded(0.0, low=0)
    jitter: float = bounded(0.05, low=0, high=2)
    evaluation_share: float = bounded(1 / 3, low=0)
    storage_bytes_s: float = bounded(1e9, above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.fixed_s or self.per_row_s or self.per_nonzero_s):
            raise ConfigError("a batch costs no time: give at least one of its three costs")

    def batch_s(self, rows: int, nonzeros: int) -> float:
        """Return the seconds of a batch at speed 1, without jitter."""
        return self.fixed_s + rows * self.per_row_s + nonzeros * self.per_nonzero_s


@dataclass(frozen=True, kw_only=True)
class Network(Checked):
    """What messages cost.

    Attributes
    ----------
    bandwidth_bytes_s
        A message between workers occupies the sender's outgoing and the receiver's incoming port
        for its bytes over this; the two directions do not disturb each other. The default is
        one NVLink 2.0 link of a V100, per direction. Where all workers update one model, whoever
        works on a copy moves the whole model at this rate twice a batch: it copies the model when
        the batch begins, and adds its change when it ends. A pool on the model's machine does not.
    latency_s
        From a message's last byte leaving to its arrival.
    message_s
        From the scheduler to a worker, or back: a small message. The default is that of threads of
        one process; Dask between processes takes 2 to 5 ms.
    machine_workers
        Workers on each machine, for hierarchical Adasum; 0: all of them.

    Examples
    --------
    >>> Network(bandwidth_bytes_s=1e9).transfer_s(1_000_000_000)
    1.0
    >>> Network(machine_workers=2).machine_of(3)
    'machine-1'
    """

    bandwidth_bytes_s: float = bounded(25e9, above=0)
    latency_s: float = bounded(1e-5, low=0)
    message_s: float = bounded(1e-4, low=0)
    machine_workers: int = bounded(0, low=0)

    def transfer_s(self, nbytes: int) -> float:
        """Return how long a message occupies a port."""
        return whole_ticks(nbytes / self.bandwidth_bytes_s)

    def machine_of(self, worker: int) -> str:
        """Return the name of the machine of the worker with this number."""
        return f"machine-{worker // self.machine_workers if self.machine_workers else 0}"


def v100_cost(spec: Any) -> CostModel:
    """Return what a batch of this model costs on a V100, by the rates of its data sheet.

    Three products with every dense layer (forward, gradient, error), two operations each; some
    passes over the scores; a row of the first layer read for each non-zero forward, and read and
    written for its update; and launching the kernels. With Amazon-670k's shapes (hidden 128,
    670,091 labels, 76 non-zeros a row) a batch of 1,024 rows takes 0.11 s.

    Examples
    --------
    >>> from daskxml.models.network.spec import ModelSpec
    >>> cost = v100_cost(ModelSpec(features=135_909, labels=670_091, hidden=(128,)))
    >>> round(cost.batch_s(1024, 1024 * 76), 2)
    0.11
    """
    if row_s := TRAINED[spec.kind].row_s:  # it is fitted on CPUs
        return CostModel(fixed_s=0.0, per_row_s=row_s, per_nonzero_s=0.0)
    widths = [*spec.hidden, spec.labels]
    dense = sum(left * right for left, right in itertools.pairwise(widths))
    passes_s = OUTPUT_PASSES * FLOAT_BYTES * sum(widths) / V100_STREAM_BYTES_S
    return CostModel(
        fixed_s=LAUNCHES * LAUNCH_S,
        per_row_s=6 * dense / V100_FLOP_S + passes_s,
        per_nonzero_s=3 * FLOAT_BYTES * widths[0] / V100_GATHER_BYTES_S,
    )


def cost_by_epochs(cost: CostModel, ratio: float, batch_rows: int) -> CostModel:
    """Return the cost of a device that takes ``ratio`` times as long for an epoch.

    Its rows cost the same in batches of any size, as they do where each thread of a pool steps
    through a few rows of its own.

    Parameters
    ----------
    cost
        Of the device that it is compared to.
    ratio
        Above 0; 236 to 317 for 56 CPU threads with a row each beside a V100 with batches of 8,192
        (Ma, Rusu, Wu and Sim, "Adaptive Stochastic Gradient Descent for Deep Learning on
        Heterogeneous CPU+GPU Architectures", 2021, section VII.B).
    batch_rows
        Of the other device, at least 1: its fixed costs are shared by so many rows.

    Raises
    ------
    ConfigError
        If ``ratio`` or ``batch_rows`` is out of range.

    Examples
    --------
    >>> gpu = CostModel(fixed_s=0.5, per_row_s=0.25)
    >>> pool = cost_by_epochs(gpu, 200.0, batch_rows=2)
    >>> pool.batch_s(rows=10, nonzeros=0) / (5 * gpu.batch_s(rows=2, nonzeros=0))
    200.0
    """
    if not 0.0 < ratio < math.inf:
        raise ConfigError(f"pool ratio = {ratio:g}: must be above 0")
    if batch_rows < 1:
        raise ConfigError(f"batch_rows = {batch_rows}: must be at least 1")
    return replace(
        cost,
        fixed_s=0.0,
        per_row_s=ratio * (cost.fixed_s / batch_rows + cost.per_row_s),
        per_nonzero_s=ratio * cost.per_nonzero_s,
    )


Costs = CostModel | Callable[[Spec], CostModel]


def jitter_factor(sigma: float, seed: int, worker: str, *place: int) -> float:
    """Return a log-normal factor with mean 1, from the seed, the worker and the batch's numbers.

    Examples
    --------
    >>> jitter_factor(0.0, 7, "a", 1, 2)
    1.0
    >>> jitter_factor(0.1, 7, "a", 1, 2) == jitter_factor(0.1, 7, "a", 1, 2)
    True
    """
    if sigma == 0.0:
        return 1.0
    key = derive_key(seed, zlib.crc32(worker.encode()), *place)
    first = ((key >> 32) + 0.5) * 2.0**-32
    second = ((key & 0xFFFFFFFF) + 0.5) * 2.0**-32
    normal = math.sqrt(-2.0 * math.log(first)) * math.cos(2.0 * math.pi * second)
    return math.exp(sigma * normal - sigma * sigma / 2.0)


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Costs, and which workers are pools.

    Attributes
    ----------
    cost
        Of a batch at speed 1; None: time is real.
    network
        What messages cost, and what it costs to copy a shared model and to add a change to it.
    pools
        Threads of those workers that are pools, by name.
    pool_cost
        Of a pool's batch at speed 1; None: the same as of other workers.

    Examples
    --------
    >>> devices = Devices(cost=CostModel(fixed_s=1.0), network=Network(), pools={"cpu": 4})
    >>> devices.device_of("cpu"), devices.device_of("gpu").is_pool
    (WorkerDevice(pool_threads=4, rows_per_s=0.0), False)
    """

    cost: CostModel | None
    network: Network = Network()
    pools: Mapping[str, int] = field(default_factory=dict)
    pool_cost: CostModel | None = None

    def device_of(self, worker: str) -> WorkerDevice:
        """Return the kind of a worker's device."""
        return WorkerDevice(self.pools.get(worker, 0))

    def cost_of(self, worker: str) -> CostModel | None:
        """Return the cost of a worker's batches at speed 1."""
        return self.pool_cost or self.cost if worker in self.pools else self.cost

    def plain(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "cost": asdict(self.cost) if self.cost else None,
            "network": asdict(self.network),
            "pools": dict(self.pools),
            "pool_cost": asdict(self.pool_cost) if self.pool_cost else None,
        }


def check_pools(
    pools: Mapping[str, int], workers: Iterable[str], config: RunConfig
) -> dict[str, int]:
    """Return the threads of every pool by its name.

    Parameters
    ----------
    workers
        Names of all workers, those that arrive later included.
    config
        Of the run that they take part in.

    Raises
    ------
    ConfigError
        If a pool is none of the workers or has no thread, or the strategy takes none.

    Examples
    --------
    >>> from daskxml.config import load_run_config
    >>> config = load_run_config({"training": {"epochs": 1}})
    >>> check_pools({"cpu": 4}, ["gpu", "cpu"], config)
    {'cpu': 4}
    """
    known, named = set(workers), {str(name): int(threads) for name, threads in pools.items()}
    for name, threads in named.items():
        if name not in known:
            raise ConfigError(f"pool {name}: no such worker; give it a speed, as {name}=1")
        if threads < 1:
            raise ConfigError(f"pool {name}: threads = {threads}: must be at least 1")
        if config.make_strategy().is_joint:
            raise ConfigError(
                f"[strategy] name = {config.strategy_name!r} steps all workers together and takes "
                f"no pool, which worker {name} is: leave the pool out, or take adaptive-hogbatch"
            )
    return named
