"""A pool that is 250 times slower than the replicas it is merged with: from order to history."""

import pytest

from daskxml.strategies.adaptive_sgd import AdaptiveSgd, Config
from harness.virtual_executor import VirtualExecutor, new_session

SPEEDS = {"gpu": 25_000.0, "gpu2": 20_000.0, "cpu": 100.0}


def play_with_pool(threads, **changes):
    """32 batches of 64 rows to a mega-batch: 45 ms of the two replicas, 5 rows of the pool."""
    config = Config(**{"batch_max": 64, "megabatch_batches": 32, **changes})
    session = new_session(strategy=AdaptiveSgd(config), megabatches=30, test_rows=())
    backend = VirtualExecutor(session, SPEEDS, pools={"cpu": threads})
    assert backend.run() == "megabatches"
    backend.check_history()
    return backend.session.history


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("rule", ["speed", "proportional", "paper"])
def test_its_weight_is_its_share_of_the_updates(threads, rule):
    for row in play_with_pool(threads, rule=rule, perturbation=0.0):
        cpu, gpu = row["workers"]["cpu"], row["workers"]["gpu"]
        batches = cpu["rows"] / cpu["batch_rows"]
        assert -(-batches // 1) == -(-cpu["updates"] // threads)  # those of all threads
        assert cpu["batch_rows"] == threads  # its least: nobody is behind it
        assert cpu["lr"] == pytest.approx(1 / 64)
        if cpu["updates"]:
            assert cpu["weight"] / gpu["weight"] == pytest.approx(
                batches / (gpu["rows"] / gpu["batch_rows"])
            )
        else:
            assert cpu["weight"] == 0.0
        assert sum(w["weight"] for w in row["workers"].values()) == pytest.approx(1.0)


def test_where_its_batch_takes_longer_than_the_megabatch_it_is_left_out():
    history = play_with_pool(4, pool_batch_min=16)  # 64 rows are 0.64 s
    assert all(row["workers"]["cpu"]["weight"] == 0.0 for row in history[1:])
    assert history[0]["workers"]["cpu"]["updates"] == 8  # the two batches that find its speed
    assert all(row["train_s"] < 0.06 for row in history[1:])


def test_it_does_not_hold_the_merge_up():
    history = play_with_pool(1)
    for row in history[1:]:
        assert sum(w["updates"] for w in row["workers"].values()) > 0
        gpu = row["workers"]["gpu"]
        assert gpu["idle_s"] <= 0.0102  # a batch of the pool: one row, and a message
    assert sum(row["workers"]["cpu"]["updates"] for row in history) >= 30
