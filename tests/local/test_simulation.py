"""Whole runs in virtual time: the same bytes again, work by speed, losses, arrivals, limits."""

import os
import signal

import numpy as np
import pytest

from daskxml.api.in_process import simulate
from daskxml.api.run import resolve_run
from daskxml.core.errors import ClusterError, ConfigError, DaskxmlError
from daskxml.data.rows import concatenate, to_scipy
from daskxml.local import Arrival, CostModel, Loss, Network, read_rows
from harness.ledger_check import check_ledger, rows_of
from harness.records import flat

FILES = ("history.jsonl", "model.safetensors", "model.json", "run.toml", "simulation.json")


def test_the_same_seed_gives_the_same_bytes(data, values, costs, tmp_path):
    changes = [Loss(0.03, "1"), Arrival(0.1, "3", 0.7)]
    for out in ("first", "again"):
        run = simulate(values, [1, 0.9, 0.5], **data, **costs, out=tmp_path / out, changes=changes)
        check_ledger(run.history, 1500)
    for name in FILES:
        first, again = ((tmp_path / out / name).read_bytes() for out in ("first", "again"))
        assert first == again, name
    other = simulate(values, [1, 0.9, 0.5], **data, **costs, overrides=["run.seed=1"])
    assert not np.array_equal(flat(run), flat(other))


def test_a_faster_worker_does_more_rows_and_the_batches_follow(data, values, costs):
    values["training"] = {"megabatches": 30}  # half a second of work is one observation
    run = simulate(values, {"fast": 1.0, "slow": 0.25}, **data, **costs)
    first, last = run.history[0]["workers"], run.history[-1]["workers"]
    assert first["fast"]["rows"] > 2 * first["slow"]["rows"]
    assert last["slow"]["batch_rows"] < last["fast"]["batch_rows"]
    for row in run.history:
        for worker in row["workers"].values():
            assert abs(worker["busy_s"] + worker["idle_s"] - row["train_s"]) < 1e-12


def test_time_passes_as_the_cost_model_says(data, values):
    cost = CostModel(fixed_s=0.5, per_row_s=0.25, per_nonzero_s=0.0, jitter=0.0)
    network = Network(message_s=0.125, latency_s=0.0, bandwidth_bytes_s=1e30)
    run = simulate(values, [2.0], **data, cost=cost, network=network)
    row = run.history[1]
    batch_s = (0.5 + 32 * 0.25) / 2.0
    assert row["workers"]["0"]["busy_s"] == 12 * batch_s
    assert row["train_s"] == 12 * batch_s + 2 * 0.125  # the first lease comes, the last is told of
    assert row["merge_s"] == 6 * 0.125
    assert row["eval_s"] == pytest.approx(2 * 0.125 + (0.5 + 200 * 0.25) / 3 / 2.0)


@pytest.mark.parametrize("at", np.linspace(0.001, 0.12, 13).tolist())
def test_a_loss_at_any_time_leaves_the_ledger_exact(data, values, at):
    costs = {
        "cost": CostModel(fixed_s=1e-3, per_row_s=1e-4),
        "network": Network(bandwidth_bytes_s=1e6, message_s=5e-3),  # merges take half the time
    }
    values["training"] = {"megabatches": 3}
    values["evaluation"] = {"every": 1}
    changes = [Loss(at, "1"), Arrival(at / 2, "2")]
    run = simulate(values, [1, 0.6], **data, **costs, changes=changes)
    check_ledger(run.history, 1500)
    assert len(run.history) == 3
    assert all(row["metrics"]["rows"] == 200 for row in run.history)
    events = [event for row in run.history for event in row["events"]]
    assert sorted(event["kind"] for event in events) == ["joined", "lost"]
    again = simulate(values, [1, 0.6], **data, **costs, changes=changes)
    assert np.array_equal(flat(run), flat(again))


def test_a_loss_undoes_an_open_merge_but_not_one_that_all_have(data, values):
    values["training"] = {"megabatches": 2}
    cost = CostModel(fixed_s=1.0, jitter=0.0)
    network = Network(message_s=1.0, latency_s=0.0, bandwidth_bytes_s=1e30)
    plain = simulate(values, [1, 1], **data, cost=cost, network=network)
    asked_s = plain.history[0]["train_s"]  # norms till +2, merged and told at +4, committed at +6
    for at_s, is_undone in ((asked_s + 3.5, True), (asked_s + 4.5, False)):
        changes = [Loss(at_s, "1")]
        run = simulate(values, [1, 1], **data, cost=cost, network=network, changes=changes)
        check_ledger(run.history, 1500)
        counted = [[event["kind"] for event in row["events"]] for row in run.history]
        assert counted == ([["lost"], []] if is_undone else [[], ["lost"]])
        assert ("1" in run.history[0]["workers"]) != is_undone


def test_all_are_lost_and_the_run_continues_from_its_checkpoint(data, values, costs, tmp_path):
    plain = simulate(values, [1], **data, **costs)
    late_s = plain.history[4]["wall_s"] + 0.01  # in the sixth mega-batch; 4 is on disk
    changes = [Loss(late_s, "0"), Arrival(late_s + 1.0, "1")]
    events = []
    run = simulate(
        values, [1], **data, **costs, changes=changes, out=tmp_path, on_event=events.append
    )
    assert [event["megabatch"] for event in events if event["kind"] == "rewound"] == [4]
    assert [row["megabatch"] for row in run.history] == [1, 2, 3, 4, 5, 6]
    check_ledger(run.history, 1500)
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 6
    assert np.array_equal(flat(run), flat(plain))
    with pytest.raises(ClusterError, match="no other comes"):
        simulate(values, [1], **data, **costs, changes=changes[:1])


def test_a_candidate_continues_the_run_when_all_workers_are_lost(data, values, costs):
    costs["network"] = Network(bandwidth_bytes_s=1e6, message_s=1e-3)  # 50 ms for the model
    changes = [Arrival(0.1, "1"), Loss(0.11, "0")]
    run = simulate(values, [1], **data, **costs, changes=changes)
    check_ledger(run.history, 1500)
    assert [sorted(row["workers"]) for row in run.history] == [["1"]] * 6


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (Arrival(0.1, "1"), "worker 1 arrives, but there is one of this name"),
        (Loss(0.1, "2"), "worker 2 is lost or freezes, but there is none of this name"),
    ],
)
def test_changes_of_workers_that_are_there_or_not(data, values, change, problem):
    with pytest.raises(ConfigError, match=problem):
        simulate(values, [1, 1], **data, changes=[change])


def test_a_run_that_cannot_be_resumed_so_stays_as_it_was(data, values, costs, tmp_path):
    values |= {"optimizer": {"name": "adam"}, "training": {"megabatches": 2}}
    simulate(values, [1], **data, **costs, out=tmp_path)
    before = (tmp_path / "run.toml").read_bytes(), (tmp_path / "environment.json").read_bytes()
    refused = {
        "optimizer": {"name": "sgd"},
        "model": {"hidden": [7]},
        "strategy": {"name": "mirrored"},
    }
    for section, changed in refused.items():
        with pytest.raises(DaskxmlError, match=rf"leave \[{section}\]"):
            simulate(values | {section: changed}, [1], **data, **costs, resume=tmp_path)
    after = (tmp_path / "run.toml").read_bytes(), (tmp_path / "environment.json").read_bytes()
    assert after == before


def test_the_time_limit_holds_to_the_tick(data, values, costs):
    values["training"] = {"minutes": 0.2 / 60}
    run = simulate(values, [1, 0.5], **data, **costs)
    assert run.reason == "minutes"
    spent_s = sum(row["train_s"] + row["merge_s"] for row in run.history)
    assert 0.2 <= spent_s < 0.23
    check_ledger(run.history, 1500)


def test_an_interrupt_ends_at_a_merge(data, values, costs):
    def interrupt(row):
        if row["megabatch"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    run = simulate(values, [1, 0.5], **data, **costs, on_megabatch=interrupt)
    assert run.reason == "interrupt"
    assert len(run.history) == 3
    check_ledger(run.history, 1500)


def test_sharded_rows_are_each_done_once_and_fetching_takes_time(data, values, costs):
    values["data"] = {"residency": "shard"}
    run = simulate(values, [1, 0.5], **data, **costs, changes=[Loss(0.05, "1")])
    places = rows_of(run.history, 0)
    assert len(run.history) == 6
    assert sum(w["rows"] for row in run.history for w in row["workers"].values()) == 6 * 384
    assert len({tuple(span) for row in run.history for w in row["workers"].values()
                for lease in w["leases"] for span in lease}) > 6  # fmt: skip
    assert len(places) == 6 * 384
    assert all(row["metrics"]["rows"] == 200 for row in run.history if row["metrics"])


@pytest.mark.parametrize("residency", ["replicate", "shard"])
def test_the_loss_of_all_training_rows_is_the_models_own(data, values, costs, residency):
    values["data"] = {"residency": residency}
    plain = simulate(values, [1, 0.5], **data, **costs)
    values["evaluation"] = {"every": 3, "training_loss": True, "batch_rows": 64}
    run = simulate(values, [1, 0.5], **data, **costs, changes=[Loss(10.0, "1")])
    assert np.array_equal(flat(run), flat(plain))
    rows = read_rows(resolve_run(values, data["train"], data["test"], ()), 2)
    model, train = run.model, concatenate(rows.train.parts)
    ids, p = model.predict_top_k(to_scipy(train.features), run.model.spec.labels)
    every = np.empty_like(p)
    np.put_along_axis(every, ids, p, axis=1)
    y = to_scipy(train.labels).toarray()
    each = -(np.log(every, dtype=np.float64) * y / np.maximum(y.sum(axis=1, keepdims=True), 1))
    assert run.history[-1]["training_loss"] == pytest.approx(each.sum() / len(y), rel=1e-5)
    losses = [row.get("training_loss") for row in run.history]
    assert [loss is not None for loss in losses] == [False, False, True] * 2
    assert losses[2] > losses[5]
    for row, other in zip(run.history, plain.history, strict=True):
        assert (row["train_s"], row["merge_s"]) == (other["train_s"], other["merge_s"])
    assert run.history[-1]["eval_s"] > 2 * plain.history[-1]["eval_s"]
    values["data"] = {"residency": residency, "validation": 0.0}
    alone = simulate(values, [1, 0.5], train=data["train"], **costs)  # no test rows
    assert alone.history[-1]["training_loss"] == run.history[-1]["training_loss"]
    assert alone.history[-1]["metrics"] == {}


def test_rows_are_read_once_for_several_runs(data, values, costs):
    config = resolve_run(values, data["train"], data["test"], ())
    rows = read_rows(config, 2)
    with_rows = simulate(config, [1, 0.5], train=rows, **costs)
    assert np.array_equal(flat(with_rows), flat(simulate(config, [1, 0.5], **costs)))


def test_what_makes_no_sense_is_refused(data, values):
    with pytest.raises(ConfigError, match="at least one speed"):
        simulate(values, [], **data)
    with pytest.raises(ConfigError, match=r"worker 1: speed = 0\.0"):
        simulate(values, [1, 0], **data)
    with pytest.raises(ConfigError, match="no training data"):
        simulate(values, [1])
    with pytest.raises(ConfigError, match="at_s = -1"):
        Loss(-1, "0")
