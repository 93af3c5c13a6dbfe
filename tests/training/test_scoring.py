"""Losses of the training rows: the same sum whoever finds which pieces of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.data.rows import slice_rows
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.errors import TrainingError
from daskxml.metrics import LossSum
from daskxml.model.parameters import initial_parameters
from daskxml.model.spec import ModelSpec
from daskxml.ops import get_kernels
from daskxml.optim import OptimizerConfig
from daskxml.training.placement import split_pieces
from daskxml.training.replica import Replica
from daskxml.training.scoring import sum_losses
from daskxml.types import Segment

ROWS, STEP = 500, 32
TRAIN, _ = generate(SyntheticSpec(rows=ROWS, test_rows=1, features=60, labels=40, seed=4))
SHARDS = {0: TRAIN, 1: slice_rows(TRAIN, 100, 333)}


def make_replica(max_batch_rows=16, **options):
    spec = ModelSpec(**{"features": 60, "labels": 40, "hidden": (24, 16), **options})
    replica = Replica(spec, OptimizerConfig(), get_kernels("cpu", 1), max_batch_rows=max_batch_rows)
    replica.flat[:] = initial_parameters(spec, 3)
    return replica


@given(
    speeds=st.dictionaries(st.sampled_from("abcdef"), st.floats(0.01, 1e3), min_size=1),
    loss=st.sampled_from(["softmax", "sigmoid"]),
)
@settings(max_examples=15, deadline=None)
def test_the_sum_does_not_depend_on_how_rows_are_split(speeds, loss):
    pieces = [(0, 0, ROWS), (1, 0, 233)]
    whole = sum_losses(make_replica(64, loss=loss), SHARDS, pieces, STEP)
    assert whole.rows == ROWS + 233
    total = LossSum()
    for mine in split_pieces(pieces, speeds, STEP).values():
        total += sum_losses(make_replica(loss=loss), SHARDS, mine, STEP)  # its buffers grow
    assert total == whole


def test_it_is_the_mean_over_all_rows():
    replica = make_replica(ROWS, dropout=0.5)
    found = sum_losses(replica, SHARDS, [(0, 0, ROWS)], STEP)
    at_once = replica.loss_sum([Segment(TRAIN, np.arange(ROWS))])
    assert found.mean == pytest.approx(at_once / ROWS, rel=1e-6)
    assert sum_losses(replica, {}, [], STEP) == LossSum()


def test_a_loss_that_is_not_finite_is_told_in_one_line():
    replica = make_replica()
    replica.flat[:] = np.float32(np.nan)
    with pytest.raises(TrainingError, match=r"training rows is not finite .* lower strategy\.lr"):
        sum_losses(replica, SHARDS, [(0, 0, 40)], STEP)
