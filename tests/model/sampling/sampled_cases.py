"""A small model with a sampled output layer, and its rows."""

import numpy as np

from daskxml.model.parameters import initial_parameters
from daskxml.model.sampling import label_tables
from daskxml.model.spec import ModelSpec
from daskxml.ops import get_kernels
from daskxml.optim import OptimizerConfig
from daskxml.training.replica import Replica
from daskxml.types import Csr, Partition

FEATURES, LABELS, ROWS, UNITS = 40, 500, 48, 16
METHODS = ("simhash", "dwta", "random")


def make_csr(rng, columns, each, ones=False):
    counts = rng.integers(0, each + 1, ROWS)
    ids = [np.sort(rng.choice(columns, count, replace=False)) for count in counts]
    indices = np.concatenate(ids).astype(np.int32)
    data = None if ones else rng.random(len(indices), dtype=np.float32)
    return Csr(np.append(0, np.cumsum(counts)), indices, data, columns)


def make_partition(seed=0):
    rng = np.random.default_rng(seed)
    return Partition(make_csr(rng, FEATURES, 9), make_csr(rng, LABELS, 4, ones=True))


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
