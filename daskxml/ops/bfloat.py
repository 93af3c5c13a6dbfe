"""bfloat16 on the host: the upper half of a float32's bits, held as uint16."""

from __future__ import annotations

import numpy as np

from daskxml.types import Array


def to_bfloat(x: Array) -> Array:
    """The nearest, ties to even; NaN stays one.

    Examples
    --------
    >>> from_bfloat(to_bfloat(np.array([1.0, 1.01, np.nan], np.float32)))
    array([1.       , 1.0078125,       nan], dtype=float32)
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    near = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), (bits >> 16) | 0x40, near).astype(np.uint16)


def from_bfloat(bits: Array) -> Array:
    """The values, float32.

    Examples
    --------
    >>> from_bfloat(np.array([0x3F80], np.uint16))
    array([1.], dtype=float32)
    """
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)
