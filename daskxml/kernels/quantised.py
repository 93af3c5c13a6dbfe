"""Matrices of 8 or 16 bits a number, which are unpacked a few rows at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daskxml.core.arrays import Array

BITS = (8, 16)
_MOST = 127  # of a digit, and minus it the least
_CHUNK_ROWS = 4096  # rounded at a time
FINE = 2 * _MOST  # the second digit counts 1 / 254 of the first


@dataclass(frozen=True, slots=True)
class Quantised:
    """A float32 matrix, ``scale * (first + second / 254)`` in each row.

    NumPy, and whoever slices it, sees float32 numbers.

    Attributes
    ----------
    first
        ``(rows, columns)`` int8.
    second
        The same, or ``(0, columns)`` for 8 bits a number.
    scale
        ``(rows,)`` float32.

    Raises
    ------
    ValueError
        If the arrays do not belong together.

    Examples
    --------
    >>> matrix = np.float32([[1.0, 0.5, -0.3], [0.0, 0.0, 0.0]])
    >>> errors = [np.abs(np.asarray(quantise(matrix, bits)) - matrix).max() for bits in (8, 16)]
    >>> [bool(error < bound) for error, bound in zip(errors, (4e-3, 2e-5), strict=True)]
    [True, True]
    """

    first: Array
    second: Array
    scale: Array

    dtype = np.dtype(np.float32)

    def __post_init__(self) -> None:
        kinds = [str(array.dtype) for array in (self.first, self.second, self.scale)]
        rows, columns = self.first.shape if self.first.ndim == 2 else (-1, -1)
        is_whole = self.second.shape in ((rows, columns), (0, columns))
        if kinds != ["int8", "int8", "float32"] or not is_whole or self.scale.shape != (rows,):
            shapes = [array.shape for array in (self.first, self.second, self.scale)]
            raise ValueError(f"{kinds} of shapes {shapes} are not the parts of a quantised matrix")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.first.shape
        return int(rows), int(columns)

    @property
    def nbytes(self) -> int:
        """Bytes of the three arrays."""
        return int(self.first.nbytes + self.second.nbytes + self.scale.nbytes)

    def __len__(self) -> int:
        return int(self.first.shape[0])

    def __getitem__(self, rows: Any) -> Array:
        """Unpack some rows, by a slice, an array of numbers or one number."""
        out = self.first[rows].astype(np.float32)
        if len(self.second):
            out += np.float32(1 / FINE) * self.second[rows]
        out *= self.scale[rows][..., None]
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Unpack everything."""
        return self[:].astype(dtype or np.float32, copy=False)


def quantise(matrix: Array, bits: int) -> Quantised:
    """Round a matrix to 8 or 16 bits a number, the largest of each row to 127 times its scale.

    Parameters
    ----------
    matrix
        ``(rows, columns)`` float32, finite.
    bits
        8 or 16.
    """
    rows, columns = matrix.shape
    first = np.empty((rows, columns), np.int8)
    second = np.empty((rows if bits == BITS[1] else 0, columns), np.int8)
    scale = np.empty(rows, np.float32)
    for start in range(0, rows, _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        scale[part] = np.abs(matrix[part]).max(axis=1, initial=0.0) / np.float32(_MOST)
        scale[part][scale[part] == 0.0] = 1.0
        shares = matrix[part] / scale[part, None]
        first[part] = np.rint(shares).clip(-_MOST, _MOST)
        if len(second):
            second[part] = np.rint((shares - first[part]) * FINE).clip(-_MOST, _MOST)
    return Quantised(first, second, scale)
