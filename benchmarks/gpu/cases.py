"""Every kernel as a case: fresh random operands, a call, and which operands it writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskxml.kernels import AdamStep, Drop, RowGradient
from device import random_rows
from harness.naive_dense import to_bfloat16


@dataclass(frozen=True)
class Sizes:
    """Of the operands."""

    rows: int = 200
    features: int = 400
    labels: int = 1500
    units: int = 96
    row_features: int = 60  # more entries in all than one block of threads adds up


@dataclass(frozen=True)
class Case:
    """One call.

    Attributes
    ----------
    operands
        By name: arrays, ``Csr``; those that are written only hold NaN, or 77 where they are whole
        numbers.
    writes
        Names of what it changes.
    call
        With the kernels and the operands; a number that it returns counts as written.
    tolerance
        Of ``||out - twin|| / ||twin||``.
    fused_units
        Only for kernels that fuse products of so many units; 0: for all.
    """

    name: str
    operands: dict[str, Any]
    writes: tuple[str, ...]
    call: Callable[[Any, Any], Any]
    tolerance: float = 1e-5
    fused_units: int = 0


class Operands:
    """Draws operands."""

    def __init__(self, rng: np.random.Generator, sizes: Sizes) -> None:
        self.rng, self.sizes = rng, sizes

    def normal(self, *shape: int, spread: float = 1.0) -> Any:
        """Normal numbers, float32."""
        return (spread * self.rng.standard_normal(shape)).astype(np.float32)

    def poison(self, *shape: int, dtype: str = "float32") -> Any:
        """What a kernel must overwrite."""
        return np.full(shape, np.nan if dtype.startswith("float") else 77, dtype)

    def rows(self) -> Any:
        """A partition."""
        s = self.sizes
        return random_rows(self.rng, s.rows, s.features, s.labels, s.row_features, 5)

    def chosen(self) -> Any:
        """Its row numbers in some order."""
        return self.rng.permutation(self.sizes.rows).astype(np.int64)


ADAM = AdamStep(lr=0.1, beta1=0.9, beta2=0.99, epsilon=1e-6, weight_decay=0.2, step=3)
DROP = Drop(rate=0.25, key=77, first_row=3)


def flat_cases(draw: Operands) -> list[Case]:
    n = draw.sizes.rows * 131
    x, y, out = draw.normal(n), draw.normal(n), draw.normal(n)
    half = x.astype(np.float16)
    ops = {"out": out, "x": x, "y": y}
    return [
        Case("scale", {**ops, "out": draw.poison(n)}, ("out",),
             lambda k, o: k.scale(o.out, o.x, 0.3)),
        Case("add_scaled", ops, ("out",), lambda k, o: k.add_scaled(o.out, o.x, 0.3)),
        Case("momentum", ops, ("out",), lambda k, o: k.momentum(o.out, o.x, o.y, 0.9)),
        Case("add_two", ops, ("out",), lambda k, o: k.add_two(o.out, o.x, 0.3, o.y, -2.0)),
        Case("axpby", ops, ("out",), lambda k, o: k.axpby(o.out, o.x, 0.3, o.y, -2.0)),
        Case("copy", {**ops, "out": draw.poison(n)}, ("out",), lambda k, o: k.copy(o.out, o.x)),
        Case("fill", {"out": draw.poison(n)}, ("out",), lambda k, o: k.fill(o.out, 1.5)),
        *[Case(f"fill {kind} with {value:g}", {"out": draw.poison(n, dtype=kind)}, ("out",),
               lambda k, o, v=value: k.fill(o.out, v))
          for kind, value in (("float16", 1.5), ("float64", -1.5), ("int32", -1), ("int32", 0))],
        Case("dots", ops, (), lambda k, o: k.dots(o.x, o.y)),
        Case("squared_norm", ops, (), lambda k, o: k.squared_norm(o.x)),
        Case("largest", ops, (), lambda k, o: k.largest(o.x)),
        Case("deferred_sum", {"x": x.astype(float), "y": y.astype(float)}, (),
             lambda k, o: float(k.deferred_sum((o.x, 1.0), (o.y, -2.0)))),
        Case("convert to float16", {"out": draw.poison(n, dtype="float16"), "x": x}, ("out",),
             lambda k, o: k.convert(o.out, o.x, 0.5), 1e-3),
        Case("convert to bfloat16", {"out": draw.poison(n, dtype="uint16"), "x": x}, ("out",),
             lambda k, o: k.convert(o.out, o.x, 0.5), 0.0),
        Case("convert from bfloat16", {"out": draw.poison(n), "x": to_bfloat16(x)}, ("out",),
             lambda k, o: k.convert(o.out, o.x, 0.5)),
        Case("convert from float16", {"out": draw.poison(n), "x": half}, ("out",),
             lambda k, o: k.convert(o.out, o.x, 0.5)),
    ]  # fmt: skip


def sparse_cases(draw: Operands) -> list[Case]:
    s, part, rows = draw.sizes, draw.rows(), draw.chosen()
    x, room = part.features, part.features.nonzeros
    weight, bias = draw.normal(s.features, s.units), draw.normal(s.units)
    delta, counts = draw.normal(s.rows, s.units), np.zeros(s.features, np.int32)
    base = {"x": x, "rows": rows, "weight": weight, "bias": bias, "delta": delta}
    out = {**base, "out": draw.poison(s.rows, s.units)}
    lengths = {"out": draw.poison(s.rows), "x": x, "rows": rows}
    dense = {"out": draw.poison(s.rows, s.features), "x": x, "rows": rows}

    def group(k: Any, o: Any) -> None:
        """From rows to the dense gradient, by way of entries that are sorted by feature."""
        made = [k.empty(room, kind) for kind in ("int32", "int32", "float32")]
        count = k.feature_entries(tuple(made), o.x, o.rows, 0, Drop())
        names, starts = k.empty(room + 1, "int32"), k.empty(room + 1, "int64")
        lists = k.empty(room + 1, "int32"), k.empty(room + 1)
        entries = tuple(array[:count] for array in made)
        most, found = k.group_entries(names, starts, *lists, entries, o.counts)
        sums = k.zeros((most, s.units))
        count = None if found is None else (found, 0)
        k.gather_rows(sums, starts[: most + 1], *lists, o.delta, count)
        gradient = RowGradient(sums, names[:most], skip_zero_rows=True, device_count=count)
        k.sgd_rows(o.weight, gradient, 0.1, 1.0)

    return [
        Case("nonzeros", base, (), lambda k, o: float(k.nonzeros(o.x, o.rows))),
        Case("row_lengths", lengths, ("out",), lambda k, o: k.row_lengths(o.out, o.x, o.rows)),
        Case("sparse_forward", out, ("out",),
             lambda k, o: k.sparse_forward(o.out, o.x, o.rows, o.weight, o.bias)),
        Case("sparse_forward, dropout", out, ("out",),
             lambda k, o: k.sparse_forward(o.out, o.x, o.rows, o.weight, o.bias, DROP)),
        Case("sparse_update", base, ("weight",),
             lambda k, o: k.sparse_update(o.weight, o.x, o.rows, o.delta, -0.1)),
        Case("sparse_update, dropout", base, ("weight",),
             lambda k, o: k.sparse_update(o.weight, o.x, o.rows, o.delta, -0.1, DROP)),
        Case("densify", dense, ("out",), lambda k, o: k.densify(o.out, o.x, o.rows, DROP)),
        Case("entries, groups and sums", {**base, "counts": counts}, ("weight", "counts"), group),
    ]  # fmt: skip


def dense_cases(draw: Operands, tolerance: float) -> list[Case]:
    s = draw.sizes
    m, n, k = s.rows, s.labels, s.units
    cases = []
    for flip_a in (False, True):
        for flip_b in (False, True):
            a = draw.normal(*((k, m) if flip_a else (m, k)))
            b = draw.normal(*((n, k) if flip_b else (k, n)))

            def call(kernels: Any, o: Any, fa: bool = flip_a, fb: bool = flip_b) -> None:
                left, right = o.a.T if fa else o.a, o.b.T if fb else o.b
                kernels.gemm(o.fresh, left, right)
                kernels.gemm(o.out, left, right, -0.5, 0.9)

            held = {"a": a, "b": b, "fresh": draw.poison(m, n), "out": draw.normal(m, n)}
            name = f"gemm {flip_a:d}{flip_b:d}"
            cases.append(Case(name, held, ("fresh", "out"), call, tolerance))
    x, row = draw.normal(m, k), draw.normal(k)
    active = np.maximum(draw.normal(m, k), 0)
    drop = {"x": x}
    cases += [
        Case("fill_rows", {"out": draw.poison(m, k), "row": row}, ("out",),
             lambda q, o: q.fill_rows(o.out, o.row)),
        Case("column_sums", {"out": draw.poison(k), "x": x}, ("out",),
             lambda q, o: q.column_sums(o.out, o.x)),
        Case("dropout", drop, ("x",), lambda q, o: q.dropout(o.x, DROP)),
    ]  # fmt: skip
    for name in ("relu", "sigmoid"):
        held = {"x": x, "active": active / (1 + active)}
        cases += [
            Case(f"activate {name}", drop, ("x",), lambda q, o, f=name: q.activate(o.x, f)),
            Case(f"activation_gradient {name}", held, ("x",),
                 lambda q, o, f=name: q.activation_gradient(o.x, o.active, f, 0.8)),
        ]  # fmt: skip
    return cases


def softmax_cases(draw: Operands) -> list[Case]:
    s, part, rows = draw.sizes, draw.rows(), draw.chosen()
    logits, bias = draw.normal(s.labels, s.rows, spread=4), draw.normal(s.labels)
    whole = (logits + bias[:, None]).astype(float)
    peak = whole.max(axis=0).astype(np.float32)
    total, weight = np.exp(whole - peak).sum(axis=0), np.abs(draw.normal(s.rows)) + 0.1
    shift = (peak + np.log(total) - np.log(weight)).astype(np.float32)
    base = {"logits": logits, "bias": bias, "peak": np.full(s.rows, -np.inf, np.float32),
            "total": np.zeros(s.rows)}  # fmt: skip
    sums = {"logits": logits, "bias": bias, "shift": shift, "sums": draw.poison(s.labels)}
    rowwise = {"out": draw.poison(s.rows), "peak": peak, "total": total, "weight": weight}
    targets = {"y": part.labels, "rows": rows, "logits": logits, "bias": bias, "weight": weight,
               "out": np.zeros(s.rows), "sums": draw.normal(s.labels)}  # fmt: skip
    lengths = np.diff(part.labels.indptr).astype(np.float32)
    weights = {"a": draw.poison(s.rows), "b": draw.poison(s.rows), "lengths": lengths}

    def note(k: Any, o: Any) -> None:
        """In two blocks."""
        cut = s.labels // 3
        for first, last in ((0, cut), (cut, s.labels)):
            k.subtract_targets_deferred(o.logits[first:last], o.weight, o.y, o.rows, 0, first)
        k.apply_deferred_sums(o.sums)

    losses = {"out": draw.poison(s.rows, dtype="float64"), "peak": peak, "total": total,
              "target": draw.normal(1, s.rows).astype(float), "lengths": lengths}  # fmt: skip
    totals = np.abs(draw.normal(3, s.rows)).astype(float) + 1
    parts = {"peaks": draw.normal(3, s.rows), "totals": totals, "peak": draw.poison(s.rows),
             "total": draw.poison(s.rows, dtype="float64")}  # fmt: skip
    return [
        Case("softmax_sums", base, ("logits", "peak", "total"),
             lambda k, o: k.softmax_sums(o.logits, o.bias, o.peak, o.total)),
        Case("softmax_shift", rowwise, ("out",),
             lambda k, o: k.softmax_shift(o.out, o.peak, o.total, o.weight)),
        Case("softmax_gradient", sums, ("logits", "sums"),
             lambda k, o: k.softmax_gradient(o.logits, o.bias, o.shift, o.sums)),
        Case("softmax_losses", losses, ("out",),
             lambda k, o: k.softmax_losses(o.out, o.peak, o.total, o.target, o.lengths)),
        Case("merge_softmax", parts, ("peak", "total"),
             lambda k, o: k.merge_softmax(o.peaks, o.totals, o.peak, o.total)),
        Case("target_weights", weights, ("a", "b"),
             lambda k, o: k.target_weights(o.a, o.b, o.lengths, 0.01, True)),
        Case("target_logits", targets, ("out",),
             lambda k, o: k.target_logits(o.out, o.logits, o.bias, o.y, o.rows, 0, 0)),
        Case("subtract_targets_deferred", targets, ("logits", "sums"), note),
    ]  # fmt: skip


def sigmoid_cases(draw: Operands) -> list[Case]:
    s = draw.sizes
    held = {"logits": draw.normal(s.labels, s.rows, spread=3), "bias": draw.normal(s.labels),
            "sums": draw.poison(s.labels), "loss": np.zeros(s.rows),
            "part": draw.poison(2, s.rows)}  # fmt: skip
    return [
        Case("sigmoid_block", held, ("logits", "sums", "loss"),
             lambda k, o: k.sigmoid_block(o.logits, o.bias, 0.5, o.sums, o.loss, o.part)),
    ]  # fmt: skip


def rank_cases(draw: Operands) -> list[Case]:
    s, k = draw.sizes, 5
    logits = np.round(draw.normal(s.labels, s.rows, spread=30))  # ties: exact in both precisions
    empty = {"scores": np.full((s.rows, k), -np.inf, np.float32),
             "ids": np.full((s.rows, k), -1, np.int32)}  # fmt: skip
    ranked = -np.sort(-draw.normal(s.rows, k, spread=3), axis=1)
    ids = np.argsort(draw.rng.random((s.rows, 50)), axis=1)[:, :k].astype(np.int32)
    lists = {"partial_scores": np.stack([ranked, ranked - 0.5]),
             "partial_ids": np.stack([ids, ids + 50]), "scores": draw.poison(s.rows, k),
             "ids": draw.poison(s.rows, k, dtype="int32")}  # fmt: skip
    scored = {"scores": ranked, "ids": ids, "peak": ranked[:, 0].copy(),
              "total": np.exp((ranked - ranked[:, :1]).astype(float)).sum(axis=1)}  # fmt: skip
    return [
        Case("top_k_block", {**empty, "logits": logits, "bias": np.zeros(s.labels, np.float32)},
             ("scores", "ids"),
             lambda q, o: q.top_k_block(o.logits, o.bias, 0, o.scores, o.ids)),
        Case("merge_top_k", lists, ("scores", "ids"),
             lambda q, o: q.merge_top_k(o.partial_scores, o.partial_ids, o.scores, o.ids)),
        Case("softmax_scores", scored, ("scores",),
             lambda q, o: q.softmax_scores(o.scores, o.ids, o.peak, o.total)),
        Case("sigmoid_scores", scored, ("scores",), lambda q, o: q.sigmoid_scores(o.scores, o.ids)),
    ]  # fmt: skip


def optimizer_cases(draw: Operands) -> list[Case]:
    s = draw.sizes
    count = s.labels // 3
    values = draw.normal(count, s.units)
    values[::5] = 0.0  # these rows wait
    ids = draw.rng.permutation(s.labels)[:count].astype(np.int32)
    held = {"w": draw.normal(s.labels, s.units), "m": draw.normal(s.labels, s.units),
            "v": draw.normal(s.labels, s.units) ** 2, "g": values, "ids": ids,
            "norms": draw.poison(2, count, dtype="float64"),
            "trust": draw.poison(1, dtype="float64"), "given": np.array([0.7])}  # fmt: skip

    def grad(o: Any) -> RowGradient:
        return RowGradient(o.g, o.ids, skip_zero_rows=True, scale=0.5)

    def trust(k: Any, o: Any) -> None:
        k.lamb_moments(o.norms, o.w, o.m, o.v, grad(o), ADAM)
        k.lamb_trust(o.trust, o.norms)

    return [
        Case("sgd_rows", held, ("w",), lambda k, o: k.sgd_rows(o.w, grad(o), 0.1, 0.9)),
        Case("momentum_rows", held, ("w", "m"),
             lambda k, o: k.momentum_rows(o.w, o.m, grad(o), 0.1, 0.9, 0.5, False)),
        Case("momentum_rows, nesterov", held, ("w", "m"),
             lambda k, o: k.momentum_rows(o.w, o.m, grad(o), 0.1, 0.9, 0.5, True)),
        Case("adam_rows", held, ("w", "m", "v"),
             lambda k, o: k.adam_rows(o.w, o.m, o.v, grad(o), ADAM)),
        Case("row_rms_rows", held, ("w", "v"),
             lambda k, o: k.row_rms_rows(o.w, o.v, grad(o), ADAM)),
        Case("lamb_moments and trust", held, ("m", "v", "norms", "trust"), trust),
        Case("lamb_rows", held, ("w",),
             lambda k, o: k.lamb_rows(o.w, o.m, o.v, grad(o), ADAM, o.given)),
    ]  # fmt: skip
