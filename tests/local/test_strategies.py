"""Every registered algorithm in virtual time: it learns, survives losses, and can be resumed."""

import numpy as np
import pytest

from daskxml.api.in_process import simulate
from daskxml.local import Arrival, CostModel, Loss
from harness.every_strategy import ROW_STRATEGIES
from harness.ledger_check import check_ledger
from harness.records import flat, without_starts
from harness.small_data import small_run

SPEEDS = [1, 0.8, 0.6]
SHARED = ("hogbatch", "cpu-gpu-hogbatch", "adaptive-hogbatch")


@pytest.fixture(scope="module", params=ROW_STRATEGIES)
def strategy(request):
    return request.param


@pytest.fixture
def values(strategy):
    """Six mega-batches of 384 rows."""
    return small_run(6, strategy, checkpoint={"every": 3}, evaluation={"every": 3})


@pytest.fixture
def costs(costs, strategy):
    """Of a pool beside the replicas where all have one model."""
    return costs | {"pools": {"1": 4}} if strategy in SHARED else costs


ENDS_S: dict[str, float] = {}


@pytest.fixture
def undisturbed_s(data, values, costs, strategy):
    """What the run takes three workers without a loss: computed once for each strategy."""
    if strategy not in ENDS_S:
        ENDS_S[strategy] = simulate(values, SPEEDS, **data, **costs).history[-1]["wall_s"]
    return ENDS_S[strategy]


def test_it_learns_and_the_same_seed_gives_the_same_bits(data, values, costs):
    runs = [simulate(values, SPEEDS, **data, **costs) for _ in range(2)]
    check_ledger(runs[0].history, 1500)
    losses = [row["loss"] for row in runs[0].history]
    assert losses[-1] < losses[0]
    assert runs[0].history[-1]["rows"] == 6 * 384
    assert np.array_equal(flat(runs[0]), flat(runs[1]))
    assert runs[0].history == runs[1].history


@pytest.mark.parametrize(
    "share",
    [0.03, 0.7, *(pytest.param(share, marks=pytest.mark.slow) for share in (0.1, 0.3, 0.55))],
)
def test_a_worker_is_lost_and_another_joins(data, values, costs, undisturbed_s, share):
    at_s = share * undisturbed_s
    changes = [Loss(at_s, "1"), Arrival(at_s * 1.2, "3", 0.9)]
    run = simulate(values, SPEEDS, **data, **costs, changes=changes)
    check_ledger(run.history, 1500)
    assert len(run.history) == 6
    events = [event["kind"] for row in run.history for event in row["events"]]
    assert sorted(events) == ["joined", "lost"]
    last = run.history[-1]["workers"]
    assert sorted(last) == ["0", "2", "3"]
    assert last["3"]["rows"] > 0


def test_the_first_of_the_workers_is_lost(data, values, costs, undisturbed_s):
    changes = [Loss(0.45 * undisturbed_s, "0")]
    run = simulate(values, SPEEDS, **data, **costs, changes=changes)
    check_ledger(run.history, 1500)
    assert sorted(run.history[-1]["workers"]) == ["1", "2"]


def test_stopped_and_resumed_it_is_the_same(data, values, costs, tmp_path):
    values["optimizer"] = {"name": "adam"}  # which has state of its own
    values["strategy"]["lr"] = 0.01
    whole = simulate(values, [1, 0.7], **data, **costs, out=tmp_path / "whole")
    parts = tmp_path / "parts"
    settings = {"training.megabatches": 3}
    simulate(values, [1, 0.7], **data, **costs, out=parts, overrides=settings)
    resumed = simulate(
        parts / "run.toml", [1, 0.7], **costs, resume=parts, overrides={"training.megabatches": 6}
    )
    for mine, other in zip(whole.history, resumed.history, strict=True):
        assert without_starts(mine) == without_starts(other)
    assert np.array_equal(flat(whole), flat(resumed))


@pytest.mark.parametrize("jitter", [0.0, 0.2])
def test_on_one_worker_adaptive_and_elastic_sgd_are_the_same_bits(data, jitter):
    # Ma, Rusu, Wu and Sim, section 5.2.1
    runs = []
    for name in ("adaptive-sgd", "elastic"):
        values = small_run(8, name, model={"hidden": [16], "dropout": 0.2})
        cost = CostModel(fixed_s=1e-3, per_row_s=1e-4, jitter=jitter)
        runs.append(simulate(values, [1.0], **data, cost=cost))
    adaptive, elastic = runs
    assert np.array_equal(flat(adaptive), flat(elastic))
    for ours, theirs in zip(adaptive.history, elastic.history, strict=True):
        assert (ours["loss"], ours["metrics"]) == (theirs["loss"], theirs["metrics"])
        assert ours["workers"]["0"]["batch_rows"] == theirs["workers"]["0"]["batch_rows"] == 32


def history_of(data, name):
    return simulate(small_run(4, name), [1, 0.6], **data).history


def test_the_history_has_what_a_merge_was_decided_by(data):
    history = history_of(data, "adaptive-sgd")
    first = max(worker["norm"] for worker in history[0]["workers"].values())
    for row in history:
        workers = row["workers"].values()
        assert row["momentum"] == 0.9
        assert row["regularized"] == (max(worker["norm"] for worker in workers) < 2.0 * first)
        for worker in workers:
            assert worker["batch_rows"] == round(worker["batch_size"])
            assert worker["lr"] == pytest.approx(0.5 * worker["batch_size"] / 32)
        if not row["perturbed"]:
            updates = [worker["rows"] / worker["batch_rows"] for worker in workers]
            shares = updates if max(updates) - min(updates) >= 1 else [
                worker["batch_size"] for worker in workers
            ]  # fmt: skip
            weights = [worker["weight"] for worker in workers]
            assert weights == pytest.approx([share / sum(shares) for share in shares])


def test_other_histories_have_no_keys_that_their_strategy_does_not_decide(data):
    assert history_of(data, "elastic")[0]["momentum"] == 0.9
    for row in history_of(data, "static"):
        assert not {"momentum", "regularized"} & row.keys()
        assert not {"batch_size", "norm"} & row["workers"]["0"].keys()
