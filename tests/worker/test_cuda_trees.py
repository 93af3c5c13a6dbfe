"""Label trees that are fitted, and rank, on a GPU: a whole run beside a CPU's."""

import numpy as np
import pytest

import daskxml
from daskxml.config import load_run_config
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate
from daskxml.kernels import registry
from daskxml.local.fit_run import LocalFitRun
from daskxml.local.rows import read_rows
from harness.cuda_on_host import emulated, needs_compiler

VALUES = {
    "model": {"kind": "trees", "leaf_labels": 9, "passes": 1, "cost": 1.0, "value_power": 1.0,
              "powers": [1.0, 0.5]},
    "training": {"trees": 2},
}  # fmt: skip


def matrices(part):
    return daskxml.Matrices(to_scipy(part.features), to_scipy(part.labels))


@needs_compiler
def test_a_run_on_a_gpu_finds_the_trees_of_a_cpu(monkeypatch):
    kernels = emulated()
    monkeypatch.setitem(registry.KERNELS, "cuda", lambda threads, exact: kernels)
    spec = SyntheticSpec(rows=40, test_rows=20, features=30, labels=12, seed=2)
    train, test = (matrices(part) for part in generate(spec))
    found = {}
    for device in ("cpu", "cuda"):
        config = load_run_config({**VALUES, "cluster": {"device": device}})
        run = LocalFitRun(config, read_rows(config, 1, train, test), lambda event: None)
        found[device] = run.run()[0], run.history
    (model, history), (expected, expected_history) = found["cuda"], found["cpu"]
    assert kernels._device.queued["fit_nodes"] >= 2
    assert kernels._device.queued["rank_leaves"] > 0
    precisions = [[row["metrics"]["P@1"] for row in rows] for rows in (history, expected_history)]
    assert precisions[0] == pytest.approx(precisions[1], abs=0.06)
    ids, scores = model.predict_top_k(test.X, 5)
    expected_ids, expected_scores = expected.predict_top_k(test.X, 5)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-3)
    assert (ids == expected_ids).mean() > 0.95
