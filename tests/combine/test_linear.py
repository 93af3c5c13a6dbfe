import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vectors import random_vectors, seeds

from daskxml.combine import MergeFactors, merge_weighted, outer_memory
from daskxml.ops.naive import NaiveKernels

KERNELS = NaiveKernels()


def merged(factors, replicas, current, previous):
    out = sum(a * replica for a, replica in zip(factors.replicas, replicas, strict=True))
    return out + factors.current * current + factors.previous * previous


@settings(max_examples=30)
@given(weights=st.lists(st.floats(0, 1), min_size=1, max_size=4), seed=seeds)
def test_momentum_is_algorithm_2(weights, seed):
    *replicas, current, previous = random_vectors(len(weights) + 2, 20, seed).astype(np.float64)
    expected = np.empty(20)
    merge_weighted(expected, replicas, weights, current, previous, 0.9, KERNELS)
    factors = MergeFactors.momentum(weights, 0.9)
    np.testing.assert_allclose(merged(factors, replicas, current, previous), expected)


def test_two_outer_steps_by_hand():
    # lr = 1/2, mu = 1/2. w = 0, replica 4: x' = 2, w' = 2 + (2 - 0) / 2 = 3.
    # Then replica 7, change 4: x'' = 3 + 2 = 5, w'' = 5 + (5 - 2) / 2 = 6.5.
    factors = MergeFactors.outer_nesterov([1.0], lr=0.5, mu=0.5)
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
    factors = MergeFactors.outer_nesterov(weights, lr, mu)
    for _ in range(8):
        replicas = w + rng.normal(size=(3, 10))
        peer.grad = torch.tensor(w - weights @ replicas)
        optimizer.step()
        w = merged(factors, replicas, w, x)
        outer_memory(x, w, mu, KERNELS)
        np.testing.assert_allclose(w, peer.detach().numpy(), rtol=1e-10)
