"""Every row of a real history becomes finite numbers whose names loggers take."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskxml.api.in_process import simulate
from daskxml.observe.loggers import mlflow_name, scalars
from harness.small_data import data as data


@pytest.fixture(scope="module")
def history(data):
    values = {"model": {"hidden": [8]}, "training": {"megabatches": 2},
              "strategy": {"batch_max": 32, "megabatch_batches": 10},
              "evaluation": {"training_loss": True}}  # fmt: skip
    return simulate(values, {"a": 1.0, "tcp://b:1": 0.5}, **data).history


def test_a_row_has_what_users_look_at(history):
    found, row = scalars(history[-1]), history[-1]
    assert found["metrics/P@1"] == row["metrics"]["P@1"]
    assert found["loss/megabatch"] == row["loss"]
    assert found["loss/training_rows"] == row["training_loss"]
    assert found["workers/batch_rows/a"] == row["workers"]["a"]["batch_rows"]
    assert found["workers/weight/tcp://b:1"] == row["workers"]["tcp://b:1"]["weight"]
    assert 0 < found["workers/busy_share/a"] <= 1
    assert found["speed/rows_per_s"] > 0
    assert "metrics/rows" not in found
    assert all(isinstance(v, float) and math.isfinite(v) for v in found.values())


def test_what_is_no_number_is_left_out():
    row = {"loss": math.nan, "rows": None, "metrics": {"P@1": math.inf}, "workers": {"a": {}}}
    assert scalars(row) == {}


@given(st.text(max_size=30))
def test_mlflow_takes_every_name(name):
    assert re.fullmatch(r"[\w\-. /]*", mlflow_name(name), re.ASCII)
