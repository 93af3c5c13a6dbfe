"""Whole runs whose merges overlap with training: times, bits, losses, arrivals, resuming."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from daskxml.api.in_process import simulate
from daskxml.config import load_run_config
from daskxml.data.rows import concatenate
from daskxml.local import Arrival, CostModel, Loss, Network, read_rows
from harness.ledger_check import rows_of
from harness.overlap_replay import assert_repeats
from harness.records import without_starts

STRATEGIES = ["adaptive-sgd", "elastic", "static"]
SLOW = Network(bandwidth_bytes_s=1e6, message_s=1e-3)  # a merge takes about as long as training
COST = CostModel(fixed_s=1e-3, per_row_s=1e-4, per_nonzero_s=1e-6, jitter=0.1)


@pytest.fixture
def values(values):
    values["combine"] = {"overlap": True}
    values["checkpoint"], values["cluster"] = {"every": 4}, {"threads": 1}
    values["training"] = {"megabatches": 6}
    return values


def flat(run):
    return np.concatenate([np.ravel(array) for _, array in sorted(run.model.parameters.items())])


def check_once(history, total_rows):
    """No row is counted twice, and all counts agree; where nobody was lost none is left out."""
    every = Counter(rows_of(history, total_rows))
    assert set(every.values()) <= {1}
    assert history[-1]["rows"] == every.total()
    before = 0
    for row in history:
        assert row["rows"] - before == sum(w["rows"] for w in row["workers"].values())
        before = row["rows"]
    if not any(event["kind"] == "lost" for row in history for event in row["events"]):
        assert every.keys() == set(range(history[-1]["rows"]))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"strategy.name": "elastic", "strategy.momentum": 0.5},
        {"combine.outer": "nesterov"},
        {"combine.rule": "adasum", "strategy.momentum": 0.0},
        {"optimizer.name": "momentum", "optimizer.on_merge": "reset"},
        {"optimizer.name": "adam", "strategy.lr": 0.01},
        {"sampling.method": "random", "sampling.active": 0.5},
    ],
    ids=str,
)
def test_the_history_repeats_the_run_bit_for_bit(data, values, changes):
    if "strategy.name" in changes:
        values["strategy"] = {"batch_max": 32, "megabatch_batches": 12, "lr": 0.5}
    config = load_run_config({**values, "data": {"train": [str(data["train"])]}}, changes)
    rows = read_rows(config, 3)
    run = simulate(config, [1, 0.7, 0.4], **data, cost=COST, network=SLOW)
    assert sum("corrected_after" in w for r in run.history for w in r["workers"].values()) > 8
    check_once(run.history, 1500)
    assert_repeats(config, concatenate(rows.train), run.history, run.model)


def test_time_between_merges_drops_by_the_merges_time(data, values):
    """Workers that are equal, without jitter; a merge is nothing but transfers."""
    values["strategy"] |= {"name": "elastic"}
    cost = CostModel(fixed_s=0.0, per_row_s=2.0**-10, per_nonzero_s=0.0, jitter=0.0)
    times = {}
    for overlap in (False, True):
        for slow in (False, True):
            network = Network(bandwidth_bytes_s=1e5 if slow else 1e6, message_s=0, latency_s=0)
            run = simulate(
                values, [1, 1], **data, cost=cost, network=network,
                overrides={"combine.overlap": overlap, "training.megabatches": 4},
            )  # fmt: skip
            check_once(run.history, 1500)
            row = run.history[1]
            times[overlap, slow] = row["train_s"], row["merge_s"], row["overlapped_s"]
    train_s, merge_s, _ = times[False, False]
    assert train_s == 6 * 32 / 1024
    assert 0.02 < merge_s < train_s / 2
    batch_s = 32 / 1024  # the correction comes when the first batch ends
    assert merge_s < batch_s
    assert times[True, False] == (train_s, 0.0, batch_s)
    # A merge that takes longer than a mega-batch is waited for, less the mega-batch.
    _, longer_s, _ = times[False, True]
    assert longer_s > train_s
    assert times[True, True] == (train_s, longer_s - train_s, train_s)


def test_the_same_seed_gives_the_same_bytes(data, values, tmp_path):
    changes = [Loss(0.12, "1"), Arrival(0.15, "3", 0.7)]
    for out in ("first", "again"):
        run = simulate(
            values, [1, 0.9, 0.5], **data, cost=COST, network=SLOW, out=tmp_path / out,
            changes=changes,
        )  # fmt: skip
        check_once(run.history, 1500)
    for name in ("history.jsonl", "model.safetensors"):
        first, again = ((tmp_path / out / name).read_bytes() for out in ("first", "again"))
        assert first == again, name


@pytest.mark.parametrize(
    ("at", "strategy"),
    list(zip(np.linspace(0.001, 0.25, 18).tolist(), 6 * STRATEGIES, strict=True)),
)
def test_a_loss_at_any_time_leaves_the_ledger_exact(data, values, at, strategy):
    values["strategy"] |= {"name": strategy}
    values["training"] = {"megabatches": 5}
    changes = [Loss(at, "1"), Arrival(at / 2, "2")]
    config = load_run_config({**values, "data": {"train": [str(data["train"])]}})
    run = simulate(config, [1, 0.6], **data, cost=COST, network=SLOW, changes=changes)
    check_once(run.history, 1500)
    assert len(run.history) == 5
    events = [event for row in run.history for event in row["events"]]
    assert sorted(event["kind"] for event in events) == ["joined", "lost"]
    if strategy != "static":  # the history does not tell how a probe was done
        assert_repeats(config, concatenate(read_rows(config, 2).train), run.history, run.model)


def test_a_worker_joins_a_run_though_the_next_merge_begins_before_it_has_the_last_ones_model(
    data, values
):
    network = Network(bandwidth_bytes_s=1.2e6, message_s=1e-4)
    values["strategy"]["megabatch_batches"] = 20
    values["training"] = {"megabatches": 10}
    values["checkpoint"] = {"every": 0}
    run = simulate(
        values, [1, 0.6, 0.6], **data, cost=COST, network=network, changes=[Arrival(0.2, "3")]
    )
    check_once(run.history, 1500)
    assert run.history[-1]["workers"]["3"]["rows"] > 0
    full = [row["megabatch"] for row in run.history if not row["overlapped_s"]]
    assert 1 < len(full) < 4  # one or two until it is there, and the last one


def test_a_run_that_is_resumed_from_a_checkpoint_is_the_same(data, values, tmp_path):
    values["training"] = {"megabatches": 10}
    given = {"cost": COST, "network": SLOW}
    whole = simulate(values, [1, 0.7], **data, **given, out=tmp_path / "whole")
    values["training"] = {"megabatches": 4}  # where a checkpoint is due
    simulate(values, [1, 0.7], **data, **given, out=tmp_path / "parts")
    resumed = simulate(
        tmp_path / "parts" / "run.toml", [1, 0.7], **given, resume=tmp_path / "parts",
        overrides=["training.megabatches=10"],
    )  # fmt: skip
    assert np.array_equal(flat(whole), flat(resumed))
    for mine, other in zip(whole.history[4:], resumed.history[4:], strict=True):
        assert without_starts(mine) == without_starts(other)
    without = simulate(values, [1, 0.7], **data, **given, overrides=["training.megabatches=10"])
    assert np.array_equal(flat(whole), flat(without))  # wherever it is written


def test_all_are_lost_during_a_merge_and_the_run_continues(data, values, tmp_path):
    given = {"cost": COST, "network": SLOW}
    plain = simulate(values, [1], **data, **given)
    late_s = plain.history[4]["wall_s"] - 0.001
    changes = [Loss(late_s, "0"), Arrival(late_s + 1.0, "1")]
    run = simulate(values, [1], **data, **given, changes=changes, out=tmp_path)
    assert [row["megabatch"] for row in run.history] == [1, 2, 3, 4, 5, 6]
    check_once(run.history, 1500)


def test_a_pool_is_corrected_between_its_leases(data, values):
    speeds, pools = {"gpu": 1.0, "cpu": 0.5}, {"cpu": 2}
    run = simulate(values, speeds, **data, cost=COST, network=SLOW, pools=pools)
    check_once(run.history, 1500)
    workers = [row["workers"]["cpu"] for row in run.history]
    counted = [worker for worker in workers if "corrected_after" in worker]
    assert len(counted) == 4
    for worker in counted:
        rows = [sum(span[3] - span[2] for span in lease) for lease in worker["leases"]]
        batches = [-(-count // worker["batch_rows"]) for count in rows]
        assert worker["corrected_after"] in np.cumsum([0, *batches])


def test_the_time_limit_holds(data, values):
    values["training"] = {"minutes": 0.4 / 60}
    run = simulate(values, [1, 0.5], **data, cost=COST, network=SLOW)
    assert run.reason == "minutes"
    spent_s = sum(row["train_s"] + row["merge_s"] for row in run.history)
    assert 0.4 <= spent_s < 0.55
    assert spent_s + sum(row["eval_s"] for row in run.history) == pytest.approx(
        run.history[-1]["wall_s"]
    )
    check_once(run.history, 1500)
