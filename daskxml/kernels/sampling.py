"""The contract of sampled output layers: hash tables, the labels of a batch, the labels of a row.

There are ``tables`` hash tables. A key, an int32 below ``buckets``, says in which bucket of a
table a label or a row of the batch falls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from daskxml.core.arrays import Array, Csr


@dataclass(frozen=True, slots=True)
class RowSamples:
    """The labels of each row of a batch that the loss is computed over, in flat arrays.

    Attributes
    ----------
    starts
        ``(rows + 1,)`` int64: row ``i`` has ``ids[starts[i]:starts[i + 1]]``.
    ids
        ``(pairs,)`` int32 labels, distinct in a row: the row's targets, those from its buckets,
        those drawn uniformly.
    rows
        ``(pairs,)`` int32: the row of the batch that each belongs to.
    own, certain
        ``(rows,)`` int32: how many of a row's labels are targets; and how many are targets or
        from its buckets.
    times
        ``(rows,)`` float64: how often each drawn label of a row counts.

    Examples
    --------
    >>> import numpy as np
    >>> ids, rows = np.array([7, 2, 9], np.int32), np.array([0, 0, 1], np.int32)
    >>> samples = RowSamples(np.array([0, 2, 3]), ids, rows, rows, rows, times=np.ones(2))
    >>> samples.ids[samples.starts[0] : samples.starts[1]]
    array([7, 2], dtype=int32)
    """

    starts: Array
    ids: Array
    rows: Array
    own: Array
    certain: Array
    times: Array

    @property
    def pairs(self) -> int:
        """How many logits a step computes."""
        return int(self.ids.shape[0])


@dataclass(frozen=True, slots=True)
class Lookup:
    """The buckets of the rows of a batch.

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


class SamplingKernels(Protocol):
    """Hash tables and the labels of a batch: equal bits for any number of threads, in place.

    ``positions (labels,)`` int32 says where a label stands among the labels of the batch, ``ids``,
    and is -1 for all others.
    """

    # -- hash tables -----------------------------------------------------------------------------

    def sign_keys(self, out: Array, projected: Array, extra: Array, weights: Array) -> None:
        """Pack signs: a bit of ``out[t, i]`` for each ``(projected + extra x weights)[i, t] > 0``.

        ``out`` is ``(tables, n)`` int32, ``projected`` ``(n, tables * bits)``, ``extra`` ``(n,)``
        and ``weights`` ``(tables * bits,)``: one more coordinate of what was projected. The first
        bit is the highest.
        """

    def winner_keys(self, out: Array, x: Array, bins: Array, skips_zeros: bool) -> None:
        """``out[t, i]``: the winners of table ``t``'s bins, as digits of one number.

        ``x`` is ``(n, width)``; ``bins`` ``(tables, digits, size)`` int32 holds columns of ``x``.
        The winner of a bin is the place of its largest value, the first among equals. With
        ``skips_zeros`` zeros are absent, and an empty bin takes the winner of another one
        (densified): of the first nonempty one among numbers 0, 1, ... of SplitMix64's stream of
        the bin's own number, modulo all bins. Where every bin is empty, all winners are 0.
        """

    def fill_buckets(self, starts: Array, members: Array, keys: Array) -> None:
        """Sort by key: ``members[t, starts[t, b]:starts[t, b + 1]]`` are the labels with key b.

        ``keys`` and ``members`` are ``(tables, labels)`` int32, ``starts`` ``(tables,
        buckets + 1)`` int32. Within a bucket labels ascend.
        """

    def count_votes(self, votes: Array, keys: Array, starts: Array, members: Array) -> None:
        """``votes[0, label]``: how often a row of the batch shares a bucket with the label.

        ``votes`` is ``(threads, labels)`` int32, ``keys`` ``(tables, rows)`` those of the rows.
        """

    # -- the labels of a batch -------------------------------------------------------------------

    def add_targets(self, ids: Array, positions: Array, count: int, y: Csr, rows: Array) -> int:
        """Append the labels of ``rows`` that are not in ``ids[:count]``; returns the new count."""

    def add_popular(
        self, ids: Array, positions: Array, count: int, votes: Array, most: int, key: int
    ) -> int:
        """Append labels with the most votes, until there are ``most``; returns the new count.

        Labels without votes are not taken. Ties at the last place are broken at random, by
        SplitMix64's stream ``key``.
        """

    def add_random(self, ids: Array, positions: Array, count: int, most: int, key: int) -> int:
        """Append labels drawn uniformly from all others, until there are ``most``, likewise."""

    def write_target_positions(
        self, indptr: Array, indices: Array, positions: Array, y: Csr, rows: Array
    ) -> None:
        """Write the positions of the labels of ``rows`` in CSR form, ascending in each row.

        ``indptr`` is ``(count + 1,)`` int64; its first says where to begin in ``indices``, int32.
        """

    def clear_positions(self, positions: Array, ids: Array) -> None:
        """``positions[ids] = -1``."""

    def take_rows(self, out: Array, x: Array, ids: Array) -> None:
        """``out[i] = x[ids[i]]`` of a matrix or a vector."""


class RowSamplingKernels(Protocol):
    """The labels of each row: threads share the rows, equal bits for any number of threads."""

    def size_row_samples(self, starts: Array, y: Csr, rows: Array, active: int) -> None:
        """``starts[i + 1] = starts[i] + max(active, labels of rows[i])``."""

    def draw_row_samples(
        self, samples: RowSamples, y: Csr, rows: Array, first_row: int, found: Lookup,
        random: float, key: int, marks: Array,
    ) -> None:  # fmt: skip
        """Fill the samples of rows ``first_row`` and following of a batch: ``rows`` of ``y``.

        A row's targets come first. Labels in the row's buckets follow, those in most buckets first
        (ties are broken at random), as long as at least the share ``random`` of what the targets
        left free is still to be drawn; they keep the order in which the tables list them. The rest
        is drawn uniformly from all other labels. Random numbers are SplitMix64's, of the stream
        with number ``2 * row`` (ties) or ``2 * row + 1`` (draws) of the stream ``key``. ``marks``
        is ``(threads, 2, labels)`` int32, its first planes zero before and after.
        """

    def softmax_row_samples(
        self, slopes: Array, gradient: Array, loss: Array, samples: RowSamples, hidden: Array,
        weight: Array, bias: Array,
    ) -> None:  # fmt: skip
        """Softmax of each row over its labels: loss and gradients of the mean over the batch.

        ``slopes (pairs,)`` is the gradient by the logits, ``gradient (rows, units)`` that by
        ``hidden``, ``loss (rows,)`` float64. Targets have equal shares; rows without any have no
        loss. Each drawn label of a row counts ``samples.times``.
        """

    def sigmoid_row_samples(
        self, slopes: Array, gradient: Array, loss: Array, samples: RowSamples, hidden: Array,
        weight: Array, bias: Array,
    ) -> None:  # fmt: skip
        """As `softmax_row_samples`, of the sigmoid loss, summed over a row's labels."""
