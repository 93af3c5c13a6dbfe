"""Rows of typical length, made up: for timing a replica before there is anything to learn."""

from __future__ import annotations

import numpy as np

from daskxml.training.settings import MemberSettings
from daskxml.types import Csr, Partition


def made_up_rows(settings: MemberSettings, rows: int) -> Partition:
    """Return so many rows of typical length, with a label each."""
    rng, spec = np.random.default_rng([settings.seed, 3]), settings.spec
    nonzeros = max(1, min(settings.row_nonzeros, spec.features))
    stride = spec.features // nonzeros  # one feature of every stride: ascending, none twice
    offsets = rng.integers(0, stride, (rows, nonzeros))
    features = (offsets + stride * np.arange(nonzeros)).astype(np.int32)
    values = np.full(rows * nonzeros, nonzeros**-0.5, dtype=np.float32)
    labels = rng.integers(0, spec.labels, rows).astype(np.int32)
    indptr = np.arange(rows + 1, dtype=np.int64)
    return Partition(
        Csr(indptr * nonzeros, features.ravel(), values, spec.features),
        Csr(indptr, labels, None, spec.labels),
    )
