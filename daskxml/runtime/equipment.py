"""What a worker brings along, as it says itself: its daskxml, its cores, its GPU.

`look` is called on workers, `daskxml_version` on the scheduler. Where they cannot be called daskxml
is missing, or so different that it might as well be.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from distributed import Client
from distributed.utils import offload

from daskxml._version import __version__
from daskxml.errors import ClusterError
from daskxml.gpus import Gpu, cuda_problem, driver_cuda, installed_cupy, my_gpus
from daskxml.training.environment import describe_machine


@dataclass(frozen=True, kw_only=True, slots=True)
class Equipment:
    """What one process has.

    Attributes
    ----------
    version
        Of its daskxml.
    cores
        That it may use.
    gpu
        The one that its kernels would be on; None where it sees none.
    gpu_problem
        Why they cannot be there, and what to do; "" if they can.
    machine
        See `daskxml.training.environment.describe_machine`.
    """

    version: str = __version__
    cores: int = 1
    gpu: Gpu | None = None
    gpu_problem: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_gpu(self) -> bool:
        """Whether kernels can be on a GPU."""
        return self.gpu is not None and not self.gpu_problem

    def as_record(self) -> dict[str, Any]:
        """Return what a run's record says of it, as plain values.

        Examples
        --------
        >>> Equipment(cores=2, machine={"cpu": "EPYC"}).as_record()
        {'cpu': 'EPYC', 'cores': 2}
        """
        found = {**self.machine, "cores": self.cores}
        if self.gpu is not None:
            found |= {"gpu": self.gpu.name, "driver": self.gpu.driver}
        return found


def equipment() -> Equipment:
    """Return what this process has.

    Examples
    --------
    >>> equipment().cores >= 1
    True
    """
    gpu = next(iter(my_gpus()), None)  # CUDA's device 0
    problem = cuda_problem(driver_cuda(), installed_cupy()) if gpu else ""
    cores = len(os.sched_getaffinity(0))
    return Equipment(cores=cores, gpu=gpu, gpu_problem=problem, machine=describe_machine())


def daskxml_version() -> str:
    """Return the version of daskxml in this process."""
    return __version__


async def look() -> Equipment:
    """Return what this process has, off its event loop: a driver may take seconds to answer."""
    found: Equipment = await offload(equipment)
    return found


async def look_at_all(client: Client) -> dict[str, Equipment]:
    """Return what every worker of a cluster has, by address; those that go away are left out.

    Raises
    ------
    ClusterError
        With the list of the workers that have no daskxml, or another version.
    """
    found = await client.run(look, on_error="return")
    problem = unfit_workers({at: it for at, it in found.items() if not isinstance(it, OSError)})
    if problem:
        raise ClusterError(problem)
    return {at: it for at, it in found.items() if isinstance(it, Equipment)}


def unfit_workers(found: Mapping[str, object]) -> str:
    """Say which workers do not have this version of daskxml, and what to do; "" if all have it.

    Parameters
    ----------
    found
        By address: an `Equipment`, or the exception that came in its place.

    Examples
    --------
    >>> unfit_workers({"tcp://h:1": Equipment()})
    ''
    >>> missing = ModuleNotFoundError("No module named 'daskxml'", name="daskxml")
    >>> unfit_workers({"tcp://h:1": missing})[:53]
    'workers that cannot take part: tcp://h:1 (no daskxml)'
    """
    unfit = {at: version for at, it in found.items() if (version := _unfit_version(it))}
    if not unfit:
        return ""
    listed = ", ".join(f"{at} ({version})" for at, version in sorted(unfit.items()))
    return (
        f"workers that cannot take part: {listed}; the scheduler has daskxml {__version__}: "
        "install that in their environment too and start them again, or stop them"
    )


def _unfit_version(found: object) -> str:
    if isinstance(found, Equipment):
        return "" if found.version == __version__ else f"daskxml {found.version}"
    return explain_import(found)


def explain_import(error: object) -> str:
    """Say what a process has that cannot load what it was sent.

    Dask gives the errors of a scheduler as they are, those of workers as text in an `Exception`.

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
