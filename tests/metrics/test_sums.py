"""Sums of metrics and of losses add up exactly, in any order and any grouping."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.errors import ConfigError
from daskxml.metrics import LossSum, MetricSums
from daskxml.metrics.sums import UNIT_BITS

BATCHES = st.lists(st.tuples(st.floats(0.0, 1e6), st.integers(1, 512)), min_size=1, max_size=12)


def one_row() -> MetricSums:
    half = 1 << (UNIT_BITS - 1)
    return replace(
        MetricSums.zero((1, 2)),
        rows=1,
        hits=(1, 1),
        ndcg=(half, half),
        attained=(half, half),
        attainable=(2 * half, 4 * half),
    )


def test_the_result_is_ordered_by_metric_and_divides_each_by_its_own() -> None:
    result = one_row().result()
    assert list(result) == [
        "P@1", "P@2", "nDCG@1", "nDCG@2", "PSP@1", "PSP@2",
        "PSnDCG@1", "PSnDCG@2", "recall@1", "recall@2", "rows", "rows_without_labels",
    ]  # fmt: skip
    assert (result["P@1"], result["P@2"]) == (1.0, 0.5)
    assert (result["PSP@1"], result["PSP@2"]) == (0.5, 0.25)
    assert result["nDCG@1"] == 0.5
    assert result["PSnDCG@1"] == 0.0  # nothing attainable
    assert result["rows"] == 1


def test_no_rows_give_zeros() -> None:
    assert set(MetricSums.zero((1, 5)).result().values()) == {0.0}


def test_different_cut_offs_do_not_add() -> None:
    with pytest.raises(ConfigError, match="cannot be added"):
        MetricSums.zero((1,)) + MetricSums.zero((1, 3))


@pytest.mark.parametrize("ks", [(), (0,), (1, 1), (1.5,), (-3, 1)])
def test_cut_offs_that_make_no_sense_are_refused(ks: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        MetricSums.zero(ks)


@given(batches=BATCHES, split=st.integers(0, 12), data=st.data())
@settings(max_examples=100, deadline=None)
def test_any_order_and_any_split_give_the_same_sum(batches, split, data):
    parts = [LossSum.of(loss_sum=loss, rows=rows) for loss, rows in batches]
    whole = sum(parts, LossSum())
    shuffled = data.draw(st.permutations(parts))
    first, second = (sum(some, LossSum()) for some in (shuffled[:split], shuffled[split:]))
    assert first + second == whole
    exact, rows = sum(loss for loss, _ in batches), sum(rows for _, rows in batches)
    assert abs(whole.mean - exact / rows) <= len(batches) * 2.0**-20 / rows + 1e-9 * exact / rows


def test_no_rows_have_no_loss():
    assert LossSum().mean == 0.0
