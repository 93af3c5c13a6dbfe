"""Why a row has a label: what each of its features adds to the label's logit, or would alone.

A feature's contribution is its value times the logit's derivative by it. In a linear model, and in
one with ReLU, which is linear around the row, the contributions add up to the logit but for what
the biases add (Ancona et al., "Towards better understanding of gradient-based attribution methods",
ICLR 2018, section 3.1); with sigmoid units they are a first-order approximation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from daskxml.core.errors import InputError
from daskxml.data.matrices import feature_blocks
from daskxml.data.rows import unit_rows
from daskxml.model.trained import Ids, Model

_CHUNK_FEATURES = 1 << 14  # whose hidden units are held at a time


def contributions(model: Model, row: Any, label: int) -> tuple[Ids, npt.NDArray[np.float64]]:
    """Return the features of a row, and what each adds to the logit of a label.

    Parameters
    ----------
    row
        ``(1, features)``, sparse or dense; it is scaled as the training rows were.
    label
        The id of the label.

    Returns
    -------
    ids
        ``(nonzeros,)`` int32, ascending.
    added
        ``(nonzeros,)`` float64.

    Raises
    ------
    InputError
        If there is not one row, or no such label.

    Examples
    --------
    >>> from daskxml.model.spec import ModelSpec
    >>> from daskxml.model.store import ModelHeader
    >>> spec = ModelSpec(features=3, labels=2, hidden=())
    >>> weights = {"output.weight": np.float32([[1, 2, 3], [4, 5, 6]]),
    ...            "output.bias": np.zeros(2, np.float32)}
    >>> header = ModelHeader(spec=spec, training_rows=9, normalize="none")
    >>> contributions(Model(header, weights, np.array([4, 6])), [[10.0, 0.0, 1.0]], 1)
    (array([0, 2], dtype=int32), array([40.,  6.]))
    """
    blocks = list(feature_blocks(row, model.spec.features))
    if len(blocks) != 1 or blocks[0].rows != 1:
        raise InputError("one row is explained at a time: give a matrix of one row")
    _check_label(model, label)
    if model.header.normalize == "l2":
        unit_rows(blocks[0])
    ids, values = blocks[0].indices, np.asarray(blocks[0].data, np.float64)
    return ids, values * _slopes(model, ids, values, label)


def strengths(model: Model, label: int) -> npt.NDArray[np.float64]:
    """Return what each feature adds to the logit of a label in a row that holds nothing else.

    That is the logit of the row with the value 1 of this feature, less the logit of an empty row;
    in a linear model, the feature's weight.

    Returns
    -------
    numpy.ndarray
        ``(features,)`` float64.

    Raises
    ------
    InputError
        If there is no such label.

    Examples
    --------
    >>> from daskxml.model.spec import ModelSpec
    >>> from daskxml.model.store import ModelHeader
    >>> spec = ModelSpec(features=3, labels=2, hidden=())
    >>> weights = {"output.weight": np.float32([[1, 2, 3], [4, 5, 6]]),
    ...            "output.bias": np.zeros(2, np.float32)}
    >>> strengths(Model(ModelHeader(spec=spec, training_rows=9), weights, np.array([4, 6])), 1)
    array([4., 5., 6.])
    """
    _check_label(model, label)
    output = model.parameters["output.weight"][label].astype(np.float64)
    if not model.network.hidden:
        return output
    first, bias = (model.parameters[f"hidden0.{kind}"] for kind in ("weight", "bias"))
    empty = _activations(model, bias[None].astype(np.float64)) @ output
    added = np.empty(len(first))
    for start in range(0, len(first), _CHUNK_FEATURES):
        chunk = first[start : start + _CHUNK_FEATURES].astype(np.float64) + bias
        added[start : start + _CHUNK_FEATURES] = _activations(model, chunk) @ output - empty
    return added


def _activations(model: Model, sums: Any) -> Any:
    """Return the last hidden layer's units from the weighted sums of the first one."""
    for layer in range(1, len(model.network.hidden)):
        weight, bias = (model.parameters[f"hidden{layer}.{kind}"] for kind in ("weight", "bias"))
        sums = _activated(model, sums) @ weight + bias
    return _activated(model, sums)


def _check_label(model: Model, label: int) -> None:
    if not 0 <= label < model.spec.labels:
        raise InputError(f"label {label}: the model has labels 0 to {model.spec.labels - 1}")


def _slopes(model: Model, ids: Ids, values: Any, label: int) -> npt.NDArray[np.float64]:
    """Return the derivative of a logit by each of the row's features."""
    slope = model.parameters["output.weight"][label].astype(np.float64)
    if not model.network.hidden:
        return slope[ids]
    first = model.parameters["hidden0.weight"][ids].astype(np.float64)
    sums = [values @ first + model.parameters["hidden0.bias"]]
    for layer in range(1, len(model.network.hidden)):
        weight, bias = (model.parameters[f"hidden{layer}.{kind}"] for kind in ("weight", "bias"))
        sums.append(_activated(model, sums[-1]) @ weight + bias)
    for layer in reversed(range(len(sums))):
        slope = slope * _derivative(model, sums[layer])
        if layer:
            slope = model.parameters[f"hidden{layer}.weight"].astype(np.float64) @ slope
    return np.asarray(first @ slope)


def _activated(model: Model, sums: Any) -> Any:
    return np.maximum(sums, 0.0) if model.network.activation == "relu" else expit(sums)


def _derivative(model: Model, sums: Any) -> Any:
    return sums > 0.0 if model.network.activation == "relu" else expit(sums) * expit(-sums)
