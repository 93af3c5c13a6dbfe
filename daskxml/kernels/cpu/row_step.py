"""A whole step with one row on a CPU: each weight is read once forward and once backward.

The backward pass takes a row of a weight matrix, adds its part of the gradient by the layer below,
and changes it while it is in the L1 cache. Units that are zero have no gradient (relu) or none that
float32 can represent (sigmoid), so their weights are not read at all. Functions that may reorder
sums are separate from those that use `exp32`, whose rounding trick does not survive it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskxml.core.arrays import Csr
from daskxml.core.jit import njit
from daskxml.kernels.cpu.dense import relu, relu_gradient, sigmoid, sigmoid_gradient
from daskxml.kernels.cpu.numba_math import dot, exp32, fast_sum
from daskxml.kernels.operands import ROW_BLOCK, RowNet

_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
_ONES = np.empty(0, np.float32)  # the values of a matrix of ones
_SHARED_LOG = 16  # labels for each logarithm: their 1 + exp(-|z|) are in 1..2
_BLOCK_FLOATS = 1 << 16  # of weights: a block of the sigmoid loss is still in L2 when it is updated


@njit(nogil=True)
def _step(
    flat: Any, places: Any, scratch: Any, x: Any, y: Any, row: int, is_relu: bool,
    is_softmax: bool, rate: Any, output_rate: Any,
) -> float:  # fmt: skip
    """One step; rates are negative, the values of ``x`` are empty where all are one."""
    (x_indptr, x_indices, x_data), (y_indptr, y_indices) = x, y
    targets = y_indices[y_indptr[row] : y_indptr[row + 1]]
    if is_softmax and targets.shape[0] == 0:
        return 0.0
    features = x_indices[x_indptr[row] : x_indptr[row + 1]]
    values = x_data[x_indptr[row] : x_indptr[row + 1]] if x_data.shape[0] else x_data
    last = places.shape[0] - 1
    units = 0
    for layer in range(last):
        units += places[layer, 3]
    active, slopes, buffer = scratch[:units], scratch[units : 2 * units], scratch[2 * units :]
    start, shift, width, labels = _numbers(places, last)
    weight = flat[start : start + labels * width].reshape((labels, width))
    bias = flat[shift : shift + labels]
    _forward(flat, places, active, features, values, is_relu)
    hidden, gradient = active[units - width :], slopes[units - width :]
    gradient[:] = _ZERO
    if is_softmax:
        loss = _softmax(weight, bias, hidden, gradient, targets, buffer, output_rate)
    else:
        loss = _sigmoid(weight, bias, hidden, gradient, targets, buffer, output_rate)
    _backward(flat, places, active, slopes, features, values, is_relu, rate)
    return loss


@njit(inline="always")
def _numbers(places: Any, layer: Any) -> Any:
    return places[layer, 0], places[layer, 1], places[layer, 2], places[layer, 3]


@njit(inline="always")
def _layer(flat: Any, places: Any, layer: Any) -> Any:
    """The weights and biases of a hidden layer."""
    start, shift, inputs, units = _numbers(places, layer)
    weight = flat[start : start + inputs * units].reshape((inputs, units))
    return weight, flat[shift : shift + units]


# -- sums over one row of weights --------------------------------------------------------------


@njit(nogil=True, fastmath={"contract", "reassoc", "nsz"})
def _dot_and_add(row: Any, x: Any, factor: Any) -> Any:
    """``row . x``, and then ``row += factor * x``."""
    total = _ZERO
    for j in range(row.shape[0]):
        old = row[j]
        total += old * x[j]
        row[j] = old + factor * x[j]
    return total


@njit(nogil=True, fastmath={"contract"})
def _add(out: Any, row: Any, factor: Any) -> None:
    """``out += factor * row``."""
    for j in range(out.shape[0]):
        out[j] += factor * row[j]


@njit(nogil=True, fastmath={"contract"})
def _propagate_and_add(row: Any, out: Any, factor: Any, x: Any, change: Any) -> None:
    """``out += factor * row``, and then ``row += change * x``."""
    for j in range(row.shape[0]):
        old = row[j]
        out[j] += factor * old
        row[j] = old + change * x[j]


# -- hidden layers -----------------------------------------------------------------------------


@njit(nogil=True)
def _forward(
    flat: Any, places: Any, active: Any, features: Any, values: Any, is_relu: bool
) -> None:
    """Fill ``active`` with the outputs of all hidden layers, one after the other."""
    weight, bias = _layer(flat, places, 0)
    out = active[: bias.shape[0]]
    out[:] = bias
    for i in range(features.shape[0]):
        _add(out, weight[features[i]], values[i] if values.shape[0] else _ONE)
    _activate(out, is_relu)
    end = bias.shape[0]
    for layer in range(1, places.shape[0] - 1):
        weight, bias = _layer(flat, places, layer)
        below, out = active[end - weight.shape[0] : end], active[end : end + bias.shape[0]]
        out[:] = bias
        for i in range(below.shape[0]):
            if below[i] != _ZERO:
                _add(out, weight[i], below[i])
        _activate(out, is_relu)
        end += bias.shape[0]


@njit(nogil=True)
def _activate(x: Any, is_relu: bool) -> None:
    row = x.reshape((1, x.shape[0]))
    if is_relu:
        relu(row)
    else:
        sigmoid(row)


@njit(nogil=True)
def _activation_gradient(slope: Any, active: Any, is_relu: bool) -> None:
    """From the gradient by a layer's output to that by its input."""
    slopes, row = slope.reshape((1, slope.shape[0])), active.reshape((1, active.shape[0]))
    if is_relu:
        relu_gradient(slopes, row)
    else:
        sigmoid_gradient(slopes, row, _ONE)


@njit(nogil=True)
def _backward(
    flat: Any, places: Any, active: Any, slopes: Any, features: Any, values: Any,
    is_relu: bool, rate: Any,
) -> None:  # fmt: skip
    """Change all hidden layers; the last of ``slopes`` is the gradient by their output."""
    end = active.shape[0]
    for layer in range(places.shape[0] - 2, -1, -1):
        weight, bias = _layer(flat, places, layer)
        start = end - bias.shape[0]
        slope = slopes[start:end]
        _activation_gradient(slope, active[start:end], is_relu)
        _add(bias, slope, rate)
        if layer == 0:
            for i in range(features.shape[0]):
                _add(weight[features[i]], slope, rate * (values[i] if values.shape[0] else _ONE))
            return
        first = start - weight.shape[0]
        below, gradient = active[first:start], slopes[first:start]
        for i in range(below.shape[0]):
            gradient[i] = _ZERO
            if below[i] != _ZERO:
                gradient[i] = _dot_and_add(weight[i], slope, rate * below[i])
        end = start


# -- the output layer --------------------------------------------------------------------------


@njit(nogil=True)
def _softmax(
    weight: Any, bias: Any, hidden: Any, gradient: Any, targets: Any, buffer: Any, rate: Any
) -> float:
    """Two passes: logits with their peak and sum (Milakov and Gimelshein 2018), then the step."""
    labels = bias.shape[0]
    logits, part = buffer[:labels], buffer[labels : labels + ROW_BLOCK]
    peak, total = np.float32(-np.inf), 0.0
    for start in range(0, labels, ROW_BLOCK):
        stop = min(start + ROW_BLOCK, labels)
        top = _logits(logits[start:stop], weight[start:stop], bias[start:stop], hidden)
        if top > peak:
            total *= exp32(peak - top)
            peak = top
        _exponentials(part[: stop - start], logits[start:stop], peak, _ONE)
        total += fast_sum(part[: stop - start])
    target = 0.0
    for label in targets:
        target += logits[label]
    share, place = _ONE / np.float32(targets.shape[0]), 0
    for start in range(0, labels, ROW_BLOCK):
        stop = min(start + ROW_BLOCK, labels)
        slopes = part[: stop - start]
        _exponentials(slopes, logits[start:stop], peak, np.float32(1.0 / total))
        place = _subtract(slopes, targets, place, start, share)
        _update(weight[start:stop], bias[start:stop], slopes, hidden, gradient, rate)
    return peak + np.log(total) - target / targets.shape[0]


@njit(nogil=True)
def _sigmoid(
    weight: Any, bias: Any, hidden: Any, gradient: Any, targets: Any, buffer: Any, rate: Any
) -> float:
    """One pass: a block's weights are still in the cache when they change."""
    labels, loss, place = bias.shape[0], 0.0, 0
    block = max(1, min(ROW_BLOCK, _BLOCK_FLOATS // weight.shape[1]))
    for start in range(0, labels, block):
        stop = min(start + block, labels)
        logits, slopes = buffer[: stop - start], buffer[block : block + stop - start]
        _logits(logits, weight[start:stop], bias[start:stop], hidden)
        first = place
        while place < targets.shape[0] and targets[place] < stop:
            loss -= logits[targets[place] - start]
            place += 1
        loss += _probabilities(slopes, logits)
        _subtract(slopes, targets, first, start, _ONE)
        _update(weight[start:stop], bias[start:stop], slopes, hidden, gradient, rate)
    return loss


@njit(nogil=True)
def _logits(out: Any, weight: Any, bias: Any, hidden: Any) -> Any:
    """``out = weight @ hidden + bias``; returns the largest."""
    top = np.float32(-np.inf)
    for label in range(out.shape[0]):
        value = dot(weight[label], hidden) + bias[label]
        out[label] = value
        top = value if value > top else top  # a NaN shows in the sum
    return top


@njit(nogil=True, fastmath={"contract"})
def _exponentials(out: Any, logits: Any, peak: Any, factor: Any) -> None:
    """``out = factor * exp(logits - peak)``."""
    for label in range(out.shape[0]):
        out[label] = factor * exp32(logits[label] - peak)


@njit(nogil=True, fastmath={"contract"}, error_model="numpy")
def _probabilities(out: Any, logits: Any) -> float:
    """``out = sigmoid(logits)``; returns the sum of ``log(1 + exp(logits))``.

    One exponential ``e = exp(-|z|)`` serves both; ``logits`` are left as ``1 + e``.
    """
    loss = 0.0
    for label in range(out.shape[0]):
        loss += max(logits[label], _ZERO)
    for label in range(out.shape[0]):
        z = logits[label]
        e = exp32(-abs(z))
        out[label] = (e if z <= _ZERO else _ONE) * (_ONE / (_ONE + e))
        logits[label] = _ONE + e
    for first in range(0, out.shape[0], _SHARED_LOG):
        product = _ONE
        for label in range(first, min(first + _SHARED_LOG, out.shape[0])):
            product *= logits[label]
        loss += np.log(np.float64(product))
    return loss


@njit(nogil=True)
def _subtract(slopes: Any, targets: Any, place: Any, start: Any, share: Any) -> Any:
    """Subtract ``share`` at the targets of a block; returns the place of the next one."""
    while place < targets.shape[0] and targets[place] < start + slopes.shape[0]:
        slopes[targets[place] - start] -= share
        place += 1
    return place


@njit(nogil=True)
def _update(weight: Any, bias: Any, slopes: Any, hidden: Any, gradient: Any, rate: Any) -> None:
    """Add to the gradient by the old weights, and update these while they are in the cache."""
    for label in range(slopes.shape[0]):
        slope = slopes[label]
        if slope != _ZERO:
            change = rate * slope
            _propagate_and_add(weight[label], gradient, slope, hidden, change)
            bias[label] += change


def row_step(net: RowNet, x: Csr, y: Csr, row: int, lr: float, output_lr: float) -> float:
    """Step of plain SGD with one row, in place in ``net.flat``; returns the row's loss.

    All gradients are those of the weights before the step. A row of ``x`` without labels in
    ``y`` has neither loss nor gradient with softmax. ``lr`` is the learning rate of the hidden
    layers, ``output_lr`` that of the last. Other threads may read and change ``net.flat`` at
    the same time, with a ``scratch`` of their own: updates may be lost.
    """
    data = _ONES if x.data is None else x.data
    rows = (x.indptr, x.indices, data), (y.indptr, y.indices), row
    kinds = net.activation == "relu", net.loss == "softmax"
    rates = np.float32(-lr), np.float32(-output_lr)
    return float(_step(net.flat, net.places, net.scratch, *rows, *kinds, *rates))
