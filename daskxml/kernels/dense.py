"""The contract of kernels on dense arrays: flat vectors, and layers of ``(rows, units)``.

Symbols of all families: ``rows`` of the batch, ``features``, hidden ``units``, a ``block`` of
labels. Arrays marked "in place" are overwritten. All floats are float32 unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, SupportsFloat

from daskxml.core.arrays import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Which entries dropout zeroes: a hash of their position in the batch, equal on any device.

    Entry ``(row, column)`` is kept if the upper half of number ``(first_row + row) * columns +
    column`` of SplitMix64's stream ``key`` is at least ``rate * 2**32``; kept values are divided
    by ``1 - rate``.

    Attributes
    ----------
    rate
        Share that is dropped, in [0, 1); 0 keeps everything.
    key
        64 bits: the stream.
    first_row
        Position in the batch of the array's first row (a segment's offset).

    Examples
    --------
    >>> Drop(rate=0.5, key=7).scale
    2.0
    """

    rate: float = 0.0
    key: int = 0
    first_row: int = 0

    @property
    def limit(self) -> int:
        """The rate as a 32-bit threshold."""
        return int(self.rate * 2.0**32)

    @property
    def scale(self) -> float:
        """The factor of kept values."""
        return 1.0 / (1.0 - self.rate)


KEEP_ALL = Drop()


class DenseKernels(Protocol):
    """The part of `daskxml.kernels.Kernels` on dense arrays."""

    # -- flat vectors: the arithmetic of merging ---------------------------------------------------

    def copy(self, out: Array, x: Array) -> None:
        """``out = x``, both ``(n,)``, in place."""

    def fill(self, out: Array, value: float) -> None:
        """``out = value`` everywhere, any shape and dtype, in place."""

    def sum64(self, x: Array) -> float:
        """The sum of ``(n,)`` float64, always formed in the same order."""

    def deferred_sum(self, *terms: tuple[Array, float]) -> SupportsFloat:
        """The sum over terms of ``factor * sum64(x)``; converting it to float synchronizes."""

    def scale(self, out: Array, x: Array, factor: float) -> None:
        """``out = factor * x``, in place."""

    def add_scaled(self, out: Array, x: Array, factor: float) -> None:
        """``out += factor * x``, in place."""

    def momentum(self, out: Array, current: Array, previous: Array, gamma: float) -> None:
        """``out += gamma * (current - previous)``, in place."""

    def add_two(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        """``out += a * x + b * y``, in place."""

    def axpby(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        """``out = a * x + b * y``, in place; ``out`` may be ``x`` or ``y``."""

    def dots(self, x: Array, y: Array) -> tuple[float, float, float]:
        """``(x . y, x . x, y . y)`` of ``(n,)`` in float64; equal bits for any threads."""

    def largest(self, x: Array) -> float:
        """The largest magnitude in ``(n,)``; 0 if empty, NaN or infinity if there is one."""

    def convert(self, out: Array, x: Array, factor: float) -> None:
        """``out = factor * x``, in place, between float32 and float16, or bfloat16 as uint16."""

    def squared_norm(self, x: Array) -> float:
        """Sum of squares of ``(n,)`` in float64; equal bits for any number of threads."""

    def all_finite(self, x: Array) -> bool:
        """Whether ``(n,)`` holds neither NaN nor infinity."""

    # -- dense layers ------------------------------------------------------------------------------

    def gemm(self, out: Array, a: Array, b: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
        """``out = alpha * a @ b + beta * out``, in place; transposed views cost nothing.

        On a GPU both operands may be float16, with ``out`` float16 or float32; sums are float32.
        """

    def fill_rows(self, out: Array, row: Array) -> None:
        """``out[i] = row`` for every row, in place."""

    def column_sums(self, out: Array, x: Array) -> None:
        """``out[j] = sum of x[:, j]``, in place."""

    def activate(self, x: Array, activation: str) -> None:
        """``relu`` or ``sigmoid`` of ``(rows, units)``, in place."""

    def activation_gradient(
        self, delta: Array, active: Array, activation: str, keep: float = 1.0
    ) -> None:
        """``delta *= activation'``, in place, computed from the layer's output.

        ``keep`` (1 - dropout rate) undoes the scaling of outputs that dropout kept; ``delta`` of
        dropped outputs must be zero already.
        """

    def dropout(self, x: Array, drop: Drop) -> None:
        """Zero or scale the entries of ``(rows, units)``, in place (outputs and deltas alike)."""
