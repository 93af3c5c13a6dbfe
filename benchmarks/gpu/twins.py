"""Part (a): every kernel against its twin in float64, on fresh random operands.

Here are the cases of 16 bits and of label trees; `cases` has all others.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from cases import (
    Case,
    Operands,
    Sizes,
    dense_cases,
    flat_cases,
    optimizer_cases,
    rank_cases,
    sigmoid_cases,
    softmax_cases,
    sparse_cases,
)
from daskxml.core.arrays import Array, Csr
from daskxml.kernels.operands import NodeProblem, TreeArrays
from device import random_rows
from harness.naive_kernels import NaiveKernels

HALF = 1e-3  # float16 has 11 bits


def narrow_cases(draw: Operands) -> list[Case]:
    """Products, and what is done to a block of logits that is float16."""
    fused = [case for units in (64, 128) for case in _fused_softmax(draw, units)]
    softmax = [*_half_softmax(draw), *fused]
    return [*_half_products(draw), *softmax, _half_sigmoid(draw)]


def _half_products(draw: Operands) -> list[Case]:
    """Of float16 operands: exact products, added up in float32, then rounded or not."""
    s = draw.sizes
    a, b = (draw.normal(n, s.units).astype(np.float16) for n in (s.rows, s.labels))
    outs = {kind: draw.poison(s.rows, s.labels, dtype=kind) for kind in ("float32", "float16")}
    return [
        Case(f"gemm of float16 into {kind}", {"a": a, "b": b, "out": out}, ("out",),
             lambda k, o: k.gemm(o.out, o.a, o.b.T, 0.5), HALF if kind == "float16" else 1e-5)
        for kind, out in outs.items()
    ]  # fmt: skip


def _half_logits(draw: Operands, spread: float) -> Any:
    stride = draw.sizes.rows + draw.sizes.rows % 2  # a label's begin at a multiple of 4 bytes
    return draw.normal(draw.sizes.labels, stride, spread=spread).astype(np.float16)


def _half_softmax(draw: Operands) -> list[Case]:
    """A gradient comes as 1024 times itself, or so."""
    s, part, rows = draw.sizes, draw.rows(), draw.chosen()
    logits, bias = _half_logits(draw, 4.0), draw.normal(s.labels)
    whole = logits[:, : s.rows].astype(float) + bias[:, None]
    shift = (np.log(np.exp(whole).sum(axis=0)) - np.log(1024.0)).astype(np.float32)
    base = {"logits": logits, "bias": bias}
    sums = {**base, "peak": np.full(s.rows, -np.inf, np.float32), "total": np.zeros(s.rows)}
    targets = {**base, "y": part.labels, "rows": rows, "sums": draw.normal(s.labels),
               "weight": 1024 * np.abs(draw.normal(s.rows)), "out": np.zeros(s.rows)}  # fmt: skip

    def note(k: Any, o: Any) -> None:
        k.subtract_targets_deferred(o.logits, o.weight, o.y, o.rows, 0, 0, 1024.0)
        k.apply_deferred_sums(o.sums)

    return [
        Case("softmax_sums of float16", sums, ("peak", "total"),
             lambda k, o: k.softmax_sums(o.logits, o.bias, o.peak, o.total)),
        Case("softmax_gradient of float16",
             {**base, "shift": shift, "sums": draw.poison(s.labels)}, ("logits", "sums"),
             lambda k, o: k.softmax_gradient(o.logits, o.bias, o.shift, o.sums), HALF),
        Case("target_logits of float16", targets, ("out",),
             lambda k, o: k.target_logits(o.out, o.logits, o.bias, o.y, o.rows, 0, 0)),
        Case("subtract_targets_deferred of float16", targets, ("logits", "sums"), note, HALF),
    ]  # fmt: skip


def _fused_softmax(draw: Operands, units: int) -> list[Case]:
    """Products with the softmax in them; a label's gradients begin at multiples of 16 bytes."""
    s, part, rows = draw.sizes, draw.rows(), draw.chosen()
    stride = -(-s.rows // 8) * 8
    hidden, weight = (draw.normal(n, units, spread=0.5) for n in (stride, s.labels))
    hidden[s.rows :] = 0.0
    bias = draw.normal(s.labels)
    half = {"hidden": hidden.astype(np.float16), "weight": weight.astype(np.float16), "bias": bias}
    whole = half["weight"].astype(float) @ half["hidden"][: s.rows].astype(float).T
    totals = np.exp(whole + bias[:, None]).sum(axis=0)
    shift = (np.log(totals) - np.log(1024.0)).astype(np.float32)
    sums = {**half, "peak": np.full(s.rows, -np.inf, np.float32), "total": np.zeros(s.rows)}
    update = {**half, "shift": shift, "delta": np.zeros((s.labels, stride), np.float16),
              "out": weight, "sums": draw.poison(s.labels)}  # fmt: skip
    fresh = {**update, "out": draw.poison(s.labels, units)}
    targets = {**half, "y": part.labels, "rows": rows, "out": np.zeros(s.rows)}
    scaled = {"out": draw.poison(s.rows, units), "x": hidden[: s.rows],
              "factors": draw.normal(s.rows)}  # fmt: skip

    def log_sum(k: Any, o: Any) -> Any:
        """The peaks themselves are anybody's choice."""
        k.softmax_products(o.hidden, o.weight, o.bias, o.peak, o.total)
        return k.to_host(o.peak) + np.log(k.to_host(o.total))

    def step(k: Any, o: Any, keep: float) -> None:
        k.softmax_update(o.delta, o.out, o.sums, o.hidden, o.weight, o.bias, o.shift, -0.01, keep)

    cases = [
        Case(f"softmax_products of {units}", sums, (), log_sum),
        Case(f"softmax_update of {units}", update, ("delta", "out", "sums"),
             lambda k, o: step(k, o, 0.9), HALF),
        Case(f"softmax_update of {units} without weights", fresh, ("delta", "out", "sums"),
             lambda k, o: step(k, o, 0.0), HALF),
        Case(f"target_products of {units}", targets, ("out",),
             lambda k, o: k.target_products(o.out, o.hidden, o.weight, o.bias, o.y, o.rows, 0)),
        Case(f"scale_rows of {units}", scaled, ("out",),
             lambda k, o: k.scale_rows(o.out, o.x, o.factors)),
    ]  # fmt: skip
    return [replace(case, fused_units=units) for case in cases]


def _half_sigmoid(draw: Operands) -> Case:
    s = draw.sizes
    held = {"logits": _half_logits(draw, 3.0), "bias": draw.normal(s.labels),
            "sums": draw.poison(s.labels), "loss": np.zeros(s.rows),
            "part": draw.poison(2, s.rows)}  # fmt: skip
    return Case("sigmoid_block of float16", held, ("logits", "sums", "loss"),
                lambda k, o: k.sigmoid_block(o.logits, o.bias, 512.0, o.sums, o.loss, o.part),
                HALF)  # fmt: skip


_ROWS, _CHILDREN = 12, (40, 1, 33)  # the twin takes a while; more children than a tile has
_FITTED = 1e-3  # rounding of one step is read by the next ones


def tree_cases(draw: Operands) -> list[Case]:
    """All of them."""
    fitted = [_fitted(draw, weighs=weighs) for weighs in (False, True)]
    return [*fitted, _ranked(draw), _averaged(draw)]


def _fitted(draw: Operands, *, weighs: bool) -> Case:
    s, rng = draw.sizes, draw.rng
    x = random_rows(rng, _ROWS, s.features, 1, s.row_features, 1).features
    problems = [_problem(rng, children, weighs=weighs) for children in _CHILDREN]

    def call(kernels: Any, o: Any) -> Array:
        blocks = kernels.fit_nodes(o.x, problems, 2, 0.0)
        return np.concatenate([a for block in blocks for a in (block.bias, block.weights)])

    name = f"fit_nodes{', weighted' if weighs else ''}"
    return Case(name, {"x": x}, (), call, _FITTED)


def _problem(rng: np.random.Generator, children: int, *, weighs: bool) -> NodeProblem:
    rows = np.flatnonzero(rng.random(_ROWS) < 0.8)
    own = random_rows(rng, len(rows), 1, children, 1, 2).labels
    key, weights = int(rng.integers(2**62)), rng.random((2, 64), dtype=np.float32)
    costs = rng.uniform(0.1, 2.0, children).astype(np.float32)
    if not weighs:
        return NodeProblem(rows, own, key, costs)
    return NodeProblem(rows, own, key, costs, weights[0, : len(rows)], weights[1, :children])


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


def check_kernels(kernels: Any, seed: int, sizes: Sizes, products: float) -> list[dict[str, Any]]:
    """A row for each kernel: its error, and whether that is small enough.

    Parameters
    ----------
    kernels
        Of the device.
    products
        The tolerance of matrix products: larger with TF32.
    """
    twin = NaiveKernels("float64")
    return [
        _compare(case, kernels, twin)
        for case in every_case(seed, sizes, products)
        if not case.fused_units or kernels.fuses_products(case.fused_units)
    ]


def _compare(case: Case, kernels: Any, twin: NaiveKernels) -> dict[str, Any]:
    there = SimpleNamespace(**{n: kernels.to_device(_own(a)) for n, a in case.operands.items()})
    here = SimpleNamespace(**{n: _wide(a) for n, a in case.operands.items()})
    found, wanted = case.call(kernels, there), case.call(twin, here)
    pairs = [(kernels.to_host(getattr(there, n)), getattr(here, n)) for n in case.writes]
    if found is not None:
        pairs.append((np.atleast_1d(found), np.atleast_1d(wanted)))
    error = max(relative_error(out, reference) for out, reference in pairs)
    return {"kernel": case.name, "error": error, "allowed": case.tolerance,
            "ok": bool(error <= case.tolerance)}  # fmt: skip


def relative_error(out: Any, reference: Any) -> float:
    """``||out - reference|| / ||reference||``; infinite where a number is missing.

    Examples
    --------
    >>> relative_error(np.array([3.0, 4.5]), np.array([3.0, 4.0]))
    0.1
    >>> relative_error(np.array([np.nan]), np.array([1.0]))
    inf
    """
    out, reference = np.asarray(out, float), np.asarray(reference, float)
    same = np.isinf(reference) & (out == reference)
    gap = np.where(same, 0.0, out - np.where(same, 0.0, reference))
    size = float(np.linalg.norm(np.where(same, 0.0, reference)))
    error = float(np.linalg.norm(np.where(same, 0.0, gap)))
    if not np.isfinite(error):
        return float("inf")
    return error / size if size else error


def _own(operand: Any) -> Any:
    return operand if isinstance(operand, Csr) else operand.copy()


def _wide(operand: Any) -> Any:
    if isinstance(operand, Csr):
        return operand
    return operand.astype(float) if operand.dtype.kind == "f" else operand.copy()


def every_case(seed: int, sizes: Sizes, products: float = 1e-5) -> list[Case]:
    """All cases; ``products`` is the tolerance of matrix products."""
    draw = Operands(np.random.default_rng(seed), sizes)
    makers = (flat_cases, sparse_cases, softmax_cases, sigmoid_cases, rank_cases, optimizer_cases,
              narrow_cases, tree_cases)  # fmt: skip
    cases = [case for make in makers for case in make(draw)]
    return cases + dense_cases(draw, products)
