"""The workers of a cluster: what each of them has, and whether a run can use it.

`probe_workers` asks every worker for its `Capabilities`. A Dask worker with the resource
``cpu-pool=T`` is a pool of T threads that updates one model without locks; any other worker has a
replica of its own, on a GPU where it has one. Workers are on one machine if their addresses have
the same host. If all workers share one model, one machine, the model host, has it in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from distributed import Client
from distributed.comm import get_address_host
from distributed.utils import offload

from daskxml._version import __version__
from daskxml.config import RunConfig
from daskxml.core.errors import ClusterError, ConfigError, DaskxmlError
from daskxml.core.hardware import (
    Gpu,
    cuda_problem,
    driver_cuda,
    installed_cupy,
    usable_cores,
    usable_gpus,
)
from daskxml.records.environment import describe_machine
from daskxml.strategies.protocol import WorkerDevice, natural_order

POOL = "cpu-pool"  # the resource of a Dask worker


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What a process can train with.

    Attributes
    ----------
    version
        The version of its daskxml.
    cores
        CPU cores that it may use.
    gpu
        The GPU for its kernels; None if it has none.
    gpu_problem
        Why kernels cannot run on that GPU, and what to do; "" if they can.
    machine
        See `daskxml.records.environment.describe_machine`.
    """

    version: str = __version__
    cores: int = 1
    gpu: Gpu | None = None
    gpu_problem: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_gpu(self) -> bool:
        """Whether kernels can run on a GPU."""
        return self.gpu is not None and not self.gpu_problem

    def as_record(self) -> dict[str, Any]:
        """Return the entry in a run's ``environment.json``, as plain values.

        Examples
        --------
        >>> Capabilities(cores=2, machine={"cpu": "EPYC"}).as_record()
        {'cpu': 'EPYC', 'cores': 2}
        """
        found = {**self.machine, "cores": self.cores}
        if self.gpu is not None:
            found |= {"gpu": self.gpu.name, "driver": self.gpu.driver}
        return found


def probe_process() -> Capabilities:
    """Return the capabilities of this process.

    Examples
    --------
    >>> probe_process().cores >= 1
    True
    """
    gpu = next(iter(usable_gpus()), None)  # CUDA's device 0
    problem = cuda_problem(driver_cuda(), installed_cupy()) if gpu else ""
    cores = usable_cores()
    return Capabilities(cores=cores, gpu=gpu, gpu_problem=problem, machine=describe_machine())


def daskxml_version() -> str:
    """Return the version of daskxml in this process."""
    return __version__


async def probe_in_thread() -> Capabilities:
    """Probe this process without blocking its event loop: a GPU driver may take seconds."""
    found: Capabilities = await offload(probe_process)
    return found


async def probe_workers(client: Client) -> dict[str, Capabilities]:
    """Return the capabilities of a cluster's workers by address; workers that leave are omitted.

    Raises
    ------
    ClusterError
        If workers have no daskxml or another version; the message lists them.
    """
    found = await client.run(probe_in_thread, on_error="return")
    problem = unfit_workers(
        {at: result for at, result in found.items() if not isinstance(result, OSError)}
    )
    if problem:
        raise ClusterError(problem)
    return {at: result for at, result in found.items() if isinstance(result, Capabilities)}


def unfit_workers(found: Mapping[str, object]) -> str:
    """Return a message that lists the workers without this version of daskxml, "" if none is.

    Parameters
    ----------
    found
        By address: the `Capabilities`, or the exception that was raised instead.

    Examples
    --------
    >>> unfit_workers({"tcp://h:1": Capabilities()})
    ''
    >>> missing = ModuleNotFoundError("No module named 'daskxml'", name="daskxml")
    >>> unfit_workers({"tcp://h:1": missing})[:53]
    'workers that cannot take part: tcp://h:1 (no daskxml)'
    """
    unfit = {at: version for at, result in found.items() if (version := _unfit_version(result))}
    if not unfit:
        return ""
    listed = ", ".join(f"{at} ({version})" for at, version in sorted(unfit.items()))
    return (
        f"workers that cannot take part: {listed}; the scheduler has daskxml {__version__}: "
        "install that in their environment too and start them again, or stop them"
    )


def _unfit_version(found: object) -> str:
    if isinstance(found, Capabilities):
        return "" if found.version == __version__ else f"daskxml {found.version}"
    return explain_import(found)


def explain_import(error: object) -> str:
    """Describe the daskxml of a process that failed to unpickle a function of this version.

    Dask returns a scheduler's exception as it is, that of a worker as text in an `Exception`.

    Examples
    --------
    >>> explain_import(ModuleNotFoundError("No module named 'daskxml'"))
    'no daskxml'
    >>> explain_import(Exception("AttributeError: module 'daskxml' has no attribute 'x'"))
    'another daskxml'
    """
    text = f"{type(error).__name__}: {error}"
    if "No module named 'daskxml'" in text:
        return "no daskxml"
    if "No module named 'daskxml." in text or "AttributeError" in text or "cannot import" in text:
        return "another daskxml"
    return f"no daskxml that loads: {str(error)[:200]}"


KnownCapabilities = Mapping[str, Capabilities]  # by address, of the workers probed so far


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker of the cluster: its name and address, whether it is a pool, and Dask's threads."""

    name: str
    address: str
    device: WorkerDevice = field(default_factory=WorkerDevice)
    threads: int = 1

    @property
    def host(self) -> str:
        """The machine's host name or IP address."""
        return get_address_host(self.address)


def device_of(resources: Mapping[str, float]) -> WorkerDevice:
    """Return the device of a worker with these Dask resources.

    Examples
    --------
    >>> device_of({"cpu-pool": 4.0}), device_of({"GPU": 1.0})
    (WorkerDevice(pool_threads=4), WorkerDevice(pool_threads=0))
    """
    return WorkerDevice(max(0, math.ceil(resources.get(POOL, 0.0))))


def choose_model_host(infos: Iterable[WorkerInfo]) -> str:
    """Return the machine to hold a shared model: that of the first pool, or of the first worker.

    Examples
    --------
    >>> gpu = WorkerInfo("0", "tcp://10.0.0.1:7")
    >>> pool = WorkerInfo("1", "tcp://10.0.0.2:7", WorkerDevice(4))
    >>> choose_model_host([gpu, pool]), choose_model_host([gpu])
    ('10.0.0.2', '10.0.0.1')
    """
    first = min(infos, key=lambda info: (not info.device.is_pool, natural_order(info.name)))
    return first.host


def known(info: WorkerInfo, capabilities: KnownCapabilities) -> Capabilities:
    """Return the capabilities of a worker; a worker may leave before it has been probed."""
    return capabilities.get(info.address, Capabilities())


def kernel_device(config: RunConfig, info: WorkerInfo, own: Capabilities) -> Literal["cpu", "cuda"]:
    """Return where a worker's kernels run.

    Pools of threads and some run files require the CPU.

    Examples
    --------
    >>> from daskxml.config import load_run_config
    >>> config = load_run_config({"training": {"epochs": 1}})
    >>> kernel_device(config, WorkerInfo("0", "tcp://h:1"), Capabilities())
    'cpu'
    """
    if info.device.is_pool:
        return "cpu"
    if config.cluster.device == "auto":
        return "cuda" if own.has_gpu and not config.needs_cpu else "cpu"
    return config.cluster.device


def kernel_threads(
    config: RunConfig,
    info: WorkerInfo,
    present: Iterable[WorkerInfo],
    capabilities: KnownCapabilities,
) -> int:
    """Return the threads of a worker's kernels; the workers of a machine share its cores.

    A worker on a GPU takes one core.

    Examples
    --------
    >>> from daskxml.config import load_run_config
    >>> config = load_run_config({"training": {"epochs": 1}})
    >>> pool, other = WorkerInfo("a", "tcp://h:1", WorkerDevice(3)), WorkerInfo("b", "tcp://h:2")
    >>> capabilities = dict.fromkeys(["tcp://h:1", "tcp://h:2"], Capabilities(cores=8))
    >>> [kernel_threads(config, it, [pool, other], capabilities) for it in (pool, other)]
    [3, 5]
    """
    if info.device.is_pool:
        return info.device.pool_threads
    if _is_on_gpu(config, info, capabilities):
        return 1
    near = [other for other in present if other.host == info.host]
    on_gpus = sum(_is_on_gpu(config, other, capabilities) for other in near)
    pools = sum(other.device.is_pool for other in near)
    taken = on_gpus + sum(other.device.pool_threads for other in near)
    left = max(1, known(info, capabilities).cores - taken)
    return config.cluster.threads_on(left, len(near) - on_gpus - pools)


def _is_on_gpu(config: RunConfig, info: WorkerInfo, capabilities: KnownCapabilities) -> bool:
    return kernel_device(config, info, known(info, capabilities)) == "cuda"


def check_workers(
    config: RunConfig, present: Sequence[WorkerInfo], capabilities: KnownCapabilities
) -> None:
    """Refuse a run that these workers cannot execute, before any data is read.

    Raises
    ------
    ConfigError, ClusterError
        The first `problem_with` a worker.
    """
    model_host = choose_model_host(present) if config.make_strategy().shares_model else ""
    for info in present:
        problem = problem_with(info, config, present, model_host, capabilities)
        if problem is not None:
            raise problem


def problem_with(
    info: WorkerInfo,
    config: RunConfig,
    present: Sequence[WorkerInfo],
    model_host: str,
    capabilities: KnownCapabilities,
) -> DaskxmlError | None:
    """Return an error that says why a worker cannot take part in a run; None if it can.

    Parameters
    ----------
    present
        All workers of the cluster.
    model_host
        The machine of the shared model, "" if there is none.
    capabilities
        By address; unknown ones are not checked.
    """
    device, strategy = info.device, config.make_strategy()
    near = [other for other in present if other.host == info.host]
    if device.is_pool and strategy.is_joint:
        return ConfigError(
            f"[strategy] name = {config.strategy_name!r} steps all workers together and takes no "
            f"pool, which worker {info.name} at {info.address} is: start it without "
            f"--resources {POOL}, or take a strategy like adaptive-hogbatch"
        )
    if model_host and info.host != model_host and not config.cluster.push_pull:
        return ConfigError(
            f"[cluster] push_pull = false: worker {info.name} at {info.address} is not on "
            f"{model_host}, where the shared model is; start it there, or set push_pull = true"
        )
    if info.address not in capabilities:
        return None
    return _too_many_threads(info, config, near, capabilities) or _wrong_gpu(
        info, config, near, capabilities
    )


def _too_many_threads(
    info: WorkerInfo,
    config: RunConfig,
    near: Sequence[WorkerInfo],
    capabilities: KnownCapabilities,
) -> DaskxmlError | None:
    cores, name = capabilities[info.address].cores, f"worker {info.name} at {info.address}"
    pooled = sum(other.device.pool_threads for other in near)
    if info.device.is_pool and pooled > cores:
        return ClusterError(
            f"{name}: the pools of its machine have {pooled} threads, more than its {cores} cores; "
            f"start them with fewer, as --resources {POOL}=THREADS"
        )
    threads = config.cluster.threads
    stepping = [
        other for other in near
        if not other.device.is_pool and not _is_on_gpu(config, other, capabilities)
    ]  # fmt: skip
    if info in stepping and threads > 1 and threads * len(stepping) > cores:
        return ConfigError(
            f"[cluster] threads = {threads}: the {len(stepping)} workers on {info.host} would "
            f"use {threads * len(stepping)} threads on {cores} cores; set it to "
            f"{max(1, cores // len(stepping))} or less, or to 0"
        )
    return None


def _wrong_gpu(
    info: WorkerInfo,
    config: RunConfig,
    near: Sequence[WorkerInfo],
    capabilities: KnownCapabilities,
) -> DaskxmlError | None:
    if not _is_on_gpu(config, info, capabilities):
        return None
    own, name = capabilities[info.address], f"worker {info.name} at {info.address}"
    if own.gpu is None:
        return ClusterError(
            f"{name} sees no GPU, and [cluster] device = 'cuda' needs one: start it by 'dask cuda "
            "worker' where there is one, stop it, or take --device auto"
        )
    if own.gpu_problem:
        return ClusterError(f"{name} cannot use its GPU: {own.gpu_problem}; or take --device cpu")
    others = [
        other.name for other in near
        if other != info and _is_on_gpu(config, other, capabilities)
        and known(other, capabilities).gpu == own.gpu
    ]  # fmt: skip
    if others and own.gpu.is_slice:
        return ClusterError(
            f"{name}: worker {others[0]} is on the same MIG slice {own.gpu.uuid}; start each with "
            "a slice of its own, as CUDA_VISIBLE_DEVICES=MIG-..."
        )
    return None


def crowded_gpus(
    config: RunConfig, present: Sequence[WorkerInfo], capabilities: KnownCapabilities
) -> list[str]:
    """Return a warning for each GPU that several workers share."""
    sharing: dict[tuple[str, str], list[str]] = {}
    for info in present:
        gpu = known(info, capabilities).gpu
        if gpu is not None and _is_on_gpu(config, info, capabilities):
            sharing.setdefault((info.host, gpu.uuid), []).append(info.name)
    return [
        f"workers {', '.join(names)} share one GPU, {uuid} on {host}; 'dask cuda worker' starts "
        "one for each GPU"
        for (host, uuid), names in sharing.items()
        if len(names) > 1
    ]
