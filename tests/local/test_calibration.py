"""`docs/examples/calibrate.py`: what is fitted to a history predicts it."""

import runpy
from pathlib import Path

import pytest

from daskxml.api.in_process import simulate
from daskxml.core.errors import ModelError
from daskxml.local import CostModel, Network

EXAMPLE = Path(__file__).parents[2] / "docs/examples/calibrate.py"
fit_history, fit_run = (runpy.run_path(str(EXAMPLE))[name] for name in ("fit_history", "fit_run"))

SPEEDS = {"0": 1.0, "1": 0.6, "2": 0.4}


@pytest.fixture
def true():
    return CostModel(fixed_s=1e-3, per_row_s=1e-4, per_nonzero_s=2e-6, jitter=0.05)


def test_a_simulated_history_gives_its_costs_back(data, values, true, tmp_path):
    values["training"] = {"megabatches": 20}
    network = Network(message_s=2e-3)
    run = simulate(values, SPEEDS, **data, cost=true, network=network, out=tmp_path / "run")
    fitted = fit_run(tmp_path / "run")
    for name, speed in SPEEDS.items():
        assert fitted.speeds[name] == pytest.approx(speed, rel=0.05)
    worker = run.history[0]["workers"]["0"]
    nonzeros = 32 * worker["nonzeros"] // worker["rows"]
    assert fitted.cost.batch_s(32, nonzeros) == pytest.approx(true.batch_s(32, nonzeros), rel=0.05)
    assert fitted.cost.jitter == pytest.approx(0.05, rel=0.5)
    assert fitted.network.message_s == pytest.approx(2e-3, rel=0.05)
    assert fitted.error < 0.05
    assert fitted.skipped == 0
    again = simulate(values, fitted.speeds, **data, cost=fitted.cost, network=fitted.network)
    found, predicted = (
        sum(row["train_s"] + row["merge_s"] for row in each.history) for each in (run, again)
    )
    assert predicted == pytest.approx(found, rel=0.05)


def test_a_pool_is_found_with_its_threads_and_its_times(data, values, true):
    speeds, pools = {"gpu": 1.0, "cpu": 0.2}, {"cpu": 4}
    run = simulate(values, speeds, **data, cost=true, pools=pools)
    fitted = fit_history(run.history)
    assert fitted.pools == pools
    again = simulate(values, fitted.speeds, **data, cost=fitted.cost, pools=fitted.pools)
    # of all: what each first lease is depends on speeds that are fitted
    found, predicted = (sum(row["train_s"] for row in each.history) for each in (run, again))
    assert predicted == pytest.approx(found, rel=0.1)


def test_cold_megabatches_at_the_beginning_are_left_out(data, values, true):
    # sizes that change slowly: those that stand still do not tell a slow worker from a fixed cost
    values["strategy"] |= {"rule": "paper", "beta": 1.0}
    history = simulate(values, SPEEDS, **data, cost=true).history
    for row in history[:2]:
        for worker in row["workers"].values():
            worker["busy_s"] *= 4
    fitted = fit_history(history)
    assert fitted.skipped == 2
    assert fitted.speeds["2"] == pytest.approx(0.4, rel=0.1)
    assert fitted.error < 0.05


def test_merges_of_different_sizes_tell_the_bandwidth():
    worker = {"updates": 1, "rows": 10, "nonzeros": 50, "busy_s": 1.0}
    history = [
        {
            "workers": {"0": worker, "1": worker},
            "merge_s": 0.4 + size / 1e6,
            "merged_bytes": 2 * size,
            "moved_bytes": 0,
        }
        for size in (100_000, 400_000, 800_000)
    ]
    network = fit_history(history, merge_messages=4).network
    assert network.bandwidth_bytes_s == pytest.approx(1e6)
    assert network.message_s == pytest.approx(0.1)


def test_a_history_without_times_is_refused(tmp_path):
    with pytest.raises(ModelError, match="no history"):
        fit_run(tmp_path)
    (tmp_path / "history.jsonl").write_text("")
    (tmp_path / "run.toml").write_text("[training]\nepochs = 1\n")
    with pytest.raises(ModelError, match="no times to calibrate from"):
        fit_run(tmp_path)
    (tmp_path / "history.jsonl").write_text('{"workers": {"0": {"updates": 1, "rows": 2}}}\n')
    with pytest.raises(ModelError, match="no times to calibrate from"):
        fit_run(tmp_path)


def test_workers_that_exchange_gradients_tell_the_bandwidth(data, values, true, tmp_path):
    values["strategy"]["name"] = "mirrored"
    network = Network(bandwidth_bytes_s=2e6, message_s=1e-3)
    run = simulate(values, [1, 0.6], **data, cost=true, network=network, out=tmp_path / "run")
    fitted = fit_run(tmp_path / "run")
    again = simulate(values, fitted.speeds, **data, cost=fitted.cost, network=fitted.network)
    assert again.history[-1]["wall_s"] == pytest.approx(run.history[-1]["wall_s"], rel=0.1)
