"""The workers of a cluster: what each of them has, and whether a run can use it.

`probe_workers` asks every worker for its `Capabilities`. A Dask worker with the resource
``cpu-pool=T`` is a pool of T threads that updates one model without locks; any other worker has a
replica of its own, on a GPU where it has one. Workers are on one machine if their addresses have
the same host. If all workers share one model, one machine, the model host, has it in memory.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from distributed import Client
from distributed.comm import get_address_host

from daskxml._version import __version__
from daskxml.config import RunConfig
from daskxml.core import hardware
from daskxml.core.errors import ClusterError, ConfigError, DaskxmlError
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
    gpu: hardware.Gpu | None = None
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
    gpu = next(iter(hardware.usable_gpus()), None)  # CUDA's device 0
    problem = (
        hardware.cuda_problem(hardware.driver_cuda(), hardware.installed_cupy()) if gpu else ""
    )
    cores = hardware.usable_cores()
    return Capabilities(cores=cores, gpu=gpu, gpu_problem=problem, machine=describe_machine())


def daskxml_version() -> str:
    """Return the version of daskxml in this process."""
    return __version__


async def probe_workers(client: Client) -> dict[str, Capabilities]:
    """Return the capabilities of a cluster's workers by address; workers that leave are omitted.

    Raises
    ------
    ClusterError
        If workers have no daskxml or another version; the message lists them.
    """
    # Not on their event loops: a GPU driver may take seconds.
    found = await client.run(asyncio.to_thread, probe_process, on_error="return")
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


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker of the cluster: its name, address, device, threads, and Dask's id of its process."""

    name: str
    address: str
    device: WorkerDevice = field(default_factory=WorkerDevice)
    threads: int = 1
    process: str = ""

    @property
    def host(self) -> str:
        """The machine's host name or IP address."""
        return get_address_host(self.address)


def device_of(resources: Mapping[str, float]) -> WorkerDevice:
    """Return the device of a worker with these Dask resources.

    Examples
    --------
    >>> device_of({"cpu-pool": 4.0}), device_of({"GPU": 1.0})
    (WorkerDevice(pool_threads=4, rows_per_s=0.0), WorkerDevice(pool_threads=0, rows_per_s=0.0))
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


@dataclass(frozen=True)
class RunWorkers:
    """How a run uses the workers of a cluster.

    Attributes
    ----------
    config
        The run file.
    present
        All workers of the cluster.
    capabilities
        By address, of the workers probed so far; a worker may leave before.

    Examples
    --------
    >>> from daskxml.config import load_run_config
    >>> config = load_run_config({"training": {"epochs": 1}})
    >>> pool, other = WorkerInfo("a", "tcp://h:1", WorkerDevice(3)), WorkerInfo("b", "tcp://h:2")
    >>> capabilities = dict.fromkeys(["tcp://h:1", "tcp://h:2"], Capabilities(cores=8))
    >>> workers = RunWorkers(config, [pool, other], capabilities)
    >>> workers.kernel_device(other), [workers.kernel_threads(info) for info in workers.present]
    ('cpu', [3, 5])
    """

    config: RunConfig
    present: Sequence[WorkerInfo]
    capabilities: Mapping[str, Capabilities]

    def known(self, info: WorkerInfo) -> Capabilities:
        """Return the capabilities of a worker."""
        return self.capabilities.get(info.address, Capabilities())

    def near(self, info: WorkerInfo) -> list[WorkerInfo]:
        """Return the workers on the machine of one."""
        return [other for other in self.present if other.host == info.host]

    def kernel_device(self, info: WorkerInfo) -> Literal["cpu", "cuda"]:
        """Return where a worker's kernels run: pools and some run files require the CPU."""
        if info.device.is_pool:
            return "cpu"
        if self.config.cluster.device == "auto":
            can = self.known(info).has_gpu and not self.config.needs_cpu
            return "cuda" if can else "cpu"
        return self.config.cluster.device

    def is_on_gpu(self, info: WorkerInfo) -> bool:
        """Whether a worker's kernels run on a GPU."""
        return self.kernel_device(info) == "cuda"

    def kernel_threads(self, info: WorkerInfo) -> int:
        """Return the threads of a worker's kernels; the workers of a machine share its cores.

        A worker on a GPU takes one core.
        """
        if info.device.is_pool:
            return info.device.pool_threads
        if self.is_on_gpu(info):
            return 1
        near = self.near(info)
        on_gpus, pools = sum(map(self.is_on_gpu, near)), sum(o.device.is_pool for o in near)
        taken = on_gpus + sum(other.device.pool_threads for other in near)
        left = max(1, self.known(info).cores - taken)
        return self.config.cluster.threads_on(left, len(near) - on_gpus - pools)

    def check(self) -> None:
        """Refuse a run that these workers cannot execute, before any data is read.

        Raises
        ------
        ConfigError, ClusterError
            The first `problem` of a worker.
        """
        shares_model = self.config.make_strategy().shares_model
        model_host = choose_model_host(self.present) if shares_model else ""
        for info in self.present:
            problem = self.problem(info, model_host)
            if problem is not None:
                raise problem

    def problem(self, info: WorkerInfo, model_host: str) -> DaskxmlError | None:
        """Return an error that says why a worker cannot take part in a run; None if it can.

        ``model_host`` is the machine of the shared model, "" if there is none. What is not known of
        a worker is not checked.
        """
        if info.device.is_pool and self.config.make_strategy().is_joint:
            return ConfigError(
                f"[strategy] name = {self.config.strategy_name!r} steps all workers together and "
                f"takes no pool, which worker {info.name} at {info.address} is: start it without "
                f"--resources {POOL}, or take a strategy like adaptive-hogbatch"
            )
        if model_host and info.host != model_host:
            return ConfigError(
                f"[strategy] name = {self.config.strategy_name!r} has one model, in the memory of "
                f"{model_host}, and worker {info.name} at {info.address} is on another machine: "
                "start it there, stop it, or take a strategy like adaptive-sgd"
            )
        if info.address not in self.capabilities:
            return None
        return self._too_many_threads(info) or self._wrong_gpu(info)

    def _too_many_threads(self, info: WorkerInfo) -> DaskxmlError | None:
        cores, near = self.known(info).cores, self.near(info)
        pooled = sum(other.device.pool_threads for other in near)
        if info.device.is_pool and pooled > cores:
            return ClusterError(
                f"worker {info.name} at {info.address}: the pools of its machine have {pooled} "
                f"threads, more than its {cores} cores; start them with fewer, as "
                f"--resources {POOL}=THREADS"
            )
        threads = self.config.cluster.threads
        stepping = [o for o in near if not (o.device.is_pool or self.is_on_gpu(o))]
        if info in stepping and threads > 1 and threads * len(stepping) > cores:
            return ConfigError(
                f"[cluster] threads = {threads}: the {len(stepping)} workers on {info.host} would "
                f"use {threads * len(stepping)} threads on {cores} cores; set it to "
                f"{max(1, cores // len(stepping))} or less, or to 0"
            )
        return None

    def _wrong_gpu(self, info: WorkerInfo) -> DaskxmlError | None:
        if not self.is_on_gpu(info):
            return None
        own, name = self.known(info), f"worker {info.name} at {info.address}"
        if own.gpu is None:
            return ClusterError(
                f"{name} sees no GPU, and [cluster] device = 'cuda' needs one: start it by 'dask "
                "cuda worker' where there is one, stop it, or take --device auto"
            )
        if own.gpu_problem:
            problem = f"{name} cannot use its GPU: {own.gpu_problem}; or take --device cpu"
            return ClusterError(problem)
        near = [other for other in self.near(info) if other != info and self.is_on_gpu(other)]
        others = [other.name for other in near if self.known(other).gpu == own.gpu]
        if others and own.gpu.is_slice:
            return ClusterError(
                f"{name}: worker {others[0]} is on the same MIG slice {own.gpu.uuid}; start "
                "each with a slice of its own, as CUDA_VISIBLE_DEVICES=MIG-..."
            )
        return None

    def crowded_gpus(self) -> list[str]:
        """Return a warning for each GPU that several workers share."""
        sharing: dict[tuple[str, str], list[str]] = {}
        for info in filter(self.is_on_gpu, self.present):
            if gpu := self.known(info).gpu:
                sharing.setdefault((info.host, gpu.uuid), []).append(info.name)
        return [
            f"workers {', '.join(names)} share one GPU, {uuid} on {host}; 'dask cuda worker' "
            "starts one for each GPU"
            for (host, uuid), names in sharing.items()
            if len(names) > 1
        ]
