"""A run's record recomputed from itself, by the text of the paper and nothing of the package.

Ma, Rusu, Wu and Sim, "Adaptive Elastic Training for Sparse Deep Learning on Heterogeneous Multi-GPU
Servers", 2021, Algorithms 1 and 2.
"""

import csv
from pathlib import Path

import numpy as np
import pytest

import daskxml
from daskxml.config import load_run_config
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate

FIGURE_12 = Path(__file__).parents[2] / "benchmarks/results/figures/fig12.csv"
SETS = {"bibtex": (64, 1836, 159), "delicious": (64, 500, 983), "stackex4-2k": (128, 30203, 1987)}
SPEEDS = (1.0, 0.8, 0.55, 0.4)
ROWS = SyntheticSpec(rows=1500, features=60, labels=20, seed=5)
SMALL = {
    "strategy.batch_max": 64, "strategy.batch_min": 8, "strategy.batch_initial": 64,
    "strategy.beta": 4.0, "strategy.megabatch_batches": 47, "training.megabatches": 40,
    "model.hidden": [8], "data.normalize": "l2",
}  # fmt: skip


def algorithm_1(b, u, b_min, b_max, beta):
    mean = sum(u) / len(u)
    for i, count in enumerate(u):
        size = b[i] + beta * (count - mean)
        if (count > mean and size <= b_max) or (count < mean and size >= b_min):
            b[i] = size
    return b


def algorithm_2(b, u, norms, parameters, pert_thr, delta):
    is_equal = all(count == u[0] for count in u)
    alpha = [x / sum(b if is_equal else u) for x in (b if is_equal else u)]
    if all(norm / parameters < pert_thr for norm in norms):
        r, s = u.index(max(u)), u.index(min(u))
        alpha[r] *= 1 + delta
        alpha[s] *= 1 - delta
    return alpha


@pytest.mark.parametrize("threshold", [0.1, 1e-4])
def test_the_record_follows_from_itself(threshold):
    (part, *_) = generate(ROWS)
    given = {**SMALL, "strategy.perturbation_threshold": threshold}
    rows = daskxml.Matrices(to_scipy(part.features), to_scipy(part.labels))
    run = daskxml.simulate("adaptive-sgd-paper", SPEEDS, train=rows, overrides=given)
    strategy = load_run_config("adaptive-sgd-paper", given).strategy
    parameters = run.model.spec.parameter_count
    sizes, unequal, perturbed = [64.0] * len(SPEEDS), 0, set()
    for row in run.history:
        workers = [row["workers"][str(i)] for i in range(len(SPEEDS))]
        u = [worker["counted"] for worker in workers]
        assert u == [worker["updates"] for worker in workers]
        assert [worker["batch_size"] for worker in workers] == pytest.approx(sizes)
        norms = [worker["norm"] for worker in workers]
        alpha = algorithm_2(sizes, u, norms, parameters, threshold, strategy.perturbation)
        np.testing.assert_allclose([worker["weight"] for worker in workers], alpha, rtol=1e-12)
        unequal += len(set(u)) > 1
        perturbed.add(row["perturbed"])
        sizes = algorithm_1(sizes, u, strategy.batch_min, strategy.batch_max, strategy.beta)
    assert len(run.history) == 40
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
    sizes, unequal = [float(b_max)] * 4, 0
    for row in rows:
        size, u, norms, weights = (
            [float(row[f"{key}_{n}"]) for n in range(4)]
            for key in ("batch_size", "counted", "norm", "weight")
        )
        assert size == pytest.approx(sizes)
        alpha = algorithm_2(sizes, u, norms, parameters, pert_thr=0.1, delta=0.1)
        np.testing.assert_allclose(weights, alpha, rtol=1e-12)
        unequal += len(set(u)) > 1
        sizes = algorithm_1(sizes, u, b_max / 8, b_max, b_max / 16)
    assert len(rows) > 30
    assert unequal > 10
