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
from daskxml.training.typical_rows import made_up_rows
from daskxml.types import Segment


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
    part = made_up_rows(settings, min(settings.max_batch_rows, 256))
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
