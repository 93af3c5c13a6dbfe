"""A small model with a sampled output layer, and its rows."""

import numpy as np

from daskxml.core.arrays import Partition
from daskxml.kernels import get_kernels
from daskxml.models.network.sampling import label_tables
from daskxml.models.network.spec import ModelSpec, initial_parameters
from daskxml.optim import OptimizerConfig
from daskxml.worker.replica import Replica
from harness.small_data import random_rows

FEATURES, LABELS, ROWS, UNITS = 40, 500, 48, 16
METHODS = ("simhash", "dwta", "random")


def make_partition(seed=0):
    rng = np.random.default_rng(seed)
    return Partition(
        random_rows(rng, ROWS, FEATURES, 9), random_rows(rng, ROWS, LABELS, 4, ones=True)
    )


PARTITION = make_partition()


def make_replica(config, kernels=None, optimizer="sgd", loss="softmax", spec=None, **options):
    spec = spec or ModelSpec(
        features=FEATURES, labels=LABELS, hidden=(UNITS,), loss=loss, **options
    )
    kernels = kernels or get_kernels("cpu", 1)
    replica = Replica(
        spec, OptimizerConfig(name=optimizer, epsilon=1e-4, weight_decay=0.01), kernels,
        max_batch_rows=ROWS, sampling=config, tables=label_tables(config, spec, 3),
    )  # fmt: skip
    kernels.copy(replica.flat, initial_parameters(spec, 5))
    return replica
