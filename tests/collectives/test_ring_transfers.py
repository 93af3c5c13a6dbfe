from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.collectives.ring import incoming, partition_bounds
from harness.naive_merge import adding_order

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
