"""What a device's memory holds, and what kernels need of it for themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSizes:
    """What the memory of a step depends on.

    Attributes
    ----------
    rows, nonzeros
        Of the batch, and its stored features.
    features, labels
        Columns of the input and of the output.
    units
        Of the widest layer beside them.
    """

    rows: int
    nonzeros: int
    features: int
    labels: int
    units: int


class MemoryKernels(Protocol):
    """The part of `daskxml.ops.Kernels` on memory, beside ``empty`` and ``zeros``."""

    @property
    def gradient_floats(self) -> int:
        """How much of a gradient is formed at a time, where it must be written out."""

    @property
    def cache_bytes(self) -> int:
        """Size of a GPU's second-level cache; 0 on a CPU, whose blocks `block_labels` chooses."""

    def free_bytes(self) -> int:
        """What can still be allocated; 0 where that is not known (a CPU's memory is shared)."""

    def scratch_bytes(self, sizes: StepSizes) -> int:
        """What `reserve` allocates for steps of these sizes."""

    def reserve(self, sizes: StepSizes) -> None:
        """Allocate what the kernels of a step need for themselves.

        Raises
        ------
        MemoryError
            If the device has no room.
        """

    def release(self) -> None:
        """Give back what was reserved, and what is held for later and not in use."""

    def send(self, value: T) -> T:
        """As ``to_device``, beside the work that is queued: call `settle` before it is read."""

    def settle(self) -> None:
        """Let the work that is queued from now on find what was sent."""


class HostMemory:
    """Implements `MemoryKernels` for kernels that need no memory of their own.

    Examples
    --------
    >>> HostMemory().free_bytes()
    0
    """

    cache_bytes = 0
    gradient_floats = 1 << 16  # stays in a core's cache, and wakes no other lane

    def free_bytes(self) -> int:
        """0: others take of it as well."""
        return 0

    def scratch_bytes(self, sizes: StepSizes) -> int:
        """0."""
        return 0

    def reserve(self, sizes: StepSizes) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""

    def settle(self) -> None:
        """Do nothing."""
