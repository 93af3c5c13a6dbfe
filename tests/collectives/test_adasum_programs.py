"""Adasum among ranks, by tree and in linear order, against the naive recursion in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.collectives.adasum import Vector
from daskxml.collectives.adasum_linear import adasum_linear
from daskxml.collectives.adasum_tree import adasum_tree
from daskxml.kernels import get_kernels
from harness.naive_adasum import adasum_recursive
from harness.naive_kernels import NaiveKernels
from harness.naive_merge import orthogonality
from harness.vectors import assert_close, combine_all, random_vectors, seeds, segmented, watched

KERNELS = get_kernels("cpu", 1)
ORDERS = pytest.mark.parametrize(
    ("order", "program"), [("tree", adasum_tree), ("linear", adasum_linear)]
)


def combined_by(program, vectors, spans, kernels=KERNELS, **options):
    return combine_all(
        vectors,
        lambda rank, x: program(Vector(rank, x, spans, kernels, **options), len(vectors)),
    )


@ORDERS
@settings(max_examples=40, deadline=None)
@given(case=segmented(), piece_size=st.sampled_from([1, 7, 32, 1000]))
def test_equals_the_naive_recursion_in_float64(order, program, case, piece_size):
    vectors, spans = case
    combined, ratios = combined_by(program, vectors, spans, piece_size=piece_size)
    expected = adasum_recursive(vectors, order, spans)
    assert_close(combined, expected, vectors)
    if len(vectors) > 1:
        wanted = orthogonality(vectors, expected, spans)
        assert ratios.keys() == wanted.keys()
        assert ratios == pytest.approx(wanted, rel=1e-4, abs=1e-6)


@ORDERS
@pytest.mark.parametrize("ranks", range(1, 10))
def test_larger_than_pieces_and_with_either_kernels(order, program, ranks):
    size = 3000
    vectors = random_vectors(ranks, size, ranks)
    spans = [("a", 0, 1000), ("b", 1000, 1007), ("c", 1008, size)]
    vectors[:, 1007] = 0.0
    expected = adasum_recursive(vectors, order, spans)
    for kernels in (KERNELS, NaiveKernels()):
        combined, _ = combined_by(program, vectors, spans, kernels, piece_size=128)
        assert_close(combined, expected, vectors)


@ORDERS
def test_opposite_vectors_leave_nothing_and_no_nan(order, program):
    vector = random_vectors(1, 50, 5)[0]
    for signs in ([1, -1], [1, -1, 1], [1, -1, 0], [0, 0, 0], [1, -1, 1, -1], [0, 0, 1, 2]):
        vectors = np.outer(signs, vector).astype(np.float32)
        combined, _ = combined_by(program, vectors, [("all", 0, 50)])
        assert_close(combined, adasum_recursive(vectors, order), vectors)


@ORDERS
@pytest.mark.parametrize("transfer", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_what_is_not_finite_is_not_hidden(order, program, transfer, bad, ranks):
    vectors = random_vectors(ranks, 50, 5)
    vectors[1, 20:23] = bad, -bad, bad
    vectors[0, 20:23] = bad
    spans = [("a", 0, 25), ("b", 25, 50)]
    combined, _ = combine_all(
        vectors,
        lambda rank, x: program(Vector(rank, x, spans, KERNELS, transfer, piece_size=5), ranks),
        same_results=False,
    )
    assert not np.isfinite(combined[20])
    assert np.isfinite(combined[25:]).all()


@ORDERS
@pytest.mark.parametrize(("transfer", "most"), [("float16", 0.02), ("bfloat16", 0.16)])
@settings(max_examples=25, deadline=None)
@given(case=segmented(), piece_size=st.sampled_from([1, 7, 1000]))
def test_half_of_the_bytes_stay_within_their_precision(
    order, program, case, piece_size, transfer, most
):
    vectors, spans = case
    combined, _ = combined_by(program, vectors, spans, transfer=transfer, piece_size=piece_size)
    for _, start, stop in spans:
        part = vectors[:, start:stop]
        expected = adasum_recursive(part, order)
        # Rounded once or twice on its way, to 11 bits of its message's largest number, or to 8.
        scale = np.abs(vectors).max(initial=0.0) * len(vectors)
        assert np.all(np.abs(combined[start:stop] - expected) <= most * scale)


def test_float16_is_exact_for_small_whole_numbers_of_any_magnitude():
    whole = np.arange(64, dtype=np.float32).reshape(2, 32) % 7
    for scale in (1.0, 2.0**60, 2.0**-60):
        vectors = (whole * scale).astype(np.float32)
        vectors[1, :16] = vectors[0, 16:] = 0.0  # orthogonal
        combined, _ = combined_by(adasum_tree, vectors, [("a", 0, 32)], transfer="float16")
        np.testing.assert_array_equal(combined, vectors.sum(axis=0))


@ORDERS
@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
@pytest.mark.parametrize(
    ("transfer", "itemsize"), [("float32", 4), ("float16", 2), ("bfloat16", 2)]
)
def test_sends_as_little_as_a_ring(order, program, ranks, transfer, itemsize):
    size, sent = 1 << 14, [0] * ranks

    def counting(rank, x):
        def count(op):
            sent[rank] += op.array.nbytes * (op.array.dtype != np.float64)  # not the dot products

        own = Vector(rank, x, [("a", 0, size)], KERNELS, transfer)
        return watched(program(own, ranks), count)

    combine_all(random_vectors(ranks, size, 3), counting)
    ring = 2 * (ranks - 1) / ranks * size * itemsize
    assert sum(sent) / ranks == pytest.approx(ring, rel=0.02)
    assert max(sent) < 1.02 * ring + 4096


@ORDERS
def test_work_that_is_given_is_used_and_no_more_than_the_tree_promises(order, program):
    vectors = random_vectors(4, 4096, 8)
    want, _ = combined_by(program, vectors, [("a", 0, 4096)])
    floats = 4096 // 2 + 16 if order == "tree" else 4096

    class Frugal(type(KERNELS)):
        def empty(self, shape, dtype="float32"):
            raise AssertionError("allocated")

    got, _ = combine_all(
        vectors,
        lambda rank, x: program(
            Vector(rank, x, [("a", 0, 4096)], Frugal(1), work=np.empty(floats, np.float32)), 4
        ),
    )
    assert got.tobytes() == want.tobytes()


@settings(max_examples=20, deadline=None)
@given(ranks=st.integers(2, 6), seed=seeds)
def test_pieces_do_not_change_more_than_rounding(ranks, seed):
    vectors = random_vectors(ranks, 500, seed)
    one, _ = combined_by(adasum_tree, vectors, [("a", 0, 500)], piece_size=500)
    other, _ = combined_by(adasum_tree, vectors, [("a", 0, 500)], piece_size=64)
    assert_close(one, other, vectors)
