"""What a case is, and the operands that it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from made_up import random_rows


@dataclass(frozen=True)
class Sizes:
    """Of the operands."""

    rows: int = 200
    features: int = 400
    labels: int = 1500
    units: int = 96
    row_features: int = 60  # more entries in all than one block of threads adds up


@dataclass(frozen=True)
class Case:
    """One call.

    Attributes
    ----------
    operands
        By name: arrays, ``Csr``; those that are written only hold NaN, or 77 where they are whole
        numbers.
    writes
        Names of what it changes.
    call
        With the kernels and the operands; a number that it returns counts as written.
    tolerance
        Of ``||out - twin|| / ||twin||``.
    fused_units
        Only for kernels that fuse products of so many units; 0: for all.
    """

    name: str
    operands: dict[str, Any]
    writes: tuple[str, ...]
    call: Callable[[Any, Any], Any]
    tolerance: float = 1e-5
    fused_units: int = 0


class Operands:
    """Draws operands."""

    def __init__(self, rng: np.random.Generator, sizes: Sizes) -> None:
        self.rng, self.sizes = rng, sizes

    def normal(self, *shape: int, spread: float = 1.0) -> Any:
        """Normal numbers, float32."""
        return (spread * self.rng.standard_normal(shape)).astype(np.float32)

    def poison(self, *shape: int, dtype: str = "float32") -> Any:
        """What a kernel must overwrite."""
        return np.full(shape, np.nan if dtype.startswith("float") else 77, dtype)

    def rows(self) -> Any:
        """A partition."""
        s = self.sizes
        return random_rows(self.rng, s.rows, s.features, s.labels, s.row_features, 5)

    def chosen(self) -> Any:
        """Its row numbers in some order."""
        return self.rng.permutation(self.sizes.rows).astype(np.int64)
