"""Every shard has one living owner, shares follow the speeds, and nothing moves without need."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.session.placement import Placement, assign_shards, split_pieces

ROWS = st.lists(st.integers(0, 200), min_size=1, max_size=20)
SPEEDS = st.dictionaries(
    st.sampled_from("abcdef"), st.one_of(st.just(0.0), st.floats(0.01, 1e4)), min_size=1
)
OWNERS = st.dictionaries(st.integers(0, 19), st.sampled_from("abcdefgh"))


def fair_rows(rows, speeds):
    """Shares in proportion to speed, where 0 stands for the mean of the known speeds."""
    known = [speed for speed in speeds.values() if speed]
    typical = sum(known) / len(known) if known else 1.0
    total = sum(speed or typical for speed in speeds.values())
    return {name: rows * (speed or typical) / total for name, speed in speeds.items()}


@given(ROWS, SPEEDS, OWNERS)
@settings(max_examples=200, deadline=None)
def test_every_shard_has_one_living_owner_and_shares_are_fair(rows, speeds, owners):
    before = {shard: owner for shard, owner in owners.items() if shard < len(rows)}
    after = assign_shards(rows, speeds, before)
    assert list(after) == list(range(len(rows)))
    assert set(after.values()) <= speeds.keys()
    fair = fair_rows(sum(rows), speeds)
    held = {name: sum(rows[s] for s, o in after.items() if o == name) for name in speeds}
    excess = [held[name] - fair[name] for name in speeds]
    assert max(excess) - min(excess) <= max(rows) * (1 + 1e-6) + 1e-6
    assert assign_shards(rows, speeds, after) == after, "nothing changed, so nothing moves"


def test_only_what_must_move_moves():
    owners = assign_shards([10] * 6, {"a": 1.0, "b": 1.0, "c": 1.0})
    assert sorted(owners.values()) == ["a", "a", "b", "b", "c", "c"]
    without = assign_shards([10] * 6, {"a": 1.0, "b": 1.0}, owners)
    assert all(without[s] == o for s, o in owners.items() if o != "c")
    joined = assign_shards([10] * 6, {"a": 1.0, "b": 1.0, "d": 1.0}, without)
    assert sum(joined[shard] != without[shard] for shard in joined) == 2
    assert sorted(joined.values()) == ["a", "a", "b", "b", "d", "d"]


def test_without_workers_there_are_no_owners():
    assert assign_shards([10, 10], {}) == {}


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50), st.integers(0, 60)), max_size=8),
    SPEEDS,
    st.one_of(st.just(1), st.integers(2, 40)),
)
@settings(max_examples=200, deadline=None)
def test_pieces_cover_all_rows_once_in_proportion(triples, speeds, grain):
    pieces = [(shard, start, start + rows) for shard, start, rows in triples]
    split = split_pieces(pieces, speeds, grain)
    assert split.keys() == speeds.keys()

    def rows_of(pieces):
        return [(shard, row) for shard, start, stop in pieces for row in range(start, stop)]

    assert rows_of(p for mine in split.values() for p in mine) == rows_of(pieces)
    fair = fair_rows(len(rows_of(pieces)), speeds)
    for name, mine in split.items():
        assert abs(len(rows_of(mine)) - fair[name]) <= grain + 1e-6
    given_starts = {(shard, start) for shard, start, _ in pieces}
    for shard, start, stop in (piece for mine in split.values() for piece in mine):
        assert start < stop or (shard, start) in given_starts
        assert start % grain == 0 or (shard, start) in given_starts


def placement(**changes):
    values = {"is_replicated": False, "train_rows": (10, 20, 30), "test_rows": (5, 5)}
    return Placement(**{**values, **changes})


def test_replicated_rows_are_one_stream_that_all_hold():
    everywhere = placement(is_replicated=True)
    assert everywhere.streams() == (60,)
    assert everywhere.train_shards("a") == [0, 1, 2]
    assert everywhere.test_shards("a") == [0, 1]
    assert everywhere.preferred_streams("a") == []
    assert everywhere.fits(["a"])
    everywhere.spread({"a": 1.0})
    assert everywhere.train_owners == {}
    assert everywhere.split_test({"a": 1.0, "b": 1.0}) == {"a": [(0, 0, 5)], "b": [(1, 0, 5)]}


def test_shards_are_streams_that_one_holds():
    sharded = placement()
    assert not sharded.fits(["a", "b"])  # nothing is placed yet
    sharded.spread({"a": 1.0, "b": 1.0})
    assert sharded.streams() == (10, 20, 30)
    assert sorted(sharded.train_shards("a") + sharded.train_shards("b")) == [0, 1, 2]
    assert sharded.preferred_streams("a") == sharded.train_shards("a")
    assert sharded.fits(["a", "b", "c"])
    assert not sharded.fits(["a"])
    assert sharded.split_test({"a": 1.0, "b": 1.0}) == {"a": [(0, 0, 5)], "b": [(1, 0, 5)]}


@pytest.mark.parametrize("is_replicated", [False, True])
@given(speeds=SPEEDS)
@settings(max_examples=30, deadline=None)
def test_every_test_row_is_scored_once(is_replicated, speeds):
    where = placement(is_replicated=is_replicated)
    where.spread(speeds)
    split = where.split_test(speeds)
    pieces = sorted(piece for mine in split.values() for piece in mine if piece[1] < piece[2])
    rows = [(shard, row) for shard, start, stop in pieces for row in range(start, stop)]
    assert rows == [(shard, row) for shard in (0, 1) for row in range(5)]


@pytest.mark.parametrize("is_replicated", [False, True])
@given(speeds=SPEEDS, grain=st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_every_training_row_is_scored_once_in_the_same_batches(is_replicated, speeds, grain):
    where = placement(is_replicated=is_replicated)
    where.spread(speeds)
    pieces = [piece for mine in where.split_train(speeds, grain).values() for piece in mine]
    rows = sorted((stream, row) for stream, *ends in pieces for row in range(*ends))
    assert rows == [(s, row) for s, count in enumerate(where.streams()) for row in range(count)]
    assert all(start % grain == 0 for _, start, _ in pieces)
