"""The loss of the training rows: the same sum for any division of the rows among workers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.arrays import Segment
from daskxml.core.errors import TrainingError
from daskxml.data.rows import slice_rows
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.metrics import LossSum
from daskxml.models.network.spec import ModelSpec
from daskxml.session.placement import split_pieces
from daskxml.worker.evaluation import training_loss
from daskxml.worker.training_worker import TrainingWorker
from harness.worker_settings import make_settings

ROWS, STEP = 500, 32
TRAIN, _ = generate(SyntheticSpec(rows=ROWS, test_rows=1, features=60, labels=40, seed=4))
SHARDS = {0: TRAIN, 1: slice_rows(TRAIN, 100, 333)}


def make_worker(max_batch_rows=16, **options):
    spec = ModelSpec(**{"features": 60, "labels": 40, "hidden": (24, 16), **options})
    rows = {"max_batch_rows": max_batch_rows, "evaluation_rows": STEP}
    worker = TrainingWorker(make_settings(spec, rows=ROWS, **rows))
    worker.initialize()
    worker.rows.hold(SHARDS, {})
    return worker


@given(
    speeds=st.dictionaries(st.sampled_from("abcdef"), st.floats(0.01, 1e3), min_size=1),
    loss=st.sampled_from(["softmax", "sigmoid"]),
)
@settings(max_examples=15, deadline=None)
def test_the_sum_does_not_depend_on_how_rows_are_split(speeds, loss):
    pieces = [(0, 0, ROWS), (1, 0, 233)]
    whole = training_loss(make_worker(64, loss=loss), pieces, {})
    assert whole.rows == ROWS + 233
    total = LossSum()
    for mine in split_pieces(pieces, speeds, STEP).values():
        total += training_loss(make_worker(loss=loss), mine, {})  # its buffers grow
    assert total == whole


def test_it_is_the_mean_over_all_rows():
    worker = make_worker(ROWS, dropout=0.5)
    found = training_loss(worker, [(0, 0, ROWS)], {})
    at_once = worker.replica.loss_sum([Segment(TRAIN, np.arange(ROWS))])
    assert found.mean == pytest.approx(at_once / ROWS, rel=1e-6)
    assert training_loss(worker, [], {}) == LossSum()


def test_a_loss_that_is_not_finite_is_an_error_of_one_line():
    worker = make_worker()
    worker.replica.flat[:] = np.float32(np.nan)
    with pytest.raises(TrainingError, match=r"training rows is not finite .* lower strategy\.lr"):
        training_loss(worker, [(0, 0, 40)], {})
