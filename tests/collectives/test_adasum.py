"""What Adasum computes (Maleki et al. 2021, section 3)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.naive_adasum import adasum, adasum_recursive
from harness.naive_merge import orthogonality
from harness.sequential import (
    clustered_batches,
    emulation_errors,
    gradient,
    hessian_product,
    sequential_step,
)
from harness.vectors import random_vectors, seeds


def test_two_vectors_by_hand():
    # a.b = 3, a.a = 2, b.b = 9: 1 - 3/4 and 1 - 3/18
    combined = adasum(np.array([1.0, 1.0]), np.array([3.0, 0.0]))
    np.testing.assert_allclose(combined, [0.25 + 5 / 6 * 3, 0.25], rtol=1e-15)


def test_three_vectors_by_hand_in_both_orders():
    a, b, c = np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([1.0, 1.0])
    # a + b = (1, 1) in either order, and parallel to c
    np.testing.assert_allclose(adasum_recursive([a, b, c]), [1.0, 1.0])
    np.testing.assert_allclose(adasum_recursive([a, b, c], "linear"), [1.0, 1.0])
    # four: Adasum(a + b, Adasum(c, a)); c.a = 1, c.c = 2, a.a = 1: 3/4 c + 1/2 a = (5/4, 3/4)
    tree = adasum_recursive([a, b, c, a])
    np.testing.assert_allclose(tree, adasum(a + b, np.array([1.25, 0.75])))
    linear = adasum_recursive([a, b, c, a], "linear")
    np.testing.assert_allclose(linear, [0.75 + 0.5, 0.75])


@given(st.integers(1, 9), seeds)
def test_orthogonal_vectors_are_added(ranks, seed):
    basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(12, ranks)))[0].T
    vectors = basis * np.arange(1, ranks + 1)[:, None]
    for order in ("tree", "linear"):
        combined = adasum_recursive(vectors, order)
        np.testing.assert_allclose(combined, vectors.sum(axis=0), atol=1e-12)
        assert abs(orthogonality(vectors, combined, [("a", 0, 12)])["a"] - 1) < 1e-12


@given(st.sampled_from([1, 2, 4, 8]), seeds)
def test_parallel_vectors_are_averaged(ranks, seed):
    vectors = np.tile(np.random.default_rng(seed).normal(size=12), (ranks, 1))
    combined = adasum_recursive(vectors)
    np.testing.assert_allclose(combined, vectors[0], atol=1e-12)
    assert abs(orthogonality(vectors, combined, [("a", 0, 12)])["a"] * ranks - 1) < 1e-9


@settings(max_examples=50)
@given(st.integers(2, 9), st.data(), seeds)
def test_a_zero_vector_adds_nothing(ranks, data, seed):
    vectors = random_vectors(ranks, 7, seed) + np.float32(0.1)
    silent = data.draw(st.integers(0, ranks - 1))
    vectors[silent] = 0.0
    combined = adasum_recursive(vectors, "linear")
    np.testing.assert_allclose(combined, adasum_recursive(np.delete(vectors, silent, 0), "linear"))
    assert not adasum(np.zeros(3), np.zeros(3)).any()


def test_layers_are_combined_each_on_its_own():
    a, b = np.array([1.0, 0.0, 2.0]), np.array([0.0, 1.0, 2.0])
    combined = adasum_recursive([a, b], spans=[("x", 0, 2), ("y", 2, 3)])
    np.testing.assert_allclose(combined, [1.0, 1.0, 2.0])
    assert orthogonality([a, b], combined, [("x", 0, 2), ("y", 2, 3), ("none", 3, 3)]) == {
        "x": 1.0,
        "y": 0.5,
    }


# ----------------------------------------------- against training in sequence


START = np.zeros((20, 10))


def test_hessian_is_the_derivative_of_the_gradient():
    rng = np.random.default_rng(1)
    ((batch,),) = clustered_batches(1, 1, 6)
    weights, direction = rng.normal(size=(20, 10)), rng.normal(size=200)
    step = 1e-5 * direction.reshape(20, 10)
    slope = (gradient(weights + step, batch) - gradient(weights - step, batch)) / 2e-5
    np.testing.assert_allclose(hessian_product(weights, batch, direction), slope, atol=1e-9)


def test_emulation_is_sequential_training_up_to_second_order():
    (batches,) = clustered_batches(1, 8, 4)
    errors = []
    for rate in (1e-2, 1e-3):
        weights = START.copy()
        for batch in batches:
            weights -= rate * gradient(weights, batch).reshape(weights.shape)
        trained = (START - weights).reshape(-1) / rate
        errors.append(np.linalg.norm(trained - sequential_step(START, batches, rate)))
    assert errors[1] < errors[0] / 50


@pytest.mark.parametrize("order", ["tree", "linear"])
@pytest.mark.parametrize("workers", [8, 16, 64])
def test_at_the_papers_rate_adasum_is_closer_than_the_sum(order, workers):
    batches = clustered_batches(40, workers, 4)
    errors = emulation_errors(batches, START, lambda g: adasum_recursive(g, order))
    assert errors.adasum.mean() < 0.85 * errors.total.mean()
    assert np.mean(errors.adasum < errors.total) > 0.6


def test_at_a_rate_so_small_that_order_does_not_matter_the_sum_is_closer():
    """Adasum assumes the greatest sensible rate; it corrects too much at a smaller one."""
    batches = clustered_batches(10, 8, 4)
    errors = emulation_errors(batches, START, adasum_recursive, rate=1e-3)
    assert errors.total.max() < 0.01 < errors.adasum.min()
