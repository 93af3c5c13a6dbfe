"""Hash tables over labels, and the choice of a batch's labels: on a CPU, in place.

There are ``tables`` hash tables. A key, an int32 below ``buckets``, says in which bucket of a
table a label or a row of the batch falls. ``positions (labels,)`` int32 says where a label stands
among the labels of the batch, ``ids``, and is -1 for all others. A ``team`` shares the work; any
number of threads gives equal bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.core.jit import njit
from daskxml.kernels.cpu.numba_math import hash64
from daskxml.kernels.cpu.thread_team import ThreadTeam

_ZERO = np.float32(0.0)
_TRIES = 1000  # random ones of an empty bin, before it tries all others in turn
_GRAIN = 1 << 17  # elements read, a tenth of a millisecond: fewer wake no other thread


@njit(nogil=True)
def _sign_keys(out: Any, projected: Any, extra: Any, weights: Any, start: int, stop: int) -> None:
    """Pack the signs of rows ``start`` to ``stop``."""
    tables = out.shape[0]
    bits = projected.shape[1] // tables
    for i in range(start, stop):
        row, more = projected[i], extra[i]
        for t in range(tables):
            key = 0
            for j in range(t * bits, (t + 1) * bits):
                key = 2 * key + (1 if row[j] + more * weights[j] > _ZERO else 0)
            out[t, i] = key


@njit(nogil=True)
def _winner_keys(out: Any, x: Any, bins: Any, skips_zeros: bool, start: int, stop: int) -> None:
    """Winners of the nonempty bins, then of the empty ones, then the digits."""
    tables, digits, size = bins.shape
    columns = bins.reshape(tables * digits, size)
    winners = np.empty(tables * digits, np.int32)
    filled = np.empty(tables * digits, np.int32)
    for i in range(start, stop):
        row = x[i]
        empty = 0
        for b in range(columns.shape[0]):
            winner = -1
            best = _ZERO
            for j in range(size):
                value = row[columns[b, j]]
                if skips_zeros and value == _ZERO:
                    continue
                if winner < 0 or value > best:
                    winner, best = j, value
            winners[b] = winner
            filled[b] = winner
            empty += winner < 0
        if empty > 0:
            _densify(filled, winners)
        for t in range(tables):
            key = 0
            for b in range(t * digits, (t + 1) * digits):
                key = size * key + filled[b]
            out[t, i] = key


@njit(nogil=True)
def _densify(filled: Any, winners: Any) -> None:
    """Give each empty bin the winner of another one."""
    bins = winners.shape[0]
    for b in range(bins):
        if winners[b] >= 0:
            continue
        filled[b] = 0
        for attempt in range(_TRIES + bins):
            if attempt < _TRIES:
                other = hash64(b, attempt) % np.uint64(bins)
            else:
                other = np.uint64(attempt - _TRIES)
            if winners[other] >= 0:
                filled[b] = winners[other]
                break


@njit(nogil=True)
def _fill_buckets(starts: Any, members: Any, keys: Any, start: int, stop: int) -> None:
    """Sort by counting, tables ``start`` to ``stop``."""
    buckets = starts.shape[1] - 1
    free = np.empty(buckets, np.int32)
    for t in range(start, stop):
        free[:] = 0
        for key in keys[t]:
            free[key] += 1
        total = 0
        for b in range(buckets):
            starts[t, b] = total
            total += free[b]
            free[b] = starts[t, b]
        starts[t, buckets] = total
        for label in range(keys.shape[1]):
            key = keys[t, label]
            members[t, free[key]] = label
            free[key] += 1


@njit(nogil=True)
def _add_targets(ids: Any, positions: Any, count: int, indptr: Any, indices: Any, rows: Any) -> int:
    """Append the labels of rows."""
    for row in rows:
        for j in range(indptr[row], indptr[row + 1]):
            label = indices[j]
            if positions[label] < 0:
                positions[label] = count
                ids[count] = label
                count += 1
    return count


@njit(nogil=True)
def choose_random(chosen: Any, count: int, mark: Any, free: int, key: Any) -> None:
    """Fill ``chosen`` with labels whose mark is ``free``; marks of those chosen are smaller then.

    Draws labels to take; or, if most are to be taken, those to leave out.
    """
    labels = mark.shape[0]
    takes = chosen.shape[0] - count <= labels - chosen.shape[0]
    left = chosen.shape[0] - count if takes else labels - chosen.shape[0]
    draw = 0
    while left > 0:
        drawn = np.int64(hash64(key, draw) % np.uint64(labels))
        draw += 1
        if mark[drawn] != free:
            continue
        left -= 1
        mark[drawn] = free - (1 if takes else 2)
        if takes:
            chosen[count] = drawn
            count += 1
    if takes:
        return
    for label in range(labels):
        if mark[label] == free:
            mark[label] = free - 1
            chosen[count] = label
            count += 1
        elif mark[label] == free - 2:
            mark[label] = free


@njit(nogil=True)
def _write_target_positions(
    out_indptr: Any, out_indices: Any, positions: Any, indptr: Any, indices: Any, rows: Any
) -> None:
    """Insertion sort: rows have few labels."""
    end = out_indptr[0]
    for i in range(rows.shape[0]):
        begin = end
        for j in range(indptr[rows[i]], indptr[rows[i] + 1]):
            value = positions[indices[j]]
            k = end
            while k > begin and out_indices[k - 1] > value:
                out_indices[k] = out_indices[k - 1]
                k -= 1
            out_indices[k] = value
            end += 1
        out_indptr[i + 1] = end


def sign_keys(team: ThreadTeam, out: Array, projected: Array, extra: Array, weights: Array) -> None:
    """Pack signs: a bit of ``out[t, i]`` for each ``(projected + extra x weights)[i, t] > 0``.

    ``out`` is ``(tables, n)`` int32, ``projected`` ``(n, tables * bits)``, ``extra`` ``(n,)``
    and ``weights`` ``(tables * bits,)``: one more coordinate of what was projected. The first
    bit is the highest.
    """
    team.run(
        out.shape[1], _items(projected.shape[1]),
        lambda _, *span: _sign_keys(out, projected, extra, weights, *span),
    )  # fmt: skip


def winner_keys(team: ThreadTeam, out: Array, x: Array, bins: Array, skips_zeros: bool) -> None:
    """``out[t, i]``: the winners of table ``t``'s bins, as digits of one number.

    ``x`` is ``(n, width)``; ``bins`` ``(tables, digits, size)`` int32 holds columns of ``x``.
    The winner of a bin is the place of its largest value, the first among equals. With
    ``skips_zeros`` zeros are absent, and an empty bin takes the winner of another one
    (densified): of the first nonempty one among numbers 0, 1, ... of SplitMix64's stream of
    the bin's own number, modulo all bins. Where every bin is empty, all winners are 0.
    """
    team.run(
        out.shape[1], _items(bins.size),
        lambda _, *span: _winner_keys(out, x, bins, skips_zeros, *span),
    )  # fmt: skip


def fill_buckets(team: ThreadTeam, starts: Array, members: Array, keys: Array) -> None:
    """Sort by key: ``members[t, starts[t, b]:starts[t, b + 1]]`` are the labels with key b.

    ``keys`` and ``members`` are ``(tables, labels)`` int32, ``starts`` ``(tables,
    buckets + 1)`` int32. Within a bucket labels ascend.
    """
    tables, labels = keys.shape
    team.run(
        tables, _items(labels),
        lambda _, *span: _fill_buckets(starts, members, keys, *span),
    )  # fmt: skip


def add_targets(ids: Array, positions: Array, count: int, y: Csr, rows: Array) -> int:
    """Append the labels of ``rows`` that are not in ``ids[:count]``; returns the new count."""
    return int(_add_targets(ids, positions, count, y.indptr, y.indices, rows))


def add_random(ids: Array, positions: Array, count: int, most: int, key: int) -> int:
    """Append labels drawn uniformly from all others, until there are ``most``; the new count.

    SplitMix64's stream ``key`` draws them.
    """
    most = min(most, len(positions))
    if count >= most:
        return count
    choose_random(ids[:most], count, positions, -1, np.uint64(key))
    positions[ids[count:most]] = np.arange(count, most)
    return most


def write_target_positions(
    indptr: Array, indices: Array, positions: Array, y: Csr, rows: Array
) -> None:
    """Write the positions of the labels of ``rows`` in CSR form, ascending in each row.

    ``indptr`` is ``(count + 1,)`` int64; its first says where to begin in ``indices``, int32.
    """
    _write_target_positions(indptr, indices, positions, y.indptr, y.indices, rows)


def clear_positions(positions: Array, ids: Array) -> None:
    """``positions[ids] = -1``."""
    positions[ids] = -1


def take_rows(team: ThreadTeam, out: Array, x: Array, ids: Array) -> None:
    """``out[i] = x[ids[i]]`` of a matrix or a vector."""

    def take(thread: int, start: int, stop: int) -> None:
        np.take(x, ids[start:stop], axis=0, out=out[start:stop], mode="clip")

    team.run(len(ids), _items(x.size // max(1, len(x))), take)


def _items(each: int) -> int:
    """How many items of ``each`` elements make waking a thread worthwhile."""
    return max(1, _GRAIN // max(1, each))
