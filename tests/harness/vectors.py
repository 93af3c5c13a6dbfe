"""Vectors for ranks, and collectives over all of them in one process."""

from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from daskxml.collectives.messages import Send
from harness.together import run_together

seeds = st.integers(0, 2**32 - 1)


def random_vectors(ranks, size, seed):
    """Partly parallel, of different lengths, and sometimes zero: ``(ranks, size)`` float32."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=size)
    vectors = rng.normal(size=(ranks, size)) + rng.uniform(-1, 2, (ranks, 1)) * common
    vectors *= 10.0 ** rng.integers(-3, 4, (ranks, 1)) * (rng.random((ranks, 1)) < 0.9)
    return vectors.astype(np.float32)


@st.composite
def segmented(draw, most_ranks=9):
    """Vectors ``(ranks, size)``, zero outside of any spans, and the spans."""
    ranks, size = draw(st.integers(1, most_ranks)), draw(st.integers(0, 120))
    vectors = random_vectors(ranks, size, draw(seeds))
    size = vectors.shape[1]
    cuts = sorted(draw(st.lists(st.integers(0, size), max_size=9)))
    cuts = cuts if draw(st.booleans()) else [0, *cuts, size]
    runs = pairwise(cuts)
    spans = [(f"layer {n}", *run) for n, run in enumerate(runs) if draw(st.integers(0, 4))]
    inside = np.zeros(size, bool)
    for _, start, stop in spans:
        inside[start:stop] = True
    vectors[:, ~inside] = 0.0
    return vectors, spans


def combine_all(vectors, make, same_results=True):
    """Let ``make(rank, x)`` of every rank run; return the one result, and what they return."""
    arrays = [vector.copy() for vector in vectors]
    returned = run_together([make(rank, x) for rank, x in enumerate(arrays)])
    for other, result in zip(arrays, returned, strict=True):
        assert other.tobytes() == arrays[0].tobytes()
        assert result == returned[0] or not same_results  # a NaN is not equal to itself
    return arrays[0], returned[0]


def watched(program, on_send):
    """Forward a program's operations; call ``on_send`` with each `Send`."""
    answer = None
    while True:
        try:
            op = program.send(answer)
        except StopIteration as end:
            return end.value
        if isinstance(op, Send):
            on_send(op)
        answer = yield op


def assert_close(combined, expected, vectors, tolerance=1e-5):
    """Compare up to rounding: relative to the largest entries that were combined."""
    scale = np.abs(vectors).max(axis=0, initial=0.0) * len(vectors) + 1e-30
    assert np.all(np.abs(combined - expected) <= tolerance * (scale + np.abs(expected)))
