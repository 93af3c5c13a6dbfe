# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""The kernels of sets, slow and obvious."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import numpy as np

from daskxml.ops.naive_hash import hash64
from daskxml.ops.row_sets_protocol import Lookup, RowSets
from daskxml.types import Array, Csr


class NaiveRowSets:
    """Implements :class:`daskxml.ops.row_sets_protocol.RowSetKernels` in plain NumPy."""

    def size_sets(self, starts: Array, y: Csr, rows: Array, active: int) -> None:
        for i, row in enumerate(rows):
            starts[i + 1] = starts[i] + max(active, y.indptr[row + 1] - y.indptr[row])

    def choose_sets(
        self, sets: RowSets, y: Csr, rows: Array, first_row: int, found: Lookup, random: float,
        key: int, marks: Array,
    ) -> None:  # fmt: skip
        labels = marks.shape[2]
        for row, source in enumerate(rows, first_row):
            span = slice(sets.starts[row], sets.starts[row + 1])
            size = span.stop - span.start
            chosen = list(y.indices[y.indptr[source] : y.indptr[source + 1]])
            sets.own[row] = len(chosen)
            most = size - int(random * (size - len(chosen)) + 0.5)
            chosen += _popular(chosen, most, found, row, hash64(key, 2 * row))
            sets.certain[row] = len(chosen)
            chosen += _drawn(chosen, size, labels, hash64(key, 2 * row + 1))
            sets.ids[span], sets.rows[span] = chosen, row

    def softmax_sets(
        self, slopes: Array, gradient: Array, loss: Array, sets: RowSets, hidden: Array,
        weight: Array, bias: Array, weighted: bool,
    ) -> None:  # fmt: skip
        rows = len(hidden)
        for i, span, logits, times in _each_row(sets, hidden, weight, bias, weighted):
            own = sets.own[i]
            if own == 0:
                slopes[span], gradient[i], loss[i] = 0.0, 0.0, 0.0
                continue
            weights = times * np.exp(logits - logits.max())
            loss[i] = logits.max() + np.log(weights.sum()) - logits[:own].mean()
            slopes[span] = weights / weights.sum() / rows
            slopes[span][:own] -= 1.0 / own / rows
            gradient[i] = slopes[span] @ weight[sets.ids[span]]

    def sigmoid_sets(
        self, slopes: Array, gradient: Array, loss: Array, sets: RowSets, hidden: Array,
        weight: Array, bias: Array, weighted: bool,
    ) -> None:  # fmt: skip
        rows = len(hidden)
        for i, span, logits, times in _each_row(sets, hidden, weight, bias, weighted):
            own = sets.own[i]
            loss[i] = times @ np.logaddexp(0.0, logits) - logits[:own].sum()
            slopes[span] = times / (1.0 + np.exp(-logits)) / rows
            slopes[span][:own] -= 1.0 / rows
            gradient[i] = slopes[span] @ weight[sets.ids[span]]


def _each_row(
    sets: RowSets, hidden: Array, weight: Array, bias: Array, weighted: bool
) -> Iterator[tuple[int, slice, Array, Array]]:
    """A row, its span, its logits, and how often each of its labels counts; in float64."""
    for i in range(len(hidden)):
        span = slice(int(sets.starts[i]), int(sets.starts[i + 1]))
        ids = sets.ids[span]
        times, certain = np.ones(len(ids)), sets.certain[i]
        if weighted and certain < len(ids):
            times[certain:] = (len(weight) - certain) / (len(ids) - certain)
        logits = weight[ids].astype(np.float64) @ hidden[i] + bias[ids]
        yield i, span, logits, times


def _popular(taken: list[int], most: int, found: Lookup, row: int, key: int) -> list[int]:
    """What the tables name most often; as many as there is room for."""
    votes: Counter[int] = Counter()
    for t, keys in enumerate(found.keys):
        bucket = found.members[t, found.starts[t, keys[row]] : found.starts[t, keys[row] + 1]]
        votes.update(int(label) for label in bucket if label not in taken)
    room = most - len(taken)
    if room <= 0 or not votes:
        return []
    ranked = sorted(votes.values(), reverse=True)
    last = ranked[room - 1] if len(ranked) > room else 1
    left = ranked.count(last)
    wanted, chosen = min(room - sum(count > last for count in ranked), left), []
    for label, count in votes.items():
        is_taken = count > last
        if count == last:
            is_taken = hash64(key, left) % left < wanted
            left, wanted = left - 1, wanted - is_taken
        if is_taken:
            chosen.append(label)
    return chosen


def _drawn(taken: list[int], size: int, labels: int, key: int) -> list[int]:
    """Labels drawn evenly, or all but those."""
    others = [label for label in range(labels) if label not in taken]
    takes = size - len(taken) <= labels - size
    drawn: list[int] = []
    stream = (hash64(key, draw) % labels for draw in itertools.count())
    while len(drawn) < (size - len(taken) if takes else labels - size):
        label = next(stream)
        if label in others and label not in drawn:
            drawn.append(label)
    return drawn if takes else [label for label in others if label not in drawn]
