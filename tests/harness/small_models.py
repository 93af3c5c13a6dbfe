"""A network and label trees as users train them, and a network whose weights are drawn."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import daskxml
from daskxml.api.in_process import train_here
from daskxml.core.arrays import Partition
from daskxml.data.rows import to_scipy
from daskxml.models.network.spec import Layout, ModelSpec
from daskxml.models.store import ModelHeader


def network_and_trees(train: Partition) -> tuple[daskxml.Model, daskxml.Model]:
    """Train both on the same rows, in this process."""
    matrices = daskxml.Matrices(to_scipy(train.features), to_scipy(train.labels))
    network, trees = (
        train_here(name, train=matrices, overrides={number: 4, "run.seed": 3}).model
        for name, number in (("adaptive-sgd", "training.epochs"), ("best", "training.trees"))
    )
    return network, trees


def random_network(
    seed: int = 0, *, scale: float = 1.0, header: Mapping[str, Any] | None = None, **spec: Any
) -> daskxml.Model:
    """Return a network with drawn weights and biases, so that no two labels tie."""
    rng, described = np.random.default_rng(seed), ModelSpec(**spec)
    held = {
        name: (scale * rng.standard_normal(slot.shape)).astype(np.float32)
        for name, slot in Layout(described).slots.items()
    }
    made = ModelHeader(**{"spec": described, "training_rows": 1000, **(header or {})})
    return daskxml.Model(made, held, rng.integers(0, 99, described.labels), threads=1)
