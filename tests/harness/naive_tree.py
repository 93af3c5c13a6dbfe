"""Naive twins of the kernels of label trees, in plain Python and float64."""

from collections.abc import Iterable

import numpy as np

from daskxml.core.arrays import Array, Csr, Partition
from daskxml.kernels.operands import (
    COARSE,
    NO_ROWS_BIAS,
    QUANTUM,
    FittedBlock,
    NodeProblem,
    TreeArrays,
    TreeWeights,
)
from harness.naive_hash import hash64


def label_sums(part: Partition, projection: Array) -> Array:
    rows = exact(projected(part.features, projection), QUANTUM)
    sums: Array = dense(part.labels).T @ rows
    return sums


def feature_sums(part: Partition, vectors: Array) -> Array:
    rows = exact(projected(part.labels, vectors), COARSE)
    sums: Array = exact(dense(part.features), COARSE).T @ rows
    return sums


class NaiveTree:
    """Implements :class:`daskxml.kernels.Kernels`."""

    def node_rows(self, x: Csr, rows: Array) -> tuple[Csr, Array]:
        values = dense(x)[rows]
        stored = sorted(
            {int(f) for row in rows for f in x.indices[x.indptr[row] : x.indptr[row + 1]]}
        )
        indptr, indices, data = [0], [], []
        for place, row in enumerate(rows):
            indices.append(0)
            data.append(1.0)
            for feature in x.indices[x.indptr[row] : x.indptr[row + 1]].tolist():
                indices.append(1 + stored.index(feature))
                data.append(values[place, feature])
            indptr.append(len(indices))
        gathered = Csr(
            np.array(indptr), np.array(indices, np.int32), np.array(data, np.float32),
            len(stored) + 1,
        )  # fmt: skip
        return gathered, np.array(stored, np.int32)

    def fit_nodes(
        self, x: Csr, problems: Iterable[NodeProblem], passes: int, smallest: float
    ) -> list[FittedBlock]:
        fitted = []
        for problem in problems:
            rows, names = self.node_rows(x, problem.rows)
            weight = np.zeros((rows.columns, problem.children.columns), np.float32)
            self.fit_node(weight, rows, problem, passes)
            if not rows.rows:
                weight[0] = NO_ROWS_BIAS
            fitted.append(FittedBlock(weight[0], *self.prune(weight, names, smallest)))
        return fitted

    def fit_node(self, weight: Array, rows: Csr, problem: NodeProblem, passes: int) -> None:
        """One child after the other, over the same orders of rows."""
        x, key = dense(rows), problem.key
        signs = np.where(dense(problem.children) > 0, 1.0, -1.0)
        counts = np.ones(signs.shape)
        if problem.row_weights is not None:
            counts *= problem.row_weights[:, None]
        if problem.child_weights is not None:
            counts *= np.where(signs > 0, problem.child_weights, 1.0)
        for child in range(weight.shape[1]):
            w, dual = np.zeros(x.shape[1]), np.zeros(x.shape[0])
            order, drawn = list(range(x.shape[0])), 0
            for _ in range(passes):
                drawn = shuffle(order, key, drawn)
                for i in order:
                    sign, score, norm = signs[i, child], x[i] @ w, x[i] @ x[i]
                    cost = problem.costs[child] * counts[i, child]
                    if cost > 0.0:
                        diagonal = 0.5 / cost
                        gradient = sign * score - 1.0 + dual[i] * diagonal
                        new = max(dual[i] - gradient / (norm + diagonal), 0.0)
                        w += sign * (new - dual[i]) * x[i]
                        dual[i] = new
            weight[:, child] = w

    def prune(
        self, weight: Array, features: Array, smallest: float
    ) -> tuple[Array, Array, Array, Array]:
        kept = [
            (
                features[f - 1],
                [(c, w) for c, w in enumerate(weight[f]) if abs(w) >= np.float32(smallest)],
            )
            for f in range(1, weight.shape[0])
        ]
        kept = [(feature, entries) for feature, entries in kept if entries]
        return (
            np.array([feature for feature, _ in kept], np.int32),
            np.array([len(entries) for _, entries in kept], np.int32),
            np.array([c for _, entries in kept for c, _ in entries], np.uint16),
            np.array([w for _, entries in kept for _, w in entries], np.float32),
        )

    def tree_weights(self, arrays: TreeArrays) -> TreeWeights:
        return TreeWeights(arrays, np.empty(0, np.int32), 0)

    def rank_leaves(
        self, tree: TreeWeights, x: Csr, rows: Array, beam: int, count: int
    ) -> tuple[Array, Array]:
        arrays, values = tree.arrays, dense(x)
        ids = np.full((rows.shape[0], count), -1, np.int32)
        scores = np.full((rows.shape[0], count), -np.inf, np.float32)
        last_node = arrays.child_starts.shape[0] - 1
        for place, row in enumerate(rows):
            held = [(0.0, 0)]
            for level in range(arrays.levels):
                found = []
                for above, node in held:
                    for child, z in enumerate(child_scores(arrays, node, values[row])):
                        number = int(arrays.child_starts[node]) + child
                        found.append((above - max(0.0, 1.0 - z) ** 3, number))
                is_last = level == arrays.levels - 1
                held = sorted(found, key=lambda it: (-it[0], it[1]))[: count if is_last else beam]
            for i, (score, number) in enumerate(held):
                ids[place, i], scores[place, i] = number - last_node, score
        return ids, scores

    def average_rankings(
        self, ids: Array, scores: Array, shares: Array, count: int
    ) -> tuple[Array, Array]:
        rows = ids.shape[1]
        out, sums = np.full((rows, count), -1, np.int32), np.zeros((rows, count), np.float32)
        for row in range(rows):
            totals: dict[int, float] = {}
            for model, share in enumerate(shares):
                for label, score in zip(ids[model, row], scores[model, row], strict=True):
                    if label >= 0:
                        totals[int(label)] = totals.get(int(label), 0.0) + share * score
            best = sorted(totals.items(), key=lambda it: (-it[1], it[0]))[:count]
            for place, (label, total) in enumerate(best):
                out[row, place], sums[row, place] = label, total
        return out, sums


def projected(x: Csr, vectors: Array) -> Array:
    """The product with ``vectors``, rounded to float32 after each step."""
    rows = np.zeros((x.rows, vectors.shape[1]), np.float32)
    for row in range(x.rows):
        for j in range(x.indptr[row], x.indptr[row + 1]):
            rows[row] += (np.float32(1) if x.data is None else x.data[j]) * vectors[x.indices[j]]
    return rows


def exact(values: Array, quantum: float) -> Array:
    """Multiples of ``quantum``, in float64."""
    return np.rint(values.astype(np.float64) / quantum) * quantum


def dense(x: Csr) -> Array:
    """The matrix in float64."""
    out = np.zeros((x.rows, x.columns))
    for row in range(x.rows):
        for j in range(x.indptr[row], x.indptr[row + 1]):
            out[row, x.indices[j]] = 1.0 if x.data is None else x.data[j]
    return out


def child_scores(arrays: TreeArrays, node: int, x: Array) -> list[float]:
    """Scores of a node's children for one dense row."""
    first, stop = (int(n) for n in arrays.child_starts[node : node + 2])
    scores = [float(b) for b in arrays.bias[first - 1 : stop - 1]]
    for chunk in range(int(arrays.node_starts[node]), int(arrays.node_starts[node + 1])):
        for e in range(int(arrays.chunk_starts[chunk]), int(arrays.chunk_starts[chunk + 1])):
            scores[arrays.children[e]] += float(x[arrays.features[chunk]]) * float(
                arrays.weights[e]
            )
    return scores


def shuffle(order: list[int], key: int, drawn: int) -> int:
    """Fisher and Yates with SplitMix64; returns how many numbers are drawn now."""
    for i in range(len(order) - 1, 0, -1):
        j = ((hash64(key, drawn) >> 32) * (i + 1)) >> 32
        order[i], order[j] = order[j], order[i]
        drawn += 1
    return drawn
