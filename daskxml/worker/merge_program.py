"""A rank's part in a merge, as a program of messages: all replicas become one model.

The program writes the merged model into the worker's scratch model; committing it is another step,
taken only when all workers have it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from daskxml.collectives.all_gather import broadcast
from daskxml.collectives.combine import merge_factors
from daskxml.collectives.messages import Program
from daskxml.collectives.ring import PIECE_FLOATS, all_reduce
from daskxml.core.arrays import Array
from daskxml.core.work_stats import Means
from daskxml.session.commands import MergeReplicas
from daskxml.worker.gang_programs import combine_among_ranks
from daskxml.worker.training_worker import TrainingWorker


def merge_program(
    worker: TrainingWorker, command: MergeReplicas, rank: int, hosts: tuple[str, ...],
    piece_size: int = PIECE_FLOATS,
) -> Program[Means]:  # fmt: skip
    """Return one rank's part in a merge; ranks are in the order of ``command.weights``.

    Parameters
    ----------
    hosts
        The machine of every rank.
    piece_size
        Elements of a message, at most.
    """
    worker.commit(command.generation - 1)
    if worker.settings.strategy.shares_model:
        return (yield from _copy_shared_model(worker, rank, len(hosts)))
    merge = _Merge(worker, command, rank, hosts, piece_size)
    means: Means = {}
    with worker.kernels.time_range("merge"):
        if merge.combines_changes:
            means = yield from merge.combine_changes()
        else:
            yield from merge.combine_models()
        if worker.settings.strategy.averages:
            yield from merge.spread(worker.array("center before"), worker.array("memory"))
        if worker.settings.state_on_merge == "average":
            yield from merge.average_optimizer()
    return means


def _copy_shared_model(worker: TrainingWorker, rank: int, ranks: int) -> Program[Means]:
    """Copy the shared model while no worker steps; the first rank sends its copy to the others.

    They could copy it themselves, but what a lost worker pushed may be added meanwhile.
    """
    if rank == 0 and worker.shared is not None:
        worker.kernels.copy(worker.scratch, worker.kernels.to_device(worker.shared.flat))
    yield from broadcast(rank, 0, range(1, ranks), worker.scratch)
    return {}


class _Merge:
    def __init__(
        self, worker: TrainingWorker, command: MergeReplicas, rank: int, hosts: tuple[str, ...],
        piece_size: int,
    ) -> None:  # fmt: skip
        self.worker, self.command, self.rank, self.hosts = worker, command, rank, hosts
        self.piece_size = piece_size
        self.kernels = worker.kernels
        self.weights = list(command.weights.values())

    @property
    def combines_changes(self) -> bool:
        """Whether the replicas' changes are combined, not the replicas themselves.

        Joint strategies have one model, whose weight is 1: there is nothing left to combine.
        """
        settings = self.worker.settings
        return settings.config.rule != "mean" and not settings.strategy.is_joint

    def combine_models(self) -> Program[None]:
        """``sum_i a_i w_i + b w + c x``, with x the model before w, or the outer memory."""
        worker, combine = self.worker, self.worker.settings.config.combine
        factors = merge_factors(combine, self.weights, self.command.momentum)
        yield from self._ring(
            worker.scratch,
            worker.merge_source(),
            factors.replicas[self.rank],
            self._adding(factors.current, factors.previous),
            "bfloat16" if combine.transfer == "bfloat16" else "float32",
        )

    def _adding(self, current: float, previous: float) -> Callable[[slice], None] | None:
        """Return what adds the global models' share to a piece of the scratch model."""
        if not (current or previous):
            return None
        worker = self.worker

        def finish(piece: slice) -> None:
            out = worker.scratch[piece]
            if current == -previous:
                self.kernels.momentum(out, worker.current[piece], worker.previous[piece], current)
            else:
                self.kernels.add_two(
                    out, worker.current[piece], current, worker.previous[piece], previous
                )

        return finish

    def combine_changes(self) -> Program[Means]:
        """``w + rule(w_i - w) + momentum (w - w before)``, the rule being any but the mean."""
        worker, kernels = self.worker, self.kernels
        change = worker.array("change")
        kernels.axpby(change, worker.merge_source(), 1.0, worker.current, -1.0)
        means = yield from combine_among_ranks(worker, self.rank, self.hosts, change, self.weights)
        kernels.axpby(worker.scratch, worker.current, 1.0, change, 1.0)
        finish = self._adding(self.command.momentum, -self.command.momentum)
        if finish is not None:
            finish(slice(None))
        return means

    def spread(self, source: Array, out: Array) -> Program[None]:
        """Send the array of the rank with weight 1 to all ranks."""
        yield from self._ring(out, source, self.weights[self.rank])

    def average_optimizer(self) -> Program[None]:
        """Average the optimizers' state by the weights, their counts of steps as well."""
        worker = self.worker
        share = self.weights[self.rank] / sum(self.weights)
        out = worker.array("change")
        for name, array in sorted(worker.replica.optimizer.state().items()):
            if name == "steps":
                yield from self._average_steps(array, share)
                continue
            yield from self._ring(out, array, share)
            self.kernels.copy(array, out)

    def _average_steps(self, steps: Array, share: float) -> Program[None]:
        counted, mean = self.kernels.zeros(16), self.kernels.zeros(16)
        counted[0] = float(steps[0])
        yield from self._ring(mean, counted, share)
        steps[0] = int(np.rint(float(mean[0])))

    def _ring(
        self,
        out: Array,
        term: Array,
        weight: float,
        finish: Callable[[slice], None] | None = None,
        transfer: str = "float32",
    ) -> Program[None]:
        ranks, kernels = len(self.weights), self.kernels
        yield from all_reduce(
            self.rank, ranks, out, term, weight, kernels, finish, self.piece_size, transfer
        )
