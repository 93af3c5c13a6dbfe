"""A network and label trees of small rows, as users train them."""

from __future__ import annotations

import daskxml
from daskxml.api.in_process import train_here
from daskxml.core.arrays import Partition
from daskxml.data.rows import to_scipy


def network_and_trees(train: Partition) -> tuple[daskxml.Model, daskxml.Model]:
    """Train both on the same rows, in this process."""
    matrices = daskxml.Matrices(to_scipy(train.features), to_scipy(train.labels))
    network, trees = (
        train_here(name, train=matrices, overrides={number: 4, "run.seed": 3}).model
        for name, number in (("adaptive-sgd", "training.epochs"), ("best", "training.trees"))
    )
    return network, trees
