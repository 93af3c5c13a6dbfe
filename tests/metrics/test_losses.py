"""Losses add up exactly, in any order and any grouping."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.metrics import LossSum

BATCHES = st.lists(st.tuples(st.floats(0.0, 1e6), st.integers(1, 512)), min_size=1, max_size=12)


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
