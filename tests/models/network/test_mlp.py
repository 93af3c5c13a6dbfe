"""Gradients of the whole perceptron against numeric ones, in float64 on the naive kernels."""

from dataclasses import replace

import numpy as np
import pytest

from daskxml.core.arrays import Csr, Partition, Segment
from daskxml.kernels import get_kernels
from daskxml.kernels.operands import Drop
from daskxml.models.batch import Buffers, stream_key
from daskxml.models.network.mlp import Mlp
from daskxml.models.network.spec import Layout, ModelSpec
from harness.naive_dense import drop_factors, sigmoid
from harness.naive_kernels import NaiveKernels
from harness.naive_sparse import dense_rows

ROWS, KEY = 5, 12345


class Collect:
    """Updates that keep the gradients instead of applying them."""

    def __init__(self, parameters):
        self.gradient = {name: np.zeros(value.shape) for name, value in parameters.items()}

    def dense(self, name, grad, lr, rows=slice(None)):
        self.gradient[name][rows] += grad

    def product(self, name, rows, left, right, lr, scale=1.0):
        self.gradient[name][rows] += scale * left.T @ right

    def in_place(self, name, lr):
        return None

    def sparse_product(self, name, x, rows, delta, lr, drop):
        self.gradient[name] += dense_rows(x, rows, drop).T @ delta


def make_csr(rng, rows, columns, ones):
    dense = rng.random((rows, columns)) < 0.4
    dense[1] = False  # a row without entries
    counts = dense.sum(axis=1)
    indices = np.nonzero(dense)[1].astype(np.int32)
    data = None if ones else rng.standard_normal(len(indices))
    return Csr(np.append(0, np.cumsum(counts)), indices, data, columns)


def make_case(spec, seed=0):
    rng = np.random.default_rng(seed)
    part = Partition(make_csr(rng, 4, spec.features, False), make_csr(rng, 4, spec.labels, True))
    batch = [Segment(part, np.array([3, 1])), Segment(part, np.array([0, 0, 2]))]
    layout = Layout(spec)
    return batch, layout, rng.standard_normal(layout.size)


def reference_loss(spec, parameters, batch, label_weights=1.0):
    """The mean loss, straight from its definition, on dense matrices."""
    x = np.concatenate([dense_rows(s.partition.features, s.rows) for s in batch])
    y = np.concatenate([dense_rows(s.partition.labels, s.rows) for s in batch])
    if spec.feature_dropout:
        drop = Drop(rate=spec.feature_dropout, key=stream_key(KEY, 0))
        x = x * drop_factors(*x.shape, drop)
    for layer in range(len(spec.hidden)):
        x = x @ parameters[f"hidden{layer}.weight"] + parameters[f"hidden{layer}.bias"]
        x = np.maximum(x, 0) if spec.activation == "relu" else sigmoid(x)
        if spec.dropout:
            drop = Drop(rate=spec.dropout, key=stream_key(KEY, layer + 1))
            x = x * drop_factors(*x.shape, drop)
    z = x @ parameters["output.weight"].T + parameters["output.bias"]
    row_weights = np.concatenate([
        np.ones(len(s.rows)) if s.partition.weights is None else s.partition.weights[s.rows]
        for s in batch
    ])[:, None]  # fmt: skip
    if spec.loss == "sigmoid":
        losses = y * label_weights * np.logaddexp(0, -z) + (1 - y) * np.logaddexp(0, z)
    else:
        log_p = z - np.logaddexp.reduce(z, axis=1, keepdims=True)
        losses = -log_p * y * label_weights / np.maximum(y.sum(axis=1, keepdims=True), 1)
    return (row_weights * losses).sum() / len(y)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
@pytest.mark.parametrize("hidden", [(), (4,), (4, 3), (4, 3, 5)])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("budget_bytes", [1 << 20, 8])
def test_loss_and_gradient(loss, activation, hidden, dropout, budget_bytes):
    spec = ModelSpec(features=6, labels=7, hidden=hidden, activation=activation, loss=loss,
                     dropout=dropout, feature_dropout=dropout / 2)  # fmt: skip
    batch, layout, flat = make_case(spec)
    parameters = layout.views(flat)
    kernels = NaiveKernels("float64", threads=2, block=3)
    mlp, updates = Mlp(spec, kernels, parameters, ROWS, budget_bytes), Collect(parameters)
    total = mlp.step(batch, 0.1, KEY, updates)
    assert total / ROWS == pytest.approx(reference_loss(spec, parameters, batch), rel=1e-10)
    for name, values in parameters.items():
        for place in np.ndindex(values.shape):
            numeric = slope(spec, parameters, batch, values, place)
            assert updates.gradient[name][place] == pytest.approx(numeric, abs=2e-7), (name, place)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("hidden", [(), (4,), (4, 3)])
@pytest.mark.parametrize("budget_bytes", [1 << 20, 8])
def test_the_loss_alone_is_the_loss_of_a_step_without_dropout(loss, hidden, budget_bytes):
    spec = ModelSpec(features=6, labels=7, hidden=hidden, loss=loss, dropout=0.4,
                     feature_dropout=0.2)  # fmt: skip
    batch, layout, flat = make_case(spec)
    mlp = Mlp(spec, NaiveKernels("float64", threads=2, block=3), layout.views(flat), ROWS,
              budget_bytes)  # fmt: skip
    kept = replace(spec, dropout=0.0, feature_dropout=0.0)
    expected = reference_loss(kept, layout.views(flat), batch)
    before = flat.copy()
    assert mlp.loss_sum(batch) / ROWS == pytest.approx(expected, rel=1e-10)
    assert (flat == before).all()


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("of", ["rows", "labels", "both"])
@pytest.mark.parametrize("budget_bytes", [1 << 20, 8])
def test_loss_and_gradient_of_weighted_rows_and_labels(loss, of, budget_bytes):
    spec = ModelSpec(features=6, labels=7, hidden=(4,), loss=loss)
    batch, layout, flat = make_case(spec)
    parameters = layout.views(flat)
    mlp = Mlp(spec, NaiveKernels("float64", threads=2, block=3), parameters, ROWS, budget_bytes)
    label_weights = 1.0
    if of != "labels":
        part = replace(batch[0].partition, weights=np.array([0.5, 2.0, 0.0, 3.0]))
        batch = [Segment(part, segment.rows) for segment in batch]
    if of != "rows":
        label_weights = mlp.output.label_weights = np.array([1.0, 0.0, 2.0, 0.5, 1.0, 4.0, 3.0])
    updates = Collect(parameters)
    expected = reference_loss(spec, parameters, batch, label_weights)
    assert mlp.loss_sum(batch) / ROWS == pytest.approx(expected, rel=1e-10)
    assert mlp.step(batch, 0.1, KEY, updates) / ROWS == pytest.approx(expected, rel=1e-10)
    for name, values in parameters.items():
        for place in np.ndindex(values.shape):
            numeric = slope(spec, parameters, batch, values, place, label_weights)
            assert updates.gradient[name][place] == pytest.approx(numeric, abs=2e-7), (name, place)


def slope(spec, parameters, batch, values, place, label_weights=1.0, step=1e-6):
    """The central difference of the loss by one parameter."""
    kept = values[place]
    values[place] = kept + step
    above = reference_loss(spec, parameters, batch, label_weights)
    values[place] = kept - step
    below = reference_loss(spec, parameters, batch, label_weights)
    values[place] = kept
    return (above - below) / (2 * step)


def test_buffers_grow_and_are_reused():
    buffers = Buffers(get_kernels("cpu", 1))
    buffers.reserve("a", 10)
    first = buffers.array("a", 10)
    buffers.reserve("a", 4)
    assert np.shares_memory(first, buffers.array("a", 10))
    buffers.reserve("a", 20)
    assert not np.shares_memory(first, buffers.array("a", 20))
    assert buffers.array("a", 2, 3, 2).shape == (2, 3, 2)
