"""Compiling and timing a replica on made-up rows, before there is anything to learn."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from daskxml.training.holdings import Holdings
from daskxml.training.ledger import Span
from daskxml.training.pool import Part, Pool
from daskxml.training.replica import Replica
from daskxml.training.results import StepResult
from daskxml.training.settings import MemberSettings
from daskxml.training.stepping import make_stepper
from daskxml.types import Csr, Partition, Segment


def warm_up(replica: Replica, settings: MemberSettings) -> float:
    """Compile the kernels and return the measured rows a second; the parameters stay the same.

    A pool's parameters are not even written to, as others may be training them: its threads are
    timed on a model that is thrown away.
    """
    pool = None
    if settings.pool_threads:
        private = replace(settings, shares_model=False)
        holdings = Holdings(replica.kernels, settings.seed)
        stepper = make_stepper(private, replica.kernels, holdings, None, None)
        replica, pool = stepper.replica, stepper.pool
    part = _made_up_rows(settings)
    rows = np.arange(min(part.rows, replica.max_batch_rows), dtype=np.int64)
    segment = Segment(replica.kernels.to_device(part), replica.kernels.to_device(rows))
    replica.step([segment], 0.0, 0)
    replica.top_k([segment], settings.ks[-1])
    _step(replica, pool, Segment(segment.partition, segment.rows[:1]))  # it has its own kernel
    begun_s = time.perf_counter()
    for _ in range(2):
        _step(replica, pool, segment)
    busy_s = time.perf_counter() - begun_s
    replica.optimizer.reset()
    return 2 * len(rows) / max(busy_s, 1e-9)


def _step(replica: Replica, pool: Pool | None, segment: Segment) -> None:
    if pool is None:
        float(replica.step([segment], 0.0, 0).loss)  # who asks for it waits for the device
        return

    def step(mine: Replica, part: Part) -> StepResult:
        rows = segment.rows[part[0].start : part[0].stop]
        return mine.step([Segment(segment.partition, rows)], 0.0, 0)

    pool.run([[Span(0, 0, 0, int(segment.rows.shape[0]))]], step)


def _made_up_rows(settings: MemberSettings) -> Partition:
    rng = np.random.default_rng([settings.seed, 3])
    spec, rows = settings.spec, min(settings.max_batch_rows, 256)
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
