"""One worker's part in a run: a replica, the resident rows, and the models that merges need.

It does not depend on Dask. Four flat arrays of the model's size are allocated once: the replica
that is being trained, the global model that it started from, the global model before that (or the
outer optimizer's memory), and a scratch model that a merge writes into; a commit rotates them.
Where arrays are exchanged at every step there are more: `array`.

Where all workers update one shared model, the replica of a pool on that model's machine is in the
shared memory; other workers step on a copy. A merge then only copies the shared model.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import numpy as np

from daskxml.collectives.combine import outer_memory
from daskxml.core.arrays import Array
from daskxml.core.errors import ModelError, TrainingError
from daskxml.core.work_stats import WorkStats
from daskxml.data.side_files import label_weights
from daskxml.kernels import get_kernels
from daskxml.kernels.cpu.thread_team import ONE_THREAD
from daskxml.metrics import propensities
from daskxml.models.network.spec import Layout, initial_parameters
from daskxml.optim import GradientBuffer, Optimizer
from daskxml.worker.batch_runner import make_batch_runner
from daskxml.worker.memory import choose_budget
from daskxml.worker.replica import Replica
from daskxml.worker.resident_rows import Batch, Fetched, ResidentRows
from daskxml.worker.settings import WorkerSettings
from daskxml.worker.shared_model import SharedModel


class TrainingWorker:
    """A worker's part in a run of networks.

    Parameters
    ----------
    shared
        The shared model of another process; None where it is to be created here, if any.
    zeros
        Allocates the arrays that are sent in merges, ``(size,)`` float32; by default the kernels.

    Attributes
    ----------
    rows
        The resident rows.
    best
        The mega-batch whose model is kept as the best one; 0: none is.
    generation
        Number of merges that the global model includes.
    label_counts
        ``(labels,)`` int64: training rows with each label.
    inverse_propensity
        ``(labels,)``: by which metrics weigh labels.
    current, previous, scratch
        ``(size,)`` float32: the global model, the one before it, and room for the next one.
        With an outer optimizer ``previous`` is its memory.
    shared
        The shared model, where it is on this machine.
    """

    def __init__(
        self, settings: WorkerSettings, shared: SharedModel | None = None,
        zeros: Callable[[int], Array] | None = None,
    ) -> None:  # fmt: skip
        slot, shares_model = settings.slot, settings.strategy.shares_model
        self._leave_blas = weakref.finalize(self, ONE_THREAD.__enter__().__exit__)
        self.kernels = get_kernels(slot.device, slot.kernel_threads, settings.config.gpu.exact)
        budget_bytes = choose_budget(settings, self.kernels)
        self.settings = settings = replace(settings, logits_budget_bytes=budget_bytes)
        self.rows = ResidentRows(self.kernels, settings.config.run.seed)
        self.generation = self.best = 0
        self.label_counts: Array = np.zeros(settings.data.spec.labels, dtype=np.int64)
        self.inverse_propensity: Array = np.ones(settings.data.spec.labels)
        self.layout = Layout(settings.data.spec)
        self._owns_shared = shared is None and shares_model
        self.shared = SharedModel.create(self.layout.size) if self._owns_shared else shared
        self.runner = make_batch_runner(settings, self.kernels, self.rows, self.shared)
        self.replica, self.memory = self.runner.replica, self.runner.memory
        self._zeros: Callable[[int], Array] = zeros or self.kernels.zeros
        self.current, self.previous, self.scratch = map(self._zeros, [self.layout.size] * 3)
        self._rotation = threading.Lock()  # one commits, or sends its models, at a time
        self._arrays: dict[str, Array] = {}

    def close(self) -> None:
        """End a pool's threads, and close the shared model, which no process can open here then."""
        self.runner.close()
        self._leave_blas()
        if self.shared is not None:
            self.shared.close()

    def count_labels(self, label_counts: Array) -> None:
        """Set the counts of each label in the training rows, ``(labels,)`` int64."""
        self.label_counts, config = label_counts, self.settings.config
        base, a, b = config.data.label_base, config.data.propensity_a, config.data.propensity_b
        found = propensities(label_counts, self.settings.data.rows, a, b)
        weights = label_weights(config.training.class_weight, label_counts, found, base)
        self.inverse_propensity = found
        self.runner.weigh_labels(weights)

    def initialize(self) -> None:
        """Start from the seed's model."""
        flat = initial_parameters(self.replica.spec, self.settings.config.run.seed)
        self.set_model(flat, flat, generation=0)

    def set_models(self, models: Mapping[str, Array], generation: int, best: int) -> None:
        """Start from what `host_models` returned; ``best`` is the number of its best model.

        Raises
        ------
        ModelError
            If it is of another kind or size.
        """
        if not {"current", "previous"} <= models.keys():
            raise ModelError(
                "the model to continue from is no network: leave [model] kind as it was, or delete "
                "this checkpoint to resume from the one before"
            )
        self.set_model(models["current"], models["previous"], generation)
        if best and "best" in models:
            self.keep_best(best, models["best"])

    def set_model(self, current: Array, previous: Array, generation: int) -> None:
        """Start from a global model and the one before it, flat ``(size,)`` float32 host arrays.

        Only the creator of the shared model changes it: others may join while it is trained.

        Raises
        ------
        ModelError
            If one is of another size.
        """
        for array in (current, previous):
            if array.shape != self.current.shape:
                raise ModelError(
                    f"the model to continue from has {array.size:,} numbers, the run's "
                    f"{self.current.size:,}: leave [model] as it was"
                )
        self.kernels.copy(self.current, self.kernels.to_device(current))
        self.kernels.copy(self.previous, self.kernels.to_device(previous))
        self.replica.forget_tables()
        if self._owns_shared and self.shared is not None:
            np.copyto(self.shared.flat, current)
        if not self.settings.steps_in_place:
            self.kernels.copy(self.replica.flat, self.current)
        self.generation = generation

    def rebase(self, models: Mapping[str, Array], generation: int, best: int) -> bool:
        """Add what the replica changed since its base to a newer global model.

        Returns
        -------
        bool
            False if that is not finite: the change is dropped.
        """
        # Not `scratch`: a merge that went on without this worker may still write to it.
        changed, flat = self.array("kept"), self.replica.flat
        self.kernels.axpby(changed, flat, 1.0, self.current, -1.0)
        self.set_models(models, generation, best)
        self.kernels.axpby(flat, self.current, 1.0, changed, 1.0)
        is_finite = math.isfinite(self.squared_norm())
        if not is_finite:
            self.rewind()
        return is_finite

    def rewind(self) -> None:
        """Undo all steps since the last merge, and reset all moments; a shared model stays."""
        if self.settings.strategy.shares_model:
            return
        self.kernels.copy(self.replica.flat, self.current)
        self.replica.optimizer.reset()

    def commit(self, generation: int) -> None:
        """Make the merged model in ``scratch`` the global one; the replica follows."""
        settings, combine = self.settings, self.settings.config.combine
        with self._rotation:
            if generation <= self.generation:
                return  # it was told before, or comes late
            if generation != self.generation + 1:
                raise TrainingError(f"merge {generation} cannot follow merge {self.generation}")
            models = self.scratch, self.current, self.previous
            if combine.outer == "nesterov":
                outer_memory(self.previous, self.scratch, combine.outer_momentum, self.kernels)
                self.current, self.scratch = self.scratch, self.current
            elif settings.strategy.averages:
                self.current, self.scratch = self.scratch, self.current
                self.kernels.copy(self.previous, self.array("memory"))
            else:
                self.current, self.previous, self.scratch = models
            self.generation = generation
            if not (settings.strategy.averages or settings.steps_in_place):
                self.kernels.copy(self.replica.flat, self.current)
            if settings.state_on_merge == "reset":
                self.replica.optimizer.reset()

    def squared_norm(self) -> float:
        """Return the squared L2 norm of the replica."""
        return self.kernels.squared_norm(self.replica.flat)

    def host_models(self) -> tuple[int, dict[str, Array]]:
        """Return the generation, and copies of the global model and the one before it.

        Also of the best model, where one is kept.
        """
        with self._rotation:
            models = {"current": self.current, "previous": self.previous}
            if self.best:
                models["best"] = self.array("best")
            return self.generation, {n: self.kernels.to_host(m).copy() for n, m in models.items()}

    def keep_best(self, megabatch: int, model: Array | None = None) -> None:
        """Keep the global model, or a ``model`` on the host, as the best one so far."""
        source = self.current if model is None else self.kernels.to_device(model)
        self.kernels.copy(self.array("best"), source)
        self.best = megabatch

    def restore_best(self, megabatch: int) -> bool:
        """Make the best model the global one; return False where it is not the one of then."""
        if self.best != megabatch:
            return False
        self.kernels.copy(self.current, self.array("best"))
        return True

    @property
    def model_bytes(self) -> int:
        """Bytes of the global model and the one before it."""
        return 2 * int(self.current.nbytes)

    def model_arrays(self) -> dict[str, Array]:
        """Return the global model's parameters by name, on the host."""
        return self.layout.views(self.kernels.to_host(self.current))

    def array(self, name: str) -> Array:
        """Return a flat array of the model's size, zero at first."""
        if name not in self._arrays:
            self._arrays[name] = self._zeros(self.layout.size)
        return self._arrays[name]

    def merge_source(self) -> Array:
        """Return the model that this worker brings to a merge."""
        is_center = self.settings.strategy.averages or "server_optimizer" in self.__dict__
        return self.array("center") if is_center else self.replica.flat

    @cached_property
    def server_optimizer(self) -> Optimizer:
        """The optimizer of the parameter server, where it runs in this process."""
        return self.replica.optimizer_for(self.layout.views(self.array("center")))

    # -------------------------------------------------------------- checkpoints

    def local_state(self) -> dict[str, Array]:
        """Return copies of the arrays that differ from worker to worker, for a checkpoint."""
        state: dict[str, Array] = {}
        if self.settings.strategy.averages:
            state["replica"] = self.replica.flat
        if self.settings.state_on_merge != "reset":
            state |= _prefixed("optimizer", self.replica.optimizer.state())
            if "server_optimizer" in self.__dict__:
                state |= _prefixed("server", self.server_optimizer.state())
        state |= self.replica.tables_state()
        return {name: self.kernels.to_host(array).copy() for name, array in state.items()}

    def set_local_state(self, state: Mapping[str, Array]) -> None:
        """Continue from what `local_state` returned.

        Raises
        ------
        ModelError
            If the run has no such array, or one of another shape.
        """
        held = _prefixed("optimizer", self.replica.optimizer.state())
        held |= self.replica.tables_state() | {"replica": self.replica.flat}
        if any(name.startswith("server.") for name in state):
            held |= _prefixed("server", self.server_optimizer.state())
        for name, array in state.items():
            if name not in held or held[name].shape != array.shape:
                raise ModelError(
                    f"the checkpoint holds {name}, for which the run has no place: leave "
                    "[optimizer] and [sampling] as they were"
                )
        for name, array in state.items():
            self.kernels.copy(held[name], self.kernels.to_device(array))
        self.replica.resume_tables()

    # -------------------------------------------------------------------- work

    def lease(self, batches: Sequence[Batch], lr: float, fetched: Fetched) -> WorkStats:
        """Step through batches; ``fetched`` has the rows of spans that are not resident here.

        The threads of a pool divide each batch among them. Other workers step every batch on a
        fresh copy of a shared model, and add their changes to it.

        Raises
        ------
        TrainingError
            If the loss is not finite any more.
        """
        begun_s = time.perf_counter()
        with self.kernels.time_range("lease"):
            work = self.runner.run(batches, lr, fetched)
        work.busy_s = time.perf_counter() - begun_s
        work.max_batch_rows = self.runner.new_memory_bound()
        return work

    @cached_property
    def gradient(self) -> GradientBuffer:
        """The gradient that workers exchange at every step."""
        return GradientBuffer(self.kernels, self.layout.size, self.layout.views)

    @contextmanager
    def global_model(self) -> Iterator[Replica]:
        """Set the replica to the global model while the context is open."""
        settings = self.settings
        if not settings.strategy.averages:
            yield self.replica
            return
        kept = self.array("kept")
        self.kernels.copy(kept, self.replica.flat)
        self.kernels.copy(self.replica.flat, self.current)
        try:
            yield self.replica
        finally:
            self.kernels.copy(self.replica.flat, kept)


def _prefixed(prefix: str, state: Mapping[str, Array]) -> dict[str, Array]:
    return {f"{prefix}.{name}": array for name, array in state.items()}
