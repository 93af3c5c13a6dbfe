"""What a device must be able to do: the one interface between the model and its arrays.

Symbols: ``rows`` of the batch (B), ``features`` (F), hidden ``units`` (H), a ``block`` of labels
(Lb). A block of logits is *label-major*, ``(block, rows)``: one contiguous row per label. Arrays
marked "in place" are overwritten. All floats are float32 unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, SupportsFloat, TypeVar

from daskxml.ops.fused_protocol import FusedKernels
from daskxml.ops.label_protocol import LabelKernels
from daskxml.ops.memory_protocol import MemoryKernels
from daskxml.ops.optim_protocol import OptimKernels
from daskxml.ops.row_protocol import RowKernels
from daskxml.ops.row_sets_protocol import RowSetKernels
from daskxml.ops.sampling_protocol import SamplingKernels
from daskxml.types import Array, Csr

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Which entries dropout zeroes: a hash of their place in the batch, the same on any device.

    Entry ``(row, column)`` is kept when the upper half of number ``(first_row + row) * columns +
    column`` of SplitMix64's stream ``key`` is at least ``rate * 2**32``; kept values are divided
    by ``1 - rate``.

    Attributes
    ----------
    rate
        Share that is dropped, in [0, 1); 0 keeps everything.
    key
        64 bits: the stream.
    first_row
        The place in the batch of the array's first row (a segment's offset).

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
        """What kept values are multiplied by."""
        return 1.0 / (1.0 - self.rate)


KEEP_ALL = Drop()


class Kernels(
    MemoryKernels, LabelKernels, FusedKernels, OptimKernels, RowKernels, SamplingKernels,
    RowSetKernels, Protocol,
):  # fmt: skip
    """The kernels of one device, with a fixed number of *lanes* that work side by side.

    The same inputs and the same number of lanes give the same bits. Methods that return a number
    wait for the device; the others need not.
    """

    @property
    def name(self) -> str:
        """``cpu`` or ``cuda``."""

    @property
    def lanes(self) -> int:
        """How many label ranges are walked at the same time: threads of a CPU, 1 on a GPU."""

    def close(self) -> None:
        """Give back threads; the kernels may not be used after."""

    # -- arrays ---------------------------------------------------------------------------------

    def empty(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
        """A new array, aligned to 64 bytes; its contents are arbitrary."""

    def zeros(self, shape: int | tuple[int, ...], dtype: str = "float32") -> Array:
        """A new array of zeros, aligned to 64 bytes."""

    def to_device(self, value: T) -> T:
        """An array, ``Csr``, ``Partition`` or ``Segment`` where the kernels can read it.

        Returns the very same object where it is there already.
        """

    def to_host(self, value: T) -> T:
        """The same as NumPy arrays; no copy where they are that already."""

    # -- flat vectors: what merging needs ---------------------------------------------------------

    def copy(self, out: Array, x: Array) -> None:
        """``out = x``, both ``(n,)``, in place."""

    def fill(self, out: Array, value: float) -> None:
        """``out = value`` everywhere, any shape and dtype, in place."""

    def sum64(self, x: Array) -> float:
        """The sum of ``(n,)`` float64, formed in the same order each time."""

    def late_sum(self, *terms: tuple[Array, float]) -> SupportsFloat:
        """The sum over terms of ``factor * sum64(x)``; only who makes a float of it waits."""

    def scale(self, out: Array, x: Array, factor: float) -> None:
        """``out = factor * x``, in place."""

    def add_scaled(self, out: Array, x: Array, factor: float) -> None:
        """``out += factor * x``, in place."""

    def momentum(self, out: Array, current: Array, previous: Array, gamma: float) -> None:
        """``out += gamma * (current - previous)``, in place."""

    def add_two(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        """``out += a * x + b * y``, in place."""

    def weigh_two(self, out: Array, x: Array, a: float, y: Array, b: float) -> None:
        """``out = a * x + b * y``, in place; ``out`` may be ``x`` or ``y``."""

    def dots(self, x: Array, y: Array) -> tuple[float, float, float]:
        """``(x . y, x . x, y . y)`` of ``(n,)`` in float64; the same bits for any lanes."""

    def largest(self, x: Array) -> float:
        """The largest magnitude in ``(n,)``; 0 for none, NaN or infinity where there is one."""

    def convert(self, out: Array, x: Array, factor: float) -> None:
        """``out = factor * x``, in place, between float32 and float16, or bfloat16 as uint16."""

    def squared_norm(self, x: Array) -> float:
        """Sum of squares of ``(n,)`` in float64; the same bits for any number of lanes."""

    def all_finite(self, x: Array) -> bool:
        """Whether ``(n,)`` holds neither NaN nor infinity."""

    # -- sparse rows ------------------------------------------------------------------------------

    def nonzeros(self, x: Csr, rows: Array) -> int:
        """Stored entries of ``rows`` ``(count,)`` int64."""

    def row_lengths(self, out: Array, x: Csr, rows: Array) -> None:
        """``out[i]`` (float32) = stored entries of ``rows[i]``."""

    def sparse_forward(
        self, out: Array, x: Csr, rows: Array, weight: Array, bias: Array, drop: Drop = KEEP_ALL
    ) -> None:
        """``out (count, units) = x[rows] @ weight (features, units) + bias``, in place."""

    def sparse_update(
        self, weight: Array, x: Csr, rows: Array, delta: Array, factor: float,
        drop: Drop = KEEP_ALL,
    ) -> None:  # fmt: skip
        """``weight += factor * x[rows].T @ delta``; touches the features of ``rows`` only."""

    def feature_entries(
        self, out: tuple[Array, Array, Array], x: Csr, rows: Array, place: int, drop: Drop
    ) -> int:
        """Write the entries of ``x[rows]`` that dropout keeps as column, row, value; their number.

        Row ``rows[i]`` is called ``place + i``; ``out`` are int32, int32, float32, long enough.
        """

    def densify(self, out: Array, x: Csr, rows: Array, drop: Drop = KEEP_ALL) -> None:
        """``out (count, features) = x[rows]``, in place."""

    # -- dense layers -----------------------------------------------------------------------------

    def gemm(self, out: Array, a: Array, b: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
        """``out = alpha * a @ b + beta * out``, in place; transposed views cost nothing.

        On a GPU both operands may be bfloat16 (uint16), with ``out`` float32, or float16, with
        ``out`` either. Sums are float32 there.
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
        """``delta *= activation'``, in place, from the layer's output.

        ``keep`` (1 - dropout rate) undoes the scaling of outputs that dropout kept; ``delta`` of
        the others must be zero already.
        """

    def dropout(self, x: Array, drop: Drop) -> None:
        """Zero or scale the entries of ``(rows, units)``, in place (outputs and deltas alike)."""
