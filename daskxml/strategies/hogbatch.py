"""Hogbatch and CPU+GPU Hogbatch: batches of fixed sizes for workers that update one shared model.

Ma, Rusu, Wu and Sim, "Adaptive Stochastic Gradient Descent for Deep Learning on Heterogeneous
CPU+GPU Architectures", IPDPSW 2021, Algorithm 1, sections VI-A and VI-B, and Figure 4; after
Sallinen, Satish, Smelyanskiy, Sury and Re, "High Performance Parallel Stochastic Gradient Descent
in Shared Memory", IPDPS 2016, and Hogwild: Niu, Recht, Re and Wright, NIPS 2011.

======= =============================  ====================================================
symbol  here                           meaning
======= =============================  ====================================================
b       ``batch_max``                  batch size of every worker, or of every thread; with CPU+GPU
                                       Hogbatch of a replica: large enough to use it well
b (CPU) ``pool_batch * t``             with that, batch size of a pool; t makes it Hogwild
t       ``WorkerDevice.pool_threads``  threads of a pool, which divide each of its batches
eta     ``lr * rows / batch_max``      rate of an update that is the mean over so many rows
B       rows of the mega-batch         what is not leased yet
======= =============================  ====================================================

With pools only and one row a thread (``batch_max = 1``, ``per_thread = true``) it is Hogwild; with
one replica worker alone, mini-batch SGD. Deviations: no row is dropped, the last batch of a
mega-batch is smaller; the rate is in proportion to the rows of an update, as in section VI-B (here
it matters where t threads divide a batch); a worker so slow that the others would do its batch and
all the rest sooner gets none at the end; see `daskxml.strategies.shared_model` for leases.

With pools beside replicas, CPU+GPU Hogbatch gives each kind of device its own size, which stays as
it is (`daskxml.strategies.adaptive_hogbatch` changes them). A replica's change is computed on a
copy that may be stale; its rate is lowered for that with ``lower_stale`` only, as in the paper,
which names it as an option.
"""

from __future__ import annotations

from dataclasses import dataclass

from daskxml.core.fields import bounded
from daskxml.strategies.shared_model import SharedConfig, SharedModelStrategy


@dataclass(frozen=True, kw_only=True)
class Config(SharedConfig):
    """Settings of Hogbatch, beside those of `SharedConfig`.

    Attributes
    ----------
    per_thread
        ``batch_max`` are the rows of each thread of a pool, instead of all its threads'.

    Examples
    --------
    >>> Config(batch_max=64).first_size(4), Config(batch_max=64, per_thread=True).first_size(4)
    (64, 256)
    """

    per_thread: bool = False

    def first_size(self, pool_threads: int) -> int:
        """Return the batch size of a worker; a pool has one row for every thread at least."""
        return self.batch_max * (max(1, pool_threads) if self.per_thread else 1)


class Hogbatch(SharedModelStrategy):
    """The state machine; see `daskxml.strategies.shared_model` for how rows are leased."""

    config: Config


@dataclass(frozen=True, kw_only=True)
class CpuGpuConfig(SharedConfig):
    """Settings of CPU+GPU Hogbatch, beside those of `SharedConfig`.

    Attributes
    ----------
    pool_batch
        Rows of each thread's part of a pool's batch.

    Examples
    --------
    >>> config = CpuGpuConfig(batch_max=1024, pool_batch=2)
    >>> config.first_size(0), config.first_size(56)
    (1024, 112)
    """

    pool_batch: int = bounded(1, low=1)

    def first_size(self, pool_threads: int) -> int:
        """Return the batch size of a worker."""
        return self.pool_batch * pool_threads or self.batch_max


class CpuGpuHogbatch(SharedModelStrategy):
    """The state machine of CPU+GPU Hogbatch."""

    config: CpuGpuConfig
