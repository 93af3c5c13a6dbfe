"""Algorithm 1 and CPU+GPU Hogbatch worked out by hand; what all with a shared model have alike."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.strategies.protocol import (
    Begin,
    Drain,
    Merge,
    Merged,
    Started,
    Work,
    WorkDone,
    WorkerDevice,
    WorkerJoined,
    WorkerLost,
)
from daskxml.strategies.state import WorkerState
from harness.every_strategy import follow, make
from harness.virtual_cluster import VirtualCluster, leases_of

FOUR = {"cpu": 4}  # threads
STARTED = Started(("gpu", "cpu"), {"cpu": WorkerDevice(4)})
SHARED = ("hogbatch", "cpu-gpu-hogbatch", "adaptive-hogbatch")


def gpu(rows=64, busy_s=1.0):
    return WorkDone.alone("gpu", rows, 1, busy_s)


# ---------------------------------------------------------------- Algorithm 1


def test_a_trace_of_algorithm_1():
    # b = 64 for both, one batch a message; 8 batches; 64 rows a second against 25.6
    machine = make("hogbatch", lease_s=0.0, lr=0.5)
    cpu = WorkDone.alone(
        "cpu", 64, 4, 2.5
    )  # a batch of the pool: one update of each of four threads
    trace = [
        (STARTED, []),
        (Begin(), ["cpu 64", "gpu 64"]),  # 6 batches are left
        (gpu(), ["gpu 64"]),  # 5
        (gpu(), ["gpu 64"]),  # 4
        (cpu, ["cpu 64"]),  # 3
        (gpu(), ["gpu 64"]),  # 2
        (gpu(), ["gpu 64"]),  # 1
        # 2.5 s on the pool: the replica does what it has and the last one in 2 s
        (cpu, []),
        (gpu(), ["gpu 64"]),
    ]
    state = follow(machine, machine.initial_state(), trace)
    state, (merge,) = machine.step(state, gpu())
    # 2 batches of 4 updates, and 6 of one
    assert merge == Merge({"gpu": 6 / 14, "cpu": 8 / 14}, 0.0, perturbed=False)
    assert state.phase == "merge"
    state = follow(machine, state, [(Merged(), [])])
    _, leases = machine.step(state, Begin())
    # an update of the pool is a mean over 64 / 4 rows, so its rate is a quarter
    assert leases == (Work.alone("cpu", 64, 64, 0.125), Work.alone("gpu", 64, 64, 0.5))


def test_hogwild_is_one_row_a_thread():
    machine = make("hogbatch", lease_s=0.0, per_thread=True, batch_max=1, megabatch_batches=10)
    state, _ = machine.step(machine.initial_state(), Started(("cpu",), {"cpu": WorkerDevice(4)}))
    state, leases = machine.step(state, Begin())
    assert leases == (Work.alone("cpu", 4, 4, 1.0),)
    state, leases = machine.step(state, WorkDone.alone("cpu", 4, 4, 1.0))
    assert leases == (Work.alone("cpu", 4, 4, 1.0),)
    state, leases = machine.step(state, WorkDone.alone("cpu", 4, 4, 1.0))
    assert leases == (Work.alone("cpu", 2, 4, 1.0),)  # two threads have a row, and none is dropped
    state, (merge,) = machine.step(state, WorkDone.alone("cpu", 2, 2, 0.5))
    assert merge == Merge({"cpu": 1.0}, 0.0, perturbed=False)
    assert state.members["cpu"].updates == 10


@pytest.mark.parametrize("name", SHARED)
def test_without_scaling_every_update_has_the_same_rate(name):
    machine = make(name, lease_s=0.0, lr=0.5, scaling="none")
    state, _ = machine.step(machine.initial_state(), STARTED)
    _, leases = machine.step(state, Begin())
    assert len(leases) == 2
    assert {lease.lr for lease in leases_of(leases)} == {0.5}


@pytest.mark.parametrize("name", SHARED)
def test_pools_can_have_a_rate_of_their_own(name):
    machine = make(name, lease_s=0.0, lr=0.5, pool_lr=0.125, scaling="none")
    state, _ = machine.step(machine.initial_state(), STARTED)
    _, leases = machine.step(state, Begin())
    assert {lease.worker: lease.lr for lease in leases_of(leases)} == {"gpu": 0.5, "cpu": 0.125}
    machine = make(name, lease_s=0.0, lr=0.5, pool_lr=0.125)
    assert machine.rate(WorkerState(batch_size=32, pool_threads=4)) == 0.125 * 8 / 64


@pytest.mark.parametrize("name", SHARED)
def test_rates_of_replicas_are_divided_by_their_staleness(name):
    machine = make(name, lease_s=0.0, lr=0.5, scaling="none", lower_stale=True)
    cluster = VirtualCluster(machine, {"gpu": 32.0, "cpu": 64.0}, pools=FOUR)
    cluster.run(2)
    share = cluster.merges[0][1].weights["gpu"]  # of the first mega-batch's updates
    staleness = (1.0 - share) / share
    assert staleness > 2.0  # four updates a batch of the pool
    first, second = (sum(batches.values()) for batches, _ in cluster.merges)
    assert {lease.lr for lease in cluster.leases[:first]} == {0.5}  # nothing is known yet
    rates = {lease.worker: lease.lr for lease in cluster.leases[first : first + second]}
    assert rates == pytest.approx({"cpu": 0.5, "gpu": 0.5 / staleness})


def test_a_batch_with_fewer_rows_than_threads_has_one_for_each():
    machine = make("hogbatch", batch_max=3)
    assert machine.max_batch_rows() == 3
    assert machine.max_batch_rows(WorkerDevice(4)) == 4
    assert make("hogbatch", batch_max=62).max_batch_rows(WorkerDevice(4)) == 64  # equal parts


def test_minibatch_sgd_is_one_replica_alone():
    cluster = VirtualCluster(make("hogbatch", lease_s=0.0), {"gpu": 64.0})
    cluster.run(3)
    assert cluster.leases[:25] == [("gpu", 64, 64, 1.0)] * 25
    assert [updates for updates, _ in cluster.merges] == 3 * [{"gpu": 8}]


# ------------------------------------------------------------ CPU+GPU Hogbatch


def test_a_trace_of_cpu_gpu_hogbatch():
    # 64 rows on the replica and one on each of four threads; 4 x 64 rows; 64 and 8 rows a second
    machine = make("cpu-gpu-hogbatch", lease_s=0.0, lr=2.0, megabatch_batches=4)
    cpu = WorkDone.alone("cpu", 4, 4, 0.5)
    state, _ = machine.step(machine.initial_state(), STARTED)
    begun, leases = machine.step(state, Begin())
    assert leases == (Work.alone("cpu", 4, 4, 2.0 / 64), Work.alone("gpu", 64, 64, 2.0))
    trace = [  # 188 rows are left
        (cpu, ["cpu 4"]),  # 184
        (gpu(), ["gpu 64"]),  # 120
        (cpu, ["cpu 4"]),  # 116
        (gpu(), ["gpu 64"]),  # 52
        (cpu, ["cpu 4"]),  # 48
        (gpu(), ["gpu 48"]),  # the rest is a smaller batch
        (cpu, []),
    ]
    state = follow(machine, begun, trace)
    _, (merge,) = machine.step(state, gpu(48, 0.75))
    assert merge.weights == {"gpu": 4 / 20, "cpu": 16 / 20}  # "almost exclusively" the pool's


# ---------------------------------------------------------------------- leases


@pytest.mark.parametrize("case", SHARED)
def test_a_lease_is_about_as_long_as_it_is_said(case):
    machine = make(case, lease_s=0.5, megabatch_batches=1000)
    cluster = VirtualCluster(machine, {"gpu": 6400.0, "cpu": 32.0}, pools=FOUR)
    cluster.run(1)
    longest = {"gpu": 3200, "cpu": 16}
    for lease in cluster.leases:
        assert lease.rows <= max(longest[lease.worker], lease.batch_rows)
    # 0.5 s of 64000 rows: long leases while much is left, and two at a time
    assert max(lease.rows for lease in cluster.leases) == 3200
    assert [lease.worker for lease in cluster.leases[:4]] == ["cpu", "gpu", "cpu", "gpu"]


@pytest.mark.parametrize("case", SHARED)
def test_one_batch_a_lease_is_the_papers_message(case):
    machine = make(case, lease_s=0.0, megabatch_batches=20)
    cluster = VirtualCluster(machine, {"gpu": 640.0, "cpu": 64.0}, pools=FOUR)
    cluster.run(4)
    assert all(lease.rows <= lease.batch_rows for lease in cluster.leases)
    assert all(len(queue) <= 1 for queue in cluster.queues.values())


# ------------------------------------------------------ workers come and go


def at_work(case):
    """Return a strategy in training: the replica has done one batch, the pool two."""
    machine = make(case, lease_s=0.0)
    state = machine.initial_state()
    first = machine.max_batch_rows(WorkerDevice(4)) if case == "hogbatch" else 4
    cpu = WorkDone.alone("cpu", first, 4, 0.5)
    for event in (STARTED, Begin(), cpu, gpu()):
        state, _ = machine.step(state, event)
    done = WorkDone.alone("cpu", state.members["cpu"].leased_rows, 4, 0.5)
    return machine, *machine.step(state, done)


@pytest.mark.parametrize("case", SHARED)
@pytest.mark.parametrize("lost", ["cpu", "gpu"])
def test_a_lost_worker_takes_only_its_open_leases_with_it(case, lost):
    machine, state, _ = at_work(case)
    before = state.remaining_rows
    out = state.members[lost].leased_rows
    assert out
    assert state.members[lost].rows
    state, commands = machine.step(state, WorkerLost(lost))
    assert state.remaining_rows + sum(c.rows for c in commands) == before + out
    done = 512 - before - sum(m.leased_rows for m in state.members.values()) - out
    assert done > state.members["gpu" if lost == "cpu" else "cpu"].rows  # the lost one's, too


@pytest.mark.parametrize("case", SHARED)
def test_a_loss_at_the_merge_gives_nothing_back(case):
    cluster = VirtualCluster(make(case), {"a": 100.0, "b": 50.0, "cpu": 4.0}, pools=FOUR)
    cluster.until("merge")
    leases = len(cluster.leases)
    cluster.lose("a")
    assert len(cluster.leases) == leases
    assert cluster.collective.weights.keys() == {"b", "cpu"}
    assert sum(cluster.collective.weights.values()) == pytest.approx(1.0)
    assert cluster.rows == 512
    cluster.run(3)


@pytest.mark.parametrize("case", SHARED)
def test_all_updates_were_the_lost_workers(case):
    machine = make(case, lease_s=0.0, megabatch_batches=1)
    state = machine.initial_state()
    for event in (Started(("gpu",)), Begin(), WorkerJoined("late"), WorkerJoined("later")):
        state, _ = machine.step(state, event)
    state, (merge,) = machine.step(state, gpu())
    assert merge.weights == {"gpu": 1.0, "late": 0.0, "later": 0.0}
    state, (merge,) = machine.step(state, WorkerLost("gpu"))
    assert merge.weights == {"late": 0.5, "later": 0.5}


@pytest.mark.parametrize("case", SHARED)
def test_a_newcomer_works_at_once(case):
    machine, state, _ = at_work(case)
    _, leases = machine.step(state, WorkerJoined("new", WorkerDevice(2)))
    assert [lease.worker for lease in leases_of(leases)] == ["new"]
    _, none = machine.step(machine.step(state, Drain())[0], WorkerJoined("new"))
    assert none == ()


SCRIPTS = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from(["lose", "join", "drain"]), st.integers(0, 7)),
    max_size=12,
)


@given(
    st.sampled_from(SHARED),
    st.sampled_from([0.0, 0.02, 1.0]),
    st.lists(st.tuples(st.floats(0.5, 500.0), st.integers(0, 3)), min_size=1, max_size=5),
    SCRIPTS,
)
@settings(max_examples=60, deadline=None)
def test_every_row_is_done_once_whoever_comes_and_goes(case, lease_s, workers, script):
    """Each lease is done or leased again; the cluster itself checks the rows of every merge."""
    speeds = {str(i): speed for i, (speed, _) in enumerate(workers)}
    pools = {str(i): threads for i, (_, threads) in enumerate(workers)}
    machine = make(case, lease_s=lease_s, batch_max=16, megabatch_batches=4)
    cluster = VirtualCluster(machine, speeds, pools=pools)
    list(cluster.play(script, 2))
    cluster.until("merge")
    merged = sum(rows for rows in cluster.merged_rows) + cluster.rows
    assert sum(lease.rows for lease in cluster.leases) == merged + cluster.lost_rows
