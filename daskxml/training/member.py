"""One worker's share of a run: a replica, the rows it holds, and the models that it is merged with.

Knows nothing of Dask. Four flat arrays of the model's size are allocated once: the replica that is
being trained, the global model that it started from, the global model before that (or what else a
merge must remember), and a scratch model that a merge is written into; committing rotates them.
Where arrays are exchanged at every step, or merges overlap with training, there are more: `array`.

Where all workers update one model, the replica of a pool on that model's machine lies in the memory
that they share; others step on a copy. A merge then only takes down what that model has become.
"""

from __future__ import annotations

import threading
import time
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np

from daskxml.combine import outer_memory
from daskxml.errors import TrainingError
from daskxml.metrics import LossSum, MetricSums, propensities
from daskxml.model.parameters import Layout, initial_parameters
from daskxml.ops import get_kernels
from daskxml.optim import GradientBuffer, Optimizer
from daskxml.training.budget import choose_budget
from daskxml.training.checkpoint import check_model_fits, check_state_fits
from daskxml.training.holdings import Fetched, Holdings
from daskxml.training.ledger import Span
from daskxml.training.orders import MergeOrder, Piece
from daskxml.training.replica import Replica
from daskxml.training.results import LeaseResult, StepResult
from daskxml.training.scoring import sum_losses, sum_metrics
from daskxml.training.settings import MemberSettings
from daskxml.training.shared import ModelStore, SharedHandle, SharedModel
from daskxml.training.snapshot import Snapshot
from daskxml.training.stepping import Rest, make_stepper, no_rest, notes_of
from daskxml.types import Array, Partition


class Member:
    """A worker's part in one run.

    Parameters
    ----------
    shared
        The model that all share, from another process; None where it is to be made here, if any.
    store
        What a worker on another machine pulls that model from and pushes its changes to.
    zeros
        Makes the arrays that travel in merges, ``(size,)`` float32; by default the kernels do.

    Attributes
    ----------
    current, previous, scratch
        ``(size,)`` float32: the global model, the one before it, and room for the next one.
        With an outer optimizer ``previous`` is what that remembers.
    generation, snapshot
        Number of merges that ``current`` has been through; of what a snapshot was last taken for.
    holdings
        The rows.
    budget, shared
        What logits may take; the model that all share, where it is on this machine.
    """

    def __init__(
        self, settings: MemberSettings, shared: SharedModel | None = None,
        store: ModelStore | None = None, zeros: Callable[[int], Array] | None = None,
    ) -> None:  # fmt: skip
        self.kernels = get_kernels(settings.device, settings.kernel_threads, settings.exact)
        self.budget = choose_budget(settings, self.kernels)
        settings = self.budget.given_to(settings)
        self.settings, self.layout = settings, Layout(settings.spec)
        self._owns_shared = shared is None and settings.shares_model and settings.is_at_home
        self.shared = SharedModel.create(self.layout.size) if self._owns_shared else shared
        self.holdings = Holdings(self.kernels, settings.seed)
        self.stepper = make_stepper(settings, self.kernels, self.holdings, self.shared, store)
        self.replica, self.memory = self.stepper.replica, self.stepper.memory
        self._zeros: Callable[[int], Array] = zeros or self.kernels.zeros
        self.current, self.previous, self.scratch = map(self._zeros, [self.layout.size] * 3)
        self.generation, self.snapshot = 0, Snapshot(settings.combine, self.kernels)
        self._rotation = threading.Lock()  # a worker that joins reads while others merge
        self._arrays: dict[str, Array] = {}
        self.label_counts: Array = np.zeros(settings.spec.labels, dtype=np.int64)
        self.inverse_propensity: Array = np.ones(settings.spec.labels)

    @property
    def shared_handle(self) -> SharedHandle | None:
        """Where other processes of this machine find the shared model; None if it is not here."""
        return None if self.shared is None else self.shared.handle

    def close(self) -> None:
        """Let go of the shared model; no process finds it here any more."""
        if self.shared is not None:
            self.shared.close()

    def initialize(self) -> None:
        """Start from the seed's model."""
        flat = initial_parameters(self.settings.spec, self.settings.seed)
        self.set_model(flat, flat, generation=0)

    def set_model(self, current: Array, previous: Array, generation: int) -> None:
        """Start from a global model and the one before it, flat ``(size,)`` float32 host arrays.

        Only whoever made the shared model changes it: others may come while it is trained.
        """
        check_model_fits(self.current, current, previous)
        self.kernels.copy(self.current, self.kernels.to_device(current))
        self.kernels.copy(self.previous, self.kernels.to_device(previous))
        self.replica.forget_tables()
        if self._owns_shared and self.shared is not None:
            np.copyto(self.shared.flat, current)
        if not self.settings.steps_in_place:
            self.kernels.copy(self.replica.flat, self.current)
        self.generation = generation

    def rewind(self) -> None:
        """Forget what was done since the last merge, and all moments; a shared model stays."""
        if self.settings.shares_model:
            return
        self.kernels.copy(self.replica.flat, self.current)
        self.replica.optimizer.reset()

    def commit(self, generation: int) -> None:
        """Make the merged model in ``scratch`` the global one; the replica follows."""
        if generation == self.generation:
            return  # told twice
        if generation != self.generation + 1:
            raise TrainingError(f"merge {generation} cannot follow merge {self.generation}")
        combine, flat = self.settings.combine, self.replica.flat
        models = self.scratch, self.current, self.previous
        if is_ahead := self.snapshot.generation == generation:
            self.snapshot.correct(flat, self.array("snapshot"), *models)
        with self._rotation:
            if combine.outer == "nesterov":
                outer_memory(self.previous, self.scratch, combine.outer_momentum, self.kernels)
                self.current, self.scratch = self.scratch, self.current
            elif self.settings.averages:
                self.current, self.scratch = self.scratch, self.current
                self.kernels.copy(self.previous, self.array("memory"))
            else:
                self.current, self.previous, self.scratch = models
            self.generation = generation
        if not (is_ahead or self.settings.keeps_replicas or self.settings.steps_in_place):
            self.kernels.copy(flat, self.current)
        if self.settings.on_merge == "reset":
            self.replica.optimizer.reset()

    def take_snapshot(self, order: MergeOrder) -> None:
        """Keep the replica as it is for this merge; what was kept for it first counts."""
        if self.snapshot.generation != order.generation:
            flat, kept = self.replica.flat, self.array("snapshot")
            self.snapshot.take(order, kept, flat, self.current, self.previous)

    def squared_norm(self) -> float:
        """Return the squared L2 norm of the replica."""
        return self.kernels.squared_norm(self.replica.flat)

    def host_models(self) -> tuple[int, dict[str, Array]]:
        """Return the generation, and copies of the global model and the one before it."""
        with self._rotation:
            models = {"current": self.current, "previous": self.previous}
            return self.generation, {n: self.kernels.to_host(m).copy() for n, m in models.items()}

    def array(self, name: str) -> Array:
        """Return a flat array of the model's size, zero when it is first asked for."""
        if name not in self._arrays:
            self._arrays[name] = self._zeros(self.layout.size)
        return self._arrays[name]

    def merge_source(self) -> Array:
        """Return the model that this worker brings to a merge."""
        if self.snapshot.generation > self.generation:
            return self.array("snapshot")
        is_center = self.settings.averages or "server_optimizer" in self.__dict__
        return self.array("center") if is_center else self.replica.flat

    @cached_property
    def server_optimizer(self) -> Optimizer:
        """The optimizer of the parameter server, where it runs in this process."""
        return self.replica.optimizer_for(self.layout.views(self.array("center")))

    def local_state(self) -> dict[str, Array]:
        """Return copies of what this worker alone knows and a checkpoint must hold."""
        state: dict[str, Array] = {}
        if self.settings.keeps_replicas:
            state["replica"] = self.replica.flat
        if self.settings.on_merge != "reset":
            optimizer = self.replica.optimizer.state()
            state |= {f"optimizer.{name}": array for name, array in optimizer.items()}
            if "server_optimizer" in self.__dict__:
                server = self.server_optimizer.state()
                state |= {f"server.{name}": array for name, array in server.items()}
        state |= self.replica.tables_state()
        return {name: self.kernels.to_host(array).copy() for name, array in state.items()}

    def set_local_state(self, state: Mapping[str, Array]) -> None:
        """Go on from what `local_state` returned."""
        held = {f"optimizer.{n}": a for n, a in self.replica.optimizer.state().items()}
        held |= self.replica.tables_state() | {"replica": self.replica.flat}
        if any(name.startswith("server.") for name in state):
            held |= {f"server.{n}": a for n, a in self.server_optimizer.state().items()}
        check_state_fits(held, state)
        for name, array in state.items():
            self.kernels.copy(held[name], self.kernels.to_device(array))
        self.replica.resume_tables()

    # -------------------------------------------------------------------- rows

    def hold_all(self, train: Sequence[Partition], test: Sequence[Partition]) -> None:
        """Hold every row: the training partitions become one stream."""
        self.holdings.hold_all(train, test)

    def hold(self, train: Mapping[int, Partition], test: Mapping[int, Partition]) -> None:
        """Hold these shards, beside those that leases under way may still name."""
        self.holdings.hold(train, test)

    def count_labels(self, label_counts: Array) -> None:
        """Hear how often each label occurs in the training rows."""
        self.label_counts, settings = label_counts, self.settings
        self.inverse_propensity = propensities(
            label_counts, settings.training_rows, settings.propensity_a, settings.propensity_b
        )

    # -------------------------------------------------------------------- work

    def lease(
        self, batches: Sequence[Sequence[Span]], lr: float, fetched: Fetched, rest: Rest = no_rest
    ) -> LeaseResult:
        """Step through batches; ``fetched`` has the rows of spans that are not held here.

        ``rest`` is called after every batch, of a pool after all: a merge may be committed there.
        The threads of a pool share each batch among them. Where all update one model that is not
        here, every batch is worked on a fresh copy of it, whose changes are added to it.

        Raises
        ------
        TrainingError
            If the loss is not finite any more.
        """
        begun_s = time.perf_counter()
        done = self.stepper.run(batches, lr, fetched, rest)
        busy_s, news = time.perf_counter() - begun_s, self.stepper.news_of_memory()
        told = notes_of(done, self.settings), news
        return LeaseResult(done.loss_sum, busy_s, done.nonzeros, done.updates, *told)

    def step(self, batch: Sequence[Span], lr: float, fetched: Fetched) -> StepResult:
        """Step the replica through one batch; ``lr`` is the rate before the schedule."""
        return self.stepper.step_alone(batch, lr, fetched)

    def find_gradient(self, batch: Sequence[Span], lr: float, fetched: Fetched) -> StepResult:
        """Put the mean gradient over a batch into ``gradient``; ``lr`` is for the message only."""
        return self.stepper.gradient(batch, self.gradient, lr, fetched)

    @cached_property
    def gradient(self) -> GradientBuffer:
        """Where `find_gradient` puts the gradient."""
        return GradientBuffer(self.kernels, self.layout.size, self.layout.views)

    def scheduled(self, lr: float, batch: Sequence[Span]) -> float:
        """Return the learning rate of a batch: it depends on where in the run its rows lie."""
        return self.stepper.scheduled(lr, batch)

    def evaluate(self, pieces: Sequence[Piece], fetched: Mapping[int, Partition]) -> MetricSums:
        """Score pieces of the test rows with the global model; ``fetched`` has other shards."""
        settings, shards = self.settings, ChainMap({**fetched}, self.holdings.tests)
        how = settings.evaluation_rows, self.inverse_propensity, settings.ks
        with self._global_model() as replica:
            return sum_metrics(replica, shards, pieces, *how)

    def training_loss(self, pieces: Sequence[Piece], fetched: Mapping[int, Partition]) -> LossSum:
        """Add up the loss of pieces of the training rows with the global model.

        Raises
        ------
        TrainingError
            If it is not finite.
        """
        if not pieces:
            return LossSum()
        shards = ChainMap({**fetched}, self.holdings.streams)
        with self._global_model() as replica:
            return sum_losses(replica, shards, pieces, self.settings.evaluation_rows)

    @contextmanager
    def _global_model(self) -> Iterator[Replica]:
        """Return the replica while it equals the global model."""
        if not (self.settings.keeps_replicas or self.settings.combine.overlap):
            yield self.replica
            return
        kept = self.array("snapshot")  # no merge is under way
        self.kernels.copy(kept, self.replica.flat)
        self.kernels.copy(self.replica.flat, self.current)
        try:
            yield self.replica
        finally:
            self.kernels.copy(self.replica.flat, kept)
