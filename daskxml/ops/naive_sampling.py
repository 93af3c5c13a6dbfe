# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The kernels of sampling, slow and obvious."""

from __future__ import annotations

import itertools

import numpy as np

from daskxml.ops.naive_hash import hash64
from daskxml.types import Array, Csr


class NaiveSampling:
    """Implements :class:`daskxml.ops.sampling_protocol.SamplingKernels` in plain NumPy."""

    def sign_keys(self, out: Array, projected: Array, extra: Array, weights: Array) -> None:
        shape = len(projected), len(out), len(weights) // len(out)
        bits = (projected + np.outer(extra, weights) > 0).reshape(shape)
        for t, i in np.ndindex(*out.shape):
            out[t, i] = int("".join("01"[int(bit)] for bit in bits[i, t]), 2)

    def winner_keys(self, out: Array, x: Array, bins: Array, skips_zeros: bool) -> None:
        tables, digits, size = bins.shape
        columns = bins.reshape(-1, size)
        for i, row in enumerate(x):
            found = [_winner(row[bin_], skips_zeros) for bin_ in columns]
            filled = [_lent(b, found) if winner < 0 else winner for b, winner in enumerate(found)]
            for t in range(tables):
                out[t, i] = np.ravel_multi_index(
                    filled[t * digits : (t + 1) * digits], (size,) * digits
                )

    def fill_buckets(self, starts: Array, members: Array, keys: Array) -> None:
        for t, row in enumerate(keys):
            members[t] = np.argsort(row, kind="stable")
            starts[t] = np.searchsorted(np.sort(row), np.arange(starts.shape[1]))

    def count_votes(self, votes: Array, keys: Array, starts: Array, members: Array) -> None:
        votes[:] = 0
        for t, row in enumerate(keys):
            for key in row:
                votes[0, members[t, starts[t, key] : starts[t, key + 1]]] += 1

    def add_targets(self, ids: Array, place: Array, count: int, y: Csr, rows: Array) -> int:
        for row in rows:
            for label in y.indices[y.indptr[row] : y.indptr[row + 1]]:
                count = _append(ids, place, count, label)
        return count

    def add_popular(
        self, ids: Array, place: Array, count: int, votes: Array, most: int, key: int
    ) -> int:
        free = np.flatnonzero((votes > 0) & (place < 0))
        ranked = -np.sort(-votes[free])
        room = most - count
        if room <= 0:
            return count
        last = ranked[room - 1] if len(ranked) > room else 1
        sure, tied = (votes[free] > last).sum(), (votes[free] == last).sum()
        left, wanted = int(tied), min(room - sure, tied)
        for label in free:
            if votes[label] == last:
                taken = hash64(key, left) % left < wanted
                left, wanted = left - 1, wanted - taken
            if votes[label] > last or (votes[label] == last and taken):
                count = _append(ids, place, count, int(label))
        return count

    def add_random(self, ids: Array, place: Array, count: int, most: int, key: int) -> int:
        labels = len(place)
        most = min(most, labels)
        takes = most - count <= labels - most
        drawn: list[int] = []
        stream = (hash64(key, draw) % labels for draw in itertools.count())
        while len(drawn) < (most - count if takes else labels - most):
            label = next(stream)
            if place[label] < 0 and label not in drawn:
                drawn.append(label)
        others = [label for label in range(labels) if place[label] < 0 and label not in drawn]
        for label in (drawn if takes else others) if count < most else ():
            count = _append(ids, place, count, label)
        return count

    def place_targets(
        self, indptr: Array, indices: Array, place: Array, y: Csr, rows: Array
    ) -> None:
        for i, row in enumerate(rows):
            found = np.sort(place[y.indices[y.indptr[row] : y.indptr[row + 1]]])
            indptr[i + 1] = indptr[i] + len(found)
            indices[indptr[i] : indptr[i + 1]] = found

    def clear_places(self, place: Array, ids: Array) -> None:
        place[ids] = -1

    def take_rows(self, out: Array, x: Array, ids: Array) -> None:
        out[:] = x[ids]


def _append(ids: Array, place: Array, count: int, label: int) -> int:
    if place[label] >= 0:
        return count
    ids[count], place[label] = label, count
    return count + 1


def _winner(values: Array, skips_zeros: bool) -> int:
    places = [j for j, value in enumerate(values) if value != 0 or not skips_zeros]
    return max(places, key=lambda j: values[j]) if places else -1


def _lent(empty: int, found: list[int]) -> int:
    """The winner that an empty bin takes."""
    for attempt in range(1000):
        other = hash64(empty, attempt) % len(found)
        if found[other] >= 0:
            return found[other]
    return max(found[0], 0) if max(found) < 0 else next(w for w in found if w >= 0)
