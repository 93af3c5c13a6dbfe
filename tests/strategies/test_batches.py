"""Rows dealt out in shares: nothing is lost, and everybody makes as many batches."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.strategies.batches import (
    FIRST,
    BatchConfig,
    MegabatchState,
    apportion,
    split_batches,
    split_rows,
    with_length,
)
from daskxml.strategies.protocol import Begin, Measured, Started, WorkDone
from daskxml.strategies.state import WorkerState
from harness.every_strategy import make

SIZES = st.lists(st.integers(0, 300), min_size=1, max_size=9).filter(any)


def named(values):
    return {str(place): value for place, value in enumerate(values)}


def test_by_hand():
    assert apportion(7, {"a": 3.0, "b": 1.0}) == {"a": 5, "b": 2}  # 5.25 and 1.75
    assert apportion(1, {"a": 1, "b": 1}) == {"a": 1, "b": 0}  # a tie: who comes first
    assert apportion(5, {"a": 0.0, "b": 2.0}) == {"a": 0, "b": 5}
    assert split_rows(512, {"a": 64, "b": 64, "c": 64}) == {"a": 171, "b": 171, "c": 170}
    assert split_rows(96, {"a": 64, "b": 32}) == {"a": 64, "b": 32}
    assert split_batches(256, 64, {"a": 2.0, "b": 1.0}) == {"a": 192, "b": 64}
    assert split_batches(200, 64, {"a": 1.0, "b": 1.0}) == {"a": 72, "b": 128}


@given(st.integers(0, 10**6), st.lists(st.floats(0.001, 1e6), min_size=1, max_size=9))
@settings(max_examples=100, deadline=None)
def test_parts_are_within_one_of_their_share(total, weights):
    parts = apportion(total, named(weights))
    assert sum(parts.values()) == total
    for part, weight in zip(parts.values(), weights, strict=True):
        assert abs(part - total * weight / sum(weights)) < 1 + 1e-6


@given(st.integers(0, 10_000), SIZES)
@settings(max_examples=100, deadline=None)
def test_rows_are_dealt_in_equally_many_batches(rows, sizes):
    dealt = split_rows(rows, named(sizes))
    assert sum(dealt.values()) == rows
    full = rows // sum(sizes)
    for share, size in zip(dealt.values(), sizes, strict=True):
        assert full * size <= share <= (full + 1) * size


@given(st.integers(1, 10_000), st.integers(1, 300), SIZES)
@settings(max_examples=100, deadline=None)
def test_only_one_batch_is_smaller(rows, batch_rows, weights):
    dealt = split_batches(rows, batch_rows, named(weights))
    assert sum(dealt.values()) == rows
    assert min(dealt.values()) >= 0
    assert sum(share % batch_rows != 0 for share in dealt.values()) <= 1


def test_a_megabatch_is_counted_in_rows():
    assert BatchConfig(batch_max=30, megabatch_batches=7).megabatch_rows == 210


def test_a_merge_that_took_no_time_says_nothing_of_the_waiting():
    """On a clock that is too coarse, or that was set back; the waiting before it is what counts."""
    worker = WorkerState(batch_size=64, rows=1600, busy_s=0.16)
    state = MegabatchState(
        remaining_rows=0, batches=800, merging=("a", "b"), members={"a": worker, "b": worker}
    )
    assert with_length(state, 0.16, 64, momentum=0.9).batches == 400
    assert with_length(state, 0.0, 64, momentum=0.9) == state
    assert with_length(state, -1.0, 64, momentum=0.9) == state


@pytest.mark.parametrize("name", ["adaptive-sgd", "elastic"])
def test_in_a_longer_megabatch_rates_are_higher_and_the_past_fades_by_rows(name):
    machine = make(name, lr=0.5, batch_max=64, megabatch_batches="auto", momentum=0.9)
    state, _ = machine.step(machine.initial_state(), Started(("a",)))
    state = replace(state, batches=4 * FIRST, remaining_rows=64)
    state, (lease,) = machine.step(state, Begin())
    assert lease.parts["a"].lr == pytest.approx(0.5 * (1.0 + 0.9 + 0.81 + 0.729))
    assert machine.view(state)["a"].lr == pytest.approx(lease.parts["a"].lr)
    state, (command,) = machine.step(state, WorkDone.alone("a", 64, 1, 1.0))
    if machine.needs_norms:
        state, (command,) = machine.step(state, Measured({"a": 1.0}, 4))
    assert command.momentum == pytest.approx(0.9**4)


def test_what_was_measured_is_kept_over_a_merge():
    measured = {"first_norm": 3.0, "step_s": 0.5, "batches": 100, "waited_s": 0.25}
    state = MegabatchState(remaining_rows=0, **measured).next_megabatch(64)
    assert {name: getattr(state, name) for name in measured} == measured
