"""Temporary arrays of one kernel after the other, out of one block of memory."""

from __future__ import annotations

import math

import numpy as np

from daskxml.ops.cuda_device import MakeArray, Shape
from daskxml.types import Array

_ALIGNED_BYTES = 256  # as CUDA's own allocations are
_GRAIN_BYTES = 1 << 20


def aligned(nbytes: int) -> int:
    """The bytes that an array takes in an arena.

    Examples
    --------
    >>> aligned(0), aligned(1), aligned(256)
    (0, 256, 256)
    """
    return -(-nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES


class Arena:
    """A block of memory that is lent in pieces, and all of it again after `reset`.

    A queue of work that is done in order may use a piece until the work that was queued before
    `reset` is done: what is queued after it comes later.

    Parameters
    ----------
    make
        Allocates an array; the block is one of uint8.

    Examples
    --------
    >>> arena = Arena(lambda shape, dtype: np.zeros(shape, dtype))
    >>> arena.reserve(1000)
    >>> first, second = arena.take((2, 3), "float32"), arena.take(4, "int64")
    >>> arena.reset()
    >>> np.shares_memory(first, arena.take(1, "uint8")), first.shape, second.dtype.name
    (True, (2, 3), 'int64')
    """

    def __init__(self, make: MakeArray) -> None:
        self._make, self._used = make, 0
        self._block: Array = None

    @property
    def nbytes(self) -> int:
        """What the block holds."""
        return 0 if self._block is None else int(self._block.shape[0])

    def reserve(self, nbytes: int) -> None:
        """Grow the block, where it is smaller; the old one is given back before.

        Raises
        ------
        MemoryError
            If there is no room.
        """
        if nbytes > self.nbytes:
            self._block = None
            self._block = self._make(-(-nbytes // _GRAIN_BYTES) * _GRAIN_BYTES, "uint8")

    def release(self) -> None:
        """Give the block back."""
        self._block = None

    def reset(self) -> None:
        """Lend all of it again."""
        self._used = 0

    def take(self, shape: Shape, dtype: str) -> Array:
        """An array, aligned; memory of its own where the block has no room for it."""
        size = shape if isinstance(shape, int) else math.prod(shape)
        start, nbytes = self._used, size * np.dtype(dtype).itemsize
        if self._block is None or start + nbytes > self.nbytes:
            return self._make(shape, dtype)
        self._used = start + aligned(nbytes)
        return self._block[start : start + nbytes].view(dtype).reshape(shape)
