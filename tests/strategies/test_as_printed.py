"""A run's record recomputed from itself, by the text of the paper and nothing of the package."""

import csv
from pathlib import Path

import pytest

import daskxml
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate
from harness.as_printed import recompute

FIGURE_12 = Path(__file__).parents[2] / "benchmarks/results/figures/fig12.csv"
SETS = {"bibtex": (64, 1836, 159), "delicious": (64, 500, 983), "stackex4-2k": (128, 30203, 1987)}
SPEEDS = (1.0, 0.8, 0.55, 0.4)
ROWS = SyntheticSpec(rows=1500, features=60, labels=20, seed=5)
SMALL = {
    "strategy.batch_max": 64, "strategy.batch_min": 8, "strategy.batch_initial": 64,
    "strategy.beta": 4.0, "strategy.megabatch_batches": 47, "training.megabatches": 25,
    "model.hidden": [8], "data.normalize": "l2",
}  # fmt: skip


@pytest.mark.parametrize("threshold", [0.1, pytest.param(1e-4, marks=pytest.mark.slow)])
def test_the_record_follows_from_itself(threshold):
    (part, *_) = generate(ROWS)
    given = {**SMALL, "strategy.perturbation_threshold": threshold}
    rows = daskxml.Matrices(to_scipy(part.features), to_scipy(part.labels))
    run = daskxml.simulate("adaptive-sgd-paper", SPEEDS, train=rows, overrides=given)
    unequal = recompute(
        run.history, parameters=run.model.spec.parameter_count, b_min=8, b_max=64, beta=4.0,
        pert_thr=threshold, delta=0.1,
    )  # fmt: skip
    perturbed = {row["perturbed"] for row in run.history}
    assert len(run.history) == 25
    assert unequal > 10
    assert (True in perturbed) == (threshold == 0.1)


@pytest.mark.parametrize("data", SETS)
def test_figure_12_follows_from_its_own_table(data):
    b_max, features, labels = SETS[data]
    parameters = (features + 1) * 128 + 129 * labels
    with FIGURE_12.open(newline="") as file:
        rows = [
            row for row in csv.DictReader(file)
            if (row["data"], row["rules"]) == (data, "adaptive-paper")
        ]  # fmt: skip
    keys = ("batch_size", "counted", "updates", "norm", "weight")
    history = [
        {"workers": {n: {key: float(row[f"{key}_{n}"]) for key in keys} for n in range(4)}}
        for row in rows
    ]
    unequal = recompute(
        history, parameters=parameters, b_min=b_max / 8, b_max=b_max, beta=b_max / 16,
        pert_thr=0.1, delta=0.1,
    )  # fmt: skip
    assert len(rows) > 30
    assert unequal > 10
