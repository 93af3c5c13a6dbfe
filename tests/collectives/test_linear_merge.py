import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.collectives.combine import CombineConfig, merge_factors, outer_memory
from daskxml.kernels import get_kernels
from harness.naive_kernels import NaiveKernels
from harness.naive_merge import merge_weighted
from harness.vectors import random_vectors, seeds

KERNELS = NaiveKernels()


def outer_factors(weights, lr, mu):
    config = CombineConfig(outer="nesterov", outer_lr=lr, outer_momentum=mu)
    return merge_factors(config, weights, 0.0)


def merged(factors, replicas, current, previous):
    out = sum(a * replica for a, replica in zip(factors.replicas, replicas, strict=True))
    return out + factors.current * current + factors.previous * previous


@settings(max_examples=30)
@given(weights=st.lists(st.floats(0, 1), min_size=1, max_size=4), seed=seeds)
def test_momentum_is_algorithm_2(weights, seed):
    *replicas, current, previous = random_vectors(len(weights) + 2, 20, seed).astype(np.float64)
    expected = np.empty(20)
    merge_weighted(expected, replicas, weights, current, previous, 0.9, KERNELS)
    factors = merge_factors(CombineConfig(), weights, 0.9)
    np.testing.assert_allclose(merged(factors, replicas, current, previous), expected)


def test_two_outer_steps_by_hand():
    # lr = 1/2, mu = 1/2. w = 0, replica 4: x' = 2, w' = 2 + (2 - 0) / 2 = 3.
    # Then replica 7, change 4: x'' = 3 + 2 = 5, w'' = 5 + (5 - 2) / 2 = 6.5.
    factors = outer_factors([1.0], 0.5, 0.5)
    w, x = np.zeros(1), np.zeros(1)
    for replica, expected_w, expected_x in ((4.0, 3.0, 2.0), (7.0, 6.5, 5.0)):
        w = merged(factors, [np.full(1, replica)], w, x)
        outer_memory(x, w, 0.5, KERNELS)
        np.testing.assert_allclose([w[0], x[0]], [expected_w, expected_x])


@pytest.mark.parametrize(("lr", "mu"), [(0.7, 0.9), (1.0, 0.0), (0.3, 0.5)])
def test_outer_optimizer_is_that_of_pytorch(lr, mu):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(7)
    weights = [0.2, 0.5, 0.3]
    w = rng.normal(size=10)
    x = w.copy()
    peer = torch.nn.Parameter(torch.tensor(w))
    optimizer = torch.optim.SGD([peer], lr=lr, momentum=mu, nesterov=mu > 0)
    factors = outer_factors(weights, lr, mu)
    for _ in range(8):
        replicas = w + rng.normal(size=(3, 10))
        peer.grad = torch.tensor(w - weights @ replicas)
        optimizer.step()
        w = merged(factors, replicas, w, x)
        outer_memory(x, w, mu, KERNELS)
        np.testing.assert_allclose(w, peer.detach().numpy(), rtol=1e-10)


def random_models(count, size, seed):
    return list(np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 300),
    st.lists(st.floats(0, 2, width=32), min_size=1, max_size=5),
    st.sampled_from([0.0, 0.9]),
    st.integers(0, 99),
)
def test_naive_merge_equals_the_formula_in_float64_for_both_kernels(size, weights, gamma, seed):
    *replicas, current, previous = random_models(len(weights) + 2, size, seed)
    expected = gamma * (current.astype("f8") - previous)
    for weight, replica in zip(weights, replicas, strict=True):
        expected = expected + weight * replica.astype("f8")
    for kernels in (NaiveKernels(), get_kernels("cpu", 1)):
        out = np.full(size, np.nan, np.float32)
        merge_weighted(out, replicas, weights, current, previous, gamma, kernels)
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_naive_merge_does_not_change_its_inputs():
    models = random_models(4, 100, seed=1)
    before = [model.copy() for model in models]
    replica, other, current, previous = models
    out = np.empty(100, np.float32)
    merge_weighted(out, [replica, other], [0.4, 0.6], current, previous, 0.9, NaiveKernels())
    for model, copy in zip(models, before, strict=True):
        np.testing.assert_array_equal(model, copy)
