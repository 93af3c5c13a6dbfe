"""Every registered optimizer: the three forms of a gradient do the same."""

import numpy as np
import pytest

from daskxml.errors import ConfigError
from daskxml.ops import KEEP_ALL, get_kernels
from daskxml.ops.naive import dense_rows
from daskxml.optim import OPTIMIZERS, OptimizerConfig, make_optimizer
from daskxml.types import Csr

KERNELS = get_kernels("cpu", 2)


def make(name):
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    return weight, make_optimizer(OptimizerConfig(name=name), KERNELS, {"w": weight})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_dense_product_and_sparse_product_agree(name):
    rng = np.random.default_rng(0)
    x = Csr(np.array([0, 2, 3]), np.array([0, 3, 2], np.int32), np.ones(3, np.float32), 4)
    rows, delta = np.array([0, 1, 1]), rng.standard_normal((3, 3)).astype(np.float32)
    left = dense_rows(x, rows).astype(np.float32)
    results = []
    for form in ("dense", "product", "sparse"):
        weight, optimizer = make(name)
        optimizer.begin_step()
        if form == "dense":
            optimizer.dense("w", left.T @ delta, 0.1)
        elif form == "product":
            optimizer.product("w", slice(None), left, delta, 0.1)
        else:
            optimizer.sparse_product("w", x, rows, delta, 0.1, KEEP_ALL)
        results.append(weight)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)
    np.testing.assert_allclose(results[0], results[2], rtol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_quadratic_is_minimised(name):
    weight, optimizer = make(name)
    for _ in range(400):
        optimizer.begin_step()
        optimizer.dense("w", weight - 1.0, 0.05)
    np.testing.assert_allclose(weight, 1.0, atol=1e-3)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_the_named_rows_change(name):
    weight, optimizer = make(name)
    optimizer.begin_step()
    optimizer.dense("w", np.ones((2, 3), np.float32), 0.1, rows=slice(1, 3))
    before = np.arange(12).reshape(4, 3)
    assert (weight[[0, 3]] == before[[0, 3]]).all()
    assert (weight[1:3] < before[1:3]).all()


def test_sgd_by_hand():
    weight, optimizer = make("sgd")
    optimizer.product("w", slice(0, 1), np.ones((2, 1), "f"), np.ones((2, 3), "f"), 0.5)
    assert weight[0].tolist() == [-1.0, 0.0, 1.0]
    assert optimizer.state() == {}


def test_unknown_optimizers_are_refused():
    with pytest.raises(ConfigError, match=r"optimizer\.name = 'adagrad': must be one of sgd"):
        OptimizerConfig(name="adagrad")
