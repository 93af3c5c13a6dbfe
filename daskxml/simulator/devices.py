"""What the workers of a simulated run step with, what that costs, and where they stand."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from daskxml.config import RunConfig
from daskxml.errors import ConfigError
from daskxml.simulator.cost import CostModel, Network
from daskxml.strategies.members import natural_order
from daskxml.strategies.protocol import Device


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Costs, and which workers are pools.

    Attributes
    ----------
    cost
        Of a batch at speed 1.
    network
        What messages cost, and what it costs to copy a shared model and to add a change to it.
    pools
        Threads of those workers that are pools, by name.
    pool_cost
        Of a pool's batch at speed 1; None: as anybody's.

    Examples
    --------
    >>> devices = Devices(cost=CostModel(fixed_s=1.0), network=Network(), pools={"cpu": 4})
    >>> devices.device_of("cpu"), devices.device_of("gpu").is_pool
    (Device(pool_threads=4), False)
    """

    cost: CostModel
    network: Network
    pools: Mapping[str, int] = field(default_factory=dict)
    pool_cost: CostModel | None = None

    def device_of(self, worker: str) -> Device:
        """Return what a worker steps with."""
        return Device(self.pools.get(worker, 0))

    def cost_of(self, worker: str) -> CostModel:
        """Return what a worker's batches cost at speed 1."""
        return self.pool_cost or self.cost if worker in self.pools else self.cost

    def home_of(self, machines: Mapping[str, str]) -> str:
        """Return the machine of the shared model: that of the first pool, else of the first worker.

        Examples
        --------
        >>> devices = Devices(cost=CostModel(fixed_s=1.0), network=Network(), pools={"2": 4})
        >>> devices.home_of({"0": "near", "2": "far"}), devices.home_of({"10": "far", "9": "near"})
        ('far', 'near')
        """
        first = min(machines, key=lambda name: (name not in self.pools, natural_order(name)))
        return machines[first]

    def described(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "cost": dataclasses.asdict(self.cost),
            "network": dataclasses.asdict(self.network),
            "pools": dict(self.pools),
            "pool_cost": dataclasses.asdict(self.pool_cost) if self.pool_cost else None,
        }


def check_pools(
    pools: Mapping[str, int], workers: Iterable[str], config: RunConfig
) -> dict[str, int]:
    """Return the threads of every pool by its name.

    Parameters
    ----------
    workers
        Names of all that are there or will come.
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
