"""One worker's part in a run whose output layer is cut among the workers along its labels.

It has all rows, the layers below, and a part of the labels; no worker has the whole model. The
steps, the merges and the evaluation of all workers together are in
`daskxml.worker.partitioned_programs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import numpy as np

from daskxml.collectives.messages import run_together
from daskxml.core.arrays import Array, Partition, Segment
from daskxml.core.errors import ModelError, TrainingError
from daskxml.core.work_stats import WorkStats
from daskxml.metrics import LossSum
from daskxml.models.network.mlp import Mlp
from daskxml.models.network.partitioned import LabelOrder
from daskxml.models.network.sampling import label_source
from daskxml.models.network.spec import Layout, initial_parameters
from daskxml.worker.label_part import LabelPart, Labels, MergePoint
from daskxml.worker.memory import made_up_rows
from daskxml.worker.part_memory import PartPlan, plan_part
from daskxml.worker.partitioned_step import step_program
from daskxml.worker.resident_rows import Batch, Fetched, ResidentRows
from daskxml.worker.run_worker import RunWorker
from daskxml.worker.settings import WorkerSettings

_WARM_LABELS = 2048


class OrderedRows(ResidentRows):
    """Resident rows whose labels in training are places in the order of the labels.

    Where labels are sampled, which is by their ids, there is no order.
    """

    order: LabelOrder | None = None

    def hold_all(self, train: Sequence[Partition], test: Sequence[Partition]) -> None:
        """Hold every row."""
        super().hold_all(list(map(self._placed, train)), test)

    def hold(self, train: Mapping[int, Partition], test: Mapping[int, Partition]) -> None:
        """Hold these shards, of training rows, beside others."""
        new = {shard: self._placed(train[shard]) for shard in train.keys() - self.streams.keys()}
        super().hold(new, test)

    def send(self, spans: Batch, fetched: Fetched) -> list[Segment]:
        """Return the rows of a batch."""
        return super().send(spans, {span: self._placed(rows) for span, rows in fetched.items()})

    def _placed(self, rows: Partition) -> Partition:
        if self.order is None:
            return rows
        return replace(rows, labels=self.order.placed(rows.labels))


class PartitionedWorker(RunWorker):
    """A worker with a part of the labels.

    Attributes
    ----------
    order
        In which the labels are cut.
    part
        Steps; None before the first gang.
    point, staged
        The last merge, and what the one that is not committed yet keeps of other workers' labels.
    label_source
        What names the labels of samples, of all labels, if anything does.
    best_stored
        The whole best model, mapped from the checkpoint that the run goes on from; None where that
        has none, and once there is a better one.
    """

    shared = None
    rows: OrderedRows

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings)
        self.spec = self.settings.data.network
        self.seed = seed = self.settings.config.run.seed
        self.order = LabelOrder.of(self.spec.labels, seed)
        self.rows = OrderedRows(self.kernels, seed)
        if not self.settings.config.sampling.is_on:
            self.rows.order = self.order
        self.part: LabelPart | None = None
        self.point: MergePoint | None = None
        self.staged: dict[int, Labels] | None = None
        self._stored: Mapping[str, Array] = {}  # a checkpoint's arrays, mapped
        self.is_source = False
        self.best_stored: Array | None = None
        self._best_point: MergePoint | None = None
        sampling = self.settings.config.sampling
        self.label_source = label_source(sampling, self.spec, seed, self.kernels)
        self._label_weights: Array | None = None  # in the order of the labels
        self._most_labels = self.spec.labels  # for which there is room

    def close(self) -> None:
        """Do nothing: no memory is shared."""

    def weigh_labels(self, weights: Array | None) -> None:
        """Set what a row's labels count in the loss, ``(labels,)`` float32; None: all count 1."""
        self._label_weights = None if weights is None else weights[self.order.labels]
        if self.part is not None:
            self.part.mlp.output.label_weights = self._label_weights

    def announce_memory(self) -> str:
        """Return the line for the user before the run begins."""
        return self._plan.announce(self.spec.labels)

    def fit(self, room_bytes: int) -> float:
        """Set the memory that this worker may still take; return its largest share of labels."""
        self._most_labels = self._plan.most_labels(room_bytes)
        return min(1.0, max(0, self._most_labels - 1) / self.spec.labels)  # cuts are rounded

    @cached_property
    def _plan(self) -> PartPlan:
        return plan_part(self.settings, self.kernels)

    def warm_up(self) -> float:
        """Compile the kernels; return 0: speeds are measured by steps."""
        labels = min(self.spec.labels, _WARM_LABELS)
        part = LabelPart(self.settings, self.kernels, (0, labels), 0)
        rows = made_up_rows(self.settings, min(self.settings.max_batch_rows, 64))
        to_device = self.kernels.to_device
        numbers = to_device(np.arange(rows.rows, dtype=np.int64))
        segment = Segment(to_device(rows), numbers)
        own = (slice(0, rows.rows),)
        run_together([step_program(part, [segment], own, 0, 0.0, 0, "float32", self.spec.labels)])
        return 0.0

    # ------------------------------------------------------------------- model

    def initialize(self) -> None:
        """Start from the seed's model."""
        self.is_source = True

    def set_models(self, models: Mapping[str, Array], generation: int, best: int) -> None:
        """Start from a checkpoint's model, or, without one, from what others send.

        Raises
        ------
        ModelError
            If it is of another kind or size.
        """
        size = Layout(self.spec).size
        if models and ("current" not in models or models["current"].shape != (size,)):
            raise ModelError(
                "the model to go on with is of another kind or size: leave [model] as it was, or "
                "delete this checkpoint to resume from the one before"
            )
        self._stored, self.is_source = models, bool(models)
        self.part = self.point = self.staged = self._best_point = None
        self.best_stored = models.get("best")
        self.best = best if self.best_stored is not None else 0
        self.generation = generation

    def host_models(self) -> tuple[int, dict[str, Array]]:
        """Return the generation, and no model: a worker that joins gets its part with a gang."""
        return self.generation, {}

    @property
    def model_bytes(self) -> int:
        """Bytes that a worker copies before it joins: none."""
        return 0

    def source_flat(self, name: str, start: int, stop: int) -> Array:
        """Return the layers below and some places of the labels as the run begins with them."""
        labels = self.order.labels[start:stop]
        if not self._stored:
            return initial_parameters(self.spec, self.seed, labels)
        layout = Layout(replace(self.spec, labels=len(labels)))
        found = np.zeros(layout.size, np.float32)
        whole = Layout(self.spec).views(self._stored[name])
        for key, view in layout.views(found).items():
            view[...] = whole[key][labels] if key.startswith("output.") else whole[key]
        return found

    @property
    def keeps_moments(self) -> bool:
        """Whether moments outlive a merge."""
        return self.settings.state_on_merge != "reset"

    def source(self, *, is_going_on: bool) -> MergePoint | None:
        """Return what labels are dealt from: the last merge, or the part as it is now."""
        if is_going_on and self.part is not None:
            return self.part.point(with_moments=True)
        return self.point

    def new_part(self, cuts: tuple[int, ...], index: int) -> LabelPart:
        """Return a part of the labels, all zero.

        Raises
        ------
        TrainingError
            If this worker has no room for it.
        """
        width = cuts[index + 1] - cuts[index]
        if width > self._most_labels:
            raise TrainingError(
                f"{width:,} labels are too many for a worker that has room for "
                f"{self._most_labels:,}, as others are gone: resume the run with more workers, or "
                "with ones that have more memory"
            )
        part = LabelPart(self.settings, self.kernels, cuts, index)
        part.mlp.output.label_weights = self._label_weights
        if self.settings.config.sampling.is_on:
            part.sample(self.order, self.settings, self.label_source)
        return part

    def begin_part(self, cuts: tuple[int, ...], index: int) -> LabelPart:
        """Return a part as the run begins with it."""
        part = self.new_part(cuts, index)
        for name, flat in part.flats(with_moments=bool(self._stored)).items():
            if name == "current" or name in self._stored:
                found = self.source_flat(name, part.start, part.stop)
                self.kernels.copy(flat, self.kernels.to_device(found))
        if "steps" in self._stored:
            part.optimizer.state()["steps"][:] = self._stored["steps"]
        return part

    def commit(self, generation: int) -> None:
        """Make the staged merge the one to go back to."""
        if generation == self.generation:
            return  # a repeated message
        if generation != self.generation + 1:
            raise TrainingError(f"merge {generation} cannot follow merge {self.generation}")
        if self.staged is None or self.part is None:
            self.point = None
        else:
            own = self.part.point(with_moments=self.keeps_moments)
            room, self.point = self.point, None
            if room is self._best_point or not own.is_like(room):
                room = None  # frees it before the new one is allocated
            self.point = own.clone(self.kernels, room)
            self.point.labels.update(self.staged)
        self.staged, self._stored, self.is_source = None, {}, False
        self.generation = generation
        if self.part is not None and not self.keeps_moments:
            self.part.optimizer.reset()

    def keep_best(self, megabatch: int) -> None:
        """Keep the last merge as the best one so far."""
        self._best_point, self.best_stored, self.best = self.point, None, megabatch

    def restore_best(self, megabatch: int) -> bool:
        """Return whether this worker has the best model; it is put together of what all have."""
        return self.best == megabatch

    def local_state(self) -> dict[str, Array]:
        """Return nothing: moments lie in a checkpoint as the parameters do."""
        return {}

    def held_arrays(self, *, with_copies: bool) -> dict[str, Array]:
        """Return what `daskxml.worker.assembly.assemble` makes the whole model of.

        The own part of the last merge, and with ``with_copies`` the copies of others, with moments;
        before the first merge, the whole model that the run began with, if it is here.
        """
        point = self.point
        if point is not None:
            found = {"cuts": np.array(point.cuts, np.int64)}
            found |= {f"lower.{name}": flat for name, flat in point.lower.items()}
            for index in point.labels if with_copies else (point.index,):
                for name, (weight, bias) in point.labels[index].items():
                    found |= {f"{index}.{name}.weight": weight, f"{index}.{name}.bias": bias}
            found |= {} if point.steps is None else {"steps": point.steps}
            return self._on_host(found)
        if not self.is_source:
            return {}
        layout, whole = Layout(self.spec), dict(self._stored)
        whole.pop("best", None)
        if not whole:
            whole["current"] = initial_parameters(self.spec, self.seed)
        found = {"cuts": np.array([0, self.spec.labels], np.int64)}
        for name, flat in whole.items():
            found |= _described(name, flat, layout, self.order.labels)
        return found

    def _on_host(self, held: Mapping[str, Array]) -> dict[str, Array]:
        return {name: self.kernels.to_host(array) for name, array in held.items()}

    def held_of_best(self) -> dict[str, Array]:
        """Return what this worker has kept of the best model, as `held_arrays` does; copies too."""
        point = self._best_point
        if point is not None:
            found = {"cuts": np.array(point.cuts, np.int64), "lower.best": point.lower["current"]}
            for index, labels in point.labels.items():
                weight, bias = labels["current"]
                found |= {f"{index}.best.weight": weight, f"{index}.best.bias": bias}
            return self._on_host(found)
        return {}

    def model_arrays(self) -> dict[str, Array]:
        """Refuse: no worker has the whole model."""
        raise AssertionError("the model is assembled of the parts of all workers")

    @contextmanager
    def global_model(self) -> Iterator[Mlp]:
        """Refuse: workers evaluate together."""
        raise AssertionError("no worker has the whole model")
        yield

    def training_loss(self, pieces: Sequence[object], fetched: object) -> LossSum:
        """Return no loss: run files that ask for it are refused before."""
        return LossSum()

    def lease(self, batches: Sequence[Batch], *arguments: object) -> WorkStats:
        """Refuse: all workers step together."""
        raise AssertionError("a part of the labels cannot step on its own")


def _described(name: str, flat: Array, layout: Layout, labels: Array) -> dict[str, Array]:
    """Return a whole model, or its moments, by the names of `held_arrays`: one part of all labels.

    ``labels`` puts them in their order.
    """
    if name == "steps":
        return {name: flat}
    found = {f"lower.{name}": flat[: layout.slots["output.weight"].offset]}
    for kind in ("weight", "bias"):
        found[f"0.{name}.{kind}"] = layout.views(flat)[f"output.{kind}"][labels]
    return found
