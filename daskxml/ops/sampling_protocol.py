"""What a sampled output layer asks of a device: the part of `daskxml.ops.Kernels` that hashes.

``tables`` hash tables have a key each for every label and every row of a batch: an int32 below
``buckets``. ``place (labels,)`` int32 says where a label stands among those chosen for a batch,
``ids``, and is -1 for all others.
"""

from __future__ import annotations

from typing import Protocol

from daskxml.types import Array, Csr


class SamplingKernels(Protocol):
    """The kernels of sampling. The same bits for any number of lanes."""

    # -- keys of hash tables, all in place --------------------------------------------------------

    def sign_keys(self, out: Array, projected: Array, extra: Array, weights: Array) -> None:
        """Pack signs: a bit of ``out[t, i]`` for each ``(projected + extra x weights)[i, t] > 0``.

        ``out`` is ``(tables, n)`` int32, ``projected`` ``(n, tables * bits)``, ``extra`` ``(n,)``
        and ``weights`` ``(tables * bits,)``: one more coordinate of what was projected. The first
        bit is the highest.
        """

    def winner_keys(self, out: Array, x: Array, bins: Array, skips_zeros: bool) -> None:
        """``out[t, i]``: which place wins in each of table ``t``'s bins, as digits of one number.

        ``x`` is ``(n, width)``; ``bins`` ``(tables, digits, size)`` int32 holds columns of ``x``.
        The place with the largest value wins, the first among equals. With ``skips_zeros`` a zero
        is not there, and a bin where nothing is takes the winner of another one: of the first that
        has one among numbers 0, 1, ... of SplitMix64's stream of the bin's own number, modulo all
        bins. Where every bin is empty, all winners are 0.
        """

    def fill_buckets(self, starts: Array, members: Array, keys: Array) -> None:
        """Sort by key: ``members[t, starts[t, b]:starts[t, b + 1]]`` are the labels with key b.

        ``keys`` and ``members`` are ``(tables, labels)`` int32, ``starts`` ``(tables,
        buckets + 1)`` int32. Within a bucket labels ascend.
        """

    def count_votes(self, votes: Array, keys: Array, starts: Array, members: Array) -> None:
        """``votes[0, label]``: how often a row of the batch shares a bucket with the label.

        ``votes`` is ``(lanes, labels)`` int32, ``keys`` ``(tables, rows)`` those of the rows.
        """

    # -- the labels of a batch --------------------------------------------------------------------

    def add_targets(self, ids: Array, place: Array, count: int, y: Csr, rows: Array) -> int:
        """Append the labels of ``rows`` that are not among ``ids[:count]``; the new count."""

    def add_popular(
        self, ids: Array, place: Array, count: int, votes: Array, most: int, key: int
    ) -> int:
        """Append labels with the most votes, until there are ``most``; the new count.

        Labels without votes are not taken. Among those with as many votes as the last one taken,
        chance decides: SplitMix64's stream ``key``.
        """

    def add_random(self, ids: Array, place: Array, count: int, most: int, key: int) -> int:
        """Append labels drawn evenly from all others, until there are ``most``; the new count."""

    def place_targets(
        self, indptr: Array, indices: Array, place: Array, y: Csr, rows: Array
    ) -> None:
        """Write the labels of ``rows`` as places, ascending in each row, in CSR form.

        ``indptr`` is ``(count + 1,)`` int64; its first says where to begin in ``indices``, int32.
        """

    def clear_places(self, place: Array, ids: Array) -> None:
        """``place[ids] = -1``."""

    def take_rows(self, out: Array, x: Array, ids: Array) -> None:
        """``out[i] = x[ids[i]]`` of a matrix or a vector, in place."""
