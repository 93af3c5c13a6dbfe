import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vectors import combine_all, random_vectors, seeds, watched

from daskxml.combine import merge_weighted, ring_all_reduce
from daskxml.combine.lockstep import run_together
from daskxml.ops import get_kernels
from daskxml.ops.naive import NaiveKernels

GAMMA = 0.9
weight_lists = st.lists(st.floats(0, 2, width=32), min_size=1, max_size=6)


@pytest.fixture(scope="module", params=["naive", "cpu"])
def kernels(request):
    return NaiveKernels() if request.param == "naive" else get_kernels("cpu", 1)


@settings(max_examples=60, deadline=None)
@given(size=st.integers(0, 200), weights=weight_lists, piece_size=st.integers(1, 60), seed=seeds)
def test_gives_the_bits_of_the_plain_merge(kernels, size, weights, piece_size, seed):
    *terms, current, previous = random_vectors(len(weights) + 2, size, seed)
    outs = [np.full(size, np.nan, np.float32) for _ in weights]

    def program(rank):
        def finish(piece):
            kernels.momentum(outs[rank][piece], current[piece], previous[piece], GAMMA)

        return ring_all_reduce(
            rank, len(terms), outs[rank], terms[rank], weights[rank], kernels, finish, piece_size
        )

    run_together([program(rank) for rank in range(len(terms))])
    expected = np.empty(size, np.float32)
    merge_weighted(expected, terms, weights, current, previous, GAMMA, kernels)
    for out in outs:
        assert out.tobytes() == expected.tobytes()


@settings(max_examples=60, deadline=None)
@given(size=st.integers(0, 200), weights=weight_lists, piece_size=st.integers(1, 60), seed=seeds)
def test_in_place_gives_the_same_bits(kernels, size, weights, piece_size, seed):
    vectors = random_vectors(len(weights), size, seed)
    expected = np.empty(size, np.float32)
    merge_weighted(expected, vectors, weights, expected, expected, 0.0, kernels)
    combined, _ = combine_all(
        vectors,
        lambda rank, x: ring_all_reduce(
            rank, len(weights), x, x, weights[rank], kernels, piece_size=piece_size
        ),
    )
    assert combined.tobytes() == expected.tobytes()


def test_costs_what_a_ring_costs_and_adds_every_piece_once():
    ranks, size, finished, sent = 4, 4096, [], [0] * 4
    vectors = random_vectors(ranks, size, 3)
    kernels = get_kernels("cpu", 1)

    def counting(rank, x):
        def see(op):
            sent[rank] += op.array.size

        ring = ring_all_reduce(rank, ranks, x, x, 0.25, kernels, finished.append, 100)
        return watched(ring, see)

    combine_all(vectors, counting)
    assert set(sent) == {2 * (ranks - 1) * size // ranks}
    covered = sorted((piece.start, piece.stop) for piece in finished)
    assert (covered[0][0], covered[-1][1]) == (0, size)
    assert [stop for _, stop in covered[:-1]] == [start for start, _ in covered[1:]]
