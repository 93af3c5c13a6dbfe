"""What an output layer asks of a device where each row sees labels of its own.

A *set* is the labels of one row. All sets of a batch lie behind each other in flat arrays, so that
a label that several rows see stands there several times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from daskxml.types import Array, Csr


@dataclass(frozen=True, slots=True)
class RowSets:
    """The labels of each row of a batch.

    Attributes
    ----------
    starts
        ``(rows + 1,)`` int64: row ``i`` sees ``ids[starts[i]:starts[i + 1]]``.
    ids
        ``(pairs,)`` int32 labels: the row's own, those that its hash query found, those drawn
        evenly; each once in a row.
    rows
        ``(pairs,)`` int32: the row of the batch that each belongs to.
    own, certain
        ``(rows,)`` int32: how many of a row's labels are its own; and how many, with those, were
        not drawn.

    Examples
    --------
    >>> import numpy as np
    >>> ids, rows = np.array([7, 2, 9], np.int32), np.array([0, 0, 1], np.int32)
    >>> sets = RowSets(np.array([0, 2, 3]), ids, rows, own=rows, certain=rows)
    >>> sets.ids[sets.starts[0] : sets.starts[1]]
    array([7, 2], dtype=int32)
    """

    starts: Array
    ids: Array
    rows: Array
    own: Array
    certain: Array


@dataclass(frozen=True, slots=True)
class Lookup:
    """What hash tables know of the rows of a batch.

    Attributes
    ----------
    keys
        ``(tables, rows)`` int32: the bucket of each row.
    starts, members
        Labels by bucket, see `SamplingKernels.fill_buckets`.
    """

    keys: Array
    starts: Array
    members: Array


class RowSetKernels(Protocol):
    """The kernels of sets. Rows are shared among lanes: the same bits for any number."""

    def size_sets(self, starts: Array, y: Csr, rows: Array, active: int) -> None:
        """``starts[i + 1] = starts[i] + max(active, labels of rows[i])``."""

    def choose_sets(
        self, sets: RowSets, y: Csr, rows: Array, first_row: int, found: Lookup, random: float,
        key: int, marks: Array,
    ) -> None:  # fmt: skip
        """Fill the sets of rows ``first_row`` and following of a batch; these are ``rows`` of y.

        A set begins with the row's own labels. Labels in the row's buckets follow, those in most
        buckets first (among equals chance decides), while at least the share ``random`` of what
        the own labels left free is still to be drawn; those stand in the order in which the tables
        name them. The rest is drawn evenly from all other labels. Chance is SplitMix64's stream
        of number ``2 * row`` (among equals) or ``2 * row + 1`` (draws) of the stream ``key``.
        ``marks`` is ``(lanes, 2, labels)`` int32, its first planes zero and left so.
        """

    def softmax_sets(
        self, slopes: Array, gradient: Array, loss: Array, sets: RowSets, hidden: Array,
        weight: Array, bias: Array, weighted: bool,
    ) -> None:  # fmt: skip
        """Softmax of each row over its set: loss and gradients of the mean over the batch.

        ``slopes (pairs,)`` are by the logits, ``gradient (rows, units)`` by ``hidden``, ``loss
        (rows,)`` float64. The target gives each own label the same part; rows without any have
        no loss. With ``weighted`` each label that was drawn counts as often as there are labels
        for each that was.
        """

    def sigmoid_sets(
        self, slopes: Array, gradient: Array, loss: Array, sets: RowSets, hidden: Array,
        weight: Array, bias: Array, weighted: bool,
    ) -> None:  # fmt: skip
        """The same of the sigmoid loss, the sum over a row's set."""
