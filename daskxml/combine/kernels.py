"""What combining needs from the kernels, element by element and on flat arrays."""

from __future__ import annotations

from typing import Protocol

from daskxml.combine.weighted import MergeKernels
from daskxml.types import Array


class CombineKernels(MergeKernels, Protocol):
    """The part of `daskxml.ops.Kernels` that collectives use; any array type, ``(size,)`` float32.

    As for merging, an element's result must not depend on where in the array it lies.
    """

    def empty(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
        """Return a new array with arbitrary contents."""

    def copy(self, out: Array, x: Array) -> None:
        """Write ``x`` into ``out``, both of any one dtype."""

    def fill(self, out: Array, value: float) -> None:
        """Write a number into every element of ``out``, of any dtype."""

    def add_two(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        """Add ``a * x + b * y`` to ``out``."""

    def weigh_two(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        """Write ``a * x + b * y`` into ``out``, which may be ``x`` or ``y``."""

    def dots(self, x: Array, y: Array) -> tuple[float, float, float]:
        """Return ``x . y``, ``x . x`` and ``y . y`` in float64."""

    def largest(self, x: Array) -> float:
        """Return the largest magnitude; 0 for none, NaN or infinity where there is one."""

    def convert(self, out: Array, x: Array, factor: float) -> None:
        """Write ``factor * x`` into ``out``, one of which is float16, or bfloat16 as uint16."""


def work_array(work: Array | None, size: int, kernels: CombineKernels) -> Array:
    """Return an array of ``size`` elements: the start of ``work`` if it is long enough.

    Examples
    --------
    >>> from daskxml.ops.naive import NaiveKernels
    >>> work_array(None, 3, NaiveKernels()).shape
    (3,)
    """
    if work is None or work.shape[0] < size:
        work = kernels.empty(size)
    return work[:size]
