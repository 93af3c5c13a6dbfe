from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.collectives.ring import all_reduce, incoming, partition_bounds
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


# ------------------------------------------------------------------ transfers


rings = st.tuples(st.integers(1, 6), st.integers(0, 200), st.integers(1, 50))


class Rank:
    """A rank of a ring of symbols: an element of ``scratch`` is the tuple of terms in it."""

    def __init__(self, rank, ranks, size, piece_size):
        self.rank, self.ranks = rank, ranks
        self.scratch = [None] * size
        self.to_send = deque(incoming(rank + 1, ranks, size, piece_size))
        self.to_receive = deque(incoming(rank, ranks, size, piece_size))
        self.channel = deque()  # to the next rank
        self.forwarded = 0
        self.completed = [0] * size

    def can_send(self):
        return self.to_send and (self.to_send[0][0] == 0 or self.forwarded)

    def send(self):
        step, start, stop = self.to_send.popleft()
        elements = range(start, stop)
        if step == 0:
            self.channel.append([(self.rank,) for _ in elements])
        else:
            self.forwarded -= 1
            self.channel.append([self.scratch[element] for element in elements])

    def receive(self, channel):
        step, start, stop = self.to_receive.popleft()
        own = (self.rank,) if step < self.ranks - 1 else ()
        elements = range(start, stop)
        for element, value in zip(elements, channel.popleft(), strict=True):
            self.scratch[element] = value + own
            self.completed[element] += step == self.ranks - 2
        self.forwarded += step < 2 * self.ranks - 3


def replay(ranks, size, piece_size, random):
    """Let ranks send and receive in any order that the channels allow, to the end."""
    ring = [Rank(rank, ranks, size, piece_size) for rank in range(ranks)]
    while True:
        able = [(rank.send, ()) for rank in ring if rank.can_send()]
        able += [
            (rank.receive, (ring[rank.rank - 1].channel,))
            for rank in ring
            if ring[rank.rank - 1].channel
        ]
        if not able:
            return ring
        act, arguments = random.choice(able)
        act(*arguments)


@settings(max_examples=100, deadline=None)
@given(rings, st.randoms(use_true_random=False))
def test_every_rank_ends_with_every_term_once_in_the_adding_order(ring, random):
    ranks, size, piece_size = ring
    replayed = replay(ranks, size, piece_size, random)
    for rank in replayed:
        assert not rank.to_send
        assert not rank.to_receive
    for partition, (start, stop) in enumerate(partition_bounds(size, ranks)):
        for element in range(start, stop if ranks > 1 else start):
            full = tuple(adding_order(partition, ranks))
            assert [rank.scratch[element] for rank in replayed] == [full] * ranks
            assert sum(rank.completed[element] for rank in replayed) == 1


@settings(max_examples=200, deadline=None)
@given(rings)
def test_what_is_received_and_forwarded_is_what_is_sent_next(ring):
    ranks, size, piece_size = ring
    for rank in range(ranks):
        own = partition_bounds(size, ranks)[rank]
        plan = list(incoming(rank + 1, ranks, size, piece_size))
        first = [(start, stop) for step, start, stop in plan if step == 0]
        rest = [(step - 1, start, stop) for step, start, stop in plan if step > 0]
        received = incoming(rank, ranks, size, piece_size)
        assert rest == [piece for piece in received if piece[0] < 2 * ranks - 3]
        assert sum(stop - start for start, stop in first) == (own[1] - own[0]) * (ranks > 1)


@settings(max_examples=200, deadline=None)
@given(rings)
def test_pieces_are_no_larger_than_asked_and_cover_their_partition(ring):
    ranks, size, piece_size = ring
    for rank in range(ranks):
        covered = {}
        for step, start, stop in incoming(rank, ranks, size, piece_size):
            assert 0 < stop - start <= piece_size
            covered.setdefault(step, []).extend(range(start, stop))
        bounds = partition_bounds(size, ranks)
        for step, elements in covered.items():
            assert elements == list(range(*bounds[(rank - step - 1) % ranks]))


@given(st.integers(0, 10_000), st.integers(1, 12))
def test_partitions_tile_the_model_nearly_evenly(size, ranks):
    bounds = partition_bounds(size, ranks)
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == size
    lengths = [stop - start for start, stop in bounds]
    assert max(lengths) - min(lengths) <= 32
