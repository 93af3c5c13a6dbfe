"""Calls on label trees: some nodes are fitted, rows descend, rankings are averaged."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskxml.core.arrays import Array
from daskxml.kernels.tree import Fit, NodeProblem, TreeArrays
from made_up import random_rows
from twin_operands import Case, Operands

_ROWS, _CHILDREN = 12, (40, 1, 33)  # the twin takes a while; more children than a tile has
_FITTED = 1e-3  # rounding of one step is read by the next ones


def tree_cases(draw: Operands) -> list[Case]:
    """All of them."""
    fits = Fit("dual", passes=2, cost=0.7), Fit("sgd", passes=2, lr=0.5)
    fitted = [_fitted(draw, fit, weighs=weighs) for fit in fits for weighs in (False, True)]
    return [*fitted, _ranked(draw), _averaged(draw)]


def _fitted(draw: Operands, fit: Fit, *, weighs: bool) -> Case:
    s, rng = draw.sizes, draw.rng
    x = random_rows(rng, _ROWS, s.features, 1, s.row_features, 1).features
    problems = [_problem(rng, children, weighs=weighs) for children in _CHILDREN]

    def call(kernels: Any, o: Any) -> Array:
        blocks = kernels.fit_nodes(o.x, problems, fit, 0.0)
        return np.concatenate([a for block in blocks for a in (block.bias, block.weights)])

    name = f"fit_nodes, {fit.solver}{', weighted' if weighs else ''}"
    return Case(name, {"x": x}, (), call, _FITTED)


def _problem(rng: np.random.Generator, children: int, *, weighs: bool) -> NodeProblem:
    rows = np.flatnonzero(rng.random(_ROWS) < 0.8)
    own = random_rows(rng, len(rows), 1, children, 1, 2).labels
    key, weights = int(rng.integers(2**62)), rng.random((2, 64), dtype=np.float32)
    if not weighs:
        return NodeProblem(rows, own, key)
    return NodeProblem(rows, own, key, weights[0, : len(rows)], weights[1, :children])


def _ranked(draw: Operands) -> Case:
    s, rng = draw.sizes, draw.rng
    arrays = _tree(rng, s.features)
    held = {"x": draw.rows().features, "rows": draw.chosen()[:_ROWS]}

    def call(kernels: Any, o: Any) -> Array:
        found: Array = kernels.rank_leaves(kernels.tree_weights(arrays), o.x, o.rows, 5, 7)[1]
        return found

    return Case("rank_leaves", held, (), call, 1e-4)


def _tree(rng: np.random.Generator, features: int) -> TreeArrays:
    """A root with 8 nodes below, each of which has 40 leaves; a third of all weights."""
    widths = np.array([8] + 8 * [40])
    kept = [rng.random((features, width)) < 1 / 3 for width in widths]
    counts = [own.sum(axis=1) for own in kept]
    names = [np.flatnonzero(count) for count in counts]
    sizes = np.concatenate([count[name] for count, name in zip(counts, names, strict=True)])
    children = np.concatenate([np.nonzero(own)[1] for own in kept])
    return TreeArrays(
        levels=2,
        child_starts=1 + _starts(widths),
        bias=rng.standard_normal(int(widths.sum()), dtype=np.float32),
        node_starts=_starts([len(name) for name in names]),
        features=np.concatenate(names).astype(np.int32),
        chunk_starts=_starts(sizes),
        children=children.astype(np.uint16),
        weights=rng.standard_normal(len(children), dtype=np.float32),
    )


def _starts(sizes: Any) -> Array:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _averaged(draw: Operands) -> Case:
    models, candidates = 3, 6
    ids = [[draw.rng.permutation(9)[:candidates] for _ in range(_ROWS)] for _ in range(models)]
    held = {
        "ids": np.array(ids, np.int32),
        "scores": np.abs(draw.normal(models, _ROWS, candidates)),
        "shares": np.float32([0.5, 0.25, 0.25]),
    }

    def call(kernels: Any, o: Any) -> Array:
        found: Array = kernels.average_rankings(o.ids, o.scores, o.shares, 4)[1]
        return found

    return Case("average_rankings", held, (), call)
