# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""Kernels of label trees on a CPU: a node's scores are fitted in the cache, rows descend by beam.

A node's weights are ``(features, children)``: one stored value of a row meets all children at
once, contiguous, so every inner loop runs along the children and vectorizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numba import njit

from daskxml.core.arrays import Array, Csr, Partition
from daskxml.kernels.cpu.numba_math import hash64
from daskxml.kernels.cpu.thread_team import ThreadTeam
from daskxml.kernels.tree import (
    COARSE,
    NO_ROWS_BIAS,
    QUANTUM,
    Fit,
    FittedBlock,
    NodeProblem,
    TreeArrays,
    TreeWeights,
)

_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
_VECTOR = 8  # children that are computed together; the last few one by one would cost as much as 50
_ROW_GRAIN = 16  # rows that take about as long as waking a thread


@njit(nogil=True, cache=True)
def _round_to(exact: Any, values: Any, quantum: float) -> None:
    """Write values, rounded to multiples of a power of two, in float64."""
    for d in range(values.shape[0]):
        exact[d] = np.rint(np.float64(values[d]) / quantum) * quantum


@njit(nogil=True, cache=True)
def sum_labels(
    sums: Any, x_indptr: Any, x_indices: Any, x_data: Any, y_indptr: Any, y_indices: Any,
    projection: Any,
) -> None:  # fmt: skip
    """Add every row's projection to the sums of its labels."""
    total = np.empty(sums.shape[1], np.float32)
    exact = np.empty(sums.shape[1], np.float64)
    for i in range(x_indptr.shape[0] - 1):
        if y_indptr[i] == y_indptr[i + 1]:
            continue
        total[:] = _ZERO
        for j in range(x_indptr[i], x_indptr[i + 1]):
            value, source = x_data[j], projection[x_indices[j]]
            for d in range(total.shape[0]):
                total[d] += value * source[d]
        _round_to(exact, total, QUANTUM)
        for j in range(y_indptr[i], y_indptr[i + 1]):
            target = sums[y_indices[j]]
            for d in range(exact.shape[0]):
                target[d] += exact[d]


@njit(nogil=True, cache=True)
def sum_features(
    sums: Any, x_indptr: Any, x_indices: Any, x_data: Any, y_indptr: Any, y_indices: Any,
    vectors: Any,
) -> None:  # fmt: skip
    """Add the sum of a row's labels' vectors, times each of its values, to the features' sums."""
    total = np.empty(sums.shape[1], np.float32)
    exact = np.empty(sums.shape[1], np.float64)
    for i in range(x_indptr.shape[0] - 1):
        if y_indptr[i] == y_indptr[i + 1]:
            continue
        total[:] = _ZERO
        for j in range(y_indptr[i], y_indptr[i + 1]):
            source = vectors[y_indices[j]]
            for d in range(total.shape[0]):
                total[d] += source[d]
        _round_to(exact, total, COARSE)
        for j in range(x_indptr[i], x_indptr[i + 1]):
            value = np.rint(np.float64(x_data[j]) / COARSE) * COARSE
            target = sums[x_indices[j]]
            for d in range(exact.shape[0]):
                target[d] += value * exact[d]


@njit(nogil=True, cache=True)
def _shuffle(order: Any, key: Any, drawn: Any) -> Any:
    """Shuffle ``order`` (Fisher and Yates) by numbers ``drawn`` and on of the stream ``key``."""
    for i in range(order.shape[0] - 1, 0, -1):
        high = hash64(key, drawn) >> np.uint64(32)
        j = np.int64((high * np.uint64(i + 1)) >> np.uint64(32))
        order[i], order[j] = order[j], order[i]
        drawn += 1
    return drawn


@njit(nogil=True, cache=True, fastmath={"contract"})
def _score_row(score: Any, weight: Any, indices: Any, data: Any) -> Any:
    """Write a row's scores of all children to ``score``; returns the row's squared norm."""
    score[:] = _ZERO
    norm = _ZERO
    for j in range(indices.shape[0]):
        value, source = data[j], weight[indices[j]]
        norm += value * value
        for c in range(score.shape[0]):
            score[c] += value * source[c]
    return norm


@njit(nogil=True, cache=True, fastmath={"contract"})
def _add_row(weight: Any, steps: Any, indices: Any, data: Any) -> None:
    """Add a row, times each child's step, to the weights."""
    for j in range(indices.shape[0]):
        value, target = data[j], weight[indices[j]]
        for c in range(steps.shape[0]):
            target[c] += value * steps[c]


@njit(nogil=True, cache=True)
def node_columns(column_of: Any, indptr: Any, indices: Any, rows: Any) -> int:
    """Number the features that occur in ``rows``, ascending, from 1; the others are 0."""
    column_of[:] = 0
    for i in range(rows.shape[0]):
        for j in range(indptr[rows[i]], indptr[rows[i] + 1]):
            column_of[indices[j]] = 1
    count = 0
    for feature in range(column_of.shape[0]):
        if column_of[feature]:
            count += 1
            column_of[feature] = count
    return count


@njit(nogil=True, cache=True)
def gather_node(
    out_indptr: Any, out_indices: Any, out_data: Any, column_of: Any,
    indptr: Any, indices: Any, data: Any, rows: Any,
) -> None:  # fmt: skip
    """Copy ``rows`` with the node's own columns; column 0, the bias, is 1 in every row."""
    place = 0
    out_indptr[0] = 0
    for i in range(rows.shape[0]):
        out_indices[place] = 0
        out_data[place] = _ONE
        place += 1
        for j in range(indptr[rows[i]], indptr[rows[i] + 1]):
            out_indices[place] = column_of[indices[j]]
            out_data[place] = data[j]
            place += 1
        out_indptr[i + 1] = place


@njit(nogil=True, cache=True, fastmath={"contract"})
def fit_dual(
    weight: Any, sign: Any, dual: Any, indptr: Any, indices: Any, data: Any, y_indptr: Any,
    y_indices: Any, order: Any, key: Any, passes: int, diagonal: Any,
) -> None:  # fmt: skip
    """Passes of dual coordinate descent on the squared hinge, all children of a row at once.

    ``sign`` is -1 for a child, 0 for a column of padding, whose weights stay 0.
    """
    score = np.empty(weight.shape[1], np.float32)
    drawn = 0
    for _ in range(passes):
        drawn = _shuffle(order, key, drawn)
        for i in order:
            row = slice(indptr[i], indptr[i + 1])
            positive = y_indices[y_indptr[i] : y_indptr[i + 1]]
            rate = _ONE / (_score_row(score, weight, indices[row], data[row]) + diagonal)
            sign[positive] = _ONE
            held = dual[i]
            changed = _ZERO
            for c in range(score.shape[0]):
                old = held[c]
                gradient = sign[c] * score[c] - _ONE + old * diagonal
                new = max(old - gradient * rate, _ZERO)
                held[c] = new
                score[c] = sign[c] * (new - old)
                changed = max(changed, abs(score[c]))
            sign[positive] = -_ONE
            if changed > _ZERO:
                _add_row(weight, score, indices[row], data[row])


@njit(nogil=True, cache=True, fastmath={"contract"})
def fit_sgd(
    weight: Any, sign: Any, indptr: Any, indices: Any, data: Any, y_indptr: Any, y_indices: Any,
    order: Any, key: Any, passes: int, lr: Any, last: Any,
) -> None:  # fmt: skip
    """Passes of SGD on the squared hinge; the rate falls from ``lr`` to ``last`` times that.

    ``sign`` is as for `fit_dual`.
    """
    score = np.empty(weight.shape[1], np.float32)
    steps = passes * order.shape[0]
    done = drawn = 0
    for _ in range(passes):
        drawn = _shuffle(order, key, drawn)
        for i in order:
            row = slice(indptr[i], indptr[i + 1])
            positive = y_indices[y_indptr[i] : y_indptr[i + 1]]
            rate = lr * (_ONE - (_ONE - last) * np.float32(done / steps))
            rate /= _score_row(score, weight, indices[row], data[row])
            done += 1
            sign[positive] = _ONE
            changed = _ZERO
            for c in range(score.shape[0]):
                score[c] = rate * sign[c] * max(_ONE - sign[c] * score[c], _ZERO)
                changed = max(changed, abs(score[c]))
            sign[positive] = -_ONE
            if changed > _ZERO:
                _add_row(weight, score, indices[row], data[row])


@njit(nogil=True, cache=True, fastmath={"contract"})
def fit_weighted_dual(
    weight: Any, sign: Any, dual: Any, indptr: Any, indices: Any, data: Any, y_indptr: Any,
    y_indices: Any, order: Any, key: Any, passes: int, diagonal: Any, row_weights: Any,
    child_weights: Any,
) -> None:  # fmt: skip
    """As `fit_dual`, with the cost of a row times its weight, and its own children's."""
    score = np.empty(weight.shape[1], np.float32)
    counts = np.empty(weight.shape[1], np.float32)
    drawn = 0
    for _ in range(passes):
        drawn = _shuffle(order, key, drawn)
        for i in order:
            row = slice(indptr[i], indptr[i + 1])
            positive = y_indices[y_indptr[i] : y_indptr[i + 1]]
            norm = _score_row(score, weight, indices[row], data[row])
            sign[positive] = _ONE
            _count_row(counts, row_weights[i], child_weights, positive)
            held = dual[i]
            changed = _ZERO
            for c in range(score.shape[0]):
                old = held[c]
                new = _ZERO
                if counts[c] > _ZERO:
                    slack = diagonal / counts[c]
                    gradient = sign[c] * score[c] - _ONE + old * slack
                    new = max(old - gradient / (norm + slack), _ZERO)
                held[c] = new
                score[c] = sign[c] * (new - old)
                changed = max(changed, abs(score[c]))
            sign[positive] = -_ONE
            if changed > _ZERO:
                _add_row(weight, score, indices[row], data[row])


@njit(nogil=True, cache=True)
def _count_row(counts: Any, row_weight: Any, child_weights: Any, positive: Any) -> None:
    """Write what a row counts for each child."""
    counts[:] = row_weight
    for c in positive:
        counts[c] *= child_weights[c]


@njit(nogil=True, cache=True, fastmath={"contract"})
def fit_weighted_sgd(
    weight: Any, sign: Any, indptr: Any, indices: Any, data: Any, y_indptr: Any, y_indices: Any,
    order: Any, key: Any, passes: int, lr: Any, last: Any, row_weights: Any, child_weights: Any,
) -> None:  # fmt: skip
    """As `fit_sgd`, with as many steps on a row as it counts, in one."""
    score = np.empty(weight.shape[1], np.float32)
    counts = np.empty(weight.shape[1], np.float32)
    steps = passes * order.shape[0]
    done = drawn = 0
    for _ in range(passes):
        drawn = _shuffle(order, key, drawn)
        for i in order:
            row = slice(indptr[i], indptr[i + 1])
            positive = y_indices[y_indptr[i] : y_indptr[i + 1]]
            left = max(_ONE - lr * (_ONE - (_ONE - last) * np.float32(done / steps)), _ZERO)
            norm = _score_row(score, weight, indices[row], data[row])
            done += 1
            sign[positive] = _ONE
            _count_row(counts, row_weights[i], child_weights, positive)
            changed = _ZERO
            for c in range(score.shape[0]):
                rate = (_ONE - left ** counts[c]) / norm
                score[c] = rate * sign[c] * max(_ONE - sign[c] * score[c], _ZERO)
                changed = max(changed, abs(score[c]))
            sign[positive] = -_ONE
            if changed > _ZERO:
                _add_row(weight, score, indices[row], data[row])


@njit(nogil=True, cache=True)
def count_kept(weight: Any, children: int, smallest: Any) -> Any:
    """The features that keep a weight, and the weights kept; the bias's row is not counted."""
    features = 0
    kept = 0
    for f in range(1, weight.shape[0]):
        before = kept
        for c in range(children):
            if abs(weight[f, c]) >= smallest:
                kept += 1
        if kept > before:
            features += 1
    return features, kept


@njit(nogil=True, cache=True)
def keep_large(
    out_features: Any, out_counts: Any, out_children: Any, out_values: Any, weight: Any,
    children: int, features: Any, smallest: Any,
) -> None:  # fmt: skip
    """Write out the weights that are kept, by feature; ``features[f]`` is the name of row f + 1."""
    row = 0
    place = 0
    for f in range(1, weight.shape[0]):
        before = place
        for c in range(children):
            if abs(weight[f, c]) >= smallest:
                out_children[place] = c
                out_values[place] = weight[f, c]
                place += 1
        if place > before:
            out_features[row] = features[f - 1]
            out_counts[row] = place - before
            row += 1


_COUNT_BITS = 20  # of an entry's second number: how many weights a chunk has
_COUNT_MASK = (1 << _COUNT_BITS) - 1


@njit(nogil=True, cache=True)
def fill_table(table: Any, node_starts: Any, features: Any, chunk_starts: Any) -> None:
    """Hash table of the chunks, by node and feature, with open addressing; a key of -1 is free.

    ``table`` is ``(places, 2)`` int64, a power of two of them: the key, and the chunk's first
    weight and number of weights in one, so that to find a chunk reads one cache line.
    """
    table[:, 0] = -1
    mask = table.shape[0] - 1
    for node in range(node_starts.shape[0] - 1):
        for chunk in range(node_starts[node], node_starts[node + 1]):
            slot = np.int64(hash64(node, features[chunk]) & np.uint64(mask))
            while table[slot, 0] >= 0:
                slot = (slot + 1) & mask
            table[slot, 0] = np.int64(node) << 32 | np.int64(features[chunk])
            first = chunk_starts[chunk]
            table[slot, 1] = first << _COUNT_BITS | (chunk_starts[chunk + 1] - first)


@njit(nogil=True, cache=True)
def insert(scores: Any, ids: Any, count: int, score: Any, item: Any) -> int:
    """Insert into the best so far, descending, ties by the lowest id; returns their number."""
    place = count
    while place > 0 and (
        scores[place - 1] < score or (scores[place - 1] == score and ids[place - 1] > item)
    ):
        place -= 1
    if place == scores.shape[0]:
        return count
    for i in range(min(count, scores.shape[0] - 1), place, -1):
        scores[i], ids[i] = scores[i - 1], ids[i - 1]
    scores[place], ids[place] = score, item
    return min(count + 1, scores.shape[0])


@njit(nogil=True, cache=True, fastmath={"contract"})
def _score_children(
    score: Any, found: Any, node: Any, features: Any, values: Any, table: Any, children: Any,
    weights: Any,
) -> None:  # fmt: skip
    """Add the products of a row's features with the weights of a node's children to ``score``.

    All chunks are looked up before the first is used: the memory answers several at a time.
    ``found`` holds an entry for each feature.
    """
    mask = table.shape[0] - 1
    for j in range(features.shape[0]):
        key = np.int64(node) << 32 | np.int64(features[j])
        slot = np.int64(hash64(node, features[j]) & np.uint64(mask))
        while table[slot, 0] >= 0 and table[slot, 0] != key:
            slot = (slot + 1) & mask
        found[j] = table[slot, 1] if table[slot, 0] == key else 0
    for j in range(features.shape[0]):
        value, first = values[j], found[j] >> _COUNT_BITS
        for e in range(first, first + (found[j] & _COUNT_MASK)):
            score[children[e]] += value * weights[e]


@njit(nogil=True, cache=True)
def rank_rows(
    out_ids: Any, out_scores: Any, beam: int, levels: int, widest: int,
    indptr: Any, indices: Any, data: Any, rows: Any, start: int, stop: int,
    child_starts: Any, bias: Any, children: Any, weights: Any, table: Any,
) -> None:  # fmt: skip
    """The best leaves of the rows ``start <= i < stop``; a score is a log probability.

    No child's score is above its parent's: a node whose own is below the last of the best found is
    not looked into, and neither are those after it.
    """
    last_node = child_starts.shape[0] - 1
    score = np.empty(widest, np.float32)
    nodes, node_scores = np.empty(beam, np.int32), np.empty(beam, np.float32)
    below, below_scores = np.empty(beam, np.int32), np.empty(beam, np.float32)
    for i in range(start, stop):
        row = slice(indptr[rows[i]], indptr[rows[i] + 1])
        features, values = indices[row], data[row]
        chunks = np.empty(features.shape[0], np.int64)
        nodes[0], node_scores[0], held = 0, _ZERO, 1
        for level in range(levels):
            is_last = level == levels - 1
            found_ids = out_ids[i] if is_last else below
            found_scores = out_scores[i] if is_last else below_scores
            found = 0
            for b in range(held):
                if found == found_scores.shape[0] and node_scores[b] < found_scores[found - 1]:
                    break
                first, end = child_starts[nodes[b]], child_starts[nodes[b] + 1]
                width = end - first
                score[:width] = bias[first - 1 : end - 1]
                _score_children(score, chunks, nodes[b], features, values, table, children, weights)
                if is_last:
                    first -= last_node
                for c in range(width):
                    lack = max(_ONE - score[c], _ZERO)
                    total = node_scores[b] - lack * lack * lack
                    if found < found_scores.shape[0] or total >= found_scores[found - 1]:
                        found = insert(found_scores, found_ids, found, total, first + c)
            if is_last:
                found_ids[found:] = -1
                found_scores[found:] = -np.inf
            held = found
            nodes, below = below, nodes
            node_scores, below_scores = below_scores, node_scores


@njit(nogil=True, cache=True, fastmath={"contract"})
def average_rows(
    out_ids: Any, out_scores: Any, ids: Any, scores: Any, shares: Any, start: int, stop: int
) -> None:
    """Rank labels by the weighted mean of their probabilities in several rankings."""
    models, candidates = ids.shape[0], ids.shape[2]
    for i in range(start, stop):
        found = 0
        for m in range(models):
            for c in range(candidates):
                label = ids[m, i, c]
                if label < 0:
                    break
                total = shares[m] * scores[m, i, c]
                is_first = True
                for other in range(models):
                    if other == m:
                        continue
                    for d in range(candidates):
                        if ids[other, i, d] == label:
                            is_first = is_first and other > m
                            total += shares[other] * scores[other, i, d]
                            break
                if is_first:
                    found = insert(out_scores[i], out_ids[i], found, total, label)
        out_ids[i, found:] = -1
        out_scores[i, found:] = _ZERO


def node_rows(x: Csr, rows: Array) -> tuple[Csr, Array]:
    """Gather ``rows`` ``(count,)`` int64 of ``x``, with the columns that occur in them.

    Returns
    -------
    Csr
        ``(count, features + 1)``; column 0 is 1 in every row, for the bias.
    Array
        ``(features,)`` int32: the features that are columns 1 and up, ascending.
    """
    column_of = np.empty(x.columns, np.int32)
    count = node_columns(column_of, x.indptr, x.indices, rows)
    nonzeros = int((x.indptr[rows + 1] - x.indptr[rows]).sum()) + rows.shape[0]
    gathered = Csr(
        np.empty(rows.shape[0] + 1, np.int64), np.empty(nonzeros, np.int32),
        np.empty(nonzeros, np.float32), count + 1,
    )  # fmt: skip
    gather_node(
        gathered.indptr, gathered.indices, gathered.data, column_of,
        x.indptr, x.indices, _values(x), rows,
    )  # fmt: skip
    return gathered, np.flatnonzero(column_of).astype(np.int32)


def fit_node(weight: Array, x: Csr, problem: NodeProblem, fit: Fit) -> None:
    """Fit scores ``x @ weight``; ``weight`` ``(columns, children or more)`` is zero before.

    ``x`` has the problem's rows, from `node_rows`. Columns behind the children stay zero.
    """
    y = problem.children
    sign = np.full(weight.shape[1], -_ONE, np.float32)
    sign[y.columns :] = _ZERO
    order = np.arange(x.rows)
    operands = (x.indptr, x.indices, x.data, y.indptr, y.indices, order, np.uint64(problem.key))
    rows_count, child_weights = problem.row_weights, problem.child_weights
    counts = _counts(rows_count, x.rows), _counts(child_weights, weight.shape[1])
    is_weighted = rows_count is not None or child_weights is not None
    if fit.solver == "dual":
        dual = np.zeros((x.rows, weight.shape[1]), np.float32)
        diagonal = np.float32(0.5 / fit.cost)
        if is_weighted:
            fit_weighted_dual(weight, sign, dual, *operands, fit.passes, diagonal, *counts)
        else:
            fit_dual(weight, sign, dual, *operands, fit.passes, diagonal)
        return
    rates = np.float32(fit.lr), np.float32(fit.last_lr)
    if is_weighted:
        fit_weighted_sgd(weight, sign, *operands, fit.passes, *rates, *counts)
    else:
        fit_sgd(weight, sign, *operands, fit.passes, *rates)


def prune(
    weight: Array, children: int, features: Array, smallest: float
) -> tuple[Array, Array, Array, Array]:
    """Return the first columns' weights of at least ``smallest``, without row 0, the bias.

    Returns
    -------
    features, counts
        ``(chunks,)`` int32: the names, from ``features``, of rows that keep some weights, and
        how many each keeps.
    children, weights
        uint16 and float32, row by row.
    """
    bound = np.float32(smallest)
    rows, kept = count_kept(weight, children, bound)
    out = (
        np.empty(rows, np.int32), np.empty(rows, np.int32),
        np.empty(kept, np.uint16), np.empty(kept, np.float32),
    )  # fmt: skip
    keep_large(*out, weight, children, features, bound)
    return out


def row_orders(rows: int, key: int, passes: int) -> Array:
    """Return the order of a node's rows in each pass, ``(passes, rows)`` int32."""
    orders = np.empty((passes, rows), np.int32)
    shuffle_passes(orders, np.uint64(key))
    return orders


@njit(nogil=True, cache=True)
def shuffle_passes(orders: Any, key: Any) -> None:
    """Shuffle the rows for one pass after the other."""
    order = np.arange(orders.shape[1])
    drawn = 0
    for turn in range(orders.shape[0]):
        drawn = _shuffle(order, key, drawn)
        orders[turn] = order


def _fit_problem(x: Csr, problem: NodeProblem, fit: Fit, smallest: float) -> FittedBlock:
    gathered, names = node_rows(x, problem.rows)
    children = problem.children.columns
    padded = -(-children // _VECTOR) * _VECTOR
    weight = np.zeros((gathered.columns, padded), np.float32)
    if problem.rows.shape[0]:
        fit_node(weight, gathered, problem, fit)
    else:
        weight[0] = NO_ROWS_BIAS
    return FittedBlock(weight[0, :children].copy(), *prune(weight, children, names, smallest))


def label_sums(part: Partition, projection: Array) -> Array:
    """Sum the projected rows of every label, ``(labels, dimensions)`` float64.

    ``projection`` is ``(features, dimensions)`` float32. A row's projection is rounded to
    multiples of `QUANTUM`, so that sums over parts of the rows are exact in any order.
    """
    x, y = part.features, part.labels
    sums = np.zeros((y.columns, projection.shape[1]))
    sum_labels(sums, x.indptr, x.indices, _values(x), y.indptr, y.indices, projection)
    return sums


def feature_sums(part: Partition, vectors: Array) -> Array:
    """Sum the vectors of the labels of every feature's rows, weighted by its values.

    ``vectors`` is ``(labels, dimensions)`` float32, the result ``(features, dimensions)``
    float64: exact, since values and the sum of a row's vectors are rounded to `COARSE`.
    """
    x, y = part.features, part.labels
    sums = np.zeros((x.columns, vectors.shape[1]))
    sum_features(sums, x.indptr, x.indices, _values(x), y.indptr, y.indices, vectors)
    return sums


class CpuTree:
    """Implements :class:`daskxml.kernels.tree.TreeKernels` for host memory."""

    _team: ThreadTeam

    def fit_nodes(
        self, x: Csr, problems: Iterable[NodeProblem], fit: Fit, smallest: float
    ) -> list[FittedBlock]:
        return [_fit_problem(x, problem, fit, smallest) for problem in problems]

    def tree_weights(self, arrays: TreeArrays) -> TreeWeights:
        chunks = arrays.features.shape[0]
        table = np.empty((1 << (chunks * 3 // 2).bit_length(), 2), np.int64)
        fill_table(table, arrays.node_starts, arrays.features, arrays.chunk_starts)
        return TreeWeights(arrays, table, int(np.diff(arrays.child_starts).max()))

    def rank_leaves(
        self, tree: TreeWeights, x: Csr, rows: Array, beam: int, count: int
    ) -> tuple[Array, Array]:
        arrays = tree.arrays
        ids = np.empty((rows.shape[0], count), np.int32)
        scores = np.empty((rows.shape[0], count), np.float32)
        values = _values(x)
        operands = (
            arrays.child_starts, arrays.bias, arrays.children, arrays.weights, tree.table,
        )  # fmt: skip
        self._team.run(
            rows.shape[0], _ROW_GRAIN,
            lambda _, *span: rank_rows(
                ids, scores, beam, arrays.levels, tree.widest, x.indptr, x.indices, values, rows,
                *span, *operands,
            ),
        )  # fmt: skip
        return ids, scores

    def average_rankings(
        self, ids: Array, scores: Array, shares: Array, count: int
    ) -> tuple[Array, Array]:
        rows = ids.shape[1]
        out = np.empty((rows, count), np.int32), np.empty((rows, count), np.float32)
        self._team.run(
            rows, _ROW_GRAIN, lambda _, *span: average_rows(*out, ids, scores, shares, *span)
        )
        return out


def _counts(weights: Array | None, size: int) -> Array:
    return np.ones(size, np.float32) if weights is None else weights


def _values(x: Csr) -> Array:
    return np.ones(x.nonzeros, np.float32) if x.data is None else x.data
