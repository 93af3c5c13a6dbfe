"""Pools of CPU threads among replicas that are merged: bounds of their own, batches as updates."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.strategies.adaptive_sgd import AdaptiveSgd, Config, scale_batch_sizes
from daskxml.strategies.batch_rules import Pace
from daskxml.strategies.batches import BoundedConfig
from daskxml.strategies.protocol import (
    Begin,
    Measure,
    Measured,
    Merge,
    Merged,
    Started,
    Work,
    WorkDone,
    WorkerDevice,
)
from harness.every_strategy import follow, make
from harness.virtual_cluster import VirtualCluster

STARTED = Started(("cpu", "gpu"), {"cpu": WorkerDevice(4)})
NORMS = Measured({"cpu": 9.0, "gpu": 9.0}, 4)  # too large to perturb


def strategy(**changes):
    norms = {"norm": "rms", "perturbation_threshold": 0.1}
    return AdaptiveSgd(Config(**{"batch_max": 64, "megabatch_batches": 4, **norms, **changes}))


def gpu(rows=64):
    return WorkDone.alone("gpu", rows, 1, rows / 64)


def test_a_trace_of_a_megabatch_with_a_slow_pool():
    # 4 x 64 rows; four threads begin with a row each, at a rate for one row
    machine = strategy(lr=2.0)
    state, _ = machine.step(machine.initial_state(), STARTED)
    state, leases = machine.step(state, Begin())
    assert leases[:2] == (Work.alone("cpu", 4, 4, 2.0 / 64), Work.alone("gpu", 64, 64, 2.0))
    trace = [  # 120 rows are left; the pool does a row a second, the replica 64
        # 128 rows, the half of all, are the replica's while the pool's speed is not known
        (gpu(), []),
        (gpu(), ["gpu 64"]),  # it is idle, and ends sooner than the pool can
        (WorkDone.alone("cpu", 4, 4, 4.0), ["gpu 56"]),
        (gpu(), []),
        (gpu(56), []),
        (WorkDone.alone("cpu", 4, 4, 4.0), [Measure(("cpu", "gpu"))]),
    ]
    state = follow(machine, state, trace)
    # the pool made two batches, of four updates each: it counts as two updates of its replica
    assert state.members["cpu"].updates == 2.0
    state, (merge,) = machine.step(state, NORMS)
    total = 2 + 3 + 56 / 64
    weights = {"cpu": 2 / total, "gpu": (total - 2) / total}
    assert merge == Merge(weights, 0.9, perturbed=False, regularized=False)
    state, _ = machine.step(state, Merged())
    # the pace is the replica's alone, 1 s a batch, which keeps b_max; the pool has its least
    assert {n: m.batch_size for n, m in state.members.items()} == {"cpu": 4.0, "gpu": 64.0}


def test_a_slow_pool_has_its_share_of_a_batch():
    # 4 x 64 rows are 4 s at 64.5 rows a second; the pool's share is 2 rows, half a batch of its
    cluster = VirtualCluster(strategy(), {"cpu": 0.5, "gpu": 64.0}, pools={"cpu": 4})
    cluster.run(3)
    assert [lease.rows for lease in cluster.leases if lease.worker == "cpu"][:4] == [4, 4, 2, 2]
    total = 0.5 + 254 / 64
    assert cluster.merges[1][1].weights == {"cpu": 0.5 / total, "gpu": (254 / 64) / total}
    assert cluster.now_s == pytest.approx(16.0 + 4.0 + 4.0)


def test_without_an_update_the_weight_is_0():
    cluster = VirtualCluster(strategy(), {"cpu": 0.05, "gpu": 64.0}, pools={"cpu": 4})
    cluster.run(3)
    assert [updates["cpu"] for updates, _ in cluster.merges] == [2, 0, 0]  # two find its speed
    assert cluster.merges[1][1].weights == {"cpu": 0.0, "gpu": 1.0}


def scaled(config, workers):
    """Scale ``{name: (size, updates, threads)}``, each with one second of work."""
    paces = {
        name: Pace(
            size=size, low=config.bounds_of(threads)[0], high=config.bounds_of(threads)[1],
            updates=updates, busy_s=1.0, is_pool=threads > 0,
        )
        for name, (size, updates, threads) in workers.items()
    }  # fmt: skip
    first = scale_batch_sizes(paces, config)  # which may be noise
    paces = {name: replace(pace, evidence=first[name].evidence) for name, pace in paces.items()}
    return {name: pace.size for name, pace in scale_batch_sizes(paces, config).items()}


@pytest.mark.parametrize("rule", ["speed", "proportional", "paper"])
def test_a_pool_that_cannot_keep_up_leaves_the_replicas_sizes_alone(rule):
    config = Config(batch_max=64, rule=rule)
    replicas = {"a": (32.0, 9, 0), "b": (32.0, 4, 0)}
    expected = scaled(config, replicas)
    with_pool = scaled(config, {**replicas, "cpu": (8.0, 0, 8)})
    assert with_pool == {**expected, "cpu": 8.0}  # its least: a row a thread


def test_a_pool_that_is_ahead_gets_larger_batches_within_its_bounds():
    config = Config(batch_max=64, pool_batch_max=16)
    grown = scaled(config, {"a": (64.0, 4, 0), "cpu": (8.0, 16, 4)})
    assert grown == pytest.approx({"a": 64.0, "cpu": 32.0})  # four times as fast a batch
    grown = scaled(config, {"a": (64.0, 4, 0), "cpu": (40.0, 16, 4)})
    assert grown == {"a": 64.0, "cpu": 64.0}  # 16 for each of four threads
    # Algorithm 1 as printed: beta is half the pool's least size, 4 / 2, and the mean 4
    paper = Config(batch_max=64, rule="paper", pool_batch_max=16)
    assert scaled(paper, {"a": (64.0, 4, 0), "cpu": (40.0, 16, 4)}) == {"a": 64.0, "cpu": 64.0}
    # the step would leave the bounds: skipped
    assert scaled(paper, {"a": (64.0, 4, 0), "cpu": (41.0, 16, 4)}) == {"a": 64.0, "cpu": 41.0}


def test_pools_alone_are_compared_with_each_other():
    grown = scaled(Config(batch_max=64), {"a": (16.0, 9, 4), "b": (16.0, 4, 4)})
    assert grown == pytest.approx({"a": 16 * 1.5, "b": 16 / 1.5})


def test_the_threads_have_equal_parts_whatever_the_size():
    machine = strategy()
    state, _ = machine.step(machine.initial_state(), STARTED)
    plain = machine.plain(state)
    plain["members"]["cpu"]["batch_size"] = 21.7  # 5.4 rows a thread
    state = machine.restore(plain)
    view = machine.view(state)["cpu"]
    assert (view.batch_rows, view.pool_threads) == (20, 4)
    assert view.lr == pytest.approx(21.7 / 4 / 64)  # the rate follows the real number


@pytest.mark.parametrize("name", ["elastic", "static"])
def test_where_batches_are_the_same_for_all_the_threads_divide_them(name):
    machine = make(name, lr=0.5)
    state, _ = machine.step(machine.initial_state(), STARTED)
    view = machine.view(state)
    assert {n: (v.batch_rows, v.lr) for n, v in view.items()} == {
        "cpu": (64, 0.125),
        "gpu": (64, 0.5),
    }
    assert machine.max_batch_rows(WorkerDevice(4)) == 64


def test_the_largest_batch_of_each_device():
    machine = strategy(pool_batch_max=32)
    assert machine.max_batch_rows() == 64
    assert machine.max_batch_rows(WorkerDevice(4)) == 128
    config = BoundedConfig(batch_max=64, pool_batch_min=2)
    assert (config.first_size(0), config.first_size(4)) == (64, 8)


@given(
    st.lists(st.tuples(st.floats(0.1, 1.0), st.integers(0, 4)), min_size=1, max_size=4),
    st.floats(1.0, 250.0),
    st.sampled_from(["speed", "paper"]),
    st.integers(1, 4),
    st.integers(0, 60),
)
@settings(max_examples=30, deadline=None)
def test_bounds_are_never_left_at_any_ratio_of_speeds(workers, ratio, rule, pool_min, pool_more):
    config = Config(
        batch_max=64, megabatch_batches=20, rule=rule, pool_batch_min=pool_min,
        pool_batch_max=pool_min + pool_more,
    )  # fmt: skip
    pools = {str(i): threads for i, (_, threads) in enumerate(workers)}
    speeds = {
        str(i): 6400.0 * speed / (ratio if threads else 1.0)
        for i, (speed, threads) in enumerate(workers)
    }
    cluster = VirtualCluster(AdaptiveSgd(config), speeds, pools=pools)
    cluster.run(6)
    for _, merge in cluster.merges:
        assert sum(merge.weights.values()) == pytest.approx(1.0)
    for lease in cluster.leases:
        low, high = config.bounds_of(pools[lease.worker])
        assert low <= lease.batch_rows <= high
