"""Naive twins of the kernels of sampled output layers."""

import itertools
from collections import Counter
from collections.abc import Iterator

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.kernels.operands import Lookup, RowSamples
from harness.naive_hash import hash64


def sign_keys(team: object, out: Array, projected: Array, extra: Array, weights: Array) -> None:
    shape = len(projected), len(out), len(weights) // len(out)
    bits = (projected + np.outer(extra, weights) > 0).reshape(shape)
    for t, i in np.ndindex(*out.shape):
        out[t, i] = int("".join("01"[int(bit)] for bit in bits[i, t]), 2)


def winner_keys(team: object, out: Array, x: Array, bins: Array, skips_zeros: bool) -> None:
    tables, digits, size = bins.shape
    columns = bins.reshape(-1, size)
    for i, row in enumerate(x):
        found = [_winner(row[bin_], skips_zeros) for bin_ in columns]
        filled = [_lent(b, found) if winner < 0 else winner for b, winner in enumerate(found)]
        for t in range(tables):
            out[t, i] = np.ravel_multi_index(
                filled[t * digits : (t + 1) * digits], (size,) * digits
            )


def fill_buckets(team: object, starts: Array, members: Array, keys: Array) -> None:
    for t, row in enumerate(keys):
        members[t] = np.argsort(row, kind="stable")
        starts[t] = np.searchsorted(np.sort(row), np.arange(starts.shape[1]))


def add_targets(ids: Array, positions: Array, count: int, y: Csr, rows: Array) -> int:
    for row in rows:
        for label in y.indices[y.indptr[row] : y.indptr[row + 1]]:
            count = _append(ids, positions, count, label)
    return count


def add_random(ids: Array, positions: Array, count: int, most: int, key: int) -> int:
    labels = len(positions)
    most = min(most, labels)
    takes = most - count <= labels - most
    drawn: list[int] = []
    stream = (hash64(key, draw) % labels for draw in itertools.count())
    while len(drawn) < (most - count if takes else labels - most):
        label = next(stream)
        if positions[label] < 0 and label not in drawn:
            drawn.append(label)
    others = [label for label in range(labels) if positions[label] < 0 and label not in drawn]
    for label in (drawn if takes else others) if count < most else ():
        count = _append(ids, positions, count, label)
    return count


def write_target_positions(
    indptr: Array, indices: Array, positions: Array, y: Csr, rows: Array
) -> None:
    for i, row in enumerate(rows):
        found = np.sort(positions[y.indices[y.indptr[row] : y.indptr[row + 1]]])
        indptr[i + 1] = indptr[i] + len(found)
        indices[indptr[i] : indptr[i + 1]] = found


def clear_positions(positions: Array, ids: Array) -> None:
    positions[ids] = -1


def take_rows(team: object, out: Array, x: Array, ids: Array) -> None:
    out[:] = x[ids]


def size_row_samples(starts: Array, y: Csr, rows: Array, active: int) -> None:
    for i, row in enumerate(rows):
        starts[i + 1] = starts[i] + max(active, y.indptr[row + 1] - y.indptr[row])


def draw_row_samples(
    team: object,
    samples: RowSamples,
    y: Csr,
    rows: Array,
    first_row: int,
    found: Lookup,
    random: float,
    key: int,
    marks: Array,
) -> None:
    labels = marks.shape[2]
    for row, source in enumerate(rows, first_row):
        span = slice(samples.starts[row], samples.starts[row + 1])
        size = span.stop - span.start
        chosen = list(y.indices[y.indptr[source] : y.indptr[source + 1]])
        samples.own[row] = len(chosen)
        most = size - int(random * (size - len(chosen)) + 0.5)
        chosen += _popular(chosen, most, found, row, hash64(key, 2 * row))
        chosen += _drawn(chosen, size, labels, hash64(key, 2 * row + 1))
        samples.ids[span], samples.rows[span] = chosen, row


def sampled_losses(
    team: object, slopes: Array, gradient: Array, loss: Array, samples: RowSamples,
    hidden: Array, weight: Array, bias: Array, is_softmax: bool,
) -> None:  # fmt: skip
    rows = len(hidden)
    for i, span, logits in _each_row(samples, hidden, weight, bias):
        own = samples.own[i]
        if is_softmax and own == 0:
            slopes[span], gradient[i], loss[i] = 0.0, 0.0, 0.0
            continue
        if is_softmax:
            weights = np.exp(logits - logits.max())
            loss[i] = logits.max() + np.log(weights.sum()) - logits[:own].mean()
            slopes[span] = weights / weights.sum() / rows
            slopes[span][:own] -= 1.0 / own / rows
        else:
            loss[i] = np.logaddexp(0.0, logits).sum() - logits[:own].sum()
            slopes[span] = 1.0 / (1.0 + np.exp(-logits)) / rows
            slopes[span][:own] -= 1.0 / rows
        gradient[i] = slopes[span] @ weight[samples.ids[span]]


def _each_row(
    samples: RowSamples, hidden: Array, weight: Array, bias: Array
) -> Iterator[tuple[int, slice, Array]]:
    """A row, its span and its logits in float64."""
    for i in range(len(hidden)):
        span = slice(int(samples.starts[i]), int(samples.starts[i + 1]))
        ids = samples.ids[span]
        logits = weight[ids].astype(np.float64) @ hidden[i] + bias[ids]
        yield i, span, logits


def _popular(taken: list[int], most: int, found: Lookup, row: int, key: int) -> list[int]:
    """The labels in most buckets of a row, up to ``most`` in all."""
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
    """Labels drawn uniformly, or all but those."""
    others = [label for label in range(labels) if label not in taken]
    takes = size - len(taken) <= labels - size
    drawn: list[int] = []
    stream = (hash64(key, draw) % labels for draw in itertools.count())
    while len(drawn) < (size - len(taken) if takes else labels - size):
        label = next(stream)
        if label in others and label not in drawn:
            drawn.append(label)
    return drawn if takes else [label for label in others if label not in drawn]


def _append(ids: Array, positions: Array, count: int, label: int) -> int:
    if positions[label] >= 0:
        return count
    ids[count], positions[label] = label, count
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
