"""Why a network gives a row a label: what each feature adds to the label's score, or would alone.

The score is the label's logit. A feature's contribution is its value times the logit's derivative
by it. In a linear model, and in one with ReLU, which is linear around the row, the contributions
add up to the logit but for what the biases add (Ancona et al., "Towards better understanding of
gradient-based attribution methods", ICLR 2018, section 3.1); with sigmoid units they are a
first-order approximation.

Contributions to the label's probability add up to the row's less that of an empty row: they are
integrated gradients from the one to the other, a sum over steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, softmax

from daskxml.core.arrays import Array, Csr, Partition, Segment
from daskxml.core.hardware import usable_cores
from daskxml.kernels import get_kernels
from daskxml.models.network.kind import NetworkRanker
from daskxml.models.network.spec import ModelSpec
from daskxml.models.protocol import Arrays

_CHUNK_FEATURES = 1 << 14  # whose hidden units are held at a time
_CHUNK_LABELS = 1 << 13  # whose weights are float64 at a time
_STEPS = 128  # of integrated gradients from the empty row to the row
_MOST_ALONE, _ROWS_ALONE = 256, 16  # features that are tried alone under softmax, and at a time


class _Columns(NamedTuple):
    """Some columns of the output layer's weights, float64 where they are used."""

    weight: Any
    columns: Any

    def rows(self, labels: Any) -> Any:
        return self.weight[labels][..., self.columns].astype(np.float64)


ScoreSlope = Callable[[Any, int, _Columns], Any]


class Explained:
    """A network whose scores are explained, float64.

    Parameters
    ----------
    spec
        Sizes and layers.
    arrays
        Its parameters, perhaps `Quantised`.
    """

    def __init__(self, spec: ModelSpec, arrays: Arrays) -> None:
        self._spec, self._arrays = spec, arrays

    def added(self, row: Csr, label: int, *, probability: bool) -> Array:
        """Return what each feature of a scaled row adds to a label's logit, or to its probability.

        ``(nonzeros,)``.
        """
        values = np.asarray(row.data, np.float64)
        shares = (np.arange(_STEPS) + 0.5) / _STEPS if probability else np.ones(1)
        score_slope = self._probability_slope if probability else self._logit_slope
        return values * self._slopes(row.indices, values, label, shares, score_slope)

    def strengths(self, label: int, *, probability: bool) -> Array:
        """Return what each feature, with the value 1, adds to a label's logit or probability.

        ``(features,)``; of a softmax only for the 256 features that add most to the logit.
        """
        logits = self._logit_strengths(label)
        return self._probability_strengths(label, logits) if probability else logits

    def _logit_strengths(self, label: int) -> Array:
        output = self._arrays["output.weight"][label].astype(np.float64)
        if not self._spec.hidden:
            return output
        first, bias = (self._arrays[f"hidden0.{kind}"] for kind in ("weight", "bias"))
        empty = self._activations(bias[None].astype(np.float64)) @ output
        added = np.empty(len(first))
        for start in range(0, len(first), _CHUNK_FEATURES):
            chunk = first[start : start + _CHUNK_FEATURES].astype(np.float64) + bias
            added[start : start + _CHUNK_FEATURES] = self._activations(chunk) @ output - empty
        return added

    def _probability_strengths(self, label: int, logits: Array) -> Array:
        features = self._spec.features
        ranker = NetworkRanker(self._spec, self._arrays, get_kernels("cpu", usable_cores()))
        (empty,) = ranker.logits(_ones(np.empty(0, np.int32), 0, features))
        if self._spec.loss == "sigmoid":
            return expit(logits + empty[label]) - expit(empty[label])
        best, added = np.argsort(-logits, kind="stable")[:_MOST_ALONE], np.zeros(features)
        for start in range(0, len(best), _ROWS_ALONE):
            chosen = best[start : start + _ROWS_ALONE]
            scores = softmax(ranker.logits(_ones(chosen, 1, features)), axis=1)
            added[chosen] = scores[:, label] - softmax(empty)[label]
        return added

    def _activations(self, sums: Any) -> Any:
        """Return the last hidden layer's units from the weighted sums of the first one."""
        for layer in range(1, len(self._spec.hidden)):
            sums = self._next(sums, layer)
        return self._activated(sums)

    def _next(self, sums: Any, layer: int) -> Any:
        """Return the weighted sums of a layer from those of the one before."""
        weight, bias = (self._arrays[f"hidden{layer}.{kind}"] for kind in ("weight", "bias"))
        return self._activated(sums) @ weight + bias

    def _slopes(
        self, ids: Array, values: Array, label: int, shares: Array, score_slope: ScoreSlope
    ) -> Array:
        """Return the derivative of a score by a row's features, the mean over ``shares`` of it.

        ``score_slope`` gives the derivative by the last hidden units, or without any by the
        features.
        """
        arrays, layers = self._arrays, len(self._spec.hidden)
        if not layers:
            out = _Columns(arrays["output.weight"], ids)
            return np.asarray(score_slope(shares[:, None] * values, label, out).mean(axis=0))
        first = arrays["hidden0.weight"][ids].astype(np.float64)
        sums = [shares[:, None] * (values @ first) + arrays["hidden0.bias"]]
        for layer in range(1, layers):
            sums.append(self._next(sums[-1], layer))
        out = _Columns(arrays["output.weight"], slice(None))
        slope = score_slope(self._activated(sums[-1]), label, out)
        for layer in reversed(range(layers)):
            slope = slope * self._derivative(sums[layer])
            if layer:
                slope = slope @ arrays[f"hidden{layer}.weight"].astype(np.float64).T
        return np.asarray(first @ slope.mean(axis=0))

    def _logit_slope(self, rows: Any, label: int, weight: _Columns) -> Any:
        """Return the derivative of a label's logit by the inputs of the output layer."""
        return np.broadcast_to(weight.rows(label), rows.shape)

    def _probability_slope(self, rows: Any, label: int, weight: _Columns) -> Any:
        """Return the derivative of a label's probability by the inputs of the output layer."""
        own, bias = weight.rows(label), self._arrays["output.bias"].astype(np.float64)
        logit = rows @ own + bias[label]
        if self._spec.loss == "sigmoid":
            return (expit(logit) * expit(-logit))[:, None] * own
        peak, total, mean = np.full(len(rows), -np.inf), np.zeros(len(rows)), np.zeros(rows.shape)
        for start in range(0, self._spec.labels, _CHUNK_LABELS):  # the softmax of all, in chunks
            block = weight.rows(slice(start, start + _CHUNK_LABELS))
            logits = rows @ block.T + bias[start : start + _CHUNK_LABELS]
            higher = np.maximum(peak, logits.max(axis=1))
            shrunk, powers = np.exp(peak - higher), np.exp(logits - higher[:, None])
            total = total * shrunk + powers.sum(axis=1)
            mean = mean * shrunk[:, None] + powers @ block
            peak = higher
        return (np.exp(logit - peak) / total)[:, None] * (own - mean / total[:, None])

    def _activated(self, sums: Any) -> Any:
        return np.maximum(sums, 0.0) if self._spec.activation == "relu" else expit(sums)

    def _derivative(self, sums: Any) -> Any:
        return sums > 0.0 if self._spec.activation == "relu" else expit(sums) * expit(-sums)


def _ones(columns: Array, each: int, features: int) -> list[Segment]:
    """Return rows with the value 1 in one column each; or, of no columns, one empty row."""
    rows = max(1, len(columns))
    values = np.ones(len(columns), np.float32)
    x = Csr(each * np.arange(rows + 1), columns.astype(np.int32), values, features)
    return [
        Segment(
            Partition(x, Csr(np.zeros(rows + 1, np.int64), columns[:0], None, 0)), np.arange(rows)
        )
    ]
