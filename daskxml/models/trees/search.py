"""The automatic choice of solver and passes: a short search on held-out rows of a few labels.

The labels of some of a tree's leaves' parents, and the rows that have them, are a small problem of
the same kind: as many rows a label, and neighbours that are easily confused. A tree of its own is
fitted to four fifths of these rows for each candidate, and ranks the labels of the others.

More steps, or larger ones, fit the rows more closely. So the candidates are in a line, and the
search goes from its middle in the direction in which the ranking becomes better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from daskxml.core.arrays import Array, Partition, Segment
from daskxml.data.rows import concatenate, from_scipy, slice_rows, take_rows, to_scipy
from daskxml.kernels import Kernels, get_kernels
from daskxml.metrics import metric_sums
from daskxml.models.trees.clustering import Block, call, find_label_vectors, order_of_tree
from daskxml.models.trees.forest import Forest, assemble_tree
from daskxml.models.trees.nodes import TreeRows, fit_blocks, whole_nodes
from daskxml.models.trees.spec import AUTO, TreeShape, TreeSpec

CANDIDATES: tuple[dict[str, Any], ...] = (  # the gentlest first
    {"solver": "dual", "lr": 0.25, "passes": 8, "cost": 0.2},
    {"solver": "sgd", "lr": 0.5, "passes": 4, "cost": 0.4},
    {"solver": "dual", "lr": 1.0, "passes": 8, "cost": 3.0},
)
_FIRST = 1  # of the candidates
_ENTRIES = 24_000  # labels of rows, at most about so many are looked at
_ROWS = 24_000
_HELD_OUT = 5  # one row of so many
_KS = (1, 3, 5)
_NOISE = 0.004  # of the mean precision: a gain of less is none


def prepare_trees(
    parts: Sequence[Any], counts: Any, spec: TreeSpec, seed: int,
    blocks: Sequence[Block] | None = None, submit: Callable[..., Any] = call,
) -> tuple[Any, Any]:  # fmt: skip
    """Return the description with what was open chosen, and the labels' vectors.

    The parameters are those of `find_label_vectors`; ``counts`` is ``(labels,)``: rows with each
    label. Blocks are whole partitions by default.
    """
    blocks = [(part, 0, part.rows) for part in parts] if blocks is None else blocks
    vectors = find_label_vectors(blocks, spec, seed, submit)
    if not spec.is_open:
        return spec, vectors
    order = submit("order", order_of_tree, vectors, spec, seed, 0)
    labels = submit("sample", sample_labels, order, counts, spec)
    samples = [
        submit(f"sample-{number}", sample_rows, part, labels) for number, part in enumerate(parts)
    ]
    return submit("fit", choose_fit, samples, spec, seed), vectors


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
    step = next((n for n in range(1, len(entries)) if entries[::n].sum() <= _ENTRIES), len(entries))
    chosen = range(0, len(entries), step)
    return np.concatenate([order[bounds[i] : bounds[i + 1]] for i in chosen])


def sample_rows(part: Partition, labels: Array) -> Partition:
    """Return the first rows that have some of the labels, which become columns 0 and on."""
    chosen = to_scipy(part.labels)[:, labels].tocsr()
    rows = np.flatnonzero(np.diff(chosen.indptr))[:_ROWS]
    features = take_rows(part, rows).features
    return Partition(features, from_scipy(chosen[rows], ones=True))


def choose_fit(samples: Sequence[Partition], spec: TreeSpec, seed: int) -> TreeSpec:
    """Return the description with a choice for all that is ``"auto"``.

    ``samples`` are of `sample_rows`, in the order of the rows.
    """
    part = concatenate(samples)
    part = slice_rows(part, 0, min(part.rows, _ROWS))
    candidates = _candidates(spec)
    first = min(_FIRST, len(candidates) - 1)
    kept = part.rows - part.rows // _HELD_OUT
    if len(candidates) == 1 or kept == part.rows:
        return candidates[first]
    train, held_out = slice_rows(part, 0, kept), slice_rows(part, kept, part.rows)
    kernels = get_kernels("cpu", 1)
    return climb(
        candidates, first, lambda candidate: _precision(kernels, candidate, train, held_out, seed)
    )


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


def _candidates(spec: TreeSpec) -> list[TreeSpec]:
    """Candidates of what is "auto", without those that are fitted alike."""
    found: dict[Any, TreeSpec] = {}
    for values in CANDIDATES:
        is_open = {name: value for name, value in values.items() if getattr(spec, name) == AUTO}
        candidate = replace(spec, **is_open)
        strength = candidate.lr if candidate.solver == "sgd" else candidate.cost
        found.setdefault((candidate.solver, strength, candidate.passes), candidate)
    return list(found.values())


def _precision(
    kernels: Kernels, spec: TreeSpec, train: Partition, held_out: Partition, seed: int
) -> float:
    """Fit a tree to rows and return the mean of P@1, P@3 and P@5 on others."""
    spec = replace(spec, labels=train.labels.columns)
    shape, order = TreeShape.of(spec), np.arange(spec.labels, dtype=np.int32)
    rows = TreeRows(kernels, train, order, spec.power_of(0))
    plan = whole_nodes(shape)
    blocks = list(zip(plan, fit_blocks(rows, spec, shape, plan, seed, 0), strict=True))
    arrays = {f"tree0.{n}": a for n, a in assemble_tree(order, blocks).items()}
    ids, _ = Forest(spec, arrays, kernels).top_k(
        [Segment(held_out, np.arange(held_out.rows))], min(_KS[-1], spec.labels)
    )
    ks = [k for k in _KS if k <= spec.labels]
    found = metric_sums(ids, held_out.labels, np.ones(spec.labels), ks).result()
    return float(np.mean([found[f"P@{k}"] for k in ks]))
