"""A batch as the layers read it, and reused buffers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from daskxml.core.arrays import Array, Csr, Segment
from daskxml.kernels import Kernels
from daskxml.kernels.operands import DeviceKey

_MASK = (1 << 64) - 1
_MOST_VIEWS = 4096


@dataclass(frozen=True, slots=True)
class BatchSegment:
    """A segment's features and labels, its rows in them, and its first row's place in the batch.

    ``weights`` are those of all rows of its partition, if they have any.
    """

    x: Csr
    y: Csr
    rows: Array
    first_row: int
    weights: Array | None = None

    @property
    def span(self) -> slice:
        """The segment's rows in the arrays of the batch."""
        return slice(self.first_row, self.first_row + int(self.rows.shape[0]))


def with_offsets(batch: Sequence[Segment]) -> Iterator[BatchSegment]:
    """Yield the segments of a batch, each with its offset.

    Examples
    --------
    >>> list(with_offsets([]))
    []
    """
    first_row = 0
    for segment in batch:
        partition, rows = segment.partition, segment.rows
        matrices = partition.features, partition.labels
        yield BatchSegment(*matrices, rows, first_row, partition.weights)
        first_row += int(rows.shape[0])


def has_weights(batch: Sequence[BatchSegment]) -> bool:
    """Return whether rows of a batch have weights."""
    return any(piece.weights is not None for piece in batch)


def batch_rows(batch: Sequence[Segment]) -> int:
    """Return the number of rows of a batch.

    Examples
    --------
    >>> batch_rows([])
    0
    """
    return sum(int(segment.rows.shape[0]) for segment in batch)


def in_batches(segments: Sequence[Segment], most: int) -> Iterator[list[Segment]]:
    """Yield the same rows in order, in batches of exactly ``most`` rows but the last.

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
    """Return a 64-bit key for one random stream of a step (SplitMix64's output function).

    Examples
    --------
    >>> stream_key(1, 0) != stream_key(1, 1)
    True
    """
    if isinstance(key, DeviceKey):
        return key.of_stream(stream)
    z = (key + (stream + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


class Buffers:
    """Named arrays of a device that every step reuses.

    Examples
    --------
    >>> from daskxml.kernels import get_kernels
    >>> buffers = Buffers(get_kernels("cpu", 1))
    >>> buffers.reserve("hidden", 6)
    >>> buffers.array("hidden", 2, 3).shape, buffers.nbytes
    ((2, 3), 24)
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._arrays: dict[str, Array] = {}
        self._views: dict[tuple[object, ...], Array] = {}  # made once: a view of CuPy takes 3 us

    def reserve(self, name: str, size: int, dtype: str = "float32") -> None:
        """Allocate ``size`` values for ``name`` unless it has them; growing discards its values."""
        held = self._arrays.get(name)
        if held is None or held.shape[0] < size:
            self._views.clear()
            self._arrays.pop(name, None)  # free the old one before the new one is allocated
            self._arrays[name] = self._kernels.zeros(max(1, size), dtype)

    def array(self, name: str, *shape: int, dtype: str | None = None) -> Array:
        """Return the first values as a contiguous array, which is allocated if there are too few.

        ``dtype`` is that of a view, or of a new array; None: as it is, float32 where it is new.
        """
        key = name, dtype, *shape
        found = self._views.get(key)
        if found is None:
            size, held = math.prod(shape), self._arrays.get(name)
            kind = dtype or ("float32" if held is None else str(held.dtype))
            if held is None or held.nbytes < size * np.dtype(kind).itemsize:
                self.reserve(name, size, kind)
            if len(self._views) >= _MOST_VIEWS:  # of batches of many sizes
                self._views.clear()
            held = self._arrays[name]
            flat = held if dtype is None or str(held.dtype) == dtype else held.view(dtype)
            found = self._views[key] = flat[:size].reshape(shape)
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(array.nbytes) for array in self._arrays.values())
