"""Buffers of one training step, allocated once, and the batch as the layers see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from daskxml.ops import Drop, Kernels, RowSums
from daskxml.types import Array, Csr, Segment

_MASK = (1 << 64) - 1


class Updates(Protocol):
    """What a step does with its gradients, in the form in which they arise.

    An optimizer applies them to the parameters at once; something else may collect them. Calls
    for different ``rows`` of one parameter may come from different threads at the same time.
    """

    def dense(self, name: str, grad: Array, lr: float, rows: slice = slice(None)) -> None:
        """``grad`` has the shape of ``parameter[rows]``."""

    def product(
        self, name: str, rows: slice, left: Array, right: Array, lr: float, scale: float = 1.0
    ) -> None:
        """The gradient of ``parameter[rows]`` is ``scale * left.T @ right``."""

    def chosen(self, name: str, ids: Array, grad: Array, lr: float) -> None:
        """``grad`` has the shape of ``parameter[ids]``, each id once; other rows have none."""

    def chosen_product(self, name: str, ids: Array, left: Array, right: Array, lr: float) -> None:
        """The gradient of ``parameter[ids]`` is ``left.T @ right``; other rows have none."""

    def chosen_sums(self, name: str, sums: RowSums, x: Array, lr: float) -> None:
        """The gradient of ``parameter[sums.ids]`` is the sums of rows of x; others have none."""

    def sparse_product(
        self, name: str, x: Csr, rows: Array, delta: Array, lr: float, drop: Drop
    ) -> None:
        """The gradient is ``x[rows].T @ delta``, zero for features that are not in use.

        Called once for each segment of the batch: the step's gradient is the sum of all.
        """


@dataclass(frozen=True, slots=True)
class Placed:
    """A segment and the place of its first row in the batch."""

    segment: Segment
    first_row: int

    @property
    def span(self) -> slice:
        """Its rows in the batch's arrays."""
        return slice(self.first_row, self.first_row + int(self.segment.rows.shape[0]))


def placed(batch: Sequence[Segment]) -> Iterator[Placed]:
    """The segments of a batch, each with its offset.

    Examples
    --------
    >>> list(placed([]))
    []
    """
    first_row = 0
    for segment in batch:
        yield Placed(segment, first_row)
        first_row += int(segment.rows.shape[0])


def batch_rows(batch: Sequence[Segment]) -> int:
    """Rows of a batch.

    Examples
    --------
    >>> batch_rows([])
    0
    """
    return sum(int(segment.rows.shape[0]) for segment in batch)


def in_batches(segments: Sequence[Segment], most: int) -> Iterator[list[Segment]]:
    """The same rows in order, in batches of exactly ``most`` rows but the last.

    Examples
    --------
    >>> list(in_batches([], 3))
    []
    """
    batch: list[Segment] = []
    room = most
    for segment in segments:
        rows = segment.rows
        while rows.shape[0] > 0:
            batch.append(Segment(segment.partition, rows[:room]))
            room -= int(batch[-1].rows.shape[0])
            rows = rows[int(batch[-1].rows.shape[0]) :]
            if room == 0:
                yield batch
                batch, room = [], most
    if batch:
        yield batch


def stream_key(key: int, stream: int) -> int:
    """A 64-bit key for one use of randomness within a step (SplitMix64's output function).

    Examples
    --------
    >>> stream_key(1, 0) != stream_key(1, 1)
    True
    """
    z = (key + (stream + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


class Buffers:
    """Named arrays of the kernels that are handed out again and again.

    Examples
    --------
    >>> from daskxml.ops import get_kernels
    >>> buffers = Buffers(get_kernels("cpu", 1))
    >>> buffers.reserve("hidden", 6)
    >>> buffers.matrix("hidden", 2, 3).shape, buffers.nbytes
    ((2, 3), 24)
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._arrays: dict[str, Array] = {}

    def reserve(self, name: str, size: int, dtype: str = "float32") -> None:
        """Make sure that ``name`` holds ``size`` values; what it held is lost if it grows."""
        held = self._arrays.get(name)
        if held is None or held.shape[0] < size:
            self._arrays.pop(name, None)  # free the old one before the new one is made
            self._arrays[name] = self._kernels.zeros(max(1, size), dtype)

    def vector(self, name: str, size: int) -> Array:
        """The first ``size`` values."""
        return self._arrays[name][:size]

    def matrix(self, name: str, rows: int, columns: int) -> Array:
        """The first ``rows * columns`` values as a contiguous matrix."""
        return self._arrays[name][: rows * columns].reshape(rows, columns)

    def cube(
        self, name: str, planes: int, rows: int, columns: int, dtype: str | None = None
    ) -> Array:
        """The first values as ``(planes, rows, columns)``, contiguous; of a ``dtype`` if given."""
        held = self._arrays[name] if dtype is None else self._arrays[name].view(dtype)
        return held[: planes * rows * columns].reshape(planes, rows, columns)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(array.nbytes) for array in self._arrays.values())
