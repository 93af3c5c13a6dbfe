"""Why a network gives a row a label: what each feature adds to the label's score.

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
        below = np.maximum(sums[-1], 0.0) if spec.activation == "relu" else expit(sums[-1])
        sums.append(below @ arrays[f"hidden{layer}.weight"] + arrays[f"hidden{layer}.bias"])
    for layer in reversed(range(layers)):
        slope = slope * _derivative(spec, sums[layer])
        if layer:
            slope = arrays[f"hidden{layer}.weight"].astype(np.float64) @ slope
    return values * (first @ slope)


def _derivative(spec: ModelSpec, sums: Any) -> Any:
    return sums > 0.0 if spec.activation == "relu" else expit(sums) * expit(-sums)
