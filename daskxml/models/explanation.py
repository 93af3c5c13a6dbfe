"""Why a row has a label: what each of its features adds to the label's score, or would alone.

The score of a network is the label's logit. A feature's contribution is its value times the logit's
derivative by it. In a linear model, and in one with ReLU, which is linear around the row, the
contributions add up to the logit but for what the biases add (Ancona et al., "Towards better
understanding of gradient-based attribution methods", ICLR 2018, section 3.1); with sigmoid units
they are a first-order approximation.

The score of label trees, and of mixtures, is the label's probability before calibration, whether or
not a beam holds the label. Contributions add up to the row's probability less that of an empty
row: they are integrated gradients from the one to the other, exact for trees
(`daskxml.models.trees.paths`), and a sum over steps for the networks in a mixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from scipy.special import expit, softmax

from daskxml.core.arrays import Array, Csr
from daskxml.core.errors import InputError
from daskxml.data.matrices import feature_blocks
from daskxml.data.rows import unit_rows
from daskxml.models.mix.mixture import part_arrays
from daskxml.models.mix.spec import MixtureSpec
from daskxml.models.network.spec import ModelSpec
from daskxml.models.trained import Ids, Model
from daskxml.models.trees.forest import ARRAYS, count_trees
from daskxml.models.trees.nodes import powered
from daskxml.models.trees.paths import label_path, path_contributions, path_strengths
from daskxml.models.trees.spec import TreeSpec

_CHUNK_FEATURES = 1 << 14  # whose hidden units are held at a time
_CHUNK_LABELS = 1 << 13  # whose weights are float64 at a time
_STEPS = 128  # of integrated gradients from the empty row to the row
_MOST_ALONE, _ROWS_ALONE = 256, 16  # features that are tried alone under softmax, and at a time


def contributions(model: Model, row: Any, label: int) -> tuple[Ids, npt.NDArray[np.float64]]:
    """Return the features of a row, and what each adds to the score of a label.

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
    >>> from daskxml.models.network.spec import ModelSpec
    >>> from daskxml.models.store import ModelHeader
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
    if isinstance(model.spec, ModelSpec):
        return ids, values * _slopes(model, ids, values, label, np.ones(1), _logit_slope)
    return ids, _added_probability(model, blocks[0], label)


def _added_probability(model: Model, row: Csr, label: int) -> npt.NDArray[np.float64]:
    """Return what the features of a scaled row add to a label's probability."""
    if isinstance(model.spec, TreeSpec):
        trees = []
        for power, arrays in _trees(model, model.spec):
            values = np.asarray(powered(row, power).data, np.float64)
            path = label_path(model.spec, arrays, label)
            trees.append(path_contributions(path, row.indices, values)[0])
        return np.mean(trees, axis=0)
    if isinstance(model.spec, MixtureSpec):
        parts = _parts(model, model.spec)
        return np.sum([share * _added_probability(it, row, label) for share, it in parts], axis=0)
    values = np.asarray(row.data, np.float64)
    shares = (np.arange(_STEPS) + 0.5) / _STEPS
    return values * _slopes(model, row.indices, values, label, shares, _probability_slope)


def strengths(model: Model, label: int) -> npt.NDArray[np.float64]:
    """Return what each feature adds to the score of a label in a row that holds nothing else.

    That is the score of the row with the value 1 of this feature, less the score of an empty row;
    in a linear model, the feature's weight. In a mixture, a network with the softmax loss counts
    only for the 256 features that add most to its logit.

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
    >>> from daskxml.models.network.spec import ModelSpec
    >>> from daskxml.models.store import ModelHeader
    >>> spec = ModelSpec(features=3, labels=2, hidden=())
    >>> weights = {"output.weight": np.float32([[1, 2, 3], [4, 5, 6]]),
    ...            "output.bias": np.zeros(2, np.float32)}
    >>> strengths(Model(ModelHeader(spec=spec, training_rows=9), weights, np.array([4, 6])), 1)
    array([4., 5., 6.])
    """
    _check_label(model, label)
    if isinstance(model.spec, ModelSpec):
        return _logit_strengths(model, label)
    return _probability_strengths(model, label)


def _logit_strengths(model: Model, label: int) -> npt.NDArray[np.float64]:
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


def _probability_strengths(model: Model, label: int) -> npt.NDArray[np.float64]:
    features = model.spec.features
    if isinstance(model.spec, TreeSpec):
        paths = (label_path(model.spec, arrays, label) for _, arrays in _trees(model, model.spec))
        return np.mean([path_strengths(path, features) for path in paths], axis=0)
    if isinstance(model.spec, MixtureSpec):
        parts = _parts(model, model.spec)
        return np.sum([share * _probability_strengths(it, label) for share, it in parts], axis=0)
    logits = _logit_strengths(model, label)
    if model.network.loss == "sigmoid":
        (empty,) = model.logits(csr_matrix((1, features)))[:, label]
        return expit(logits + empty) - expit(empty)
    best, added = np.argsort(-logits, kind="stable")[:_MOST_ALONE], np.zeros(features)
    (empty,) = softmax(model.logits(csr_matrix((1, features))), axis=1)[:, label]
    for start in range(0, len(best), _ROWS_ALONE):
        chosen = best[start : start + _ROWS_ALONE]
        cells = np.ones(len(chosen)), (np.arange(len(chosen)), chosen)
        scores = model.logits(csr_matrix(cells, (len(chosen), features)))
        added[chosen] = softmax(scores, axis=1)[:, label] - empty
    return added


def _trees(model: Model, spec: TreeSpec) -> Iterator[tuple[float, dict[str, Array]]]:
    """Yield the power and the arrays of each tree."""
    for tree in range(count_trees(model.parameters)):
        arrays = {name: model.parameters[f"tree{tree}.{name}"] for name in ARRAYS}
        yield spec.power_of(tree), arrays


def _parts(model: Model, spec: MixtureSpec) -> list[tuple[float, Model]]:
    """Return the weight of each part of a mixture, and the part as a model."""
    parts = [
        Model(
            replace(model.header, spec=part), part_arrays(model.parameters, n), model.label_counts
        )
        for n, part in enumerate(spec.parts)
    ]
    return list(zip(spec.weights, parts, strict=True))


def _activations(model: Model, sums: Any) -> Any:
    """Return the last hidden layer's units from the weighted sums of the first one."""
    for layer in range(1, len(model.network.hidden)):
        weight, bias = (model.parameters[f"hidden{layer}.{kind}"] for kind in ("weight", "bias"))
        sums = _activated(model, sums) @ weight + bias
    return _activated(model, sums)


def _check_label(model: Model, label: int) -> None:
    if not 0 <= label < model.spec.labels:
        raise InputError(f"label {label}: the model has labels 0 to {model.spec.labels - 1}")


def _slopes(
    model: Model, ids: Ids, values: Any, label: int, shares: Any, score_slope: ScoreSlope
) -> npt.NDArray[np.float64]:
    """Return the derivative of a score by each of a row's features, the mean over ``shares`` of it.

    ``score_slope`` gives the derivative by the last hidden units, or without any by the features.
    """
    parameters, layers = model.parameters, len(model.network.hidden)
    if not layers:
        rows, out = shares[:, None] * values, _Columns(parameters["output.weight"], ids)
        return np.asarray(score_slope(model, rows, label, out).mean(axis=0))
    first = parameters["hidden0.weight"][ids].astype(np.float64)
    sums = [shares[:, None] * (values @ first) + parameters["hidden0.bias"]]
    for layer in range(1, layers):
        weight, bias = (parameters[f"hidden{layer}.{kind}"] for kind in ("weight", "bias"))
        sums.append(_activated(model, sums[-1]) @ weight + bias)
    out = _Columns(parameters["output.weight"], slice(None))
    slope = score_slope(model, _activated(model, sums[-1]), label, out)
    for layer in reversed(range(layers)):
        slope = slope * _derivative(model, sums[layer])
        if layer:
            slope = slope @ parameters[f"hidden{layer}.weight"].astype(np.float64).T
    return np.asarray(first @ slope.mean(axis=0))


class _Columns(NamedTuple):
    """Some columns of the output layer's weights, float64 where they are used."""

    weight: Any
    columns: Any

    def rows(self, labels: Any) -> Any:
        return self.weight[labels][..., self.columns].astype(np.float64)


ScoreSlope = Callable[[Model, Any, int, _Columns], Any]


def _logit_slope(model: Model, rows: Any, label: int, weight: _Columns) -> Any:
    """Return the derivative of a label's logit by the inputs of the output layer."""
    return np.broadcast_to(weight.rows(label), rows.shape)


def _probability_slope(model: Model, rows: Any, label: int, weight: _Columns) -> Any:
    """Return the derivative of a label's probability by the inputs of the output layer."""
    own, bias = weight.rows(label), model.parameters["output.bias"].astype(np.float64)
    logit = rows @ own + bias[label]
    if model.network.loss == "sigmoid":
        return (expit(logit) * expit(-logit))[:, None] * own
    peak, total, mean = np.full(len(rows), -np.inf), np.zeros(len(rows)), np.zeros(rows.shape)
    for start in range(0, model.spec.labels, _CHUNK_LABELS):  # the softmax of all, a few at a time
        block = weight.rows(slice(start, start + _CHUNK_LABELS))
        logits = rows @ block.T + bias[start : start + _CHUNK_LABELS]
        higher = np.maximum(peak, logits.max(axis=1))
        shrunk, powers = np.exp(peak - higher), np.exp(logits - higher[:, None])
        total, mean = total * shrunk + powers.sum(axis=1), mean * shrunk[:, None] + powers @ block
        peak = higher
    return (np.exp(logit - peak) / total)[:, None] * (own - mean / total[:, None])


def _activated(model: Model, sums: Any) -> Any:
    return np.maximum(sums, 0.0) if model.network.activation == "relu" else expit(sums)


def _derivative(model: Model, sums: Any) -> Any:
    return sums > 0.0 if model.network.activation == "relu" else expit(sums) * expit(-sums)
