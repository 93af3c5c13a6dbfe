# ruff: noqa: D102 (the methods are documented once, in the Protocol)
"""Kernels of label trees on a CPU: a node's scores are fitted in the cache, rows descend by beam.

A node's weights are ``(features, children)``: one stored value of a row meets all children at
once, contiguous, so every inner loop runs along the children and vectorizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from daskxml.core.arrays import Array, Csr, Partition
from daskxml.core.jit import njit, writable_view
from daskxml.data.rows import empty_array, is_on_disk
from daskxml.kernels.cpu.numba_math import hash64, insert, prefetch
from daskxml.kernels.cpu.sparse import arrays_of
from daskxml.kernels.cpu.thread_team import ThreadTeam
from daskxml.kernels.operands import (
    COARSE,
    NO_ROWS_BIAS,
    QUANTUM,
    FittedBlock,
    NodeProblem,
    TreeArrays,
    TreeWeights,
)

_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
_ROUNDING = np.float32(1e-5)  # relative, of a row's squared norm
_VECTOR = 8  # children that are computed together; the last few one by one would cost as much as 50
_ROW_GRAIN = 16  # rows that take about as long as waking a thread
_STORED = ("bias", "node_starts", "features", "chunk_starts", "children", "weights")  # in files


@njit(nogil=True)
def sum_products(sums: Any, rows: Any, vectors: Any, others: Any, units: Any) -> None:
    """For every row add the sum of its ``vectors`` to ``sums`` at the columns of ``others``.

    ``rows`` and ``others`` are sparse matrices with the same rows; values count as they are. The
    row's sum and the values of ``others`` are rounded to multiples of ``units``, powers of two.
    """
    (indptr, indices, data), (to_indptr, to_indices, to_data) = rows, others
    total = np.empty(sums.shape[1], np.float32)
    exact = np.empty(sums.shape[1], np.float64)
    for i in range(indptr.shape[0] - 1):
        total[:] = _ZERO
        for j in range(indptr[i], indptr[i + 1]):
            value, source = data[j], vectors[indices[j]]
            for d in range(total.shape[0]):
                total[d] += value * source[d]
        for d in range(total.shape[0]):
            exact[d] = np.rint(np.float64(total[d]) / units[0]) * units[0]
        for j in range(to_indptr[i], to_indptr[i + 1]):
            value = np.rint(np.float64(to_data[j]) / units[1]) * units[1]
            target = sums[to_indices[j]]
            for d in range(exact.shape[0]):
                target[d] += value * exact[d]


@njit(nogil=True)
def _shuffle(order: Any, key: Any, drawn: Any) -> Any:
    """Shuffle ``order`` (Fisher and Yates) by numbers ``drawn`` and on of the stream ``key``."""
    for i in range(order.shape[0] - 1, 0, -1):
        high = hash64(key, drawn) >> np.uint64(32)
        j = np.int64((high * np.uint64(i + 1)) >> np.uint64(32))
        order[i], order[j] = order[j], order[i]
        drawn += 1
    return drawn


@njit(nogil=True, fastmath={"contract"})
def _score_row(score: Any, weight: Any, indices: Any, data: Any) -> Any:
    """Write a row's scores of all children to ``score``; returns the row's squared norm.

    Four features at a time: a sum is read and written once for them, and the memory, in which a
    node's weights are spread wide, answers for all four at once. They are added one by one.
    """
    score[:] = _ZERO
    norm = _ZERO
    together = indices.shape[0] // 4 * 4
    for j in range(0, together, 4):
        v0, v1, v2, v3 = data[j], data[j + 1], data[j + 2], data[j + 3]
        i0, i1, i2, i3 = indices[j], indices[j + 1], indices[j + 2], indices[j + 3]
        norm += v0 * v0 + v1 * v1 + v2 * v2 + v3 * v3
        for c in range(score.shape[0]):
            total = score[c] + v0 * weight[i0, c]
            total += v1 * weight[i1, c]
            total += v2 * weight[i2, c]
            score[c] = total + v3 * weight[i3, c]
    for j in range(together, indices.shape[0]):
        value, source = data[j], weight[indices[j]]
        norm += value * value
        for c in range(score.shape[0]):
            score[c] += value * source[c]
    return norm


@njit(nogil=True, fastmath={"contract"})
def _add_row(weight: Any, steps: Any, indices: Any, data: Any) -> None:
    """Add a row, times each child's step, to the weights."""
    for j in range(indices.shape[0]):
        value, target = data[j], weight[indices[j]]
        for c in range(steps.shape[0]):
            target[c] += value * steps[c]


@njit(nogil=True)
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


@njit(nogil=True)
def gather_node(out: Any, column_of: Any, x: Any, rows: Any) -> None:
    """Copy ``rows`` with the node's own columns; column 0, the bias, is 1 in every row."""
    (out_indptr, out_indices, out_data), (indptr, indices, data) = out, x
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


@njit(nogil=True, fastmath={"contract"})
def _dual_steps(score: Any, held: Any, sign: Any, slack: Any, rate: Any) -> Any:
    """Replace a row's scores by the steps of its dual variables, ``held``; return if any is not 0.

    Hsieh et al., ICML 2008, algorithm 1, for the squared hinge; ``slack`` is 1 / (2 C), with the
    cost of the row for each child, and ``rate`` 1 / (the row's squared norm + ``slack``).
    """
    changed = False
    for c in range(score.shape[0]):
        old = held[c]
        gradient = sign[c] * score[c] - _ONE + old * slack[c]
        new = max(old - gradient * rate[c], _ZERO)
        held[c] = new
        score[c] = sign[c] * (new - old)
        changed |= score[c] != _ZERO
    return changed


@njit(nogil=True, fastmath={"contract"})
def fit_rows(
    weight: Any, sign: Any, dual: Any, x: Any, y: Any, order: Any, key: Any, passes: int,
    diagonal: Any, row_weights: Any, child_weights: Any,
) -> None:  # fmt: skip
    """Passes on the squared hinge, all children of a row at once, by dual coordinate descent.

    ``sign`` is -1 for a child, 0 for a column of padding, whose weights stay 0. Where there are
    ``row_weights``, a row counts its weight, and for its own children that times theirs.

    Rows of unit length have the same squared norm but for rounding, so the same rates: to divide
    for every row would take a sixth of the time.
    """
    (indptr, indices, data), (y_indptr, y_indices) = x, y
    score = np.empty(weight.shape[1], np.float32)
    slack, rate, norm_of_rate = diagonal.copy(), np.empty(weight.shape[1], np.float32), _ZERO
    row_bytes = dual.shape[1] * dual.itemsize
    drawn = 0
    for _ in range(passes):
        drawn = _shuffle(order, key, drawn)
        for place in range(order.shape[0]):
            i, after = order[place], order[min(place + 1, order.shape[0] - 1)]
            if row_weights.shape[0] > 0 and row_weights[i] == _ZERO:
                continue
            row = slice(indptr[i], indptr[i + 1])
            positive = y_indices[y_indptr[i] : y_indptr[i + 1]]
            prefetch(dual.ctypes.data + after * row_bytes, row_bytes)
            norm = _score_row(score, weight, indices[row], data[row])
            sign[positive] = _ONE
            if row_weights.shape[0] > 0:
                norm_of_rate = _ZERO
                np.divide(diagonal, row_weights[i], slack)
                for c in positive:
                    if child_weights[c] > _ZERO:
                        slack[c] = diagonal[c] / (row_weights[i] * child_weights[c])
                    else:
                        sign[c] = _ZERO
            if abs(norm - norm_of_rate) > _ROUNDING * norm:
                norm_of_rate = norm
                np.divide(_ONE, norm + slack, rate)
            if _dual_steps(score, dual[i], sign, slack, rate):
                _add_row(weight, score, indices[row], data[row])
            sign[positive] = -_ONE


_COUNT_BITS = 20  # of an entry's second number: how many weights a chunk has
_COUNT_MASK = (1 << _COUNT_BITS) - 1


@njit(nogil=True)
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


@njit(nogil=True, fastmath={"contract"})
def _score_children(
    score: Any, found: Any, node: Any, features: Any, values: Any, table: Any, children: Any,
    weights: Any,
) -> None:  # fmt: skip
    """Add the products of a row's features with the weights of a node's children to ``score``.

    All chunks are looked up before the first is used: the memory answers several at a time.
    ``found`` holds an entry for each feature.
    """
    mask = table.shape[0] - 1
    child_address, weight_address = children.ctypes.data, weights.ctypes.data
    for j in range(features.shape[0]):
        key = np.int64(node) << 32 | np.int64(features[j])
        slot = np.int64(hash64(node, features[j]) & np.uint64(mask))
        while table[slot, 0] >= 0 and table[slot, 0] != key:
            slot = (slot + 1) & mask
        found[j] = table[slot, 1] if table[slot, 0] == key else 0
        first = found[j] >> _COUNT_BITS
        prefetch(child_address + 2 * first, 1)
        prefetch(weight_address + 4 * first, 1)
    for j in range(features.shape[0]):
        value, first = values[j], found[j] >> _COUNT_BITS
        for e in range(first, first + (found[j] & _COUNT_MASK)):
            score[children[e]] += value * weights[e]


@njit(nogil=True)
def rank_rows(
    out_ids: Any, out_scores: Any, beam: int, levels: int, widest: int, x: Any, rows: Any,
    tree: Any, start: int, stop: int,
) -> None:  # fmt: skip
    """The best leaves of the rows ``start <= i < stop``; a score is a log probability.

    No child's score is above its parent's: a node whose own is below the last of the best found is
    not looked into, and neither are those after it.
    """
    (indptr, indices, data), (child_starts, bias, children, weights, table) = x, tree
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


@njit(nogil=True, fastmath={"contract"})
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

    What is in a file is gathered in one.

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
    indices, data = (
        empty_array(nonzeros, dtype, in_file=is_on_disk(x)) for dtype in (np.int32, np.float32)
    )
    gathered = Csr(np.empty(rows.shape[0] + 1, np.int64), indices, data, count + 1)
    gather_node(arrays_of(gathered), column_of, arrays_of(x), rows)
    return gathered, np.flatnonzero(column_of).astype(np.int32)


def fit_node(weight: Array, x: Csr, problem: NodeProblem, passes: int) -> None:
    """Fit scores ``x @ weight``; ``weight`` ``(columns, children or more)`` is zero before.

    ``x`` has the problem's rows, from `node_rows`. Columns behind the children stay zero.
    """
    y, counts = problem.children, [problem.row_weights, problem.child_weights]
    sign, diagonal = np.zeros(weight.shape[1], np.float32), np.ones(weight.shape[1], np.float32)
    sign[: y.columns], diagonal[: y.columns] = -_ONE, np.float32(0.5) / problem.costs
    sizes = (0, 0) if all(each is None for each in counts) else (x.rows, y.columns)
    pairs = zip(counts, sizes, strict=True)
    counts = [np.ones(n, np.float32) if each is None else each for each, n in pairs]
    dual = np.zeros((x.rows, weight.shape[1]), np.float32)
    rows = (x.indptr, x.indices, x.data), (y.indptr, y.indices), np.arange(x.rows)
    fit_rows(weight, sign, dual, *rows, np.uint64(problem.key), passes, diagonal, *counts)


@njit(nogil=True)
def large_weights(weight: Any, children: int, bound: Any) -> Any:
    """Return each row's number of weights of at least ``bound``, their columns and themselves.

    Columns behind the ``children`` are left out. Each weight is written, and the next one over it
    if it is small: no branch depends on it.
    """
    counts, kept, place = np.zeros(weight.shape[0], np.int32), 0, 0
    for j in range(weight.shape[0]):
        for c in range(children):
            counts[j] += abs(weight[j, c]) >= bound
        kept += counts[j]
    numbers, values = np.empty(kept + 1, np.uint16), np.empty(kept + 1, np.float32)
    for j in range(weight.shape[0]):
        for c in range(children):
            numbers[place], values[place] = c, weight[j, c]
            place += abs(weight[j, c]) >= bound
    return counts, numbers[:kept], values[:kept]


@njit(nogil=True)
def row_orders(rows: int, key: Any, passes: int) -> Any:
    """Return the order of a node's rows in each pass, ``(passes, rows)`` int32."""
    orders, order = np.empty((passes, rows), np.int32), np.arange(rows)
    drawn = 0
    for turn in range(passes):
        drawn = _shuffle(order, key, drawn)
        orders[turn] = order
    return orders


def _fit_problem(x: Csr, problem: NodeProblem, passes: int, smallest: float) -> FittedBlock:
    gathered, names = node_rows(x, problem.rows)
    children = problem.children.columns
    padded = -(-children // _VECTOR) * _VECTOR
    weight = np.zeros((gathered.columns, padded), np.float32)
    if not problem.rows.shape[0]:
        weight[0] = NO_ROWS_BIAS
    fit_node(weight, gathered, problem, passes)
    counts, numbers, weights = large_weights(weight[1:], children, np.float32(smallest))
    kept = counts > 0
    return FittedBlock(weight[0, :children].copy(), names[kept], counts[kept], numbers, weights)


def label_sums(part: Partition, projection: Array) -> Array:
    """Sum the projected rows of every label, ``(labels, dimensions)`` float64.

    ``projection`` is ``(features, dimensions)`` float32. A row's projection is rounded to
    multiples of `QUANTUM`, so that sums over parts of the rows are exact in any order.
    """
    return _sums(part.features, projection, part.labels, (QUANTUM, 1.0))


def feature_sums(part: Partition, vectors: Array) -> Array:
    """Sum the vectors of the labels of every feature's rows, weighted by its values.

    ``vectors`` is ``(labels, dimensions)`` float32, the result ``(features, dimensions)``
    float64: exact, since values and the sum of a row's vectors are rounded to `COARSE`.
    """
    return _sums(part.labels, vectors, part.features, (COARSE, COARSE))


def _sums(rows: Csr, vectors: Array, others: Csr, units: tuple[float, float]) -> Array:
    sums = np.zeros((others.columns, vectors.shape[1]))
    sum_products(sums, arrays_of(rows), vectors, arrays_of(others), units)
    return sums


class CpuTree:
    """Implements :class:`daskxml.kernels.Kernels` for host memory."""

    _team: ThreadTeam

    def fit_nodes(
        self, x: Csr, problems: Iterable[NodeProblem], passes: int, smallest: float
    ) -> list[FittedBlock]:
        return [_fit_problem(x, problem, passes, smallest) for problem in problems]

    def tree_weights(self, arrays: TreeArrays) -> TreeWeights:
        stored: dict[str, Any] = {name: writable_view(getattr(arrays, name)) for name in _STORED}
        arrays = replace(arrays, **stored)
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
        own = arrays.child_starts, arrays.bias, arrays.children, arrays.weights, tree.table
        read = beam, arrays.levels, tree.widest, arrays_of(x), rows, own
        self._team.run(
            rows.shape[0], _ROW_GRAIN, lambda _, *span: rank_rows(ids, scores, *read, *span)
        )
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
