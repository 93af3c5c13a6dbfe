"""Numba kernels of hash tables over labels, and of the choice of a batch's labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from daskxml.ops.numba_math import hash64

_ZERO = np.float32(0.0)
_TRIES = 1000  # of an empty bin, before it looks at all others in turn


@njit(nogil=True, cache=True)
def sign_keys(out: Any, projected: Any, extra: Any, weights: Any, start: int, stop: int) -> None:
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


@njit(nogil=True, cache=True)
def winner_keys(out: Any, x: Any, bins: Any, skips_zeros: bool, start: int, stop: int) -> None:
    """Winners of all bins of a row, then the empty bins', then the digits."""
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


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def fill_buckets(starts: Any, members: Any, keys: Any, start: int, stop: int) -> None:
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


@njit(nogil=True, cache=True)
def count_votes(votes: Any, keys: Any, starts: Any, members: Any, start: int, stop: int) -> None:
    """Votes of tables ``start`` to ``stop``; rows of one bucket are counted together."""
    votes[:] = 0
    tally = np.zeros(starts.shape[1] - 1, np.int32)
    for t in range(start, stop):
        for key in keys[t]:
            tally[key] += 1
        for key in keys[t]:
            rows = tally[key]
            if rows == 0:
                continue
            tally[key] = 0
            for j in range(starts[t, key], starts[t, key + 1]):
                votes[members[t, j]] += rows


@njit(nogil=True, cache=True)
def add_targets(ids: Any, place: Any, count: int, indptr: Any, indices: Any, rows: Any) -> int:
    """See the Protocol."""
    for row in rows:
        for j in range(indptr[row], indptr[row + 1]):
            label = indices[j]
            if place[label] < 0:
                place[label] = count
                ids[count] = label
                count += 1
    return count


@njit(nogil=True, cache=True)
def add_popular(ids: Any, place: Any, count: int, votes: Any, most: int, key: Any) -> int:
    """Find the number of votes at which the room ends; take all above it, and some at it."""
    if count >= most:
        return count
    levels = np.zeros(votes.max() + 2, np.int64)
    for label in range(votes.shape[0]):
        if votes[label] > 0 and place[label] < 0:
            levels[votes[label]] += 1
    cut, wanted = levels.shape[0] - 1, most - count
    while cut > 1 and levels[cut] <= wanted:
        wanted -= levels[cut]
        cut -= 1
    left, wanted = levels[cut], min(wanted, levels[cut])
    for label in range(votes.shape[0]):
        if votes[label] < cut or place[label] >= 0:
            continue
        if votes[label] == cut:  # each of those left has the same chance (Knuth's algorithm S)
            taken = hash64(key, left) % np.uint64(left) < np.uint64(wanted)
            left -= 1
            if not taken:
                continue
            wanted -= 1
        place[label] = count
        ids[count] = label
        count += 1
    return count


@njit(nogil=True, cache=True)
def add_random(ids: Any, place: Any, count: int, most: int, key: Any) -> int:
    """Draw until there are enough; or, if most are to be taken, draw those that are not."""
    labels = place.shape[0]
    most = min(most, labels)
    if count >= most:
        return count
    takes = most - count <= labels - most
    left = most - count if takes else labels - most
    draw = 0
    while left > 0:
        drawn = np.int64(hash64(key, draw) % np.uint64(labels))
        draw += 1
        if place[drawn] != -1:
            continue
        left -= 1
        if takes:
            place[drawn] = count
            ids[count] = drawn
            count += 1
        else:
            place[drawn] = -2
    if not takes:
        for label in range(labels):
            if place[label] == -1:
                place[label] = count
                ids[count] = label
                count += 1
            elif place[label] == -2:
                place[label] = -1
    return count


@njit(nogil=True, cache=True)
def place_targets(
    out_indptr: Any, out_indices: Any, place: Any, indptr: Any, indices: Any, rows: Any
) -> None:
    """Look places up and sort them; rows have few labels."""
    end = out_indptr[0]
    for i in range(rows.shape[0]):
        begin = end
        for j in range(indptr[rows[i]], indptr[rows[i] + 1]):
            value = place[indices[j]]
            k = end
            while k > begin and out_indices[k - 1] > value:
                out_indices[k] = out_indices[k - 1]
                k -= 1
            out_indices[k] = value
            end += 1
        out_indptr[i + 1] = end


@njit(nogil=True, cache=True)
def clear_places(place: Any, ids: Any) -> None:
    """``place[ids] = -1``."""
    for label in ids:
        place[label] = -1


@njit(nogil=True, cache=True)
def take_rows(out: Any, x: Any, ids: Any, start: int, stop: int) -> None:
    """``out[i] = x[ids[i]]`` for ``start <= i < stop``."""
    for i in range(start, stop):
        source, target = x[ids[i]], out[i]
        for c in range(target.shape[0]):
            target[c] = source[c]
