"""What must hold for any strategy, whoever comes and goes; the virtual cluster checks the most."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.errors import ConfigError
from daskxml.strategies import STRATEGIES
from daskxml.strategies.protocol import Drain, Started, WorkerDevice, WorkerLost
from harness.every_strategy import CASES, make
from harness.virtual_cluster import VirtualCluster

SPEEDS = {"a": 100.0, "b": 92.0, "c": 76.0}
PHASES = ("idle", "train", "merge")
FLAGS = (
    "is_joint", "averages", "shares_optimizer", "shares_model",
)  # fmt: skip
RULES = {"mean", "sum", "adasum"}
every_case = pytest.mark.parametrize("case", CASES)
LEASES = [case for case in CASES if not make(case).is_joint]
with_pools = pytest.mark.parametrize("case", LEASES)


@every_case
def test_it_says_what_it_is(case):
    machine = make(case)
    for flag in FLAGS:
        assert isinstance(getattr(machine, flag), bool)
    assert set(machine.rules) <= RULES
    assert machine.rules
    assert machine.max_batch_rows() == 64
    assert dataclasses.is_dataclass(machine.Config)
    assert machine.Config.__dataclass_params__.frozen
    with pytest.raises(dataclasses.FrozenInstanceError):
        machine.initial_state().phase = "train"


@every_case
def test_megabatches_follow_each_other(case):
    cluster = VirtualCluster(make(case), SPEEDS)
    cluster.run(6)
    for _, merge in cluster.merges:
        assert merge.weights.keys() == SPEEDS.keys()
        assert sum(merge.weights.values()) == pytest.approx(1.0)
    if cluster.strategy.is_joint:
        assert not cluster.leases
        assert all(merge.weights == {"a": 1, "b": 0, "c": 0} for _, merge in cluster.merges)
        assert all(merge.momentum == 0.0 for _, merge in cluster.merges)
    else:
        assert not cluster.gangs


@every_case
def test_one_worker_alone(case):
    cluster = VirtualCluster(make(case), {"a": 100.0})
    cluster.run(3)
    assert [merge.weights for _, merge in cluster.merges] == 3 * [{"a": 1.0}]


@every_case
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("lost", SPEEDS)
def test_a_loss_in_every_phase(case, phase, lost):
    cluster = VirtualCluster(make(case), SPEEDS)
    cluster.run(2)
    cluster.until(phase)
    cluster.lose(lost)
    cluster.run(4)
    _, merge = cluster.merges[-1]
    assert merge.weights.keys() == SPEEDS.keys() - {lost}


@with_pools
def test_a_pool_that_is_250_times_slower_takes_part_and_holds_nobody_up_for_long(case):
    # 100 batches of 64 rows to a mega-batch, 64 rows a second on the pool and 16,000 on the others
    speeds, threads = {"cpu": 64.0, "gpu": 16000.0, "gpu2": 12000.0}, 3
    cluster = VirtualCluster(make(case, megabatch_batches=100), speeds, pools={"cpu": threads})
    cluster.run(20)
    assert all(sum(m.weights.values()) == pytest.approx(1.0) for _, m in cluster.merges)
    if case in ("elastic", "static"):  # they wait for their slowest, or a whole batch of it
        return
    assert sum(updates["cpu"] for updates, _ in cluster.merges) > 0
    ideal_s = 20 * 6400 / 28000.0
    first_s = 2 * 64 * threads / 64.0  # two batches, before any speed is known
    assert cluster.now_s <= 1.5 * ideal_s + first_s


@with_pools
def test_a_pool_alone(case):
    cluster = VirtualCluster(make(case), {"cpu": 100.0}, pools={"cpu": 4})
    cluster.run(3)
    assert [merge.weights for _, merge in cluster.merges] == 3 * [{"cpu": 1.0}]
    assert cluster.strategy.view(cluster.state)["cpu"].pool_threads == 4


@with_pools
def test_a_worker_that_comes_back_as_another_device_begins_anew(case):
    cluster = VirtualCluster(make(case), {"a": 100.0, "b": 90.0})
    cluster.run(2)
    cluster.lose("b")
    cluster.join("b", 10.0, threads=2)
    cluster.run(4)
    cluster.until("idle")
    state = cluster.state
    again, _ = cluster.strategy.step(
        state, Started(("a", "b"), {"a": WorkerDevice(3), "b": WorkerDevice(2)})
    )
    assert again.members["b"] == state.members["b"]
    assert again.members["a"].pool_threads == 3
    assert again.members["a"].rows_per_s == 0.0


@every_case
def test_all_but_one_are_lost(case):
    cluster = VirtualCluster(make(case), SPEEDS)
    cluster.advance()
    cluster.lose("a")
    cluster.advance()
    cluster.lose("c")
    cluster.run(2)
    assert cluster.merges[-1][1].weights == {"b": 1.0}


@every_case
@pytest.mark.parametrize("phase", ["idle", "train"])
def test_an_arrival_in_every_phase_in_which_workers_are_let_in(case, phase):
    cluster = VirtualCluster(make(case), SPEEDS)
    cluster.run(2)
    cluster.until(phase)
    cluster.join("d", 120.0)
    cluster.run(len(cluster.merges) + 1)
    updates, merge = cluster.merges[-1]
    late = merge.weights["d"] if not cluster.strategy.is_joint else updates["d"]
    takes_at_once = cluster.strategy.shares_model or case.startswith("adaptive-sgd")
    if phase == "train" and not takes_at_once:
        assert late == 0  # has a part from the next mega-batch on
    if phase == "idle":
        assert updates["d"] > 0
    cluster.run(len(cluster.merges) + 1)
    assert cluster.merges[-1][0]["d"] > 0
    assert cluster.merges[-1][1].weights.keys() == {"a", "b", "c", "d"}


@every_case
def test_a_worker_that_came_late_works_alone_when_the_others_are_lost(case):
    cluster = VirtualCluster(make(case), {"a": 100.0, "b": 50.0})
    cluster.run(1)
    cluster.join("d", 120.0)
    cluster.lose("a")
    cluster.lose("b")
    cluster.run(3)
    assert all(merge.weights == {"d": 1.0} for _, merge in cluster.merges[1:])


@every_case
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_drain_in_training_merges_what_is_done(case, steps):
    cluster = VirtualCluster(make(case, megabatch_batches=40), SPEEDS)
    for _ in range(steps):
        cluster.advance()
    out = len(cluster.leases), len(cluster.gangs)
    cluster.drain()
    while cluster.is_drained:
        cluster.advance()
    assert (len(cluster.leases), len(cluster.gangs)) == out  # nothing more was handed out
    updates, merge = cluster.merges[0]
    assert sum(updates.values()) > 0
    assert sum(merge.weights.values()) == pytest.approx(1.0)
    cluster.run(2)  # and the next mega-batch is a whole one again


@every_case
def test_drain_while_everything_is_merged_changes_nothing(case):
    cluster = VirtualCluster(make(case), SPEEDS)
    cluster.until("merge")
    collective = cluster.collective
    cluster.drain()
    assert cluster.collective is collective
    cluster.run(2)


@every_case
@pytest.mark.parametrize("phase", ["train", "merge"])
def test_a_loss_after_drain_does_not_wait_for_the_rows_that_went_back(case, phase):
    cluster = VirtualCluster(make(case), SPEEDS)
    cluster.run(1)
    cluster.until(phase)
    out = len(cluster.leases), len(cluster.gangs)
    cluster.drain()
    cluster.lose("b")
    while cluster.is_drained:
        cluster.advance()
    assert (len(cluster.leases), len(cluster.gangs)) == out
    cluster.run(3)


@every_case
def test_drain_between_megabatches_does_not_spoil_the_next(case):
    machine = make(case)
    state, _ = machine.step(machine.initial_state(), Started(("a", "b")))
    assert machine.step(state, Drain()) == (state, ())


@every_case
def test_an_unknown_worker_that_is_lost_changes_nothing(case):
    cluster = VirtualCluster(make(case), SPEEDS)
    cluster.advance()
    assert cluster.strategy.step(cluster.state, WorkerLost("z")) == (cluster.state, ())


@every_case
def test_a_stored_state_goes_on_as_if_nothing_had_happened(case):
    cluster = VirtualCluster(make(case), SPEEDS)
    cluster.run(3)
    cluster.until("idle")
    again = make(case)
    stored = again.restore(cluster.strategy.plain(cluster.state))
    stored, commands = again.step(stored, Started(tuple(SPEEDS)))
    assert (stored, commands) == (cluster.state, ())


@every_case
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.0}, "lr = 0.0: must be above 0"),
        ({"batch_max": 0}, "batch_max = 0: must be at least 1"),
        ({"megabatch_batches": 0}, "megabatch_batches = 0: must be at least 1, or 'auto'"),
    ],
)
def test_wrong_batches_are_refused(case, changes, message):
    with pytest.raises(ConfigError) as caught:
        make(case, **changes)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("elastic", {"momentum": 1.0}, "momentum = 1.0: must be at least 0, below 1"),
        ("static", {"merge": "often"}, "merge = 'often': must be one of 'megabatch', 'step'"),
        ("static", {"probe_batches": 0}, "probe_batches = 0: must be at least 1"),
        ("mirrored", {"lr_rows": "all"}, "lr_rows = 'all': must be one of 'step', 'batch'"),
        ("asynchronous", {"staleness": -2}, "staleness = -2: must be at least -1"),
        ("crossbow", {"pull": 1.5}, "pull = 1.5: must be from 0 to 1"),
        ("crossbow", {"momentum": 1.0}, "momentum = 1.0: must be at least 0, below 1"),
        ("adasum", {"local_steps": 0}, "local_steps = 0: must be at least 1"),
        ("hogbatch", {"lease_s": -1.0}, "lease_s = -1.0: must be from 0 to 1.0"),
        ("cpu-gpu-hogbatch", {"pool_batch": 0}, "pool_batch = 0: must be at least 1"),
        ("adaptive-hogbatch", {"alpha": 1.0}, "alpha = 1.0: must be above 1"),
        ("adaptive-hogbatch", {"beta": 0.0}, "beta = 0.0: must be above 0, at most 1"),
        (
            "adaptive-hogbatch",
            {"batch_max": 64, "batch_min": 128},
            "batch_min = 128: must be at most batch_max = 64",
        ),
        (
            "adaptive-sgd",
            {"pool_batch_min": 65},
            "pool_batch_min = 65: must be at most pool_batch_max = 64",
        ),
    ],
)
def test_wrong_settings_are_refused(name, changes, message):
    with pytest.raises(ConfigError) as caught:
        STRATEGIES[name].Config(**changes)
    assert str(caught.value) == message


ACTIONS = st.sampled_from(["lose", "join", "drain", "break"])
SCRIPTS = st.lists(st.tuples(st.integers(0, 9), ACTIONS, st.integers(0, 7)), max_size=10)


@given(
    st.sampled_from(sorted(CASES)),
    st.integers(1, 100),
    st.integers(1, 12),
    st.lists(st.tuples(st.floats(0.5, 500.0), st.integers(0, 3)), min_size=1, max_size=5),
    SCRIPTS,
)
@settings(max_examples=50, deadline=None)
def test_every_megabatch_is_done_whole_whoever_comes_and_goes(
    case, batch_max, megabatch_batches, workers, script
):
    machine = make(case, batch_max=batch_max, megabatch_batches=megabatch_batches)
    speeds = {str(i): speed for i, (speed, _) in enumerate(workers)}
    pools = {str(i): 0 if machine.is_joint else threads for i, (_, threads) in enumerate(workers)}
    cluster = VirtualCluster(machine, speeds, pools=pools)
    list(cluster.play(script, 0 if machine.is_joint else 3))
    cluster.run(len(cluster.merges) + 2)
    for _, merge in cluster.merges:
        assert sum(merge.weights.values()) == pytest.approx(1.0)
        assert min(merge.weights.values()) >= 0.0
