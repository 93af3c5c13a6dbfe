"""CPU+GPU Hogbatch: small batches on CPU threads beside large ones on replicas, one shared model.

Ma, Rusu, Wu and Sim, "Adaptive Stochastic Gradient Descent for Deep Learning on Heterogeneous
CPU+GPU Architectures", IPDPSW 2021, section VI-B and Figure 4.

=======  =============================  ====================================================
symbol   here                           meaning
=======  =============================  ====================================================
t        ``WorkerDevice.pool_threads``  threads of a pool
b (GPU)  ``batch_max``                  batch size of a replica: large enough to use it well
b (CPU)  ``pool_batch * t``             batch size of a pool; t makes it Hogwild
eta      ``lr * rows / batch_max``      rate of an update that is the mean over so many rows
=======  =============================  ====================================================

The sizes stay as they are; `daskxml.strategies.adaptive_hogbatch` changes them. A replica's change
is computed on a copy that may be stale; its rate is lowered for that with ``lower_stale`` only, as
in the paper, which names it as an option. Deviations are those of `daskxml.strategies.hogbatch`.
"""

from __future__ import annotations

from dataclasses import dataclass

from daskxml.core.fields import bounded
from daskxml.strategies.shared_model import SharedConfig, SharedModelStrategy


@dataclass(frozen=True, kw_only=True)
class Config(SharedConfig):
    """Settings of CPU+GPU Hogbatch, beside those of `SharedConfig`.

    Attributes
    ----------
    pool_batch
        Rows of each thread's part of a pool's batch.

    Examples
    --------
    >>> config = Config(batch_max=1024, pool_batch=2)
    >>> config.first_size(0), config.first_size(56)
    (1024, 112)
    """

    pool_batch: int = bounded(1, low=1)

    def first_size(self, pool_threads: int) -> int:
        """Return the batch size of a worker."""
        return self.pool_batch * pool_threads or self.batch_max

    def largest_size(self, pool_threads: int) -> int:
        """Return the first size: sizes do not change."""
        return self.first_size(pool_threads)


class CpuGpuHogbatch(SharedModelStrategy):
    """The state machine; see `daskxml.strategies.shared_model` for how rows are leased."""

    config: Config

    Config = Config  # at the end, where it hides nothing
