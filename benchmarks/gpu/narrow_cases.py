"""Calls with blocks and operands of 16 bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from harness.naive_dense import from_bfloat16, to_bfloat16
from twin_operands import Case, Operands

HALF = 1e-3  # float16 has 11 bits


def narrow_cases(draw: Operands) -> list[Case]:
    """Products, and what is done to a block of logits that is float16."""
    fused = [case for units in (64, 128) for case in _fused_softmax(draw, units)]
    softmax = [*_half_softmax(draw), *fused]
    return [_narrow_product(draw), *_half_products(draw), *softmax, _half_sigmoid(draw)]


def _narrow_product(draw: Operands) -> Case:
    """Of bfloat16 operands: exact products, added up in float32."""
    s = draw.sizes
    held = {"a": to_bfloat16(draw.normal(s.rows, s.units)), "out": draw.poison(s.rows, s.labels),
            "b": to_bfloat16(draw.normal(s.labels, s.units))}  # fmt: skip

    def call(kernels: Any, o: Any) -> None:
        is_twin = kernels.name == "naive"
        a, b = (from_bfloat16(x).astype(float) if is_twin else x for x in (o.a, o.b))
        kernels.gemm(o.out, a, b.T)

    return Case("gemm of bfloat16", held, ("out",), call)


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
