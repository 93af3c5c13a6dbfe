import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.combine import merge_weighted
from daskxml.ops import get_kernels
from daskxml.ops.naive import NaiveKernels


def random_models(count, size, seed):
    return list(np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 300),
    st.lists(st.floats(0, 2, width=32), min_size=1, max_size=5),
    st.sampled_from([0.0, 0.9]),
    st.integers(0, 99),
)
def test_equals_the_formula_in_float64_for_both_kernels(size, weights, gamma, seed):
    *replicas, current, previous = random_models(len(weights) + 2, size, seed)
    expected = gamma * (current.astype("f8") - previous)
    for weight, replica in zip(weights, replicas, strict=True):
        expected = expected + weight * replica.astype("f8")
    for kernels in (NaiveKernels(), get_kernels("cpu", 1)):
        out = np.full(size, np.nan, np.float32)
        merge_weighted(out, replicas, weights, current, previous, gamma, kernels)
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_reads_its_inputs_only():
    models = random_models(4, 100, seed=1)
    before = [model.copy() for model in models]
    replica, other, current, previous = models
    out = np.empty(100, np.float32)
    merge_weighted(out, [replica, other], [0.4, 0.6], current, previous, 0.9, NaiveKernels())
    for model, copy in zip(models, before, strict=True):
        np.testing.assert_array_equal(model, copy)
