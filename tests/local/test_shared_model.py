"""Pools, and one model that all workers update, in virtual time."""

import numpy as np
import pytest

from daskxml.api.in_process import simulate
from daskxml.api.run import resolve_run
from daskxml.core.errors import ConfigError
from daskxml.local import Arrival, CostModel, Loss, Network, cost_by_epochs
from daskxml.local.rows import read_rows
from daskxml.models.network.spec import Layout
from harness.ledger_check import check_ledger
from harness.replay import flat_model
from harness.small_data import small_run
from harness.twin import Twin

SHARED = ["hogbatch", "cpu-gpu-hogbatch", "adaptive-hogbatch"]
SPEEDS, POOLS = {"gpu": 1.0, "cpu": 1.0}, {"cpu": 4}
COST = CostModel(fixed_s=2e-3, per_row_s=1e-4, jitter=0.0)
POOL_COST = CostModel(per_row_s=1e-3, jitter=0.0)


@pytest.fixture(params=SHARED)
def shared(request):
    """Three mega-batches of 384 rows."""
    return small_run(3, request.param, evaluation={"every": 1}, checkpoint={"every": 1})


@pytest.fixture
def machine():
    """What a run costs, with a pool of four threads whose rows take ten times as long."""
    return {
        "cost": COST,
        "pool_cost": POOL_COST,
        "pools": POOLS,
        "network": Network(bandwidth_bytes_s=1e8, message_s=1e-3),
    }


def test_times_worked_out_by_hand(data, machine):
    values = {
        "model": {"hidden": [16]},
        "strategy": {"name": "cpu-gpu-hogbatch", "batch_max": 32, "megabatch_batches": 2,
                     "lr": 0.5, "lease_s": 0},
        "training": {"megabatches": 1},
    }  # fmt: skip
    spec = simulate(values, SPEEDS, **data, **machine).model.spec
    costs = {
        "cost": CostModel(fixed_s=0.5, per_row_s=0.25, jitter=0.0),
        "pool_cost": CostModel(per_row_s=1.0, jitter=0.0),
        "network": Network(bandwidth_bytes_s=4 * Layout(spec).size, latency_s=0, message_s=0.125),
    }
    (row,) = simulate(values, SPEEDS, **data, pools=POOLS, **costs).history
    # The pool has 4 rows in 0.125..4.125, 4.375..8.375 and 8.625..12.625. The copy is made in
    # 0.125..1.125, works on 32 rows for 8.5 s and is added in 9.625..10.625. Its report is there
    # at 10.75, when 20 rows are left: all of them end sooner here than 4 more in the pool, and
    # take 1 + 5.5 + 1 s from 10.875 on. The last report is there at 18.5.
    gpu, cpu = row["workers"]["gpu"], row["workers"]["cpu"]
    assert (gpu["rows"], gpu["updates"], gpu["busy_s"], gpu["idle_s"]) == (52, 2, 18.0, 0.5)
    assert (cpu["rows"], cpu["updates"], cpu["busy_s"], cpu["idle_s"]) == (12, 12, 12.0, 6.5)
    assert row["train_s"] == 18.5
    assert row["merge_s"] == 4 * 0.125 + 1.0  # the model goes to the pool as well
    assert (gpu["weight"], cpu["weight"]) == (2 / 14, 12 / 14)


@pytest.mark.parametrize("changes", [(), (Loss(0.07, "cpu"), Arrival(0.09, "2", 0.5))])
def test_changes_are_added_as_a_slow_twin_adds_them(data, shared, machine, trace, changes):
    speeds, costs = {"gpu": 1.0, "cpu": 1.0, "1": 1.0}, {"gpu": COST, "1": COST, "cpu": POOL_COST}
    config = resolve_run(shared, data["train"], data["test"], ())
    run = simulate(config, speeds, **machine, changes=changes)
    costs["2"] = CostModel(fixed_s=COST.fixed_s * 2, per_row_s=COST.per_row_s * 2)
    lost = [change for change in changes if isinstance(change, Loss)]
    twin = Twin(
        list(trace), read_rows(config, 3), run.model.spec, seed=0, network=machine["network"],
        costs=costs, pools=POOLS, lost=lost,
    )  # fmt: skip
    assert len(twin.moments()) > 20
    assert np.array_equal(twin.run(), flat_model(run))
    check_ledger(run.history, 1500)


def test_the_same_seed_gives_the_same_bytes_and_the_loss_falls(data, shared, machine, tmp_path):
    shared["training"]["megabatches"] = 6
    machine["cost"] = CostModel(fixed_s=2e-3, per_row_s=1e-4)
    for out in ("first", "again"):
        run = simulate(shared, SPEEDS, **data, **machine, out=tmp_path / out)
    check_ledger(run.history, 1500)
    assert run.history[-1]["loss"] < run.history[0]["loss"]
    for name in ("history.jsonl", "model.safetensors", "simulation.json"):
        first, again = ((tmp_path / out / name).read_bytes() for out in ("first", "again"))
        assert first == again, name


@pytest.mark.parametrize("at", [0.001, 0.08, 0.14])
@pytest.mark.parametrize("lost", ["cpu", "gpu"])
def test_a_loss_at_any_time_leaves_the_ledger_exact(data, shared, machine, at, lost):
    machine["pools"] = {"cpu": 4, "new": 2}
    changes = [Loss(at, lost), Arrival(at / 2, "new")]
    run = simulate(shared, SPEEDS, **data, **machine, changes=changes)
    check_ledger(run.history, 1500)
    assert len(run.history) == 3
    assert all(np.isfinite(row["loss"]) for row in run.history)
    events = [event["kind"] for row in run.history for event in row["events"]]
    assert sorted(events) == ["joined", "lost"]
    for row in run.history:
        weights = [worker["weight"] for worker in row["workers"].values()]
        assert sum(weights) == pytest.approx(1.0)


def test_what_a_lost_worker_has_finished_stays_done(data, shared, machine):
    plain = simulate(shared, SPEEDS, **data, **machine)
    late_s = 0.8 * plain.history[0]["train_s"]
    run = simulate(shared, SPEEDS, **data, **machine, changes=[Loss(late_s, "gpu")])
    first = run.history[0]
    assert first["workers"]["gpu"]["rows"] > 0
    (event,) = first["events"]
    assert event["rows_returned"] < first["workers"]["gpu"]["rows"]


def test_a_shared_model_on_several_machines_is_refused(data, shared, machine):
    machine["network"] = Network(machine_workers=1)
    with pytest.raises(ConfigError, match="one model, in the memory of one machine: leave machine"):
        simulate(shared, SPEEDS, **data, **machine)


def test_a_pool_takes_part_in_merges_with_a_replica_of_its_own(data, machine, values):
    run = simulate(values, SPEEDS, **data, **machine)
    check_ledger(run.history, 1500)
    assert run.history[-1]["loss"] < run.history[0]["loss"]
    assert all(0.0 < row["workers"]["cpu"]["weight"] < 1.0 for row in run.history)
    first = run.history[0]["workers"]["cpu"]
    assert first["updates"] == first["rows"]  # a row for every thread


def test_a_pool_that_is_250_times_slower_is_busy_and_no_worker_waits_for_it(data, shared):
    shared["strategy"] |= {"batch_max": 256, "megabatch_batches": 24, "lr": 0.1}
    cost = CostModel(fixed_s=1e-3, per_row_s=1e-5)
    run = simulate(
        shared, SPEEDS, **data, cost=cost, pools=POOLS,
        pool_cost=cost_by_epochs(cost, 250.0, batch_rows=256),
    )  # fmt: skip
    check_ledger(run.history, 1500)
    for row in run.history[1:]:
        gpu, cpu = row["workers"]["gpu"], row["workers"]["cpu"]
        assert gpu["busy_s"] > 0.8 * row["train_s"]
        assert cpu["busy_s"] + cpu["idle_s"] == pytest.approx(row["train_s"])


def test_what_makes_no_sense_is_refused(data, shared):
    with pytest.raises(ConfigError, match="pool cpu: no such worker"):
        simulate(shared, [1.0], **data, pools=POOLS)
    with pytest.raises(ConfigError, match="pool 0: threads = 0"):
        simulate(shared, [1.0], **data, pools={"0": 0})
    with pytest.raises(ConfigError, match="pool ratio = 0: must be above 0"):
        cost_by_epochs(COST, 0.0, 8)
    shared["strategy"]["name"] = "mirrored"
    with pytest.raises(ConfigError, match=r"mirrored.*takes no pool, which worker 0 is"):
        simulate(shared, [1.0], **data, pools={"0": 4})
