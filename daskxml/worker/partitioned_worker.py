"""One worker's part in a run whose output layer is cut among the workers along its labels.

It has all rows, the layers below, and a part of the labels; no worker has the whole model. The
steps, the merges and the evaluation of all workers together are in
`daskxml.worker.partitioned_programs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from daskxml.collectives.messages import run_together
from daskxml.core.arrays import Array, Partition, Segment
from daskxml.core.errors import ModelError, TrainingError
from daskxml.core.work_stats import WorkStats
from daskxml.metrics import LossSum
from daskxml.model.mlp import Mlp
from daskxml.model.partitioned import LabelOrder
from daskxml.model.spec import Layout, initial_parameters
from daskxml.worker.label_part import LabelPart, MergePoint
from daskxml.worker.memory import made_up_rows
from daskxml.worker.partitioned_step import step_program
from daskxml.worker.resident_rows import Batch, ResidentRows
from daskxml.worker.run_worker import RunWorker
from daskxml.worker.settings import WorkerSettings

_WARM_LABELS = 2048
_PARTS = 5  # steps; of the last merge and of the next one, its own and another's
_LOWERS = 3  # steps; the last merge, and the next one
MIB = 2**20


class OrderedRows(ResidentRows):
    """Resident rows whose labels in training are places in the order of the labels."""

    order: LabelOrder

    def hold_all(self, train: Sequence[Partition], test: Sequence[Partition]) -> None:
        """Hold every row."""
        super().hold_all(
            [replace(part, labels=self.order.placed(part.labels)) for part in train], test
        )


class PartitionedWorker(RunWorker):
    """A worker with a part of the labels.

    Attributes
    ----------
    order
        In which the labels are cut.
    part
        Steps; None before the first gang.
    point, staged
        The last merge, and the one that is not committed yet.
    """

    shared = None
    rows: OrderedRows

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings)
        self.spec = self.settings.data.network
        self.seed = seed = self.settings.config.run.seed
        self.order = LabelOrder.of(self.spec.labels, seed)
        self.rows = OrderedRows(self.kernels, seed)
        self.rows.order = self.order
        self.part: LabelPart | None = None
        self.point: MergePoint | None = None
        self.staged: MergePoint | None = None
        self._stored: Mapping[str, Array] = {}  # a checkpoint's arrays, mapped
        self.is_source = False

    def close(self) -> None:
        """Do nothing: no memory is shared."""

    def weigh_labels(self, weights: Array | None) -> None:
        """Refuse weights: run files with them are refused before."""
        assert weights is None

    def announce_memory(self) -> str:
        """Return the line for the user before the run begins."""
        lower_bytes = 4 * Layout(self.spec).slots["output.weight"].offset
        label_bytes = 4 * (self.spec.hidden[-1] + 1)
        state = LabelPart(self.settings, self.kernels, (0, 1), 0).optimizer.state()
        moments = len(state.keys() - {"steps"})
        labels_mib = self.spec.labels * label_bytes / MIB
        return (
            f"the labels' {labels_mib:,.1f} MiB are cut among the workers; each needs "
            f"{_PARTS + moments} times its part, and {_LOWERS + moments} times the "
            f"{lower_bytes / MIB:,.1f} MiB of the layers below, beside its rows"
        )

    def warm_up(self) -> float:
        """Compile the kernels; return 0: speeds are measured by steps."""
        labels = min(self.spec.labels, _WARM_LABELS)
        part = LabelPart(self.settings, self.kernels, (0, labels), 0)
        rows = made_up_rows(self.settings, min(self.settings.max_batch_rows, 64))
        segment = Segment(rows, np.arange(rows.rows, dtype=np.int64))
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
        self.part = self.point = self.staged = None
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
        layout = Layout(replace(self.spec, labels=stop - start))
        found = np.zeros(layout.size, np.float32)
        whole, views = Layout(self.spec).views(self._stored[name]), layout.views(found)
        for key, view in views.items():
            view[...] = whole[key][labels] if key.startswith("output.") else whole[key]
        return found

    def begin_part(self, cuts: tuple[int, ...], index: int) -> LabelPart:
        """Return a part as the run begins with it."""
        part = LabelPart(self.settings, self.kernels, cuts, index)
        for name, flat in part.flats(with_moments=bool(self._stored)).items():
            if name == "current" or name in self._stored:
                flat[:] = self.source_flat(name, part.start, part.stop)
        if "steps" in self._stored:
            part.optimizer.state()["steps"][:] = self._stored["steps"]
        return part

    def commit(self, generation: int) -> None:
        """Make the staged merge the one to go back to."""
        if generation == self.generation:
            return  # a repeated message
        if generation != self.generation + 1:
            raise TrainingError(f"merge {generation} cannot follow merge {self.generation}")
        self.point, self.staged = self.staged, None
        self._stored, self.is_source = {}, False
        self.generation = generation
        if self.part is not None and self.settings.state_on_merge == "reset":
            self.part.optimizer.reset()

    def keep_best(self, megabatch: int) -> None:
        """Refuse: run files that keep the best model are refused before."""
        raise AssertionError("no best model is kept of parts")

    def restore_best(self, megabatch: int) -> bool:
        """Return False: none is kept."""
        return False

    def local_state(self) -> dict[str, Array]:
        """Return nothing: moments lie in a checkpoint as the parameters do."""
        return {}

    def held_arrays(self, *, with_copies: bool) -> dict[str, Array]:
        """Return what `daskxml.worker.assembly.assemble` makes the whole model of.

        The own part of the last merge with its moments, and with ``with_copies`` the copies of
        others; before the first merge, the whole model that the run began with, if it is here.
        """
        point, part = self.point, self.part
        if point is not None and part is not None:
            wanted = point.labels if with_copies else (point.index,)
            found = {"cuts": np.array(point.cuts, np.int64), "lower.current": point.lower}
            for index in wanted:
                weight, bias = point.labels[index]
                found |= {f"{index}.current.weight": weight, f"{index}.current.bias": bias}
            state = part.optimizer.state() if self.settings.state_on_merge != "reset" else {}
            for name, flat in state.items():
                found |= _described(name, flat, part.layout, point.index)
            return found
        if point is not None or not self.is_source:
            return {}
        layout, whole = Layout(self.spec), dict(self._stored)
        if not whole:
            whole["current"] = initial_parameters(self.spec, self.seed)
        found = {"cuts": np.array([0, self.spec.labels], np.int64)}
        for name, flat in whole.items():
            found |= _described(name, flat, layout, 0, self.order.labels)
        return found

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


def _described(
    name: str, flat: Array, layout: Layout, index: int, labels: Array | None = None
) -> dict[str, Array]:
    """Return an array that is laid out like a part by the names of `held_arrays`.

    ``labels`` puts the labels of a whole model in their order.
    """
    if name == "steps":
        return {name: flat}
    views = layout.views(flat)
    found = {f"lower.{name}": flat[: layout.slots["output.weight"].offset]}
    for kind in ("weight", "bias"):
        array = views[f"output.{kind}"]
        found[f"{index}.{name}.{kind}"] = array if labels is None else array[labels]
    return found
