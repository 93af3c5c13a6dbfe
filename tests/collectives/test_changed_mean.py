import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.collectives import CombineConfig, combine_changes, ring_all_reduce
from daskxml.collectives.changed_mean import changed_mean
from daskxml.kernels import get_kernels
from harness.vectors import assert_close, combine_all, random_vectors, seeds, watched

KERNELS = get_kernels("cpu", 1)


def sparse_vectors(ranks, size, seed, kept=0.4):
    rng = np.random.default_rng(seed)
    return random_vectors(ranks, size, seed) * (rng.random((ranks, size)) < kept).astype("f4")


def naive(vectors, weights):
    """Element by element: the weights' sum times the weighted mean of what is not zero."""
    out = np.zeros(vectors.shape[1])
    for at in range(vectors.shape[1]):
        changed = [(w, x) for w, x in zip(weights, vectors[:, at].astype("f8"), strict=True) if x]
        share = sum(weight for weight, _ in changed)
        if share:
            out[at] = sum(weights) * sum(weight * x for weight, x in changed) / share
    return out


def combined(vectors, weights, piece_size, transfer="float32"):
    def program(rank, x):
        return changed_mean(rank, x, weights, KERNELS, piece_size, transfer)

    return combine_all(vectors, program)[0]


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(0, 200),
    weights=st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=6),
    piece_size=st.integers(1, 60),
    seed=seeds,
    transfer=st.sampled_from(["float32", "bfloat16"]),
)
def test_equals_the_naive_mean_and_all_ranks_have_the_same_bits(
    size, weights, piece_size, seed, transfer
):
    vectors = sparse_vectors(len(weights), size, seed)
    tolerance = 1e-5 if transfer == "float32" else 0.01 * len(weights)
    if weights.count(0.0) < len(weights):
        smallest = min(weight for weight in weights if weight)
        tolerance *= sum(weights) / smallest  # a sum of rounded terms is divided by its weights
    found = combined(vectors, weights, piece_size, transfer)
    assert_close(found, naive(vectors, weights), vectors, tolerance)
    untouched = ~vectors[np.array(weights) > 0].any(axis=0)
    assert not found[untouched].any()


@pytest.mark.parametrize("transfer", ["float32", "bfloat16"])
def test_what_all_changed_has_the_bits_of_the_mean(transfer):
    vectors = np.random.default_rng(3).normal(size=(5, 300)).astype("f4")
    weights = [0.1, 0.2, 0.3, 0.15, 0.25]
    mean, _ = combine_all(
        vectors,
        lambda rank, x: ring_all_reduce(
            rank, 5, x, x, weights[rank], KERNELS, piece_size=32, transfer=transfer
        ),
    )
    assert combined(vectors, weights, 32, transfer).tobytes() == mean.tobytes()


def test_what_one_rank_changed_is_kept_whole():
    vectors = np.zeros((4, 100), np.float32)
    vectors[2] = np.arange(100) + 1
    np.testing.assert_array_equal(combined(vectors, [0.25] * 4, 16), vectors[2])
    np.testing.assert_allclose(combined(vectors, [0.3, 0.3, 0.1, 0.3], 16), vectors[2], rtol=1e-6)


def test_weights_of_a_perturbed_merge_keep_their_sum():
    vectors = np.array([[2, 0], [4, 4]], np.float32)
    np.testing.assert_allclose(combined(vectors, [0.55, 0.45], 16), [2.9, 4.0], rtol=1e-6)
    np.testing.assert_allclose(combined(vectors, [0.6, 0.6], 16), [3.6, 4.8], rtol=1e-6)


@pytest.mark.parametrize(("transfer", "element_bytes"), [("float32", 9), ("bfloat16", 5)])
def test_sends_a_byte_an_element_beside_the_ring(transfer, element_bytes):
    ranks, size, sent = 4, 4096, [0] * 4

    def program(rank, x):
        def count(op):
            sent[rank] += op.array.nbytes

        config = CombineConfig(transfer=transfer)
        weights, spans = [0.25] * ranks, [("all", 0, size)]
        return watched(
            combine_changes(
                rank, ["here"] * ranks, x, weights, spans, KERNELS, config, "changed-mean"
            ),
            count,
        )

    combine_all(sparse_vectors(ranks, size, 1), program)
    assert sent == [element_bytes * (ranks - 1) * size // ranks] * ranks
