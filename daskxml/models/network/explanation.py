"""Why a network gives a row a label: what each feature adds to the label's score, or would alone.

The score is the label's logit. A feature's contribution is its value times the logit's derivative
by it. In a linear model, and in one with ReLU, which is linear around the row, the contributions
add up to the logit but for what the biases add (Ancona et al., "Towards better understanding of
gradient-based attribution methods", ICLR 2018, section 3.1); with sigmoid units they are a
first-order approximation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit

from daskxml.core.arrays import Array, Csr
from daskxml.models.network.spec import ModelSpec
from daskxml.models.protocol import Arrays

_CHUNK_FEATURES = 1 << 14  # whose hidden units are held at a time


def contributions(spec: ModelSpec, arrays: Arrays, row: Csr, label: int) -> Array:
    """Return what each feature of a scaled row adds to a label's logit, ``(nonzeros,)`` float64.

    Parameters
    ----------
    spec, arrays
        A network: sizes and layers, and its parameters, perhaps `Quantised`.
    """
    values, layers = np.asarray(row.data, np.float64), len(spec.hidden)
    slope = arrays["output.weight"][label].astype(np.float64)
    if not layers:
        return values * slope[row.indices]
    first = arrays["hidden0.weight"][row.indices].astype(np.float64)
    sums = [values @ first + arrays["hidden0.bias"]]
    for layer in range(1, layers):
        sums.append(_next(spec, arrays, sums[-1], layer))
    for layer in reversed(range(layers)):
        slope = slope * _derivative(spec, sums[layer])
        if layer:
            slope = arrays[f"hidden{layer}.weight"].astype(np.float64) @ slope
    return values * (first @ slope)


def strengths(spec: ModelSpec, arrays: Arrays, label: int) -> Array:
    """Return what each feature, with the value 1, adds to a label's logit, ``(features,)``."""
    output = arrays["output.weight"][label].astype(np.float64)
    if not spec.hidden:
        return output
    first, bias = (arrays[f"hidden0.{kind}"] for kind in ("weight", "bias"))
    empty = _last(spec, arrays, bias[None].astype(np.float64)) @ output
    added = np.empty(len(first))
    for start in range(0, len(first), _CHUNK_FEATURES):
        chunk = first[start : start + _CHUNK_FEATURES].astype(np.float64) + bias
        added[start : start + _CHUNK_FEATURES] = _last(spec, arrays, chunk) @ output - empty
    return added


def _last(spec: ModelSpec, arrays: Arrays, sums: Any) -> Any:
    """Return the last hidden layer's units from the weighted sums of the first one."""
    for layer in range(1, len(spec.hidden)):
        sums = _next(spec, arrays, sums, layer)
    return _activated(spec, sums)


def _next(spec: ModelSpec, arrays: Arrays, sums: Any, layer: int) -> Any:
    """Return the weighted sums of a layer from those of the one before."""
    weight, bias = (arrays[f"hidden{layer}.{kind}"] for kind in ("weight", "bias"))
    return _activated(spec, sums) @ weight + bias


def _activated(spec: ModelSpec, sums: Any) -> Any:
    return np.maximum(sums, 0.0) if spec.activation == "relu" else expit(sums)


def _derivative(spec: ModelSpec, sums: Any) -> Any:
    return sums > 0.0 if spec.activation == "relu" else expit(sums) * expit(-sums)
