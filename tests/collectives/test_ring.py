import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.collectives.ring import all_reduce, partition_bounds
from daskxml.kernels import get_kernels
from harness.naive_kernels import NaiveKernels
from harness.naive_merge import adding_order, merge_weighted
from harness.together import run_together
from harness.vectors import combine_all, random_vectors, seeds, watched

GAMMA = 0.9
weight_lists = st.lists(st.floats(0, 2, width=32), min_size=1, max_size=6)


@pytest.fixture(scope="module", params=["naive", "cpu"])
def kernels(request):
    return NaiveKernels() if request.param == "naive" else get_kernels("cpu", 1)


@settings(max_examples=30, deadline=None)
@given(size=st.integers(0, 200), weights=weight_lists, piece_size=st.integers(1, 60), seed=seeds)
def test_gives_the_bits_of_the_naive_merge(kernels, size, weights, piece_size, seed):
    *terms, current, previous = random_vectors(len(weights) + 2, size, seed)
    outs = [np.full(size, np.nan, np.float32) for _ in weights]

    def program(rank):
        def finish(piece):
            kernels.momentum(outs[rank][piece], current[piece], previous[piece], GAMMA)

        return all_reduce(
            rank, len(terms), outs[rank], terms[rank], weights[rank], kernels, finish, piece_size
        )

    run_together([program(rank) for rank in range(len(terms))])
    expected = np.empty(size, np.float32)
    merge_weighted(expected, terms, weights, current, previous, GAMMA, kernels)
    for out in outs:
        assert out.tobytes() == expected.tobytes()


@settings(max_examples=30, deadline=None)
@given(size=st.integers(0, 200), weights=weight_lists, piece_size=st.integers(1, 60), seed=seeds)
def test_in_place_gives_the_same_bits(kernels, size, weights, piece_size, seed):
    vectors = random_vectors(len(weights), size, seed)
    expected = np.empty(size, np.float32)
    merge_weighted(expected, vectors, weights, expected, expected, 0.0, kernels)
    combined, _ = combine_all(
        vectors,
        lambda rank, x: all_reduce(
            rank, len(weights), x, x, weights[rank], kernels, piece_size=piece_size
        ),
    )
    assert combined.tobytes() == expected.tobytes()


def test_costs_what_a_ring_costs_and_adds_every_piece_once():
    ranks, size, finished, sent = 4, 4096, [], [0] * 4
    vectors = random_vectors(ranks, size, 3)
    kernels = get_kernels("cpu", 1)

    def counting(rank, x):
        def count(op):
            sent[rank] += op.array.size

        ring = all_reduce(rank, ranks, x, x, 0.25, kernels, finished.append, 100)
        return watched(ring, count)

    combine_all(vectors, counting)
    assert set(sent) == {2 * (ranks - 1) * size // ranks}
    covered = sorted((piece.start, piece.stop) for piece in finished)
    assert (covered[0][0], covered[-1][1]) == (0, size)
    assert [stop for _, stop in covered[:-1]] == [start for start, _ in covered[1:]]


def rounded_merge(terms, weights, current, previous, kernels):
    """What every rank must get over bfloat16: one element range after the other, hop by hop."""
    ranks, out = len(terms), np.empty_like(terms[0])
    bits = np.empty(out.size, np.uint16)

    def round_off(piece):
        kernels.convert(bits[: piece.size], piece, 1.0)
        kernels.convert(piece, bits[: piece.size], 1.0)

    for partition, (start, stop) in enumerate(partition_bounds(out.size, ranks)):
        part = slice(start, stop)
        first, *others = adding_order(partition, ranks)
        kernels.scale(out[part], terms[first][part], weights[first])
        for rank in others:
            round_off(out[part])
            kernels.add_scaled(out[part], terms[rank][part], weights[rank])
        kernels.momentum(out[part], current[part], previous[part], GAMMA)
        if others:
            round_off(out[part])
    return out


@settings(max_examples=30, deadline=None)
@given(
    size=st.integers(0, 200), weights=weight_lists, piece_size=st.integers(1, 60), seed=seeds,
    in_place=st.booleans(),
)  # fmt: skip
def test_bfloat16_rounds_at_every_hop_and_is_the_same_everywhere(
    kernels, size, weights, piece_size, seed, in_place
):
    *terms, current, previous = random_vectors(len(weights) + 2, size, seed)
    expected = rounded_merge(terms, weights, current, previous, kernels)
    outs = [term.copy() if in_place else np.full(size, np.nan, np.float32) for term in terms]

    def program(rank):
        def finish(piece):
            kernels.momentum(outs[rank][piece], current[piece], previous[piece], GAMMA)

        term = outs[rank] if in_place else terms[rank]
        return all_reduce(
            rank, len(terms), outs[rank], term, weights[rank], kernels, finish, piece_size,
            transfer="bfloat16",
        )  # fmt: skip

    run_together([program(rank) for rank in range(len(terms))])
    for out in outs:
        assert out.tobytes() == expected.tobytes()


def test_bfloat16_sends_half_of_the_bytes():
    ranks, size, sent = 3, 4096, [0] * 3

    def counting(rank, x):
        def count(op):
            sent[rank] += op.array.nbytes

        kernels = get_kernels("cpu", 1)
        ring = all_reduce(rank, ranks, x, x, 0.25, kernels, transfer="bfloat16")
        return watched(ring, count)

    combine_all(random_vectors(ranks, size, 3), counting)
    assert sum(sent) == 2 * (ranks - 1) * size * 2
