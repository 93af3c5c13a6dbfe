"""Collectives over channels that hold one message, fed by one sender thread for each rank.

A message is copied when it is sent, as into a socket, or read in place when it is received, as in
shared memory.
"""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.collectives.adasum import Vector
from daskxml.collectives.adasum_linear import adasum_linear
from daskxml.collectives.adasum_tree import adasum_tree
from daskxml.collectives.combine import CombineConfig, hierarchical
from daskxml.collectives.messages import Receive, Send
from daskxml.collectives.ring import all_reduce
from daskxml.kernels import get_kernels
from harness.vectors import random_vectors

KERNELS = get_kernels("cpu", 1)
SIZE, SPANS = 400, [("a", 0, 150), ("b", 150, 400)]


class Rank:
    """A program, and the queue of what it has sent."""

    def __init__(self, program):
        self.program, self.queue, self.waits, self.is_over = program, deque(), None, False

    def proceed(self):
        self.waits = None
        while self.waits is None and not self.is_over:
            try:
                op = next(self.program)
            except StopIteration:
                self.is_over = True
                return
            if isinstance(op, Send):
                self.queue.append(op)
            elif isinstance(op, Receive):
                self.waits = op


def run_in_order(programs, choose, copies):
    """Let ranks and senders act in the order that ``choose`` gives."""
    ranks, channels = [Rank(program) for program in programs], {}
    for rank in ranks:
        rank.proceed()

    def send(number):
        op = ranks[number].queue.popleft()
        channels[number, op.to] = op.array.copy() if copies else op.array

    def receive(number):
        rank = ranks[number]
        rank.waits.into[...] = channels.pop((rank.waits.source, number))
        rank.proceed()

    while True:
        able = [
            (send, n) for n, r in enumerate(ranks) if r.queue and (n, r.queue[0].to) not in channels
        ]
        able += [
            (receive, n) for n, r in enumerate(ranks) if r.waits and (r.waits.source, n) in channels
        ]
        if not able:
            assert all(rank.is_over and not rank.queue for rank in ranks)
            return
        act, number = choose(able)
        act(number)


def programs_of(name, arrays, transfer):
    ranks = len(arrays)
    hosts = [str(rank % 2) for rank in range(ranks)]
    for rank, x in enumerate(arrays):
        own = Vector(rank, x, SPANS, KERNELS, transfer, piece_size=16)
        if name == "ring":
            yield all_reduce(rank, ranks, x, x, 0.5, KERNELS, piece_size=16, transfer=transfer)
        elif name == "tree":
            yield adasum_tree(own, ranks)
        elif name == "linear":
            yield adasum_linear(own, ranks)
        else:
            yield hierarchical(own, hosts, CombineConfig(inside="sum"))


@pytest.mark.parametrize("copies", [True, False], ids=["sockets", "shared-memory"])
@pytest.mark.parametrize("transfer", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["ring", "tree", "linear", "hierarchical"])
@settings(max_examples=6, deadline=None)
@given(ranks=st.integers(2, 6), random=st.randoms(use_true_random=False))
def test_no_order_of_events_stops_them_or_changes_a_bit(name, transfer, copies, ranks, random):
    results = []
    for choose in (lambda able: able[0], lambda able: able[-1], random.choice):
        arrays = list(random_vectors(ranks, SIZE, ranks))
        run_in_order(list(programs_of(name, arrays, transfer)), choose, copies)
        results += [array.tobytes() for array in arrays]
    assert len(set(results)) == 1
    assert np.isfinite(arrays[0]).all()
