"""Labels cut by measured speed: who has how many, and when they are cut anew."""

from __future__ import annotations

import pytest

from daskxml.strategies.partitioned import UNITS
from daskxml.strategies.protocol import Begin, Partitioned, Started, WorkerDevice
from harness.every_strategy import make
from harness.virtual_cluster import VirtualCluster


def shares(gang):
    """Return each worker's share of the labels."""
    assert isinstance(gang.pattern, Partitioned)
    assert sum(gang.pattern.shares) == UNITS
    return {
        name: share / UNITS for name, share in zip(gang.parts, gang.pattern.shares, strict=True)
    }


def test_labels_are_equal_at_first_and_then_follow_the_speeds():
    cluster = VirtualCluster(make("partitioned"), {"a": 100.0, "b": 50.0, "c": 50.0})
    cluster.run(3)
    assert shares(cluster.gangs[0]) == pytest.approx(dict.fromkeys("abc", 1 / 3), abs=1e-3)
    assert shares(cluster.gangs[-1]) == pytest.approx({"a": 0.5, "b": 0.25, "c": 0.25}, abs=1e-3)
    assert sum(part.rows for part in cluster.gangs[-1].parts.values()) % 64 == 0


def test_they_stay_where_busy_times_differ_by_less_than_the_threshold():
    cluster = VirtualCluster(make("partitioned", reshard_above=0.2), {"a": 100.0, "b": 100.0})
    cluster.run(3)
    before = shares(cluster.gangs[-1])
    cluster.speeds["b"] = 90.0
    cluster.run(6)
    assert shares(cluster.gangs[-1]) == before
    cluster.speeds["b"] = 50.0
    cluster.run(9)
    assert shares(cluster.gangs[-1]) == pytest.approx({"a": 2 / 3, "b": 1 / 3}, abs=1e-3)


def test_labels_move_within_a_megabatch_when_a_worker_slows_down():
    machine = make("partitioned", megabatch_batches=400)
    cluster = VirtualCluster(machine, {"a": 900.0, "b": 900.0})
    cluster.until("train")
    while len(cluster.gangs) < 4:
        cluster.advance()
    assert shares(cluster.gangs[-1]) == {"a": 0.5, "b": 0.5}
    cluster.speeds["b"] = 300.0
    while len(cluster.gangs) < 6:
        cluster.advance()
    assert not cluster.merges
    assert shares(cluster.gangs[-1]) == pytest.approx({"a": 0.75, "b": 0.25}, abs=1e-3)
    views = machine.view(cluster.state).values()
    held = [(view.labels_from, view.labels_to) for view in views]
    assert held == [(0.0, 0.75), (0.75, 1.0)]
    cluster.run(1)


def test_one_that_joins_counts_as_typical_and_one_that_leaves_leaves_the_others_proportions():
    cluster = VirtualCluster(make("partitioned"), {"a": 200.0, "b": 100.0})
    cluster.run(2)
    cluster.join("c", 10.0)
    cluster.run(3)
    first = next(gang for gang in cluster.gangs if "c" in gang.parts)
    assert shares(first) == pytest.approx({"a": 4 / 9, "b": 2 / 9, "c": 3 / 9}, abs=2e-3)
    cluster.until("train")
    cluster.lose("c")
    cluster.run(1)
    assert shares(cluster.gangs[-1]) == pytest.approx({"a": 2 / 3, "b": 1 / 3}, abs=2e-3)


def test_no_worker_gets_more_labels_than_its_memory_holds():
    machine = make("partitioned")
    devices = {"a": WorkerDevice(label_share=0.25), "b": WorkerDevice(label_share=0.5)}
    started = Started(("a", "b", "c"), devices)
    state, _ = machine.step(machine.initial_state(), started)
    state, (gang,) = machine.step(state, Begin())
    assert shares(gang)["a"] == 0.25
    assert shares(gang)["b"] == shares(gang)["c"]
    rows = {name: part.batch_rows for name, part in gang.parts.items()}
    assert rows["a"] < rows["b"] == rows["c"]
    restored = machine.restore(machine.plain(state))
    assert machine.step(restored, started)[0].members == restored.members
