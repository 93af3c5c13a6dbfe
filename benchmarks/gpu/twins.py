"""Part (a): every kernel against its twin in float64, on fresh random operands."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from daskxml.core.arrays import Csr
from harness.naive_kernels import NaiveKernels
from twin_cases import every_case
from twin_operands import Case, Sizes


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
