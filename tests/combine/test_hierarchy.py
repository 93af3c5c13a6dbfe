import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vectors import assert_close, combine_all, random_vectors, seeds, segmented, watched

from daskxml.combine import CombineConfig, combine_changes
from daskxml.combine.adasum import adasum_recursive
from daskxml.combine.hierarchy import hierarchical
from daskxml.ops import get_kernels

KERNELS = get_kernels("cpu", 1)


def naively(vectors, hosts, config, weights, segments):
    """One vector for each machine, then Adasum of these."""
    machines = []
    for host in dict.fromkeys(hosts):
        mine = [rank for rank, other in enumerate(hosts) if other == host]
        part = vectors[mine].astype(np.float64)
        if config.inside == "adasum":
            machines.append(adasum_recursive(part, config.order, segments))
        elif config.inside == "sum":
            machines.append(part.sum(axis=0))
        else:
            share = np.array(weights)[mine]
            share = share / share.sum() if share.sum() else np.full(len(mine), 1 / len(mine))
            machines.append(share @ part)
    return adasum_recursive(machines, config.order, segments)


@settings(max_examples=120, deadline=None)
@given(
    case=segmented(most_ranks=8),
    inside=st.sampled_from(["adasum", "mean", "sum"]),
    order=st.sampled_from(["tree", "linear"]),
    data=st.data(),
)
def test_equals_the_naive_composition(case, inside, order, data):
    vectors, segments = case
    ranks = len(vectors)
    hosts = data.draw(st.lists(st.sampled_from("abc"), min_size=ranks, max_size=ranks))
    weights = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=ranks, max_size=ranks))
    config = CombineConfig(inside=inside, order=order)
    combined, _ = combine_all(
        vectors,
        lambda rank, x: hierarchical(
            rank, hosts, x, segments, KERNELS, config, weights, piece_size=16
        ),
    )
    assert_close(combined, naively(vectors, hosts, config, weights, segments), vectors, 1e-4)


@settings(max_examples=40, deadline=None)
@given(ranks=st.integers(2, 7), inside=st.sampled_from(["adasum", "mean", "sum"]), seed=seeds)
def test_float16_leaves_the_same_bits_on_all_machines(ranks, inside, seed):
    vectors = random_vectors(ranks, 300, seed)
    hosts = [str(rank % 3) for rank in range(ranks)]
    config = CombineConfig(inside=inside, transfer="float16")
    segments = [("a", 0, 100), ("b", 100, 300)]
    combined, _ = combine_all(
        vectors,
        lambda rank, x: hierarchical(rank, hosts, x, segments, KERNELS, config, piece_size=24),
    )
    expected = naively(vectors, hosts, config, [1.0] * ranks, segments)
    assert np.abs(combined - expected).max() <= 0.02 * np.abs(vectors).max() * ranks


def test_one_machine_with_adasum_inside_is_the_plain_tree():
    vectors = random_vectors(5, 200, 1)
    config = CombineConfig(transfer="float16")
    one, two = (
        combine_all(vectors, lambda rank, x, run=run: run(rank, ["here"] * 5, x))[0]
        for run in (
            lambda rank, hosts, x: hierarchical(rank, hosts, x, [("a", 0, 200)], KERNELS, config),
            lambda rank, hosts, x: combine_changes(
                rank, hosts, x, [0.2] * 5, [("a", 0, 200)], KERNELS, config, "adasum"
            ),
        )
    )
    assert one.tobytes() == two.tobytes()


def test_little_crosses_between_machines():
    """Two machines of three: a vector each way in all, however many workers there are."""
    hosts, size, crossed = list("aaabbb"), 6 * 1024, [0]

    def counting(rank, x):
        def see(op):
            crossed[0] += op.array.nbytes * (hosts[op.to] != hosts[rank])

        config, segments = CombineConfig(), [("a", 0, size)]
        return watched(hierarchical(rank, hosts, x, segments, KERNELS, config), see)

    combine_all(random_vectors(6, size, 2), counting)
    assert crossed[0] == pytest.approx(2 * size * 4, rel=0.1)
