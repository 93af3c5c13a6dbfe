"""Which workers there are: of which kind, on which machine, and whether a run can have them.

A Dask worker with the resource ``cpu-pool=T`` is a pool of T threads, that steps one model without
locks; any other has a replica. Two workers are on one machine where their addresses have the same
host. The home of a run whose workers share one model is the machine that has it in memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from distributed import Client
from distributed.comm import get_address_host

from daskxml.config import RunConfig
from daskxml.config.sections import ClusterSection
from daskxml.errors import ClusterError, ConfigError, DaskxmlError
from daskxml.strategies.megabatch import natural_order
from daskxml.strategies.protocol import Device

POOL = "cpu-pool"  # the resource of a Dask worker


@dataclass(frozen=True, slots=True)
class Arrival:
    """A worker of the cluster: its name, where it listens, and what it steps with."""

    name: str
    address: str
    device: Device = field(default_factory=Device)

    @property
    def host(self) -> str:
        """The machine."""
        return get_address_host(self.address)


def device_of(resources: Mapping[str, float]) -> Device:
    """Return the kind of a worker with these Dask resources.

    Examples
    --------
    >>> device_of({"cpu-pool": 4.0}), device_of({"GPU": 1.0})
    (Device(pool_threads=4), Device(pool_threads=0))
    """
    return Device(max(0, math.ceil(resources.get(POOL, 0.0))))


def choose_home(arrivals: Iterable[Arrival]) -> str:
    """Return the machine that is to hold the shared model: that of the first pool, if there is one.

    Examples
    --------
    >>> gpu = Arrival("0", "tcp://10.0.0.1:7")
    >>> choose_home([gpu, Arrival("1", "tcp://10.0.0.2:7", Device(4))]), choose_home([gpu])
    ('10.0.0.2', '10.0.0.1')
    """
    first = min(arrivals, key=lambda it: (not it.device.is_pool, natural_order(it.name)))
    return first.host


def kernel_threads(
    section: ClusterSection, arrival: Arrival, present: Iterable[Arrival], cores: int
) -> int:
    """Return how many threads a worker's kernels use, so that those of a machine share its cores.

    Examples
    --------
    >>> pool, gpu = Arrival("a", "tcp://h:1", Device(3)), Arrival("b", "tcp://h:2")
    >>> [kernel_threads(ClusterSection(), it, [pool, gpu], 8) for it in (pool, gpu)]
    [3, 5]
    """
    if arrival.device.is_pool:
        return arrival.device.pool_threads
    near = [other.device for other in present if other.host == arrival.host]
    left = cores - sum(device.pool_threads for device in near)
    return section.threads_on(max(1, left), sum(not device.is_pool for device in near))


def count_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


async def check_workers(client: Client, config: RunConfig, present: Sequence[Arrival]) -> None:
    """Refuse a run that these workers cannot do, before anything is read.

    Raises
    ------
    ConfigError, ClusterError
        One line: what, where, and what to do.
    """
    pools = [arrival.address for arrival in present if arrival.device.is_pool]
    counted = await client.run(count_cores, workers=pools, on_error="return") if pools else {}
    cores = {get_address_host(at): n for at, n in counted.items() if isinstance(n, int)}
    home = choose_home(present) if config.make_strategy().shares_model else ""
    for arrival in present:
        problem = problem_with(arrival, config, present, home, cores.get(arrival.host))
        if problem is not None:
            raise problem


def problem_with(
    arrival: Arrival,
    config: RunConfig,
    present: Iterable[Arrival],
    home: str,
    cores: int | None,
) -> DaskxmlError | None:
    """Return why a worker cannot take part in a run.

    Parameters
    ----------
    home
        Machine of the shared model, "" if there is none.
    cores
        Of the worker's machine; None if not known.
    """
    device, strategy = arrival.device, config.make_strategy()
    near = [other.device.pool_threads for other in present if other.host == arrival.host]
    if device.is_pool and cores is not None and sum(near) > cores:
        return ClusterError(
            f"worker {arrival.name} at {arrival.address}: the pools of its machine have "
            f"{sum(near)} threads, more than its {cores} cores; start them with fewer, as "
            f"--resources {POOL}=THREADS"
        )
    if device.is_pool and strategy.is_joint:
        return ConfigError(
            f"[strategy] name = {config.strategy_name!r} steps all workers together and takes no "
            f"pool, which worker {arrival.name} at {arrival.address} is: start it without "
            f"--resources {POOL}, or take a strategy like adaptive-hogbatch"
        )
    if home and arrival.host != home and not config.cluster.push_pull:
        return ConfigError(
            f"[cluster] push_pull = false: worker {arrival.name} at {arrival.address} is not on "
            f"{home}, where the shared model is; start it there, or set push_pull = true"
        )
    return None
