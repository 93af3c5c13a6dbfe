"""Compiles kernels that tests in several processes use, which else would compile the same at once.

python -m harness.compile_kernels networks   # or samples, or trees: each on a core of its own
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import daskxml
from daskxml.api.in_process import train_here
from daskxml.data.rows import to_scipy
from daskxml.data.synthetic import SyntheticSpec, generate, write_xml
from daskxml.kernels import get_kernels

ROWS = SyntheticSpec(rows=60, test_rows=20, features=30, labels=12)
ONCE = {"training.megabatches": 1, "strategy.batch_max": 8, "cluster.threads": 1}
NETWORKS = (
    {"optimizer.name": "momentum", "model.dropout": 0.2, "model.feature_dropout": 0.1},
    {"optimizer.name": "lamb", "model.activation": "sigmoid", "model.hidden": [8, 8]},
)
SAMPLES = (
    {"sampling.method": "random"},
    {"sampling.method": "simhash"},
    {"sampling.method": "dwta", "model.loss": "sigmoid"},
)


def compile_networks(folder: Path) -> None:
    """Train and compress networks, and merge vectors."""
    file = write_xml(folder / "train.txt", ROWS)
    for values in NETWORKS:
        model = train_here("adaptive-sgd", train=[str(file)], overrides={**ONCE, **values}).model
    features = to_scipy(generate(ROWS)[1].features)
    for each in (model, model.compress(bits=8)):
        for rows in (features, features[0]):
            each.predict_top_k(rows, 2)
    kernels = get_kernels("cpu", 1)
    x, y, z = np.ones((3, 64), np.float32)
    kernels.scale(z, x, 2.0)
    kernels.add_scaled(z, x, 2.0)
    kernels.momentum(z, x, y, 0.5)
    kernels.add_two(z, x, 2.0, y, 3.0)
    kernels.axpby(z, x, 2.0, y, 3.0)
    kernels.dots(x, y)


def compile_samples(folder: Path) -> None:
    """Train networks on samples of the labels."""
    file = write_xml(folder / "train.txt", ROWS)
    few = {**ONCE, "sampling.active": 4, "model.hidden": [8]}
    for values in SAMPLES:
        train_here("adaptive-sgd", train=[str(file)], overrides={**few, **values})


def compile_trees(folder: Path) -> None:
    """Fit trees and networks, with weights and without."""
    train, test = generate(ROWS)
    X, Y = to_scipy(train.features), to_scipy(train.labels)
    for weights in (None, np.ones(ROWS.rows, np.float32)):
        rows = daskxml.Matrices(X, Y, sample_weight=weights)
        given = {"model.passes": 1, "training.trees": 2}
        model = train_here("best", train=rows, overrides=given).model
        for loss in ("softmax", "sigmoid"):
            train_here("adaptive-sgd", train=rows, overrides={**ONCE, "model.loss": loss})
    model.predict_top_k(to_scipy(test.features), 2)


GROUPS = {"networks": compile_networks, "samples": compile_samples, "trees": compile_trees}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        GROUPS[sys.argv[1]](Path(name))
