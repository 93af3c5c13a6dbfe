"""Two families of hash functions under which a label collides with the rows it scores high for.

`SimHash` (Charikar, "Similarity Estimation Techniques from Rounding Algorithms", STOC 2002): a bit
for each of some random planes, so two vectors at the angle ``a`` share a key of K bits with
probability ``(1 - a / pi) ** K``. `WinnerHash` (Chen and Shrivastava, "Densified Winner Take All
(WTA) Hashing for Sparse Datasets", UAI 2018): which of 8 random coordinates is the largest.

A logit is ``w . h + b``, so SimHash sees ``(w, b)`` and ``(h, 1)``. Winners see ``w`` and ``h``.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from daskxml.model.sampling.config import WINNER_BITS
from daskxml.ops import Kernels
from daskxml.types import Array


class HashFamily(Protocol):
    """Hash functions with a fixed seed."""

    buckets: int
    """How many keys there are; every one can come up."""

    def label_keys(self, kernels: Kernels, weight: Array, bias: Array, out: Array) -> None:
        """Fill ``out (tables, count)`` int32 for ``weight (count, units)``, ``bias (count,)``."""

    def row_keys(self, kernels: Kernels, hidden: Array, out: Array) -> None:
        """Fill ``out (tables, rows)`` int32 for the last hidden layer ``(rows, units)``."""


class SimHash:
    """Signs of projections on random planes.

    Parameters
    ----------
    units
        Width of the vectors.
    tables, bits
        Keys for each vector, and bits of a key.
    rng
        Draws the planes.

    Examples
    --------
    >>> from daskxml.ops import get_kernels
    >>> kernels, family = get_kernels("cpu", 1), SimHash(3, 2, 4, np.random.default_rng(0))
    >>> keys = np.empty((2, 2), np.int32)
    >>> weight = np.array([[1, 2, 3], [-1, -2, -3]], np.float32)
    >>> family.label_keys(kernels, weight, np.zeros(2, np.float32), keys)
    >>> family.buckets, (keys[:, 0] + keys[:, 1]).tolist()  # opposite vectors: opposite bits
    (16, [15, 15])
    """

    def __init__(self, units: int, tables: int, bits: int, rng: np.random.Generator) -> None:
        planes = rng.standard_normal((units + 1, tables * bits), dtype=np.float32)
        self.planes, self.bias_weights = planes[:-1], planes[-1].copy()
        self.buckets = 1 << bits

    def label_keys(self, kernels: Kernels, weight: Array, bias: Array, out: Array) -> None:
        """Hash ``(weight, bias)``."""
        projected = kernels.empty((int(weight.shape[0]), int(self.planes.shape[1])))
        kernels.gemm(projected, weight, self.planes)
        kernels.sign_keys(out, projected, bias, self.bias_weights)

    def row_keys(self, kernels: Kernels, hidden: Array, out: Array) -> None:
        """Hash ``(hidden, 1)``."""
        ones = kernels.empty((int(hidden.shape[0]),))
        kernels.fill(ones, 1.0)
        self.label_keys(kernels, hidden, ones, out)


class WinnerHash:
    """Winners among 8 coordinates, or 4 or 2 where there are no more.

    Each random permutation of the coordinates is cut into bins. A coordinate of a row that is
    zero is not there, and a bin without any borrows (densification).

    Examples
    --------
    >>> from daskxml.ops import get_kernels
    >>> kernels, family = get_kernels("cpu", 1), WinnerHash(16, 3, 2, np.random.default_rng(0))
    >>> keys = np.empty((3, 2), np.int32)
    >>> hidden = np.arange(16, dtype=np.float32) * np.array([[1], [7]], np.float32)
    >>> family.row_keys(kernels, hidden, keys)
    >>> family.buckets, bool((keys[:, 0] == keys[:, 1]).all())  # the order alone counts
    (64, True)
    """

    def __init__(self, units: int, tables: int, winners: int, rng: np.random.Generator) -> None:
        size = 1 << min(WINNER_BITS, max(0, units.bit_length() - 1))
        count, each = tables * winners, units // size
        drawn = [rng.permutation(units)[: each * size] for _ in range(-(-count // each))]
        bins = np.concatenate(drawn).reshape(-1, size)[:count]
        self.bins = bins.reshape(tables, winners, size).astype(np.int32)
        self.buckets = size**winners

    def label_keys(self, kernels: Kernels, weight: Array, bias: Array, out: Array) -> None:
        """Hash ``weight``; the bias, the same for all rows, changes no winner."""
        kernels.winner_keys(out, weight, self.bins, skips_zeros=False)

    def row_keys(self, kernels: Kernels, hidden: Array, out: Array) -> None:
        """Hash ``hidden``."""
        kernels.winner_keys(out, hidden, self.bins, skips_zeros=True)
