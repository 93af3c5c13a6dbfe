"""Sums of metrics and losses over rows, as integers: any split of the rows gives the same bits.

Floating-point addition depends on its order, and the order of rows depends on which worker
evaluated them. So each value is rounded once, to a multiple of a small unit, and integers are added
from there on, which is exact. The mean of a metric, whose unit is 2**-40, is off by at most 2**-41
(5e-13).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import add

from daskxml.core.errors import ConfigError

UNIT_BITS = 40
_LOSS_UNITS = 1 << 20  # of a loss of 1
Totals = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class MetricSums:
    """The sums of the metrics of some rows, which can be added to those of other rows.

    Each tuple has one total for each of ``ks``, in units of 2**-40 except for ``hits``.

    Attributes
    ----------
    ks
        The cut-offs, ascending.
    rows, rows_without_labels
        Number of rows evaluated, and of those without a true label.
    hits
        True labels among the first k predictions.
    ndcg, recall
        Sums of each row's nDCG@k and recall@k.
    attained, attained_dcg
        Propensity-weighted hits, plain and discounted (the latter over the row's ideal DCG).
    attainable, attainable_dcg
        The most that a prediction could have attained.

    Examples
    --------
    >>> one = MetricSums.zero((1,))
    >>> (one + one).rows
    0
    """

    ks: tuple[int, ...]
    rows: int
    rows_without_labels: int
    hits: Totals
    ndcg: Totals
    recall: Totals
    attained: Totals
    attained_dcg: Totals
    attainable: Totals
    attainable_dcg: Totals

    @classmethod
    def zero(cls, ks: Sequence[int]) -> MetricSums:
        """Return the sums over no rows.

        Raises
        ------
        ConfigError
            If ``ks`` is not a list of different numbers, each at least 1.
        """
        ks = check_cut_offs(ks)
        totals = {field.name: (0,) * len(ks) for field in fields(cls)[3:]}
        return cls(ks=ks, rows=0, rows_without_labels=0, **totals)

    def __add__(self, other: MetricSums) -> MetricSums:
        """Add the sums of other rows, which must have the same cut-offs."""
        if self.ks != other.ks:
            raise ConfigError(f"metrics at k = {self.ks} cannot be added to those at {other.ks}")
        totals = {
            field.name: tuple(map(add, getattr(self, field.name), getattr(other, field.name)))
            for field in fields(self)[3:]
        }
        return MetricSums(
            ks=self.ks,
            rows=self.rows + other.rows,
            rows_without_labels=self.rows_without_labels + other.rows_without_labels,
            **totals,
        )

    def result(self) -> dict[str, float]:
        """Return the metrics, each in [0, 1], then the two row counts; all 0 if there are no rows.

        Examples
        --------
        >>> list(MetricSums.zero((1,)).result())
        ['P@1', 'nDCG@1', 'PSP@1', 'PSnDCG@1', 'recall@1', 'rows', 'rows_without_labels']
        """
        all_rows = self.rows << UNIT_BITS
        families = {
            "P": [_ratio(hits, self.rows * k) for hits, k in zip(self.hits, self.ks, strict=True)],
            "nDCG": [_ratio(total, all_rows) for total in self.ndcg],
            "PSP": list(map(_ratio, self.attained, self.attainable)),
            "PSnDCG": list(map(_ratio, self.attained_dcg, self.attainable_dcg)),
            "recall": [_ratio(total, all_rows) for total in self.recall],
        }
        metrics: dict[str, float] = {
            f"{family}@{k}": value
            for family, values in families.items()
            for k, value in zip(self.ks, values, strict=True)
        }
        return metrics | {"rows": self.rows, "rows_without_labels": self.rows_without_labels}


@dataclass(frozen=True, kw_only=True)
class LossSum:
    """The sum of the losses of some rows, which can be added to that of other rows.

    A batch's loss is rounded once, to the nearest multiple of 2**-20. The mean over rows in batches
    of B is off by at most 2**-21 / B.

    Attributes
    ----------
    rows
        Number of rows.
    total
        The sum of their losses, in units of 2**-20.

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
        return cls(rows=rows, total=round(loss_sum * _LOSS_UNITS))

    def __add__(self, other: LossSum) -> LossSum:
        """Add the losses of other rows."""
        return LossSum(rows=self.rows + other.rows, total=self.total + other.total)

    @property
    def mean(self) -> float:
        """The mean loss of a row; 0 where there are no rows."""
        return self.total / (self.rows * _LOSS_UNITS) if self.rows else 0.0


def check_cut_offs(ks: Sequence[int]) -> tuple[int, ...]:
    """Sort the cut-offs k of the metrics, or refuse them.

    Raises
    ------
    ConfigError
        If there are none, one occurs twice, or one is not a whole number of at least 1.

    Examples
    --------
    >>> check_cut_offs([5, 1, 3])
    (1, 3, 5)
    """
    whole = all(int(k) == k and k >= 1 for k in ks)
    if not ks or not whole or len(set(ks)) < len(ks):
        raise ConfigError(f"k = {list(ks)}: give different whole numbers of at least 1")
    return tuple(sorted(int(k) for k in ks))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
