"""A network and label trees of small rows, as users train them."""

from __future__ import annotations

import daskxml
from daskxml.api.in_process import train_here
from daskxml.core.arrays import Partition
from daskxml.data.rows import to_scipy


def network_and_trees(train: Partition) -> tuple[daskxml.Model, daskxml.Model]:
    """Train both on the same rows, in this process."""
    matrices = daskxml.Matrices(to_scipy(train.features), to_scipy(train.labels))
    overrides = {"training.epochs": 4, "run.seed": 3}
    network, trees = (
        train_here(name, train=matrices, overrides=overrides).model
        for name in ("adaptive-sgd", "best")
    )
    return network, trees
