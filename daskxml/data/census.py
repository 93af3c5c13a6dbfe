"""Ids and sizes of rows counted piece by piece; memory grows with the distinct ones only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daskxml.data.parse import Parsed
from daskxml.types import Array


@dataclass(frozen=True)
class Counts:
    """How often each of some integers was seen.

    Attributes
    ----------
    values, counts
        ``(distinct,)`` int64: the integers, ascending, and their counts, at least 1.
    """

    values: Array
    counts: Array

    @staticmethod
    def of(values: Array) -> Counts:
        """Count the integers of an array.

        Examples
        --------
        >>> Counts.of(np.array([3, 1, 3])).counts
        array([1, 2])
        """
        return Counts(*np.unique(np.asarray(values, np.int64), return_counts=True))

    def plus(self, other: Counts) -> Counts:
        """The counts of both."""
        values, place = np.unique(np.concatenate([self.values, other.values]), return_inverse=True)
        counts = np.zeros(values.size, np.int64)
        np.add.at(counts, place, np.concatenate([self.counts, other.counts]))
        return Counts(values, counts)

    def count_of(self, value: int) -> int:
        """How often one integer was seen."""
        return int(self.counts[self.values == value].sum())


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The mean, median and maximum of a number per row."""

    mean: float
    median: float
    largest: int

    @staticmethod
    def of(sizes: Counts) -> Spread:
        """Summarise counted sizes; zeros where there are none.

        Examples
        --------
        >>> Spread.of(Counts.of(np.array([1, 2, 6])))
        Spread(mean=3.0, median=2.0, largest=6)
        """
        total = int(sizes.counts.sum())
        if not total:
            return Spread(mean=0.0, median=0.0, largest=0)
        ends = np.cumsum(sizes.counts)
        middle = np.searchsorted(ends, [(total - 1) // 2, total // 2], side="right")
        return Spread(
            mean=float(sizes.values @ sizes.counts / total),
            median=float(sizes.values[middle].mean()),
            largest=int(sizes.values[-1]),
        )


@dataclass(frozen=True, kw_only=True)
class Census:
    """What was counted so far; ids as written."""

    features: Counts
    labels: Counts
    features_per_row: Counts
    labels_per_row: Counts
    unsorted_rows: int = 0
    merged_features: int = 0
    merged_labels: int = 0

    @staticmethod
    def empty() -> Census:
        """Before the first block."""
        nothing = Counts.of(np.empty(0, np.int64))
        return Census(
            features=nothing, labels=nothing, features_per_row=nothing, labels_per_row=nothing
        )

    def plus(self, parsed: Parsed) -> Census:
        """With the rows of another piece."""
        features, labels = parsed.partition.features, parsed.partition.labels
        return Census(
            features=self.features.plus(Counts.of(features.indices)),
            labels=self.labels.plus(Counts.of(labels.indices)),
            features_per_row=self.features_per_row.plus(Counts.of(np.diff(features.indptr))),
            labels_per_row=self.labels_per_row.plus(Counts.of(np.diff(labels.indptr))),
            unsorted_rows=self.unsorted_rows + parsed.unsorted_rows,
            merged_features=self.merged_features + parsed.merged_features,
            merged_labels=self.merged_labels + parsed.merged_labels,
        )
