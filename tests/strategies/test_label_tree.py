"""Pieces of trees are leased like rows, by measured speed, whoever comes and goes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.errors import ConfigError
from daskxml.strategies.label_tree import Config, LabelTrees
from harness.virtual_cluster import VirtualCluster


def test_a_megabatch_is_a_tree_and_nobody_weighs_more() -> None:
    cluster = VirtualCluster(LabelTrees(Config(pieces=24)), {"a": 4.0, "b": 4.0, "c": 1.0})
    cluster.run(3)
    for rows, merge in cluster.merges:
        assert sum(rows.values()) == 24
        assert rows["c"] < rows["a"]
        assert len(set(merge.weights.values())) == 1
        assert merge.momentum == 0.0
    assert all(lease.batch_rows == 1 and lease.lr == 0.0 for lease in cluster.leases)


ACTIONS = st.sampled_from(["lose", "join", "drain"])


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.integers(1, 40),
    speeds=st.lists(st.floats(0.5, 50.0), min_size=1, max_size=4),
    script=st.lists(st.tuples(st.integers(0, 9), ACTIONS), max_size=6),
)
def test_every_piece_is_done_once_whoever_comes_and_goes(
    pieces: int, speeds: list[float], script: list[tuple[int, str]]
) -> None:
    names = {str(number): speed for number, speed in enumerate(speeds)}
    cluster = VirtualCluster(LabelTrees(Config(pieces=pieces)), names)
    for number, (steps, action) in enumerate(script):
        for _ in range(steps):
            cluster.advance()
        if action == "join" and cluster.collective is None:
            cluster.join(f"new-{number}", 5.0)
        elif action == "lose" and len(cluster.queues) > 1:
            cluster.lose(next(iter(cluster.queues)))
        elif action == "drain":
            break
    cluster.run(len(cluster.merges) + 2)
    assert all(rows == pieces for rows in cluster.merged_rows)


def test_settings_out_of_range() -> None:
    with pytest.raises(ConfigError, match="pieces = 0: must be from 1 to 1000000"):
        Config(pieces=0)
