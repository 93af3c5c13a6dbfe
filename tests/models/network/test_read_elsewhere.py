"""The documents' program without daskxml ranks as daskxml does."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from harness.small_models import random_network

EXAMPLE = Path(__file__).parents[3] / "docs/examples/read_model.py"
FEATURES, LABELS = 30, 17


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("read_model", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def model_of(normalize="l2", **spec):
    names = tuple(f"tag {label}" for label in range(LABELS))
    sizes = {"features": FEATURES, "labels": LABELS, "hidden": (6,), **spec}
    return random_network(3, header={"normalize": normalize, "label_names": names}, **sizes)


@pytest.mark.parametrize("normalize", ["l2", "none"])
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize(
    ("hidden", "activation", "bits"),
    [((), "relu", 0), ((6,), "relu", 8), ((6,), "relu", 16), ((6, 5), "sigmoid", 0)],
)
def test_it_ranks_alike(example, tmp_path, normalize, loss, hidden, activation, bits):
    model = model_of(normalize, loss=loss, hidden=hidden, activation=activation)
    model = model.compress(bits=bits) if bits else model
    model.save(tmp_path)
    read = example.read(tmp_path)
    rows = sp.random(8, FEATURES, 0.2, "lil", np.float32, rng=np.random.default_rng(1))
    rows[0] = 0  # an empty one
    for row in rows.tocsr():
        ids, scores = example.rank(*read, row.indices, row.data, k=4)
        # both rows in one call: those alone are ranked by fewer bits first
        wanted = [found[0] for found in model.predict_top_k(sp.vstack([row, row]), 4)]
        np.testing.assert_array_equal(ids, wanted[0])
        np.testing.assert_allclose(scores, wanted[1], rtol=1e-5, atol=1e-7)


def test_the_program_prints_names(tmp_path):
    model_of().save(tmp_path)
    command = [sys.executable, str(EXAMPLE), str(tmp_path), "3:0.5", "17:1.25"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    row = sp.csr_matrix(([0.5, 1.25], [3, 17], [0, 2]), (1, FEATURES), np.float32)
    best, scores = (found[0] for found in model_of().predict_top_k(row, 5))
    assert lines == [f"{s:.4f}  tag {label}" for label, s in zip(best, scores, strict=True)]
