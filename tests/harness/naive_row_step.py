"""Naive twin of a whole step with one row."""

import numpy as np

from daskxml.core.arrays import Array, Csr
from daskxml.kernels.operands import RowNet

Layer = tuple[Array, Array]


def layers_of(net: RowNet) -> list[Layer]:
    """Return views of every layer's weights ``(inputs, outputs)`` and biases.

    Examples
    --------
    >>> net = RowNet(flat=np.arange(9.0), places=np.array([[0, 2, 1, 2], [4, 8, 2, 1]]),
    ...              scratch=np.zeros(0), activation="relu", loss="softmax")
    >>> [weight.tolist() for weight, _ in layers_of(net)]
    [[[0.0, 1.0]], [[4.0], [5.0]]]
    """
    found = []
    for i, (start, shift, inputs, outputs) in enumerate(net.places.tolist()):
        is_last = i == len(net.places) - 1
        shape = (outputs, inputs) if is_last else (inputs, outputs)
        weight = net.flat[start : start + inputs * outputs].reshape(shape)
        found.append((weight.T if is_last else weight, net.flat[shift : shift + outputs]))
    return found


def row_step(net: RowNet, x: Csr, y: Csr, row: int, lr: float, output_lr: float) -> float:
    layers = layers_of(net)
    inputs = [_dense(x, row)]
    for weight, bias in layers[:-1]:
        sums = inputs[-1] @ weight + bias
        is_relu = net.activation == "relu"
        inputs.append(np.maximum(sums, 0.0) if is_relu else _sigmoid(sums))
    logits = inputs[-1] @ layers[-1][0] + layers[-1][1]
    loss, delta = _loss(logits, _dense(y, row), net.loss)
    for i in range(len(layers) - 1, -1, -1):
        weight, bias = layers[i]
        rate = output_lr if i == len(layers) - 1 else lr
        active = inputs[i]
        slope = active > 0.0 if net.activation == "relu" else active * (1.0 - active)
        below = weight @ delta * slope
        weight -= rate * np.outer(active, delta)
        bias -= rate * delta
        delta = below
    return loss


def _dense(x: Csr, row: int) -> Array:
    out = np.zeros(x.columns)
    span = slice(x.indptr[row], x.indptr[row + 1])
    out[x.indices[span]] = 1.0 if x.data is None else x.data[span]
    return out


def _sigmoid(x: Array) -> Array:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def _loss(logits: Array, targets: Array, loss: str) -> tuple[float, Array]:
    """The loss, and its gradient by the logits."""
    if loss == "sigmoid":
        total = np.logaddexp(0.0, logits).sum() - targets @ logits
        return float(total), _sigmoid(logits) - targets
    if not targets.any():
        return 0.0, np.zeros_like(logits)
    share = targets / targets.sum()
    peak = logits.max()
    total = np.exp(logits - peak).sum()
    return float(peak + np.log(total) - share @ logits), np.exp(logits - peak) / total - share
