# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The kernels on a CPU: BLAS products and Numba loops over NumPy arrays, shared among threads."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from daskxml.core.arrays import Array
from daskxml.kernels.contract import HostMemory
from daskxml.kernels.cpu.dense import CpuDense
from daskxml.kernels.cpu.labels import CpuLabels
from daskxml.kernels.cpu.optim import CpuOptim
from daskxml.kernels.cpu.sparse import CpuSparse
from daskxml.kernels.cpu.thread_team import ThreadTeam
from daskxml.kernels.cpu.tree import CpuTree
from daskxml.kernels.operands import relocate

T = TypeVar("T")


class CpuKernels(HostMemory, CpuDense, CpuSparse, CpuLabels, CpuOptim, CpuTree):
    """Implements :class:`daskxml.kernels.Kernels` for host memory.

    Parameters
    ----------
    threads
        At least 1. BLAS itself runs on one thread in each (see ``daskxml.kernels.cpu.gemm``).

    Attributes
    ----------
    team
        These threads, for the functions of `daskxml.kernels.cpu` that only a CPU has.

    Examples
    --------
    >>> kernels = CpuKernels(threads=1)
    >>> x = kernels.zeros(3)
    >>> kernels.add_scaled(x, np.ones(3, np.float32), 2.0)
    >>> x
    array([2., 2., 2.], dtype=float32)
    """

    name = "cpu"

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.team = self._team = ThreadTeam(threads)

    def close(self) -> None:
        self._team.close()

    def empty(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
        kind = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        raw = np.empty(nbytes + 64, np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + nbytes].view(kind).reshape(shape)

    def zeros(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
        out = self.empty(shape, dtype)
        out[...] = 0
        return out

    def to_device(self, value: T) -> T:
        return relocate(value, np.ascontiguousarray)

    def to_device_async(self, value: T) -> T:
        return self.to_device(value)

    def to_host(self, value: T) -> T:
        return relocate(value, np.asarray)
