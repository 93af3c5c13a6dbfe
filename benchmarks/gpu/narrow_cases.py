"""Calls with blocks and operands of 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.naive_dense import from_bfloat16, to_bfloat16
from twin_operands import Case, Operands

HALF = 1e-3  # float16 has 11 bits


def narrow_cases(draw: Operands) -> list[Case]:
    """Products, and what is done to a block of logits that is float16."""
    return [_narrow_product(draw), *_half_products(draw), *_half_softmax(draw), _half_sigmoid(draw)]


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


def _half_sigmoid(draw: Operands) -> Case:
    s = draw.sizes
    held = {"logits": _half_logits(draw, 3.0), "bias": draw.normal(s.labels),
            "sums": draw.poison(s.labels), "loss": np.zeros(s.rows),
            "part": draw.poison(2, s.rows)}  # fmt: skip
    return Case("sigmoid_block of float16", held, ("logits", "sums", "loss"),
                lambda k, o: k.sigmoid_block(o.logits, o.bias, 512.0, o.sums, o.loss, o.part),
                HALF)  # fmt: skip
