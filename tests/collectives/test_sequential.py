"""Adasum against sequential emulation with exact Hessians (Maleki et al. 2021, Figure 2)."""

import numpy as np
import pytest

from harness.naive_adasum import adasum_recursive
from harness.sequential import (
    clustered_batches,
    emulation_errors,
    gradient,
    hessian_product,
    sequential_step,
)

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
