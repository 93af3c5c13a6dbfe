"""One of several real workers is frozen: the others go on, and it comes back."""

import os
import signal
import threading
import time
from contextlib import suppress

import pytest

import daskxml
from daskxml.cluster import scheduler_plugin
from daskxml.data.synthetic import SyntheticSpec, write_xml
from harness.ledger_check import check_ledger
from harness.pools import REPLICA, cluster_of, pid_of

SPEC = SyntheticSpec(rows=2000, features=3000, labels=100, seed=5)
FROZEN_S = 4.0
LENGTHS = {"network": {"megabatches": 2}, "trees": {"trees": 2}}


def train(path, client, quorum, out):
    """Train until the worker that is frozen for some seconds is back for some merges."""
    victim = pid_of(client, "1")
    merged, ends = [], []

    def freeze() -> None:
        os.kill(victim, signal.SIGSTOP)
        begun_s = time.monotonic()
        time.sleep(FROZEN_S)
        ends.extend((begun_s, time.monotonic()))
        os.kill(victim, signal.SIGCONT)

    def follow(row):
        merged.append((time.monotonic(), row))
        if len(merged) == 3:
            threading.Thread(target=freeze).start()
        is_back = ends and not any("late" in row for _, row in merged[-3:])
        return daskxml.STOP if is_back and time.monotonic() > ends[1] + 1.0 else None

    values = {
        "model": {"hidden": [32]},
        "strategy": {"name": "adaptive-sgd", "batch_max": 64, "megabatch_batches": 60},
        "combine": {"quorum": quorum},
        "training": {"epochs": 10_000, "minutes": 1.0},
        "evaluation": {"every": 5},
    }
    run = daskxml.train(values, train=path, test=path, client=client, out=out, on_megabatch=follow)
    return run, merged, ends


def test_the_others_go_on_and_the_frozen_one_comes_back(tmp_path):
    path = write_xml(tmp_path / "train.txt", SPEC, "train")
    with cluster_of(tmp_path, dict.fromkeys("012", REPLICA)) as client:
        run, merged, (begun_s, ended_s) = train(path, client, 0.75, tmp_path / "run")
    during = [row for at_s, row in merged if begun_s + 1.0 < at_s < ended_s]
    assert len(during) > 3
    assert all(row["late"] == ["1"] and len(row["workers"]) == 2 for row in during[1:])
    joined = [e["worker"] for _, row in merged for e in row["events"] if e["kind"] == "joined"]
    assert joined[0] == "1"
    assert len(run.history[-1]["workers"]) == 3
    check_ledger(run.history, SPEC.rows)
    assert daskxml.verify(tmp_path / "run").disagreements == ()


@pytest.mark.slow
def test_one_that_holds_the_run_up_is_started_again(tmp_path, monkeypatch):
    monkeypatch.setattr(scheduler_plugin, "GIVE_UP_S", 3.0)
    path = write_xml(tmp_path / "train.txt", SPEC, "train")
    with cluster_of(tmp_path, dict.fromkeys("01", REPLICA)) as client:
        for kind, state in (("network", "loading"), ("trees", "training")):
            warnings = run_with_a_freeze(client, path, kind, state)
            assert any("worker 1, which is silent" in text for text in warnings), (kind, state)


@pytest.mark.slow
def test_one_with_a_value_of_another_program_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(scheduler_plugin, "GIVE_UP_S", 1.0)
    path = write_xml(tmp_path / "train.txt", SPEC, "train")
    with cluster_of(tmp_path, dict.fromkeys("01", REPLICA)) as client:
        value = client.scatter(7, workers=["1"])
        warnings = run_with_a_freeze(client, path, "trees", "training", seconds=8.0)
        assert not any("silent" in text for text in warnings)
        assert value.result() == 7


def run_with_a_freeze(client, path, kind, state, seconds=30.0):
    """Train with a worker that is frozen for so long in a state; return warnings."""
    victim, frozen, warnings = pid_of(client, "1"), [], []

    def thaw():
        with suppress(ProcessLookupError):  # another took its place
            os.kill(victim, signal.SIGCONT)

    def follow(event):
        if event.get("state") == state and not frozen:
            frozen.append(threading.Timer(seconds, thaw))
            os.kill(victim, signal.SIGSTOP)
            frozen[0].start()
        if event["kind"] == "warning":
            warnings.append(event["text"])

    values = {"model": {"kind": kind}, "training": LENGTHS[kind]}
    run = daskxml.train(values, train=path, test=path, client=client, on_event=follow)
    frozen[0].cancel()
    thaw()
    assert len(run.history) == 2
    return warnings
