import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.collectives.adasum import Vector
from daskxml.collectives.combine import CombineConfig, combine_changes, hierarchical
from daskxml.kernels import get_kernels
from harness.naive_adasum import adasum_recursive
from harness.vectors import assert_close, combine_all, random_vectors, seeds, segmented, watched

KERNELS = get_kernels("cpu", 1)
SPANS = [("a", 0, 70), ("b", 70, 150)]


def combined(vectors, weights, rule, hosts=None, **options):
    config, ranks = CombineConfig(**options), len(vectors)
    hosts = hosts or ["here"] * ranks
    return combine_all(
        vectors,
        lambda rank, x: combine_changes(
            Vector(rank, x, SPANS, KERNELS, work=np.empty_like(x)), hosts, weights, config, rule
        ),
    )


@settings(max_examples=30, deadline=None)
@given(ranks=st.integers(1, 6), seed=seeds)
def test_mean_sum_and_adasum(ranks, seed):
    vectors = random_vectors(ranks, 150, seed)
    weights = list(np.random.default_rng(seed).dirichlet(np.ones(ranks)))
    wide = vectors.astype(np.float64)
    mean, ratios = combined(vectors, weights, "mean")
    assert ratios == {}
    assert_close(mean, weights @ wide, vectors)
    assert_close(combined(vectors, weights, "sum")[0], wide.sum(axis=0), vectors)
    for order in ("tree", "linear"):
        result, ratios = combined(vectors, weights, "adasum", order=order)
        assert_close(result, adasum_recursive(vectors, order, SPANS), vectors)
        assert set(ratios) <= {"a", "b"}


@pytest.mark.parametrize("order", ["tree", "linear"])
def test_one_worker_on_each_machine_is_no_hierarchy(order):
    vectors = random_vectors(3, 150, 4)
    spread, _ = combined(vectors, [1 / 3] * 3, "adasum", hosts=list("abc"), order=order)
    together, _ = combined(vectors, [1 / 3] * 3, "adasum", order=order)
    assert spread.tobytes() == together.tobytes()


def test_the_mean_inside_machines_is_weighted():
    vectors = random_vectors(3, 150, 4)
    result, _ = combined(vectors, [0.1, 0.3, 0.6], "adasum", hosts=list("aab"), inside="mean")
    machine = 0.25 * vectors[0].astype("f8") + 0.75 * vectors[1]
    assert_close(result, adasum_recursive([machine, vectors[2]], spans=SPANS), vectors)


# -------------------------------------------------------------- hierarchical


def naively(vectors, hosts, config, weights, spans):
    """One vector for each machine, then Adasum of these."""
    machines = []
    for host in dict.fromkeys(hosts):
        mine = [rank for rank, other in enumerate(hosts) if other == host]
        part = vectors[mine].astype(np.float64)
        if config.inside == "adasum":
            machines.append(adasum_recursive(part, config.order, spans))
        elif config.inside == "sum":
            machines.append(part.sum(axis=0))
        else:
            share = np.array(weights)[mine]
            share = share / share.sum() if share.sum() else np.full(len(mine), 1 / len(mine))
            machines.append(share @ part)
    return adasum_recursive(machines, config.order, spans)


@settings(max_examples=50, deadline=None)
@given(
    case=segmented(most_ranks=8),
    inside=st.sampled_from(["adasum", "mean", "sum"]),
    order=st.sampled_from(["tree", "linear"]),
    data=st.data(),
)
def test_equals_the_naive_composition(case, inside, order, data):
    vectors, spans = case
    ranks = len(vectors)
    hosts = data.draw(st.lists(st.sampled_from("abc"), min_size=ranks, max_size=ranks))
    weights = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=ranks, max_size=ranks))
    config = CombineConfig(inside=inside, order=order)
    combined, _ = combine_all(
        vectors,
        lambda rank, x: hierarchical(
            Vector(rank, x, spans, KERNELS, piece_size=16), hosts, config, weights
        ),
    )
    assert_close(combined, naively(vectors, hosts, config, weights, spans), vectors, 1e-4)


@settings(max_examples=40, deadline=None)
@given(ranks=st.integers(2, 7), inside=st.sampled_from(["adasum", "mean", "sum"]), seed=seeds)
def test_float16_leaves_the_same_bits_on_all_machines(ranks, inside, seed):
    vectors = random_vectors(ranks, 300, seed)
    hosts = [str(rank % 3) for rank in range(ranks)]
    config = CombineConfig(inside=inside)
    spans = [("a", 0, 100), ("b", 100, 300)]
    combined, _ = combine_all(
        vectors,
        lambda rank, x: hierarchical(
            Vector(rank, x, spans, KERNELS, "float16", piece_size=24), hosts, config
        ),
    )
    expected = naively(vectors, hosts, config, [1.0] * ranks, spans)
    assert np.abs(combined - expected).max() <= 0.02 * np.abs(vectors).max() * ranks


def test_one_machine_with_adasum_inside_is_the_plain_tree():
    vectors = random_vectors(5, 200, 1)
    config, hosts, spans = CombineConfig(), ["here"] * 5, [("a", 0, 200)]
    one, two = (
        combine_all(
            vectors, lambda rank, x, run=run: run(Vector(rank, x, spans, KERNELS, "float16"))
        )[0]
        for run in (
            lambda own: hierarchical(own, hosts, config),
            lambda own: combine_changes(own, hosts, [0.2] * 5, config, "adasum"),
        )
    )
    assert one.tobytes() == two.tobytes()


def test_little_crosses_between_machines():
    """Two machines of three: a vector each way in all, however many workers there are."""
    hosts, size, crossed = list("aaabbb"), 6 * 1024, [0]

    def counting(rank, x):
        def count(op):
            crossed[0] += op.array.nbytes * (hosts[op.to] != hosts[rank])

        config, spans = CombineConfig(), [("a", 0, size)]
        return watched(hierarchical(Vector(rank, x, spans, KERNELS), hosts, config), count)

    combine_all(random_vectors(6, size, 2), counting)
    assert crossed[0] == pytest.approx(2 * size * 4, rel=0.1)
