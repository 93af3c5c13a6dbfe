"""Algorithm 2 worked out by hand, and what must hold at any speed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml import ConfigError
from daskxml.strategies.adaptive_hogbatch import Config, next_size, surviving_updates
from daskxml.strategies.protocol import (
    Begin,
    Merge,
    Merged,
    Started,
    WorkDone,
    WorkerDevice,
    WorkerJoined,
    WorkerLost,
)
from harness.every_strategy import follow, make
from harness.virtual_cluster import VirtualCluster, leases_of

STARTED = Started(("cpu", "gpu"), {"cpu": WorkerDevice(2)})


def strategy(**changes):
    """The replica has 16 to 64 rows, the pool of two threads 1 to 8 for each; 8 x 64 rows."""
    given = {"batch_min": 16, "pool_batch_max": 8, "lease_s": 0.0}
    return make("adaptive-hogbatch", **{**given, **changes})


def cpu(rows):
    return WorkDone.alone("cpu", rows, 2, rows / 8)  # 8 rows a second


def gpu(rows):
    return WorkDone.alone("gpu", rows, 1, rows / 64)


def counts(state):
    return {name: member.total_updates for name, member in state.members.items()}


def sizes(state):
    return {name: member.batch_size for name, member in state.members.items()}


# The pool begins at its lower bound, 2 x 1, and the replica at its upper one, 64. A lease is one
# batch, and the pool's is two updates. In brackets u^E against the other's, then b^E.
TRACE = [
    (STARTED, []),
    (Begin(), ["cpu 2", "gpu 64"]),  # 446 rows are left
    (cpu(2), ["cpu 4"]),  # 2 > 0: doubled; 442
    (cpu(4), ["cpu 8"]),  # 4 > 0: doubled; 434
    (gpu(64), ["gpu 32"]),  # 1 < 4: halved; 402
    (gpu(32), ["gpu 16"]),  # 2 < 4: halved; 386
    (gpu(16), ["gpu 16"]),  # 3 < 4: at its lower bound; 370
    (gpu(16), ["gpu 16"]),  # 4 = 4; 354
    (gpu(16), ["gpu 32"]),  # 5 > 4: doubled; 322
    (cpu(8), ["cpu 16"]),  # 6 > 5: doubled, which is its upper bound, 2 x 8; 306
    (gpu(32), ["gpu 32"]),  # 6 = 6; 274
    (gpu(32), ["gpu 64"]),  # 7 > 6: doubled; 210
    (gpu(64), ["gpu 64"]),  # 8 > 6: at its upper bound; 146
    (cpu(16), ["cpu 16"]),  # 8 = 8; 130
    (gpu(64), ["gpu 64"]),  # 9 > 8; 66
    (gpu(64), ["gpu 64"]),  # 10 > 8; 2
    (gpu(64), ["gpu 2"]),  # 11 > 8; no row is dropped
    (gpu(2), []),  # 12 > 8
]


def test_a_trace_of_algorithm_2():
    machine = strategy(lr=4.0)
    state = follow(machine, machine.initial_state(), TRACE)
    state, (merge,) = machine.step(state, cpu(16))  # 10 < 12: halved
    assert merge == Merge({"cpu": 10 / 22, "gpu": 12 / 22}, 0.0, perturbed=False)
    state, _ = machine.step(state, Merged())
    assert sizes(state) == {"cpu": 8.0, "gpu": 64.0}
    assert counts(state) == {"cpu": 10, "gpu": 12}  # since the run began
    # an update of the pool is a mean over 8 / 2 rows: 4.0 * 4 / 64
    view = machine.view(state)
    assert {n: (v.batch_rows, v.lr) for n, v in view.items()} == {
        "cpu": (8, 0.25),
        "gpu": (64, 4.0),
    }
    # 11 rows against 12: it goes on where it was
    state = follow(machine, state, [(Begin(), ["cpu 8", "gpu 64"]), (cpu(8), ["cpu 8"])])
    assert counts(state) == {"cpu": 12, "gpu": 12}


def test_beta_is_the_share_of_a_pools_updates_that_counts():
    machine = strategy(beta=0.25)
    trace = [
        *TRACE[:2],
        (cpu(2), ["cpu 4"]),  # 2 / 4 > 0
        (gpu(64), ["gpu 64"]),  # 1 > 0.5: at its upper bound
        (cpu(4), ["cpu 4"]),  # 1 = 1
        (gpu(64), ["gpu 64"]),  # 2 > 1
        (cpu(4), ["cpu 2"]),  # 1.5 < 2: halved
    ]
    state = follow(machine, machine.initial_state(), trace)
    assert surviving_updates(state.members["cpu"], 0.25) == 1.5
    assert surviving_updates(state.members["gpu"], 0.25) == 2


def test_alpha_is_the_factor():
    machine = strategy(alpha=3.0)
    steps = [(cpu(2), ["cpu 6"]), (cpu(6), ["cpu 16"]), (gpu(64), ["gpu 21"])]  # 64 / 3, rounded
    state = follow(machine, machine.initial_state(), [*TRACE[:2], *steps])
    assert sizes(state) == {"cpu": 16.0, "gpu": pytest.approx(64 / 3)}
    follow(machine, state, [(gpu(21), ["gpu 16"])])


@pytest.mark.parametrize(("utilization", "least"), [(0.0, 16), (0.5, 20), (0.75, 39), (0.9, 64)])
def test_a_replica_keeps_a_share_of_its_best_throughput(utilization, least):
    # a batch takes as long as 32 rows, and its rows; at best, with 128, that is 0.8 rows a second
    machine = strategy(utilization=utilization, batch_max=128, megabatch_batches=100)
    state = machine.initial_state()
    for event in (
        STARTED,
        Begin(),
        WorkDone.alone("cpu", 2, 50, 0.25),
    ):  # ahead: it shrinks
        state, _ = machine.step(state, event)
    reached = []
    for _ in range(6):
        rows = round(state.members["gpu"].batch_size)
        state, _ = machine.step(state, WorkDone.alone("gpu", rows, 1, 32 + rows))
        reached.append(state.members["gpu"].batch_size)
    assert min(reached) == reached[-1] == least
    assert least / (32 + least) / 0.8 >= utilization - 0.08  # 128 rows are not all that it could do


@pytest.mark.parametrize(("utilization_max", "largest"), [(0.0, 128), (0.7, 64), (0.9, 128)])
def test_a_replica_that_is_used_so_far_grows_no_more(utilization_max, largest):
    # batches as above: 16 rows have 0.42 of the best throughput, 32 0.63, 64 0.83
    machine = strategy(utilization_max=utilization_max, batch_max=128, megabatch_batches=100)
    state = machine.initial_state()
    for event in (STARTED, Begin(), WorkDone.alone("cpu", 2, 8, 0.25)):  # ahead, then behind
        state, _ = machine.step(state, event)
    reached = []
    for _ in range(16):
        rows = round(state.members["gpu"].batch_size)
        state, _ = machine.step(state, WorkDone.alone("gpu", rows, 1, 32 + rows))
        reached.append(state.members["gpu"].batch_size)
    assert (min(reached), reached[-1]) == (16, largest)


def test_bounds_by_use_do_not_cross():
    with pytest.raises(ConfigError, match=r"^utilization_max = 0\.5: must be above utilization"):
        Config(utilization=0.5, utilization_max=0.5)


def test_of_three_workers_only_the_first_and_the_last_change():
    machine = strategy(megabatch_batches=20)
    state, _ = machine.step(machine.initial_state(), Started(("a", "b", "c")))
    trace = [
        (Begin(), ["a 64", "b 64", "c 64"]),
        (WorkDone.alone("a", 64, 1, 1.0), ["a 64"]),  # 1 > 0, 0
        (WorkDone.alone("a", 64, 1, 1.0), ["a 64"]),  # 2 > 0, 0
        (WorkDone.alone("b", 64, 1, 2.0), ["b 64"]),  # 1: more than c, less than a
        (WorkDone.alone("c", 64, 1, 4.0), ["c 64"]),  # 1: not less than b's 1
    ]
    state = follow(machine, state, trace)
    assert sizes(state) == {"a": 64.0, "b": 64.0, "c": 64.0}
    state, _ = machine.step(state, WorkDone.alone("b", 64, 1, 2.0))  # 2
    state, _ = machine.step(state, WorkDone.alone("b", 64, 1, 2.0))  # 3 > 2, 1
    state, _ = machine.step(state, WorkDone.alone("a", 64, 1, 9.0))  # 3
    state, _ = machine.step(state, WorkDone.alone("c", 64, 1, 4.0))  # 2 < 3, 3
    assert sizes(state) == {"a": 64.0, "b": 64.0, "c": 32.0}


@pytest.mark.parametrize(
    ("size", "own", "others", "expected"),
    [
        (32, 3, (4, 9), 16),
        (32, 4, (4, 9), 32),  # as few as another is not fewer than all
        (32, 9, (4, 9), 32),
        (32, 10, (4, 9), 64),
        (12, 3, (4,), 8),  # never below the least
        (40, 5, (4,), 64),  # nor above the most
        (32, 7, (), 32),  # alone
    ],
)
def test_lines_1_to_5(size, own, others, expected):
    assert next_size(size, own, others, (8, 64), 2.0) == expected


# ------------------------------------------------------ workers come and go


@pytest.mark.parametrize("device", [WorkerDevice(), WorkerDevice(2)])
def test_a_newcomer_counts_as_the_one_with_the_least_updates(device):
    machine = strategy(beta=0.5)
    state = follow(machine, machine.initial_state(), TRACE[:2])
    for event in (cpu(2), cpu(4), gpu(64)):
        state, _ = machine.step(state, event)
    assert counts(state) == {"cpu": 4, "gpu": 1}  # of which 2 and 1 count
    before = sizes(state)
    state, leases = machine.step(state, WorkerJoined("new", device))
    assert surviving_updates(state.members["new"], 0.5) == 1.0
    assert sizes(state) == {**before, "new": 2.0 if device.is_pool else 64.0}
    assert [lease.worker for lease in leases_of(leases)] == ["new"]


def test_the_first_newcomers_of_all_count_from_nothing():
    machine = strategy()
    state, _ = machine.step(machine.initial_state(), STARTED)
    assert counts(state) == {"cpu": 0.0, "gpu": 0.0}


def test_a_resumed_run_with_another_worker():
    machine = strategy()
    state = follow(machine, machine.initial_state(), TRACE)
    state, _ = machine.step(state, cpu(16))
    state, _ = machine.step(state, Merged())
    stored = machine.restore(machine.plain(state))
    workers = Started(("cpu", "gpu", "new"), {"cpu": WorkerDevice(2)})
    again, _ = machine.step(stored, workers)
    assert counts(again) == {"cpu": 10, "gpu": 12, "new": 10}
    # as another device it is another worker
    other, _ = machine.step(stored, Started(("cpu", "gpu")))
    assert counts(other) == {"cpu": 12, "gpu": 12}
    assert sizes(other) == {"cpu": 64.0, "gpu": 64.0}


def test_a_lost_worker_counts_no_more():
    machine = strategy()
    state = follow(machine, machine.initial_state(), TRACE[:4])  # 4 updates of the pool
    state, _ = machine.step(state, WorkerLost("cpu"))
    state, _ = machine.step(state, gpu(64))
    assert sizes(state) == {"gpu": 64.0}  # alone: nobody to compare with
    state, _ = machine.step(state, WorkerJoined("cpu", WorkerDevice(2)))
    assert counts(state) == {"gpu": 1, "cpu": 1}  # back under its name, it is a newcomer


@pytest.mark.parametrize(("total", "expected"), [(10.0, 8.0), (100.0, 16.0)])
def test_who_is_left_out_of_a_megabatch_may_shrink(total, expected):
    # 16 rows at one a second are 16 s; the other does 128 rows in less
    machine = strategy(megabatch_batches=2)
    state, _ = machine.step(machine.initial_state(), STARTED)
    plain = machine.plain(state)
    plain["members"]["cpu"] |= {"batch_size": 16.0, "total_updates": total, "rows_per_s": 1.0}
    plain["members"]["gpu"] |= {"total_updates": 12.0, "rows_per_s": 64.0}
    state, (command,) = machine.step(machine.restore(plain), Begin())
    while not isinstance(command, Merge):
        assert [*command.parts] == ["gpu"]
        state, (command,) = machine.step(state, gpu(command.rows))
    assert command.weights == {"cpu": 0.0, "gpu": 1.0}
    state, _ = machine.step(state, Merged())
    assert 14.0 <= counts(state)["gpu"] < 100.0
    assert sizes(state)["cpu"] == expected


# --------------------------------------------------------------- virtual time


@pytest.mark.parametrize("lease_s", [0.0, 0.02])
@pytest.mark.parametrize("threads", [1, 4])
def test_at_1_to_250_the_updates_come_together(lease_s, threads):
    machine = make(
        "adaptive-hogbatch", batch_max=2048, batch_min=16, megabatch_batches=100, lease_s=lease_s
    )
    speeds = {"gpu": 64000.0, "cpu": 256.0}
    cluster = VirtualCluster(machine, speeds, pools={"cpu": threads})
    cluster.run(8)
    updates = counts(cluster.state)
    # where sizes stay as they are in the beginning, 256 updates a second are made beside 31
    assert 0.5 < updates["cpu"] / updates["gpu"] < 2.0
    assert cluster.now_s < 1.2 * 8 * 204800 / sum(speeds.values())


@pytest.mark.slow
@given(
    st.integers(1, 64),
    st.integers(0, 6),
    st.integers(1, 4),
    st.integers(1, 16),
    st.floats(1.1, 4.0),
    st.lists(st.tuples(st.floats(0.5, 500.0), st.integers(0, 3)), min_size=1, max_size=5),
    st.sampled_from([0.0, 0.02, 0.5]),
)
@settings(max_examples=25, deadline=None)
def test_bounds_are_never_left_and_updates_are_counted(
    batch_max, batch_min, pool_min, pool_more, alpha, workers, lease_s
):
    config = Config(
        batch_max=batch_max, batch_min=min(batch_min, batch_max), pool_batch_min=pool_min,
        pool_batch_max=pool_min + pool_more, alpha=alpha, lease_s=lease_s, megabatch_batches=20,
    )  # fmt: skip
    machine = strategy(**vars(config))
    speeds = {str(i): speed for i, (speed, _) in enumerate(workers)}
    cluster = VirtualCluster(
        machine, speeds, pools={str(i): threads for i, (_, threads) in enumerate(workers)}
    )
    done = dict.fromkeys(speeds, 0)
    while len(cluster.merges) < 4:
        if cluster.collective is not None:
            for name, leases in cluster.done.items():
                done[name] += sum(map(cluster.changes, leases))
        cluster.advance()
        for member in cluster.state.members.values():
            low, high = config.bounds_of(member.pool_threads)
            assert low <= member.batch_size <= high
            assert low <= member.batch_rows <= high
    assert counts(cluster.state) == done
    for lease in cluster.leases:
        low, high = config.bounds_of(cluster.device(lease.worker).pool_threads)
        assert low <= lease.batch_rows <= high
        rows = lease.batch_rows / max(1, cluster.device(lease.worker).pool_threads)
        assert lease.lr == pytest.approx(rows / batch_max)
