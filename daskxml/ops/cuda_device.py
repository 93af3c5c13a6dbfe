"""What the CUDA kernels ask of whatever runs them: memory, launches and matrix products.

``daskxml.ops.cupy_device`` is the real one. The tests have another that runs the same sources on
the host, so that the kernels and all that leads to them are checked where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import finalize

import numpy as np

from daskxml.types import Array

Shape = int | tuple[int, ...]
MakeArray = Callable[[Shape, str], Array]
NULL = np.uintp(0)  # a pointer to nothing


class Device(Protocol):
    """Memory and a queue of work, done in order; only ``download`` waits for it."""

    def empty(self, shape: Shape, dtype: str) -> Array:
        """A new array, aligned to 64 bytes.

        Raises
        ------
        MemoryError
            If the device has no room for it.
        """

    @property
    def cache_bytes(self) -> int:
        """Size of the second-level cache."""

    def free_bytes(self) -> int:
        """What can still be allocated."""

    def release(self) -> None:
        """Give back what was reserved, and what is held for later and not in use."""

    def reserve(self, nbytes: int) -> None:
        """Have room for so many bytes of temporary arrays."""

    def scratch(self) -> MakeArray:
        """What makes temporary arrays like `empty`; those of the call before are used again."""

    def clear(self, out: Array) -> None:
        """``out = 0``, contiguous."""

    def copy(self, out: Array, x: Array) -> None:
        """``out = x``, both here and contiguous."""

    def holds(self, value: Array) -> bool:
        """Whether an array is here, not on the host."""

    def upload(self, value: Array) -> Array:
        """A host array, copied here; the host's may be changed afterwards."""

    def upload_ahead(self, value: Array) -> Array:
        """As `upload`, beside the work that is queued: it may be read after `settle`.

        The array must be kept until the work that reads it is queued.
        """

    def settle(self) -> None:
        """Let the work that is queued from now on wait for what was uploaded ahead."""

    def download(self, value: Array) -> Array:
        """An array of here as a NumPy array; waits for the work before it."""

    def launch(
        self, name: str, blocks: tuple[int, ...], threads: tuple[int, ...], *arguments: Any
    ) -> None:
        """Run a kernel over contiguous arrays and NumPy scalars; nothing where a size is 0."""

    def gemm(self, product: Product, alpha: float, beta: float) -> None:
        """``out = alpha * a @ b + beta * out``."""

    def close(self) -> None:
        """Wait for the work, and give back what is held."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product of C-ordered matrices in the words of BLAS, which reads columns first.

    BLAS is asked for ``out.T = b.T @ a.T``: C-ordered operands are transposed already.

    Attributes
    ----------
    out, a, b
        The arrays.
    m, n, k
        ``out`` is ``(m, n)``, ``a`` ``(m, k)`` and ``b`` ``(k, n)``.
    flips_a, flips_b
        Whether the operand is a transposed view.
    a_stride, b_stride
        The leading dimensions; that of ``out`` is n.
    """

    out: Array
    a: Array
    b: Array
    m: int
    n: int
    k: int
    flips_a: bool
    flips_b: bool
    a_stride: int
    b_stride: int


def product_of(out: Array, a: Array, b: Array) -> Product:
    """The product ``a @ b`` into ``out``, as BLAS will be asked for it.

    Raises
    ------
    ValueError
        If ``out`` is not contiguous, or an operand neither that nor a transposed view of one.

    Examples
    --------
    >>> a, b = np.zeros((2, 3)), np.zeros((4, 3))
    >>> product = product_of(np.zeros((2, 4)), a, b.T)
    >>> product.flips_a, product.a_stride, product.flips_b, product.b_stride
    (False, 3, True, 3)
    """
    if not out.flags.c_contiguous:
        raise ValueError("gemm writes into contiguous rows only")
    m, k = (int(size) for size in a.shape)
    flips_a, a_stride = _lies(a)
    flips_b, b_stride = _lies(b)
    return Product(out, a, b, m, int(b.shape[1]), k, flips_a, flips_b, a_stride, b_stride)


def _lies(matrix: Array) -> tuple[bool, int]:
    """Whether a matrix is a transposed view, and the distance of its rows, or columns."""
    if matrix.flags.c_contiguous:
        return False, max(1, int(matrix.shape[1]))
    if matrix.T.flags.c_contiguous:
        return True, max(1, int(matrix.shape[0]))
    raise ValueError("gemm reads matrices in C or F order only")


class Mirrors:
    """Host copies of arrays that were uploaded, as long as those live.

    The numbers of rows of a batch come from the host; remembering them spares the device's queue
    a wait for each question about them.

    Examples
    --------
    >>> mirrors, there, here = Mirrors(), np.zeros(2), np.ones(2)
    >>> mirrors.add(there, here)
    >>> mirrors.find(there) is here, mirrors.find(here) is None
    (True, True)
    """

    def __init__(self) -> None:
        self._held: dict[int, Array] = {}

    def add(self, there: Array, here: Array) -> None:
        """Remember what an array holds; it must not be changed in place."""
        self._held[id(there)] = here
        finalize(there, self._held.pop, id(there), None)

    def find(self, there: Array) -> Array | None:
        """The host's copy, or None."""
        return self._held.get(id(there))


class Kept:
    """Zeroed scratch arrays, by name, that kernels leave as they found them.

    Examples
    --------
    >>> kept = Kept(lambda size, dtype: np.zeros(size, dtype))
    >>> kept.zeros("tally", 3, "int32") is kept.zeros("tally", 2, "int32")
    True
    """

    def __init__(self, make: Callable[[int, str], Array]) -> None:
        self._make = make
        self._arrays: dict[str, Array] = {}

    def zeros(self, name: str, size: int, dtype: str) -> Array:
        """An array of at least ``size`` zeros; whoever changes it puts the zeros back."""
        held = self._arrays.get(name)
        if held is None or held.shape[0] < size:
            held = self._arrays[name] = self._make(max(1, size), dtype)
        return held
