import socket
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.combine import merge_weighted
from daskxml.combine.weighted import NaiveMergeKernels
from daskxml.ops import get_kernels
from daskxml.runtime.ring_links import SocketLink
from daskxml.runtime.ring_reduce import RingTerm, receive_pieces, reduce_alone, send_pieces


def random_models(count, size, seed):
    return list(np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32))


def make_terms(models, weights, gamma, kernels, piece_size):
    *replicas, current, previous = models
    return [
        RingTerm(
            rank=rank,
            ranks=len(replicas),
            weight=weights[rank],
            gamma=gamma,
            replica=replica,
            global_=current,
            previous=previous,
            scratch=np.full(replica.size, np.nan, np.float32),
            kernels=kernels,
            piece_size=piece_size,
        )
        for rank, replica in enumerate(replicas)
    ]


def ring_in_threads(terms):
    """Run all ranks in this process, over socket pairs."""
    ranks = len(terms)
    pairs = [tuple(map(SocketLink, socket.socketpair())) for _ in range(ranks)]
    with ThreadPoolExecutor(2 * ranks) as threads:
        jobs = []
        for rank, term in enumerate(terms):
            forwarded = SimpleQueue()
            jobs.append(threads.submit(send_pieces, term, pairs[rank][0], forwarded))
            inward = pairs[(rank - 1) % ranks][1]
            jobs.append(threads.submit(receive_pieces, term, inward, forwarded))
        for job in jobs:
            job.result(timeout=30)
    sent_bytes = [sender.moved_bytes for sender, _ in pairs]
    for link in (link for pair in pairs for link in pair):
        link.close()
    return sent_bytes


@pytest.fixture(scope="module", params=["naive", "cpu"])
def kernels(request):
    return NaiveMergeKernels() if request.param == "naive" else get_kernels("cpu", 1)


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(0, 400),
    weights=st.lists(st.floats(0, 2, width=32), min_size=2, max_size=5),
    gamma=st.sampled_from([0.0, 0.9]),
    piece_size=st.integers(1, 100),
    seed=st.integers(0, 99),
)
def test_ring_gives_the_bits_of_the_plain_merge(kernels, size, weights, gamma, piece_size, seed):
    models = random_models(len(weights) + 2, size, seed)
    terms = make_terms(models, weights, gamma, kernels, piece_size)
    ring_in_threads(terms)
    *replicas, current, previous = models
    expected = np.empty(size, np.float32)
    merge_weighted(expected, replicas, weights, current, previous, gamma, kernels)
    for term in terms:
        assert term.scratch.tobytes() == expected.tobytes()


def test_more_than_sockets_hold_does_not_deadlock_and_costs_what_a_ring_costs():
    size, ranks = 4 << 20, 3
    models = random_models(ranks + 2, 1 << 12, seed=3)
    models = [np.resize(model, size) for model in models]
    terms = make_terms(models, [0.2, 0.3, 0.5], 0.9, NaiveMergeKernels(), piece_size=1 << 16)
    sent_bytes = ring_in_threads(terms)
    assert terms[0].scratch.tobytes() == terms[1].scratch.tobytes() == terms[2].scratch.tobytes()
    model_bytes = size * 4
    for sent in sent_bytes:
        assert sent == pytest.approx(2 * (ranks - 1) / ranks * model_bytes, rel=1e-4)


def test_alone_equals_the_plain_merge():
    models = random_models(3, 1000, seed=2)
    (term,) = make_terms(models, [0.7], 0.9, NaiveMergeKernels(), piece_size=64)
    reduce_alone(term)
    expected = np.empty(1000, np.float32)
    replica, current, previous = models
    merge_weighted(expected, [replica], [0.7], current, previous, 0.9, NaiveMergeKernels())
    assert term.scratch.tobytes() == expected.tobytes()


def test_receiver_that_fails_lets_its_sender_go():
    term, _ = make_terms(random_models(4, 100, 1), [0.5, 0.5], 0.0, NaiveMergeKernels(), 10)
    (sender, far), (near, receiver) = (map(SocketLink, socket.socketpair()) for _ in range(2))
    forwarded = SimpleQueue()
    near.close()
    with pytest.raises(OSError, match="closed"):
        receive_pieces(term, receiver, forwarded)
    send_pieces(term, sender, forwarded)  # returns instead of waiting for pieces
    for link in (sender, far, receiver):
        link.close()
