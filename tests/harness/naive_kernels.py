"""Naive twins of the kernels, slow and obvious: every fast kernel is tested against them.

:class:`NaiveKernels` implements the whole Protocol with plain NumPy on arrays of any float type,
so that a whole model can also run in float64, where numeric gradients can be checked.
"""

from typing import TypeVar

import numpy as np

from daskxml.core.arrays import Array
from daskxml.kernels.contract import HostMemory
from harness.naive_dense import NaiveDense
from harness.naive_labels import NaiveLabels
from harness.naive_optim import NaiveOptim
from harness.naive_sparse import NaiveSparse
from harness.naive_tree import NaiveTree

T = TypeVar("T")


class NaiveKernels(HostMemory, NaiveDense, NaiveSparse, NaiveLabels, NaiveOptim, NaiveTree):
    """Implements :class:`daskxml.kernels.Kernels` in plain NumPy.

    Parameters
    ----------
    dtype
        Used by ``empty`` and ``zeros`` for ``float32``.
    threads, block
        How the labels are split; the threads' parts are visited one after the other.

    Examples
    --------
    >>> NaiveKernels("float64").zeros(2).dtype
    dtype('float64')
    """

    name = "naive"
    team = None

    def __init__(self, dtype: str = "float32", threads: int = 1, block: int = 1 << 30) -> None:
        self.dtype, self.threads, self.block = dtype, threads, block

    def close(self) -> None:
        """Do nothing."""

    def write(self, out: Array, value: Array) -> None:
        out[...] = value

    def host_copy(self, array: Array) -> Array:
        return array

    def capture(self, work, loss):
        """Each replay does the work again."""
        return work

    def empty(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
        return np.full(shape, 77, self.dtype if dtype == "float32" else dtype)

    def zeros(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
        return np.zeros(shape, self.dtype if dtype == "float32" else dtype)

    def to_device(self, value: T) -> T:
        return value

    def to_device_async(self, value: T) -> T:
        return self.to_device(value)

    def to_host(self, value: T) -> T:
        return value
