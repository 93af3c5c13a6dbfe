"""Scratch memory that several threads borrow and give back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from daskxml.ops import Kernels
from daskxml.types import Array


class Scratch:
    """Flat float32 arrays: as many as were ever borrowed at a time, and no more.

    Examples
    --------
    >>> from daskxml.ops import get_kernels
    >>> scratch = Scratch(get_kernels("cpu", 1))
    >>> for _ in range(3):
    ...     with scratch.borrow(4) as memory:
    ...         held = memory.shape
    >>> held, scratch.nbytes
    ((4,), 16)
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._free: list[Array] = []

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are not lent."""
        return sum(int(array.nbytes) for array in self._free)

    @contextmanager
    def borrow(self, floats: int) -> Iterator[Array]:
        """Lend an array of at least ``floats`` floats; its contents are arbitrary."""
        try:
            memory = self._free.pop()  # atomic: no two threads get the same
        except IndexError:
            memory = self._kernels.empty(floats)
        if memory.shape[0] < floats:
            memory = self._kernels.empty(floats)
        try:
            yield memory
        finally:
            self._free.append(memory)
