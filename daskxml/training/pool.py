"""A pool: threads that update one model in place without locks, each with rows of its own.

Hogbatch (Sallinen et al., "High Performance Parallel Stochastic Gradient Descent in Shared Memory",
IPDPS 2016) divides each batch among the threads; where a part is one row it is Hogwild (Niu et al.,
"HOGWILD!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent", NIPS 2011). In "Ma et
al., Adaptive Stochastic Gradient Descent for Deep Learning on Heterogeneous CPU+GPU Architectures"
(IPDPSW 2021) it is the CPU worker: Algorithm 2, ExecuteWork, lines 1 to 5.

Threads read weights while others write them, and two that add to the same weight at the same moment
may lose one of the additions: nothing else is ever lost. Kernels release the GIL; Python in between
does not, and a cache line that one core has just written reaches the other slowly: threads gain
little where a step is short (models that fit into a core's cache, a row a part:
`benchmarks/pool.py`). With one thread the bits are those of a replica that steps through the same
parts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from daskxml.ops import get_kernels
from daskxml.ops.lanes import Lanes
from daskxml.training.ledger import Span
from daskxml.training.replica import Replica
from daskxml.training.results import StepResult

Part = Sequence[Span]


@dataclass(frozen=True, slots=True)
class PoolResult:
    """What the threads did together.

    Attributes
    ----------
    loss_sum, rows, nonzeros
        Summed over all parts.
    updates
        Parts with rows: how often the model was changed.
    seen
        Labels that rows saw, summed over rows.
    """

    loss_sum: float = 0.0
    rows: int = 0
    nonzeros: int = 0
    updates: int = 0
    seen: int = 0

    def plus(self, step: StepResult) -> PoolResult:
        """Return the sum with one more update."""
        return PoolResult(
            self.loss_sum + step.loss_sum,
            self.rows + step.rows,
            self.nonzeros + step.nonzeros,
            self.updates + 1,
            self.seen + step.seen,
        )

    def __add__(self, other: PoolResult) -> PoolResult:
        return PoolResult(
            self.loss_sum + other.loss_sum,
            self.rows + other.rows,
            self.nonzeros + other.nonzeros,
            self.updates + other.updates,
            self.seen + other.seen,
        )


class Pool:
    """Threads over the parameters of one replica.

    Parameters
    ----------
    replica
        Whose parameters and optimizer's state they change. It must not step meanwhile.
    threads
        At least 1. Each has kernels with one lane, so BLAS runs on one thread in each.
    max_batch_rows
        The largest batch, of which each thread takes its part.
    logits_budget_bytes
        Of all threads together; see `Replica`.

    Attributes
    ----------
    replicas
        One for each thread, all over the same parameters.

    Examples
    --------
    `daskxml.training.member.Member` has one where its worker is a pool::

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
        self._threads = Lanes(threads)

    def run(
        self, batches: Sequence[Part], step: Callable[[Replica, Part], StepResult]
    ) -> PoolResult:
        """Let the threads go through the batches, each through its part of every batch in order.

        They wait for each other at the end only. The first error ends the others' work after the
        part that they are at.

        Parameters
        ----------
        batches
            Cut into near-equal parts: thread ``t`` takes part ``t``, and none where that is empty.
        step
            Steps a thread's replica through its part; called from several threads.

        Raises
        ------
        Exception
            Whatever ``step`` raised first.
        """
        results = [PoolResult() for _ in range(self.threads)]
        failed = threading.Event()

        def work(lane: int, *_: int) -> None:
            try:
                for batch in batches:
                    part = part_of(batch, lane, self.threads)
                    if failed.is_set():
                        return
                    if part:
                        results[lane] = results[lane].plus(step(self.replicas[lane], part))
            except BaseException:
                failed.set()
                raise

        self._threads.run(self.threads, 1, work)
        return sum(results, PoolResult())

    def close(self) -> None:
        """End the threads."""
        self._threads.close()
        for replica in self.replicas:
            replica.kernels.close()


def part_of(batch: Part, part: int, parts: int) -> list[Span]:
    """Return one of the near-equal parts that a batch is cut into; empty where rows are too few.

    Examples
    --------
    >>> batch = [Span(0, 0, 0, 3), Span(1, 0, 0, 2)]
    >>> [[tuple(span) for span in part_of(batch, part, 2)] for part in range(2)]
    [[(0, 0, 0, 2)], [(0, 0, 2, 3), (1, 0, 0, 2)]]
    """
    rows = sum(span.rows for span in batch)
    first, last = rows * part // parts, rows * (part + 1) // parts
    found = []
    for span in batch:
        start, stop = span.start + max(first, 0), min(span.start + last, span.stop)
        if start < stop:
            found.append(Span(span.epoch, span.stream, start, stop))
        first, last = first - span.rows, last - span.rows
    return found
