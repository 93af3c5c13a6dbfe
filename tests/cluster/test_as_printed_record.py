"""The record of a run on a real cluster, recomputed by the text of the paper."""

import pytest

import daskxml
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate
from harness.as_printed import recompute

ROWS = SyntheticSpec(rows=1500, features=60, labels=20, seed=5)
SETTINGS = {
    "strategy.batch_max": 64, "strategy.batch_min": 8, "strategy.batch_initial": 64,
    "strategy.beta": 4.0, "strategy.megabatch_batches": 47, "training.megabatches": 12,
    "model.hidden": [8], "data.normalize": "l2", "cluster.threads": 1,
}  # fmt: skip


@pytest.mark.slow
def test_weights_and_sizes_are_those_of_the_printed_algorithms(client):
    (part, *_) = generate(ROWS)
    rows = daskxml.Matrices(to_scipy(part.features), to_scipy(part.labels))
    run = daskxml.train("adaptive-sgd-paper", client=client, train=rows, overrides=SETTINGS)
    recompute(
        run.history, parameters=run.model.spec.parameter_count, b_min=8, b_max=64, beta=4.0,
        pert_thr=0.1, delta=0.1,
    )  # fmt: skip
    assert len(run.history) == 12
    assert {worker["weight"] for row in run.history for worker in row["workers"].values()} != {0.5}
