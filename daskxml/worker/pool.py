"""A pool: threads that update one model in place without locks, each with rows of its own.

Hogbatch (Sallinen et al., "High Performance Parallel Stochastic Gradient Descent in Shared Memory",
IPDPS 2016) divides each batch among the threads; where a part is one row it is Hogwild (Niu et al.,
"HOGWILD!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent", NIPS 2011). It is
the CPU worker of Ma et al., "Adaptive Stochastic Gradient Descent for Deep Learning on
Heterogeneous CPU+GPU Architectures", IPDPSW 2021: Algorithm 2, ExecuteWork, lines 1 to 5.

Threads read weights while others write them, and of two additions to the same weight at the same
moment one may be lost; nothing else is. Kernels release the GIL, Python between them does not, and
cache lines move slowly between cores: threads gain little where steps are short (models that fit
into a core's cache, a row a part: `benchmarks/speed/step.py`). With one thread the bits are those
of a replica that steps through the same parts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from daskxml.core.work_stats import WorkStats, sum_stats
from daskxml.kernels import get_kernels
from daskxml.kernels.cpu.thread_team import ThreadTeam
from daskxml.worker.replica import Replica
from daskxml.worker.resident_rows import Batch, part_of


class Pool:
    """Threads over the parameters of one replica.

    Parameters
    ----------
    replica
        Whose parameters and optimizer state they change. It must not step at the same time.
    threads
        At least 1; each has kernels, and BLAS, with one thread.
    max_batch_rows, logits_budget_bytes
        The largest batch and the memory for its logits, of all threads together.

    Attributes
    ----------
    replicas
        One for each thread, all over the same parameters.

    Examples
    --------
    `daskxml.worker.training_worker.TrainingWorker` has one where its worker is a pool::

        pool = Pool(replica, threads=4, max_batch_rows=256, logits_budget_bytes=1 << 26)
        done = pool.run(batches, lambda mine, part: mine.step(rows_of(part), lr, key))
    """

    def __init__(
        self, replica: Replica, threads: int, max_batch_rows: int, logits_budget_bytes: int
    ) -> None:
        rows = -(-max_batch_rows // threads)
        budget = max(1, logits_budget_bytes // threads)
        self.threads = threads
        self.replicas = [replica.twin(get_kernels("cpu", 1), rows, budget) for _ in range(threads)]
        self._threads = ThreadTeam(threads)

    def run(
        self, batches: Sequence[Batch], step: Callable[[Replica, Batch], WorkStats]
    ) -> WorkStats:
        """Step each thread through its part of every batch, in order.

        Threads wait for each other at the end only. After an error the others stop at their next
        part.

        Parameters
        ----------
        batches
            Cut into near-equal parts: thread ``t`` takes part ``t``, and none where that is empty.
        step
            Steps a thread's replica through its part; called from several threads.

        Raises
        ------
        Exception
            The first one that ``step`` raised.
        """
        results = [WorkStats() for _ in range(self.threads)]
        failed = threading.Event()

        def work(thread: int, *_: int) -> None:
            try:
                for batch in batches:
                    part = part_of(batch, thread, self.threads)
                    if failed.is_set():
                        return
                    if part:
                        results[thread] += step(self.replicas[thread], part)
            except BaseException:
                failed.set()
                raise

        self._threads.run(self.threads, 1, work)
        return sum_stats(results)

    def close(self) -> None:
        """End the threads."""
        self._threads.close()
        for replica in self.replicas:
            replica.kernels.close()
