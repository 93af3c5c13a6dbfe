"""Sums of losses over rows: whole numbers, so that any order of adding gives the same bits.

A batch's loss is rounded once, to the nearest multiple of 2**-20, and what is added from there on
is integers. The mean over rows in batches of B is off by at most 2**-21 / B.
"""

from __future__ import annotations

from dataclasses import dataclass

_UNITS = 1 << 20  # of a loss of 1


@dataclass(frozen=True, kw_only=True)
class LossSum:
    """The loss of some rows; two of them add up to their rows together.

    Attributes
    ----------
    rows
        How many.
    total
        Their losses, summed, in units of 2**-20.

    Examples
    --------
    >>> one = LossSum.of(loss_sum=1.5, rows=2)
    >>> (one + one).rows, (one + one).mean
    (4, 0.75)
    """

    rows: int = 0
    total: int = 0

    @classmethod
    def of(cls, *, loss_sum: float, rows: int) -> LossSum:
        """Round a batch's loss, which must be finite."""
        return cls(rows=rows, total=round(loss_sum * _UNITS))

    def __add__(self, other: LossSum) -> LossSum:
        """Add up the losses of other rows."""
        return LossSum(rows=self.rows + other.rows, total=self.total + other.total)

    @property
    def mean(self) -> float:
        """The mean loss of a row; 0 where there are no rows."""
        return self.total / (self.rows * _UNITS) if self.rows else 0.0
