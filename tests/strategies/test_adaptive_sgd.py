"""Algorithms 1 and 2 of Adaptive SGD, worked out by hand, and what must hold at any speed."""

import math
from dataclasses import replace

import pytest

from daskxml.core.errors import ConfigError
from daskxml.strategies.adaptive_sgd import (
    Config,
    are_regularized,
    normalized_weights,
    perturb_weights,
    scale_batch_sizes,
)
from daskxml.strategies.batch_rules import Pace
from daskxml.strategies.protocol import (
    Begin,
    Drain,
    Measure,
    Measured,
    Merge,
    Merged,
    Started,
    Work,
    WorkDone,
    WorkerDevice,
)
from daskxml.strategies.state import WorkerState
from harness.every_strategy import follow
from harness.traces import FIRST_MEGABATCH, NORMS, after_first, sizes, strategy
from harness.virtual_cluster import VirtualCluster, leases_of


def test_a_trace_of_two_megabatches_as_printed():
    machine = strategy(rule="paper", dispatch="batch", lr=2.0)
    # One batch at a time: a does 64 rows a second and b 32.
    trace = [
        (Started(("a", "b")), []),
        (Begin(), ["a 64", "b 64"]),
        (WorkDone.alone("a", 64, 1, 1.0), ["a 64"]),
        (WorkDone.alone("b", 64, 1, 2.0), ["b 64"]),
        (WorkDone.alone("a", 64, 1, 1.0), ["a 64"]),
        (WorkDone.alone("a", 64, 1, 1.0), ["a 64"]),
        (WorkDone.alone("b", 64, 1, 2.0), ["b 64"]),
        (WorkDone.alone("a", 64, 1, 1.0), ["a 64"]),
        (WorkDone.alone("a", 64, 1, 1.0), []),
        (WorkDone.alone("b", 64, 1, 2.0), [Measure(("a", "b"))]),
    ]
    state = follow(machine, machine.initial_state(), trace)
    state, (merge,) = machine.step(state, NORMS)
    # alpha = 5/8, 3/8; perturbed: 0.625 * 1.1 = 0.6875 and 0.375 * 0.9 = 0.3375, sum 1.025
    assert merge.weights == pytest.approx({"a": 0.6875 / 1.025, "b": 0.3375 / 1.025})
    assert (merge.momentum, merge.perturbed, state.phase) == (0.9, True, "merge")
    state, commands = machine.step(state, Merged())
    assert (commands, state.phase, state.remaining_rows) == ((), "idle", 512)
    # mean u = 4: b_a would become 64 + 4 (5 - 4) = 68, above b_max: skipped; b_b = 64 - 4
    assert sizes(state) == {"a": 64.0, "b": 60.0}
    # linear scaling: lr_b = 2 * 60 / 64
    assert {n: (v.batch_rows, v.lr) for n, v in machine.view(state).items()} == {
        "a": (64, 2.0),
        "b": (60, 1.875),
    }
    trace = [  # rows left behind each lease: 448, 388, 324, 264
        (Begin(), ["a 64", "b 60"]),
        (WorkDone.alone("a", 64, 1, 1.0), ["a 64"]),
        (WorkDone.alone("b", 60, 1, 1.875), ["b 60"]),
        (WorkDone.alone("a", 64, 1, 1.0), ["a 64"]),  # 200
        (WorkDone.alone("a", 64, 1, 1.0), ["a 64"]),  # 136
        (WorkDone.alone("b", 60, 1, 1.875), ["b 60"]),  # 76
        (WorkDone.alone("a", 64, 1, 1.0), ["a 64"]),  # 12: less than a batch
    ]
    state = follow(machine, state, trace)
    state, (last,) = machine.step(state, WorkDone.alone("a", 64, 1, 1.0))
    assert last == Work.alone("a", 12, 64, 2.0 * 12 / 64)  # its rate is in proportion to its rows
    trace = [
        (WorkDone.alone("a", 12, 1, 0.1875), []),
        (WorkDone.alone("b", 60, 1, 1.875), [Measure(("a", "b"))]),
    ]
    state = follow(machine, state, trace)
    # and it is that part of an update: u = 5 12/64 and 3, mean 4.09375
    state, (merge,) = machine.step(state, Measured({"a": 4.0, "b": 0.01}, 4))  # RMS 1 and 0.05
    assert merge == Merge(
        {"a": 5.1875 / 8.1875, "b": 3 / 8.1875}, 0.9, perturbed=False, regularized=False
    )
    # b_a would become 68.375, skipped; b_b = 60 - 4 (4.09375 - 3)
    state, _ = machine.step(state, Merged())
    assert sizes(state) == {"a": 64.0, "b": 55.625}


def test_the_default_rule_on_a_trace_of_leases():
    machine = strategy()
    # Nothing is measured at first: each gets one batch to run and one to wait. Of the 512 rows a's
    # share is two thirds, 341: five batches and 21 rows; b's is 171: two batches and 43 rows.
    state, merge = after_first(machine)
    updates = {"a": 5 + 21 / 64, "b": 2 + 43 / 64}
    perturbed = {"a": 1.1 * updates["a"] / 8, "b": 0.9 * updates["b"] / 8}
    total = sum(perturbed.values())
    assert merge.weights == pytest.approx({n: weight / total for n, weight in perturbed.items()})
    state, _ = machine.step(state, Merged())
    # a batch of 64 takes a 1 s and b 2 s, which may be noise
    assert sizes(state) == {"a": 64.0, "b": 64.0}
    assert state.members["a"].evidence.mean == pytest.approx(math.log(2.0) / 2.0)
    cluster = VirtualCluster(machine, {"a": 64.0, "b": 32.0})
    cluster.run(3)  # and is none, if two mega-batches say so
    assert sizes(cluster.state) == pytest.approx({"a": 64.0, "b": 32.0})
    assert machine.view(cluster.state)["b"].lr == pytest.approx(0.5)


def test_the_speeds_of_the_warm_up_are_a_first_observation():
    machine = strategy(megabatch_batches=60)
    devices = {"a": WorkerDevice(rows_per_s=6400.0), "b": WorkerDevice(rows_per_s=3200.0)}
    state, _ = machine.step(machine.initial_state(), Started(("a", "b"), devices))
    state, leases = machine.step(state, Begin())
    # about three quarters of their shares, in two leases each, and not two batches
    leased = [sum(lease.rows for lease in leases if name in lease.parts) for name in "ab"]
    assert leased == [27 * 64, 16 * 64]
    shares = {name: worker.speed for name, worker in state.members.items()}
    assert shares["a"] / shares["b"] == pytest.approx(1.66, abs=0.01)


@pytest.mark.parametrize("held_up", [1, 2])
def test_a_moment_in_which_a_worker_is_held_up_is_no_evidence(held_up):
    paces = dict.fromkeys("ab", Pace(size=64.0, high=64, updates=25, busy_s=0.25))
    for megabatch in range(10):
        busy_s = 0.5 if megabatch in (4, 3 + held_up) else 0.25
        seen = {**paces, "b": replace(paces["b"], busy_s=busy_s)}
        paces = {n: replace(p, busy_s=0.25) for n, p in scale_batch_sizes(seen, Config()).items()}
        assert paces["b"].size == 64.0


def test_a_worker_without_an_update_keeps_its_size():
    machine = strategy()
    state = follow(machine, machine.initial_state(), FIRST_MEGABATCH[:3])
    state = follow(machine, state, [(Drain(), []), (WorkDone.alone("a", 64, 1, 1.0), [])])
    plain = machine.plain(state)
    plain["members"]["b"] |= {"leases": 0, "leased_rows": 0}
    state, _ = machine.step(machine.restore(plain), WorkDone.alone("a", 64, 1, 1.0))
    state, _ = machine.step(state, NORMS)
    state, _ = machine.step(state, Merged())
    assert sizes(state) == {"a": 64.0, "b": 64.0}


def test_a_trace_of_three_workers():
    machine = strategy(rule="paper", dispatch="batch", megabatch_batches=9, renormalize=False)
    batch = {name: WorkDone.alone(name, 64, 1, busy) for name, busy in (("1", 1.0), ("2", 3.0))}
    batch["10"] = WorkDone.alone("10", 64, 1, 3.0)
    trace = [
        (Started(("10", "2", "1")), []),
        (Begin(), ["1 64", "2 64", "10 64"]),  # natural order
        (batch["1"], ["1 64"]),
        (batch["1"], ["1 64"]),
        (batch["2"], ["2 64"]),
        (batch["10"], ["10 64"]),
        (batch["1"], ["1 64"]),
        (batch["1"], ["1 64"]),
        (batch["1"], []),
        (batch["2"], []),
        (batch["10"], [Measure(("10", "2", "1"))]),
    ]
    state = follow(machine, machine.initial_state(), trace)
    # u = 5, 2, 2: alpha = 5/9, 2/9, 2/9; r = 1; of 2 and 10, which tie, s = 2, the lowest id
    state, (merge,) = machine.step(state, Measured({"1": 0.0, "2": 0.0, "10": 0.03}, 4))
    assert merge.perturbed
    assert merge.weights == pytest.approx({"1": 5.5 / 9, "2": 1.8 / 9, "10": 2 / 9})
    # mean u = 3: b_1 would become 72, skipped; b_2 = b_10 = 64 - 4
    state, _ = machine.step(state, Merged())
    assert sizes(state) == {"1": 64.0, "2": 60.0, "10": 60.0}


@pytest.mark.parametrize(
    ("batch_sizes", "updates", "expected"),
    [
        ((32, 32), (6, 2), (40, 24)),  # mean 4: +- 4 * 2
        ((64, 64), (6, 2), (64, 56)),  # the faster would pass b_max
        ((60, 12), (6, 4), (64, 8)),  # exactly at the bounds is allowed
        ((61, 11), (6, 4), (61, 11)),  # a hair beyond is not: both steps are skipped
        ((32, 32, 32), (3, 3, 3), (32, 32, 32)),
        ((32, 32, 32), (4, 4, 1), (36, 36, 24)),  # mean 3
        ((32.5, 20.25), (3, 2), (34.5, 18.25)),  # real numbers
    ],
)
def test_algorithm_1_as_printed(batch_sizes, updates, expected):
    scaled = scale(batch_sizes, updates, Config(batch_max=64, rule="paper"))  # b_min 8, beta 4
    assert tuple(scaled.values()) == expected


def scale(batch_sizes, updates, config):
    low, high = config.bounds
    paces = {
        name: Pace(size=size, low=low, high=high, updates=u, busy_s=1.0)
        for name, size, u in zip("abc", batch_sizes, updates, strict=False)
    }
    return {name: pace.size for name, pace in scale_batch_sizes(paces, config).items()}


def test_weights_by_batch_size_where_updates_are_equal():
    assert normalized_weights({"a": 48.0, "b": 16.0}, {"a": 4, "b": 4}) == {"a": 0.75, "b": 0.25}
    assert normalized_weights({"a": 48.0, "b": 16.0}, {"a": 1, "b": 3}) == {"a": 0.25, "b": 0.75}


def test_weights_by_rows_where_updates_differ():
    # section 3.3: 1 * 48 and 3 * 16 rows
    sizes = {"a": 48.0, "b": 16.0}
    assert normalized_weights(sizes, {"a": 1, "b": 3}, "rows") == {"a": 0.5, "b": 0.5}
    assert normalized_weights(sizes, {"a": 4, "b": 4}, "rows") == {"a": 0.75, "b": 0.25}
    assert normalized_weights(sizes, {"a": 0, "b": 0}, "rows") == {"a": 0.75, "b": 0.25}
    _, merge = after_first(strategy(weighting="rows", perturbation=0.0))
    assert merge.weights == pytest.approx({"a": 341 / 512, "b": 171 / 512})


def test_scaling_every_third_megabatch():
    machine = strategy(rule="paper", dispatch="batch", scale_every=3)
    cluster = VirtualCluster(machine, {"a": 64.0, "b": 32.0})
    seen = []
    for merges in range(1, 8):
        cluster.run(merges)
        seen.append(sizes(cluster.state)["b"])
    # b makes 3 of 8 batches of 64: 64 - 4 (4 - 3) at the third; then as in the first trace
    assert seen == [64.0, 64.0, 60.0, 60.0, 60.0, 55.625, 55.625]


def merge_of_equals(machine):
    """Return the merge of four batches of 32, two of each worker."""
    trace = [(Started(("a", "b")), []), (Begin(), ["a 32", "b 32", "a 32", "b 32"])]
    trace += [(WorkDone.alone(w, 32, 1, 1.0), []) for w in "aba"]
    trace += [(WorkDone.alone("b", 32, 1, 1.0), [Measure(("a", "b"))])]
    _, (merge,) = machine.step(follow(machine, machine.initial_state(), trace), NORMS)
    return merge


def test_equal_updates_are_not_perturbed():
    merge = merge_of_equals(strategy(batch_initial=32, megabatch_batches=2))
    assert merge == Merge({"a": 0.5, "b": 0.5}, 0.9, perturbed=False, regularized=True)


def test_perturbation_literal_and_renormalized():
    weights, updates = {"a": 0.6, "b": 0.4}, {"a": 3, "b": 2}
    literal = perturb_weights(weights, updates, Config(renormalize=False))
    assert literal == pytest.approx({"a": 0.66, "b": 0.36})  # sums to 1.02
    again = perturb_weights(weights, updates, Config())
    assert again == pytest.approx({"a": 0.66 / 1.02, "b": 0.36 / 1.02})
    assert weights == {"a": 0.6, "b": 0.4}


def test_ties_go_to_the_lowest_worker_in_natural_order():
    weights = dict.fromkeys(("10", "9", "2"), 1 / 3)
    config = Config(renormalize=False)
    most = perturb_weights(weights, {"10": 5, "9": 5, "2": 1}, config)
    assert [round(most[n] * 3, 3) for n in ("10", "9", "2")] == [1.0, 1.1, 0.9]
    least = perturb_weights(weights, {"10": 1, "9": 1, "2": 5}, config)
    assert [round(least[n] * 3, 3) for n in ("10", "9", "2")] == [1.0, 0.9, 1.1]


def is_regularized(squared_norms, norm, threshold=0.1, first_norm=1.0, parameters=100):
    config = Config(norm=norm, perturbation_threshold=threshold)
    return are_regularized(Measured(squared_norms, parameters), first_norm, config)


def test_the_readings_of_the_norm_per_parameter():
    # 100 parameters, ||w|| = 0.9 and 2: RMS 0.09 and 0.2, literally 0.009 and 0.02
    norms = {"a": 0.81, "b": 4.0}
    assert not is_regularized(norms, "rms")
    assert is_regularized(norms, "rms", 0.21)
    assert is_regularized(norms, "literal")
    assert not is_regularized(norms, "literal", 0.015)
    # the threshold itself is not below the threshold
    assert not is_regularized({"a": 25.0}, "rms", 0.5)


@pytest.mark.parametrize("parameters", [10, 100, 10**9])
def test_the_growth_of_the_norm_does_not_depend_on_the_width(parameters):
    norms = {"a": 1.0, "b": 9.0}
    assert is_regularized(norms, "growth", 1.51, first_norm=2.0, parameters=parameters)
    assert not is_regularized(norms, "growth", 1.5, first_norm=2.0, parameters=parameters)


def test_the_norm_at_the_first_merge_is_what_later_ones_are_compared_with():
    machine = strategy(norm="growth", perturbation_threshold=2.0)
    state = follow(machine, machine.initial_state(), FIRST_MEGABATCH)
    seen = []
    for norm in (5.0, 9.9, 10.0, 7.0):
        state, (merge,) = machine.step(state, Measured({"a": norm**2, "b": 1.0}, 4))
        seen.append((state.first_norm, merge.perturbed))
        state = replace(state, phase="measure")  # the same updates again
    assert seen == [(5.0, True), (5.0, True), (5.0, False), (5.0, True)]
    state, _ = machine.step(state, Merged())
    assert state.first_norm == 5.0


def test_equal_updates_as_printed():
    machine = strategy(batch_initial=32, megabatch_batches=2, perturb_equal=True)
    merge = merge_of_equals(machine)
    # r = s = a: 0.5 (1 + 0.1) (1 - 0.1), over the sum 0.995
    assert merge.weights == pytest.approx({"a": 0.495 / 0.995, "b": 0.5 / 0.995})
    assert merge.perturbed
    cluster = VirtualCluster(machine, {"a": 10.0}, norm=0.0)  # one worker never is
    cluster.run(1)
    assert cluster.merges[0][1] == Merge({"a": 1.0}, 0.9, perturbed=False, regularized=True)


def test_momentum_and_first_batch_size_are_passed_on():
    machine = strategy(momentum=0.25, batch_initial=16, lr=0.5)
    assert machine.initial_state().remaining_rows == 8 * 64  # in batches of b_max all the same
    assert machine.max_batch_rows() == 64
    state, _ = machine.step(machine.initial_state(), Started(("a",)))
    state, leases = machine.step(state, Begin())
    assert leases == (Work.alone("a", 16, 16, 0.125), Work.alone("a", 16, 16, 0.125))
    cluster = VirtualCluster(machine, {"a": 10.0})
    cluster.run(2)
    expected = Merge({"a": 1.0}, 0.25, perturbed=False, regularized=False)
    assert [merge for _, merge in cluster.merges] == 2 * [expected]


@pytest.mark.parametrize("size", [8, 64])
def test_the_first_batch_size_may_be_at_either_bound(size):
    assert Config(batch_min=8, batch_max=64, batch_initial=size).first_size(0) == size


def test_a_real_batch_size_is_leased_in_whole_rows():
    machine = strategy()
    state = machine.restore(
        {
            **machine.plain(machine.initial_state()),
            "members": {"a": machine_member(41.6), "b": machine_member(41.4)},
        }
    )
    state, _ = machine.step(state, Started(("a", "b")))
    _, leases = machine.step(state, Begin())
    assert [(lease.worker, lease.batch_rows) for lease in leases_of(leases[:2])] == [
        ("a", 42),
        ("b", 41),
    ]
    assert leases_of(leases)[0].lr == pytest.approx(41.6 / 64)  # the rate follows the real number


def machine_member(batch_size):
    machine = strategy()
    state, _ = machine.step(machine.initial_state(), Started(("x",)))
    return {**machine.plain(state)["members"]["x"], "batch_size": batch_size}


# -------------------------------------------------------------------- settings


def test_the_defaults_are_the_papers():
    config = Config(batch_max=1024)
    assert config.bounds == (128, 1024)  # b_min = b_max / 8
    assert config.first_size(0) == 1024
    assert config.megabatch_rows == 100 * 1024
    assert (config.momentum, config.perturbation) == (0.9, 0.1)
    # beta = b_min / 2 = 64
    scaled = scale((512.0, 512.0), (5, 3), Config(batch_max=1024, rule="paper"))
    assert scaled == {"a": 576.0, "b": 448.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": math.inf}, "lr = inf: must be a finite number, above 0"),
        ({"lr": math.nan}, "lr = nan: must be a finite number, above 0"),
        ({"batch_max": 8, "batch_min": 9}, "batch_min = 9: must be at most batch_max = 8"),
        ({"batch_max": 64, "batch_initial": 65}, "batch_initial = 65: must be from 8 to 64"),
        ({"batch_max": 64, "batch_initial": 7}, "batch_initial = 7: must be from 8 to 64"),
        ({"beta": -1.0}, "beta = -1.0: must be at least 0"),
        ({"scale_every": 0}, "scale_every = 0: must be at least 1"),
        ({"weighting": "equal"}, "weighting = 'equal': must be one of 'paper', 'rows'"),
        (
            {"rule": "linear"},
            "rule = 'linear': must be one of 'speed', 'proportional', 'paper'",
        ),
        ({"dispatch": "row"}, "dispatch = 'row': must be one of 'lease', 'batch'"),
        ({"momentum": 1.0}, "momentum = 1.0: must be at least 0, below 1"),
        ({"perturbation": 1.0}, "perturbation = 1.0: must be at least 0, below 1"),
        ({"perturbation_threshold": -0.1}, "perturbation_threshold = -0.1: must be at least 0"),
        ({"norm": "l1"}, "norm = 'l1': must be one of 'growth', 'rms', 'literal'"),
    ],
)
def test_wrong_settings_are_refused(changes, message):
    with pytest.raises(ConfigError) as caught:
        Config(**changes)
    assert str(caught.value) == message


def test_a_state_restored_is_the_state_that_was_stored():
    machine = strategy()
    state = follow(machine, machine.initial_state(), FIRST_MEGABATCH[:5])
    assert isinstance(machine.restore(machine.plain(state)).members["a"], WorkerState)
    assert machine.restore(machine.plain(state)) == state
