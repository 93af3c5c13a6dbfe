"""Where arrays live: allocating them, moving them to a device and back, and a device's memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from daskxml.core.arrays import Array, Csr, Partition, Segment

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSizes:
    """What the memory of a training step depends on.

    Attributes
    ----------
    rows, nonzeros
        Rows of the batch, and their stored features.
    features, labels
        Columns of the input and of the output.
    units
        Width of the widest hidden layer.
    """

    rows: int
    nonzeros: int
    features: int
    labels: int
    units: int


class MemoryKernels(Protocol):
    """The part of `daskxml.kernels.Kernels` on arrays as a whole, and on memory."""

    def empty(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
        """A new array, aligned to 64 bytes; its contents are arbitrary."""

    def zeros(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
        """A new array of zeros, aligned to 64 bytes."""

    def to_device(self, value: T) -> T:
        """Move an array, ``Csr``, ``Partition`` or ``Segment`` to where the kernels can read it.

        Returns the very same object if it is there already.
        """

    def to_device_async(self, value: T) -> T:
        """As ``to_device``, concurrently with queued work: call `await_uploads` before using it."""

    def await_uploads(self) -> None:
        """Make work that is queued from now on wait for asynchronous uploads."""

    def time_range(self, name: str) -> AbstractContextManager[None]:
        """A range of this name in what a GPU's profiler records (NVTX); on a CPU, nothing."""

    def to_host(self, value: T) -> T:
        """The same as NumPy arrays; without a copy where they already are."""

    @property
    def gradient_floats(self) -> int:
        """How many floats of a gradient to form at a time, where it must be materialized."""

    @property
    def cache_bytes(self) -> int:
        """Size of a GPU's L2 cache; 0 on a CPU, where `block_labels` chooses the blocks."""

    def free_bytes(self) -> int:
        """How much can still be allocated; 0 if unknown (a CPU's memory is shared)."""

    def scratch_bytes(self, sizes: StepSizes) -> int:
        """How much `reserve` allocates for steps of these sizes."""

    def reserve(self, sizes: StepSizes) -> None:
        """Allocate the temporary arrays of the kernels of a step.

        Raises
        ------
        MemoryError
            If the device does not have enough memory.
        """

    def release(self) -> None:
        """Free reserved memory and cached memory that is not in use."""


class HostMemory:
    """The part of `MemoryKernels` on device memory, for kernels that need none.

    Examples
    --------
    >>> HostMemory().free_bytes()
    0
    """

    cache_bytes = 0
    gradient_floats = 1 << 16  # stays in a core's cache, and is too little to wake a second thread

    def free_bytes(self) -> int:
        """0: unknown."""
        return 0

    def scratch_bytes(self, sizes: StepSizes) -> int:
        """0."""
        return 0

    def reserve(self, sizes: StepSizes) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""

    def await_uploads(self) -> None:
        """Do nothing."""

    def time_range(self, name: str) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()


def relocate(value: T, move: Callable[[Array], Array]) -> T:
    """Apply ``move`` to every array of an array, ``Csr``, ``Partition`` or ``Segment``.

    Returns the very same object if ``move`` changed nothing.

    Examples
    --------
    >>> import numpy as np
    >>> x = Csr(np.array([0, 1]), np.array([2], np.int32), None, 3)
    >>> relocate(x, np.asarray) is x
    True
    """
    moved: object
    if isinstance(value, Csr):
        indptr, indices = move(value.indptr), move(value.indices)
        data = None if value.data is None else move(value.data)
        is_same = indptr is value.indptr and indices is value.indices and data is value.data
        moved = value if is_same else Csr(indptr, indices, data, value.columns)
    elif isinstance(value, Partition):
        features, labels = relocate(value.features, move), relocate(value.labels, move)
        weights = None if value.weights is None else move(value.weights)
        is_same = features is value.features and labels is value.labels
        is_same = is_same and weights is value.weights
        moved = value if is_same else Partition(features, labels, weights)
    elif isinstance(value, Segment):
        partition, rows = relocate(value.partition, move), move(value.rows)
        is_same = partition is value.partition and rows is value.rows
        moved = value if is_same else Segment(partition, rows)
    else:
        moved = move(value)
    return cast(T, moved)
