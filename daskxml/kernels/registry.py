"""All kernels of a device behind one Protocol, and which devices there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from daskxml.core.errors import ConfigError
from daskxml.kernels.dense import DenseKernels
from daskxml.kernels.fused import FusedKernels
from daskxml.kernels.labels import LabelKernels
from daskxml.kernels.memory import MemoryKernels
from daskxml.kernels.optim import OptimKernels
from daskxml.kernels.sparse import SparseKernels
from daskxml.kernels.tree import TreeKernels


class Kernels(
    MemoryKernels, DenseKernels, SparseKernels, LabelKernels, OptimKernels, TreeKernels,
    FusedKernels, Protocol,
):  # fmt: skip
    """The kernels of one device, with a fixed number of threads.

    The same inputs and the same number of threads give the same bits. Methods that return a number
    synchronize with the device; the others need not. What only a CPU has is not here: samples of
    labels, weights of rows and labels, steps with one row and their ranking are functions of
    `daskxml.kernels.cpu`, and the run file refuses them on a GPU.
    """

    @property
    def name(self) -> str:
        """``cpu`` or ``cuda``."""

    @property
    def threads(self) -> int:
        """How many label ranges are worked on at the same time: threads of a CPU, 1 on a GPU."""

    def close(self) -> None:
        """Stop the threads; the kernels may not be used afterwards."""


def _on_cpu(threads: int, exact: bool) -> Kernels:
    from daskxml.kernels.cpu.kernels import CpuKernels  # imports Numba, which a GPU does not need

    return CpuKernels(threads)


def _on_gpu(threads: int, exact: bool) -> Kernels:
    from daskxml.kernels.cuda.cupy_device import open_gpu  # CuPy need not be installed

    return open_gpu(exact)


KERNELS: dict[str, Callable[[int, bool], Kernels]] = {"cpu": _on_cpu, "cuda": _on_gpu}


def get_kernels(name: str, threads: int, exact: bool = False) -> Kernels:
    """The kernels of a device.

    Parameters
    ----------
    name
        ``cpu`` or ``cuda``.
    threads
        Threads on a CPU, at least 1; ignored on a GPU.
    exact
        Whether a GPU multiplies matrices in float32 instead of TF32; a CPU always does.

    Raises
    ------
    ConfigError
        If the device is unknown or not available, or threads is below 1.

    Examples
    --------
    >>> get_kernels("cpu", 2).threads
    2
    """
    if name not in KERNELS:
        raise ConfigError(f"device {name!r} is unknown: use one of {', '.join(KERNELS)}")
    if threads < 1:
        raise ConfigError(f"threads = {threads}: must be at least 1")
    return KERNELS[name](threads, exact)
