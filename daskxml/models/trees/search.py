"""The automatic choice of the cost C, and more: a short search on held-out rows of a few labels.

The labels of some of a tree's leaves' parents, and the rows that have them, are a small problem of
the same kind: as many rows a label, and neighbours that are easily confused. A tree of its own is
fitted to two thirds of these rows for each candidate, and ranks the labels of the others.

Few held-out rows rank candidates by chance, so of few rows other thirds are held out as well.

Rows that have values for many of the features resemble each other, and coordinate descent is slow
then: for these more passes are tried as well, with the cost that was found and with larger ones.

Values may grow with how often a word is in a text, so that few of them decide. So their square root
is tried as well, with the cost that was found, where it changes rows much.

Of sets that are not large, the search would take most of the time. Where their rows are sparse,
which settle in a few passes, candidates are compared after fewer than the tree gets.

A larger C fits the rows more closely. So the search goes from the middle of a line of candidates in
the direction in which the ranking becomes better. Neither the sample nor the order of its rows
depends on the order of all rows, so that the choice does not either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from daskxml.core.arrays import Array, Csr, Partition, Segment
from daskxml.data.order import mix_bits
from daskxml.data.rows import concatenate, from_scipy, label_counts, take_rows, to_scipy
from daskxml.kernels import get_kernels
from daskxml.metrics import metric_sums
from daskxml.models.trees.clustering import Block, call, find_label_vectors, order_of_tree
from daskxml.models.trees.forest import Forest, assemble_tree
from daskxml.models.trees.nodes import TreeRows, fit_blocks, plan_pieces, powered, whole_nodes
from daskxml.models.trees.spec import AUTO, TreeShape, TreeSpec

COSTS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
FIRST = 2  # place of the cost that is tried first; where rows are few it is the next one
# The sample has a twelfth of the row-label pairs, but about 24,000 at least and 96,000 at most, and
# no more rows than that.
_SHARE = 12
_ENTRIES, _MOST = 24_000, 96_000
_HELD_OUT = 3  # one row of so many
_FEW = 3000  # fewer rows than this are few
_DENSE = 0.05  # of the features; where rows have more of them on average they are dense
_MORE = 3  # so many times the passes are tried as well for dense rows
_PASSES = 4  # over few sparse rows, at most, while costs are compared: nearly as good as six
_FLATTER = 0.5  # power of the values that is tried as well
_ALIKE = 0.97  # where a row and what that makes of it have a smaller cosine on average
_KS = (1, 3, 5)
_NOISE = 0.002  # of the mean precision: a gain of less is none


def prepare_trees(
    parts: Sequence[Any], counts: Any, spec: TreeSpec, seed: int,
    blocks: Sequence[Block] | None = None, submit: Callable[..., Any] = call, threads: int = 1,
) -> tuple[Any, Any]:  # fmt: skip
    """Return the description with the cost chosen if it was open, and the labels' vectors.

    The parameters are those of `find_label_vectors`; ``counts`` is ``(labels,)``: rows with each
    label; ``threads`` choose. Blocks are whole partitions by default.
    """
    blocks = [(part, 0, part.rows) for part in parts] if blocks is None else blocks
    vectors = find_label_vectors(blocks, spec, seed, submit)
    if AUTO not in (spec.cost, spec.value_power):
        return spec, vectors
    order = submit("order", order_of_tree, vectors, spec, seed, 0)
    labels = submit("sample", sample_labels, order, counts, spec)
    samples = [submit(f"sample-{n}", sample_rows, part, labels) for n, part in enumerate(parts)]
    return submit("fit", choose_cost, samples, spec, seed, threads), vectors


def sample_labels(order: Array, counts: Array, spec: TreeSpec) -> Array:
    """Return the labels of every n-th parent of the first tree's leaves, in their order there.

    ``order`` is the first tree's, ``counts`` ``(labels,)``: training rows with each label. One
    parent is taken at least.

    Examples
    --------
    >>> spec = TreeSpec(features=1, labels=8, leaf_labels=2)
    >>> sample_labels(np.arange(8), np.full(8, 8000), spec).tolist()
    [0, 1]
    """
    bounds = TreeShape.of(spec).bounds[-2]
    entries = np.add.reduceat(counts[order], bounds[:-1])
    most = max(_ENTRIES, min(_MOST, entries.sum() // _SHARE))
    step = next((n for n in range(1, len(entries)) if entries[::n].sum() <= most), len(entries))
    chosen = range(0, len(entries), step)
    return np.concatenate([order[bounds[i] : bounds[i + 1]] for i in chosen])


def sample_rows(part: Partition, labels: Array) -> Partition:
    """Return rows that have some of the labels, which become columns 0 and on.

    They are ordered as by `first_rows`.
    """
    chosen = to_scipy(part.labels)[:, labels].tocsr()
    rows = np.flatnonzero(np.diff(chosen.indptr))
    sample = Partition(take_rows(part, rows).features, from_scipy(chosen[rows], ones=True))
    return first_rows(sample)


def first_rows(part: Partition) -> Partition:
    """Return the rows with the smallest `row_keys`, in their order, and not too many."""
    return take_rows(part, np.argsort(row_keys(part), kind="stable")[:_MOST])


def row_keys(part: Partition) -> Array:
    """Return a number that depends on a row's features and labels alone, ``(rows,)`` uint64.

    Examples
    --------
    >>> part = Partition(*(from_scipy(np.array([[0, 2], [1, 0], [0, 2]])) for _ in range(2)))
    >>> keys = row_keys(part)
    >>> bool(keys[0] == keys[2] != keys[1])
    True
    """
    return mix_bits(_entry_sums(part.features)) ^ _entry_sums(part.labels)


def _entry_sums(matrix: Csr) -> Array:
    """Add up 64 bits of each row's entries, in any order."""
    words = (matrix.indices.astype(np.uint64) + np.uint64(1)) << np.uint64(32)
    if matrix.data is not None:
        words += matrix.data.view(np.uint32)
    ends = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mix_bits(words))])
    return np.asarray(np.diff(ends[matrix.indptr]))


def choose_cost(
    samples: Sequence[Partition], spec: TreeSpec, seed: int, threads: int = 1
) -> TreeSpec:
    """Return the description with a cost; ``samples`` are of `sample_rows`, in any order."""
    part = first_rows(concatenate(samples))
    costs, plain = COSTS if spec.cost == AUTO else (spec.cost,), spec.value_power
    plain = 1.0 if plain == AUTO else plain
    candidates = [replace(spec, cost=cost, value_power=plain) for cost in costs]
    size, rows, first = part.rows // _HELD_OUT, np.arange(part.rows), FIRST + (part.rows < _FEW)
    first = min(first, len(costs) - 1)
    if not size:
        return candidates[first]
    turns = min(_HELD_OUT, max(1, _FEW // part.rows))
    held_out = [rows[part.rows - size * (turn + 1) :][:size] for turn in range(turns)]
    folds = [(take_rows(part, np.delete(rows, out)), take_rows(part, out)) for out in held_out]
    is_dense = part.features.nonzeros > _DENSE * part.rows * part.features.columns
    # Of a large set, the search takes a small part of the time.
    most = _PASSES if part.labels.nonzeros <= _ENTRIES and not is_dense else _MORE * spec.passes
    with ThreadPoolExecutor(threads) as pool:

        @cache
        def score(spec: TreeSpec) -> float:
            tried = replace(spec, passes=min(spec.passes, most))
            return float(np.mean([_precision(pool, threads, tried, *fold, seed) for fold in folds]))

        best = climb(candidates, first, score)
        if is_dense:
            closer = candidates[candidates.index(best) :]
            more = [replace(each, passes=_MORE * spec.passes) for each in closer]
            best = climb([best, *more], 0, score)
        if spec.value_power == AUTO and _is_uneven(part.features):
            best = climb([best, replace(best, value_power=_FLATTER)], 0, score)
        return best


def _is_uneven(x: Csr) -> bool:
    """Whether the root of the values changes the direction of rows of unit length much."""
    return x.data is not None and np.sum(x.data * powered(x, _FLATTER).data) < _ALIKE * x.rows


def climb(
    candidates: Sequence[TreeSpec], first: int, score: Callable[[TreeSpec], float]
) -> TreeSpec:
    """Return the best of a line of candidates: on from the first while the score rises.

    Examples
    --------
    >>> line = [TreeSpec(features=1, labels=1, passes=passes) for passes in (1, 2, 3, 4)]
    >>> climb(line, 1, lambda spec: spec.passes).passes
    4
    >>> climb(line, 2, lambda spec: -spec.passes).passes
    1
    """
    best, best_score = candidates[first], score(candidates[first])
    for line in (candidates[first + 1 :], candidates[:first][::-1]):
        for candidate in line:
            found = score(candidate)
            if found <= best_score + _NOISE:
                break
            best, best_score = candidate, found
        if best is not candidates[first]:
            break
    return best


def _precision(
    pool: Executor, threads: int, spec: TreeSpec, train: Partition, held_out: Partition, seed: int
) -> float:
    """Fit a tree to rows and return the mean of P@1, P@3 and P@5 on others."""
    kernels, labels = get_kernels("cpu", threads), train.labels
    spec = replace(spec, labels=labels.columns)
    shape, order = TreeShape.of(spec), np.arange(spec.labels, dtype=np.int32)
    rows = TreeRows(kernels, train, order, spec.power_of(0))
    plan = whole_nodes(shape)
    if threads > 1:
        pieces = plan_pieces(shape, label_counts(labels, spec.labels), train.rows, threads)
        plan = [block for piece in pieces for block in piece.blocks]
    fitted = pool.map(lambda block: fit_blocks(rows, spec, shape, [block], seed, 0)[0], plan)
    blocks = list(zip(plan, fitted, strict=True))
    arrays = {f"tree0.{n}": a for n, a in assemble_tree(order, blocks).items()}
    ids, _ = Forest(spec, arrays, kernels).top_k(
        [Segment(held_out, np.arange(held_out.rows))], min(_KS[-1], spec.labels)
    )
    ks = [k for k in _KS if k <= spec.labels]
    found = metric_sums(ids, held_out.labels, np.ones(spec.labels), ks).result()
    return float(np.mean([found[f"P@{k}"] for k in ks]))
