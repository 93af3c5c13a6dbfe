"""Adaptive SGD with workers of any speed that come and go."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.strategies.adaptive_sgd import (
    AdaptiveSgd,
    Config,
)
from daskxml.strategies.protocol import (
    Begin,
    Drain,
    Measure,
    Measured,
    Merge,
    Merged,
    WorkDone,
    WorkerJoined,
    WorkerLost,
)
from daskxml.strategies.state import MegabatchState, WorkerState
from harness.every_strategy import follow
from harness.traces import FIRST_MEGABATCH, NORMS, after_first, sizes, strategy
from harness.virtual_cluster import VirtualCluster, leases_of

# --------------------------------------------------------- workers come and go


def test_a_late_joiner_is_merged_but_not_scaled():
    machine = strategy()
    state = follow(machine, machine.initial_state(), FIRST_MEGABATCH[:-1])  # b has a lease left
    state = follow(machine, state, [(WorkerJoined("c"), [])])
    state = follow(
        machine, state, [(WorkDone.alone("b", 43, 1, 43 / 32), [Measure(("a", "b", "c"))])]
    )
    state, (merge,) = machine.step(state, Measured({"a": 9.0, "b": 9.0, "c": 9.0}, 4))
    assert merge.weights == {"a": 341 / 512, "b": 171 / 512, "c": 0.0}
    state, _ = machine.step(state, Merged())
    assert sizes(state) == {"a": 64.0, "b": 64.0, "c": 64.0}
    seen = {name: worker.evidence.seen for name, worker in state.members.items()}
    assert seen == {"a": 1.0, "b": 1.0, "c": 0.0}
    assert not state.members["c"].came_late  # from now on it is one of them
    state, leases = machine.step(state, Begin())
    assert {lease.worker for lease in leases_of(leases)} == {"a", "b", "c"}


def test_what_a_late_joiner_has_done_is_not_compared_with_the_others():
    there = WorkerState(batch_size=64, updates=4, rows=256, busy_s=4.0)
    members = {"a": there, "b": there, "c": replace(there, busy_s=16.0, came_late=True)}
    state = strategy().scale(MegabatchState(remaining_rows=0, members=members))
    seen = {n: (w.evidence.seen, w.evidence.mean) for n, w in state.members.items()}
    assert seen == {"a": (1.0, 0.0), "b": (1.0, 0.0), "c": (0.0, 0.0)}


def test_a_joiner_takes_leases_at_once_and_is_not_late_between_megabatches():
    machine = strategy()
    state = follow(machine, machine.initial_state(), FIRST_MEGABATCH[:2])
    state = follow(machine, state, [(WorkerJoined("c"), ["c 64", "c 64"])])
    assert state.members["c"].came_late
    state, _ = machine.step(after_first(machine)[0], Merged())
    state = follow(machine, state, [(WorkerJoined("c"), [])])
    assert not state.members["c"].came_late


def test_a_worker_lost_while_idle_leaves_a_whole_megabatch():
    machine = strategy()
    state, _ = after_first(machine)
    state, _ = machine.step(state, Merged())
    state = follow(machine, state, [(WorkerLost("a"), [])])
    assert (state.phase, state.remaining_rows, list(state.members)) == ("idle", 512, ["b"])


def test_a_worker_lost_in_training_has_its_rows_leased_again():
    machine = strategy()
    state = follow(machine, machine.initial_state(), FIRST_MEGABATCH[:8])
    # a has done 4 batches and holds one and 21 rows; b has done 2 and holds 43 rows
    assert state.remaining_rows == 0
    state = follow(machine, state, [(WorkerLost("a"), ["b 64"])])
    assert state.remaining_rows == 341 - 64
    state = follow(machine, state, [(WorkDone.alone("b", 43, 1, 43 / 32), ["b 64"])])
    assert state.remaining_rows == 341 - 2 * 64


@pytest.mark.parametrize("is_measured", [False, True])
def test_a_worker_lost_at_the_merge_takes_it_back(is_measured):
    machine = strategy()
    state = follow(machine, machine.initial_state(), FIRST_MEGABATCH)
    if is_measured:
        state, _ = machine.step(state, NORMS)
    # b did 171 rows; a's 341 are leased again at 32 rows a second: no more than a second's worth
    # at once, so a batch, and another one to wait
    state = follow(machine, state, [(WorkerLost("a"), ["b 64", "b 64"])])
    assert (state.phase, state.remaining_rows) == ("train", 341 - 128)
    state = follow(
        machine,
        state,
        [(WorkDone.alone("b", 64, 1, 2.0), ["b 64"])] * 3
        + [(WorkDone.alone("b", 64, 1, 2.0), ["b 21"]), (WorkDone.alone("b", 64, 1, 2.0), [])]
        + [(WorkDone.alone("b", 21, 1, 21 / 32), [Measure(("b",))])],
    )
    _, (merge,) = machine.step(state, Measured({"b": 0.0}, 4))
    assert merge == Merge({"b": 1.0}, 0.9, perturbed=False, regularized=True)


def test_a_measurement_out_of_turn_is_ignored():
    machine = strategy()
    state, _ = after_first(machine)
    assert machine.step(state, NORMS) == (state, ())


def test_drain_merges_what_is_done():
    machine = strategy(rule="paper")
    state = follow(machine, machine.initial_state(), FIRST_MEGABATCH[:3])  # a: 1 done, 2 out
    trace = [
        (Drain(), []),
        (WorkDone.alone("a", 64, 1, 1.0), []),
        (WorkDone.alone("b", 64, 1, 2.0), []),
        (WorkDone.alone("b", 64, 1, 2.0), []),
        (WorkDone.alone("a", 64, 1, 1.0), [Measure(("a", "b"))]),
    ]
    state = follow(machine, state, trace)
    state, (merge,) = machine.step(state, Measured({"a": 9.0, "b": 9.0}, 4))
    assert merge.weights == {"a": 0.6, "b": 0.4}
    state, _ = machine.step(state, Merged())
    assert (state.is_draining, state.remaining_rows) == (False, 512)


# --------------------------------------------------------------- virtual time


def test_the_printed_rule_freezes_on_two_workers_at_one_to_two():
    # u = 33 and 67 of 100 batches, mean 50: the slow one's step, 64 - 4 * 17, falls below b_min
    # and the fast one's exceeds b_max. Both are skipped, and so nothing ever changes.
    machine = AdaptiveSgd(Config(batch_max=64, rule="paper", dispatch="batch"))
    cluster = VirtualCluster(machine, {"a": 1.0, "b": 2.0})
    cluster.run(10)
    assert sizes(cluster.state) == {"a": 64.0, "b": 64.0}
    assert all(updates["b"] >= 1.9 * updates["a"] for updates, _ in cluster.merges)


@pytest.mark.parametrize("batch_max", [64, 1024])
@pytest.mark.parametrize("speeds", [(1.0, 2.0), (1.0, 0.92, 0.84, 0.76)])
def test_the_default_equalizes_the_updates(speeds, batch_max):
    named = {str(i): batch_max * speed for i, speed in enumerate(speeds)}
    cluster = VirtualCluster(AdaptiveSgd(Config(batch_max=batch_max)), named)
    cluster.run(9)
    for updates, _ in cluster.merges[5:]:
        assert max(updates.values()) - min(updates.values()) <= 1


SCRIPTS = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from(["lose", "join", "drain"]), st.integers(0, 7)),
    max_size=12,
)
CONFIGS = st.builds(
    Config,
    batch_max=st.integers(8, 100),
    megabatch_batches=st.integers(1, 12),
    rule=st.sampled_from(["speed", "proportional", "paper"]),
    dispatch=st.sampled_from(["lease", "batch"]),
    perturbation=st.floats(0.0, 0.9),
    norm=st.just("rms"),
    perturbation_threshold=st.just(0.1),
)


@given(CONFIGS, st.lists(st.floats(0.5, 500.0), min_size=1, max_size=5), SCRIPTS, st.booleans())
@settings(max_examples=80, deadline=None)
def test_every_megabatch_is_merged_whole_whoever_comes_and_goes(config, speeds, script, is_small):
    """The cluster itself checks rows, deadlocks, immutability and JSON; here the rest."""
    named = {str(i): speed for i, speed in enumerate(speeds)}
    cluster = VirtualCluster(AdaptiveSgd(config), named, norm=0.0 if is_small else 1e9)
    low, high = config.bounds
    for _ in cluster.play(script):
        assert all(low <= m.batch_size <= high for m in cluster.state.members.values())
    cluster.run(len(cluster.merges) + 2)
    for _, merge in cluster.merges:
        assert sum(merge.weights.values()) == pytest.approx(1.0)
        assert min(merge.weights.values()) >= 0.0
        assert is_small or not merge.perturbed
    assert all(lease.rows >= 1 and low <= lease.batch_rows <= high for lease in cluster.leases)
