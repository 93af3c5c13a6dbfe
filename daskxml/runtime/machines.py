"""Which workers there are: of which kind, on which machine, and whether a run can have them.

A Dask worker with the resource ``cpu-pool=T`` is a pool of T threads, that steps one model without
locks; any other has a replica, on its GPU where it has one. Two workers are on one machine where
their addresses have the same host. The home of a run whose workers share one model is the machine
that has it in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from distributed.comm import get_address_host

from daskxml.config import RunConfig
from daskxml.errors import ClusterError, ConfigError, DaskxmlError
from daskxml.runtime.equipment import Equipment
from daskxml.strategies.megabatch import natural_order
from daskxml.strategies.protocol import Device

POOL = "cpu-pool"  # the resource of a Dask worker
Equipped = Mapping[str, Equipment]  # by address; those that nobody has looked at are left out


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


def kernel_device(
    config: RunConfig, arrival: Arrival, equipment: Equipment
) -> Literal["cpu", "cuda"]:
    """Return where a worker's kernels are.

    Pools of threads, sampled labels and a model that processes share in memory are on CPUs.

    Examples
    --------
    >>> from daskxml.config import load_run_config
    >>> config = load_run_config({"training": {"epochs": 1}})
    >>> kernel_device(config, Arrival("0", "tcp://h:1"), Equipment())
    'cpu'
    """
    if arrival.device.is_pool:
        return "cpu"
    if config.cluster.device == "auto":
        needs_cpu = config.sampling.is_on or config.make_strategy().shares_model
        return "cuda" if equipment.has_gpu and not needs_cpu else "cpu"
    return config.cluster.device


def kernel_threads(
    config: RunConfig, arrival: Arrival, present: Iterable[Arrival], equipped: Equipped
) -> int:
    """Return how many threads a worker's kernels use, so that those of a machine share its cores.

    A worker on a GPU has one thread of the CPU.

    Examples
    --------
    >>> from daskxml.config import load_run_config
    >>> config = load_run_config({"training": {"epochs": 1}})
    >>> pool, other = Arrival("a", "tcp://h:1", Device(3)), Arrival("b", "tcp://h:2")
    >>> equipped = dict.fromkeys(["tcp://h:1", "tcp://h:2"], Equipment(cores=8))
    >>> [kernel_threads(config, it, [pool, other], equipped) for it in (pool, other)]
    [3, 5]
    """
    if arrival.device.is_pool:
        return arrival.device.pool_threads
    if _is_on_gpu(config, arrival, equipped):
        return 1
    near = [other for other in present if other.host == arrival.host]
    on_gpus = sum(_is_on_gpu(config, other, equipped) for other in near)
    pools = sum(other.device.is_pool for other in near)
    taken = on_gpus + sum(other.device.pool_threads for other in near)
    left = max(1, _equipment(arrival, equipped).cores - taken)
    return config.cluster.threads_on(left, len(near) - on_gpus - pools)


def _equipment(arrival: Arrival, equipped: Equipped) -> Equipment:
    return equipped.get(arrival.address, Equipment())


def _is_on_gpu(config: RunConfig, arrival: Arrival, equipped: Equipped) -> bool:
    return kernel_device(config, arrival, _equipment(arrival, equipped)) == "cuda"


def check_workers(config: RunConfig, present: Sequence[Arrival], equipped: Equipped) -> None:
    """Refuse a run that these workers cannot do, before anything is read.

    Raises
    ------
    ConfigError, ClusterError
        One line: what, where, and what to do.
    """
    home = choose_home(present) if config.make_strategy().shares_model else ""
    for arrival in present:
        problem = problem_with(arrival, config, present, home, equipped)
        if problem is not None:
            raise problem


def problem_with(
    arrival: Arrival,
    config: RunConfig,
    present: Sequence[Arrival],
    home: str,
    equipped: Equipped,
) -> DaskxmlError | None:
    """Return why a worker cannot take part in a run.

    Parameters
    ----------
    home
        Machine of the shared model, "" if there is none.
    equipped
        What workers have, as far as that is known.
    """
    device, strategy = arrival.device, config.make_strategy()
    near = [other for other in present if other.host == arrival.host]
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
    if arrival.address not in equipped:
        return None
    return _too_many_threads(arrival, config, near, equipped) or _wrong_gpu(
        arrival, config, near, equipped
    )


def _too_many_threads(
    arrival: Arrival, config: RunConfig, near: Sequence[Arrival], equipped: Equipped
) -> DaskxmlError | None:
    cores, who = equipped[arrival.address].cores, f"worker {arrival.name} at {arrival.address}"
    pooled = sum(other.device.pool_threads for other in near)
    if arrival.device.is_pool and pooled > cores:
        return ClusterError(
            f"{who}: the pools of its machine have {pooled} threads, more than its {cores} cores; "
            f"start them with fewer, as --resources {POOL}=THREADS"
        )
    threads = config.cluster.threads
    steppers = [
        other for other in near
        if not other.device.is_pool and not _is_on_gpu(config, other, equipped)
    ]  # fmt: skip
    if arrival in steppers and threads > 1 and threads * len(steppers) > cores:
        return ConfigError(
            f"[cluster] threads = {threads}: the {len(steppers)} workers on {arrival.host} would "
            f"use {threads * len(steppers)} threads on {cores} cores; set it to "
            f"{max(1, cores // len(steppers))} or less, or to 0"
        )
    return None


def _wrong_gpu(
    arrival: Arrival, config: RunConfig, near: Sequence[Arrival], equipped: Equipped
) -> DaskxmlError | None:
    if not _is_on_gpu(config, arrival, equipped):
        return None
    mine, who = equipped[arrival.address], f"worker {arrival.name} at {arrival.address}"
    if mine.gpu is None:
        return ClusterError(
            f"{who} sees no GPU, and [cluster] device = 'cuda' needs one: start it by 'dask cuda "
            "worker' where there is one, stop it, or take --device auto"
        )
    if mine.gpu_problem:
        return ClusterError(f"{who} cannot use its GPU: {mine.gpu_problem}; or take --device cpu")
    others = [
        other.name for other in near
        if other != arrival and _is_on_gpu(config, other, equipped)
        and _equipment(other, equipped).gpu == mine.gpu
    ]  # fmt: skip
    if others and mine.gpu.is_slice:
        return ClusterError(
            f"{who}: worker {others[0]} is on the same MIG slice {mine.gpu.uuid}; start each with "
            "a slice of its own, as CUDA_VISIBLE_DEVICES=MIG-..."
        )
    return None


def crowded_gpus(config: RunConfig, present: Sequence[Arrival], equipped: Equipped) -> list[str]:
    """Return a line for each GPU that several workers share, which is slower than one on each."""
    sharing: dict[tuple[str, str], list[str]] = {}
    for arrival in present:
        gpu = _equipment(arrival, equipped).gpu
        if gpu is not None and _is_on_gpu(config, arrival, equipped):
            sharing.setdefault((arrival.host, gpu.uuid), []).append(arrival.name)
    return [
        f"workers {', '.join(names)} share one GPU, {uuid} on {host}; 'dask cuda worker' starts "
        "one for each GPU"
        for (host, uuid), names in sharing.items()
        if len(names) > 1
    ]
