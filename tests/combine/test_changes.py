import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vectors import assert_close, combine_all, random_vectors, seeds

from daskxml.combine import CombineConfig, combine_changes
from daskxml.combine.adasum import adasum_recursive
from daskxml.ops import get_kernels

KERNELS = get_kernels("cpu", 1)
SEGMENTS = [("a", 0, 70), ("b", 70, 150)]


def combined(vectors, weights, rule, hosts=None, **options):
    config, ranks = CombineConfig(**options), len(vectors)
    hosts = hosts or ["here"] * ranks
    return combine_all(
        vectors,
        lambda rank, x: combine_changes(
            rank, hosts, x, weights, SEGMENTS, KERNELS, config, rule, np.empty_like(x)
        ),
    )


@settings(max_examples=30, deadline=None)
@given(ranks=st.integers(1, 6), seed=seeds)
def test_mean_sum_and_adasum(ranks, seed):
    vectors = random_vectors(ranks, 150, seed)
    weights = list(np.random.default_rng(seed).dirichlet(np.ones(ranks)))
    wide = vectors.astype(np.float64)
    mean, told = combined(vectors, weights, "mean")
    assert told == {}
    assert_close(mean, weights @ wide, vectors)
    assert_close(combined(vectors, weights, "sum")[0], wide.sum(axis=0), vectors)
    for order in ("tree", "linear"):
        result, told = combined(vectors, weights, "adasum", order=order)
        assert_close(result, adasum_recursive(vectors, order, SEGMENTS), vectors)
        assert set(told) <= {"a", "b"}


@pytest.mark.parametrize("order", ["tree", "linear"])
def test_machines_with_one_worker_each_are_no_hierarchy(order):
    vectors = random_vectors(3, 150, 4)
    spread, _ = combined(vectors, [1 / 3] * 3, "adasum", hosts=list("abc"), order=order)
    together, _ = combined(vectors, [1 / 3] * 3, "adasum", order=order)
    assert spread.tobytes() == together.tobytes()


def test_the_mean_inside_machines_is_weighted():
    vectors = random_vectors(3, 150, 4)
    result, _ = combined(vectors, [0.1, 0.3, 0.6], "adasum", hosts=list("aab"), inside="mean")
    machine = 0.25 * vectors[0].astype("f8") + 0.75 * vectors[1]
    assert_close(result, adasum_recursive([machine, vectors[2]], segments=SEGMENTS), vectors)
