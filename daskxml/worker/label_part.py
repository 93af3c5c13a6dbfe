"""A part of a network whose output layer is cut along its labels: as it steps, and as it is kept.

A `LabelPart` steps. A `MergePoint` is what all go back to when a worker is lost: the layers below,
this worker's labels, and copies of other workers' labels, each with the optimizer's moments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from daskxml.core.arrays import Array
from daskxml.kernels import Kernels
from daskxml.models.batch import BatchSegment
from daskxml.models.network.partitioned import LabelOrder, PartitionedMlp, PartPass
from daskxml.models.network.sampled_part import Part, RowPartPass, RowSampledPart, SampledPart
from daskxml.models.network.sampling import LabelSource, LabelTables
from daskxml.models.network.spec import Layout
from daskxml.optim import Optimizer
from daskxml.worker.settings import WorkerSettings

_OUTPUT = ("output.weight", "output.bias")


class LabelPart:
    """The layers below, and the labels at the places ``cuts[index]`` to ``cuts[index + 1]``.

    Parameters
    ----------
    cuts
        The first place of every part, and the end: see
        `daskxml.models.network.partitioned.cut_labels`.
    index
        The number of this part.

    Attributes
    ----------
    flat
        ``(layout.size,)`` float32: zero at first.
    """

    def __init__(
        self, settings: WorkerSettings, kernels: Kernels, cuts: tuple[int, ...], index: int
    ) -> None:
        spec, config = settings.data.network, settings.config
        self.cuts, self.index, self.kernels = cuts, index, kernels
        self.start, self.stop = cuts[index], cuts[index + 1]
        self.spec = replace(spec, labels=self.stop - self.start)
        self.layout = Layout(self.spec)
        self.flat = kernels.zeros(self.layout.size)
        self.parameters = self.layout.views(self.flat)
        sizes = self.layout.views, self.layout.size
        self.optimizer = Optimizer(config.optimizer, kernels, self.parameters, *sizes, is_part=True)
        rows = max(settings.max_batch_rows, config.evaluation.batch_rows)
        budget = settings.logits_budget_bytes
        self.mlp = PartitionedMlp(self.spec, kernels, self.parameters, rows, budget)
        self.mlp.output.first_label = self.start
        self.sampled: SampledPart | RowSampledPart | None = None  # set by `sample`

    def begin(
        self, hidden: Array, batch: Sequence[BatchSegment], lr: float, key: int
    ) -> PartPass | RowPartPass:
        """Begin a step of the output layer, on all labels of the part or on a sample of them."""
        if self.sampled is not None:
            return self.sampled.begin(hidden, batch, lr, key, self.optimizer)
        return self.mlp.output.begin(hidden, batch, lr, self.optimizer)

    def labels_scored(self, rows: int) -> int:
        """Labels of the last step, summed over its rows."""
        return rows * self.spec.labels if self.sampled is None else self.sampled.evaluated

    @property
    def tables(self) -> LabelTables | None:
        """What names the labels of samples, if that has to follow their weights."""
        source = None if self.sampled is None else self.sampled.sampler.source
        return source if isinstance(source, LabelTables) else None

    def sample(
        self, order: LabelOrder, settings: WorkerSettings, source: LabelSource | None
    ) -> None:
        """Step on samples of the labels, whose order this is."""
        layer = self.kernels, self.parameters["output.weight"], self.parameters["output.bias"]
        sampling, budget = settings.config.sampling, settings.logits_budget_bytes
        drawn = sampling, source, Part(order, self.start, self.stop)
        if sampling.sets == "row":
            self.sampled = RowSampledPart(*layer, self.spec.loss, *drawn)
        else:
            self.sampled = SampledPart(*layer, self.spec.loss, budget, *drawn)

    @property
    def lower(self) -> Array:
        """The parameters of the layers below, flat."""
        return self.lower_of(self.flat)

    def lower_of(self, flat: Array) -> Array:
        """Return the layers below in an array that is laid out like this part."""
        return flat[: self.layout.slots[_OUTPUT[0]].offset]

    def flats(self, *, with_moments: bool) -> dict[str, Array]:
        """Return the parameters, and the moments by their names."""
        found = {"current": self.flat}
        if with_moments:
            moments = self.optimizer.state()
            found |= {name: moments[name] for name in sorted(moments) if name != "steps"}
        return found

    def point(self, *, with_moments: bool) -> MergePoint:
        """Return this part as it is now: its own arrays, not copies of them."""
        flats, steps = self.flats(with_moments=with_moments), self.optimizer.state().get("steps")
        views = {name: self.layout.views(flat) for name, flat in flats.items()}
        return MergePoint(
            cuts=self.cuts,
            index=self.index,
            lower={name: self.lower_of(flat) for name, flat in flats.items()},
            labels={self.index: {n: tuple(it[key] for key in _OUTPUT) for n, it in views.items()}},
            steps=steps if with_moments else None,
        )


Labels = Mapping[str, tuple[Array, ...]]  # by name: (labels, units) weights, (labels,) biases


@dataclass(frozen=True, slots=True)
class MergePoint:
    """What a worker holds of the model of the last merge, or of this moment.

    Attributes
    ----------
    cuts
        Of all parts.
    index
        The worker's own part.
    lower
        The layers below, flat: ``current``, and moments by their names.
    labels
        By part, its own and copies of others.
    steps
        The optimizer's count of steps, where there are moments.
    """

    cuts: tuple[int, ...]
    index: int
    lower: Mapping[str, Array]
    labels: dict[int, Labels]
    steps: Array | None = None

    def pieces(self, name: str, part: int, start: int, stop: int) -> Iterator[Array]:
        """Yield what a part holds of the labels at the places ``start`` to ``stop``, flat."""
        first = self.cuts[part]
        for array in self.labels[part][name]:
            yield array[start - first : stop - first].reshape(-1)

    def arrays(self) -> Iterator[Array]:
        """Yield the layers below and the worker's own labels, in an order of their names."""
        yield from self.lower.values()
        for pair in self.labels[self.index].values():
            yield from pair

    def is_like(self, other: MergePoint | None) -> bool:
        """Whether the own part of another one has the same labels."""
        return other is not None and (other.cuts, other.index) == (self.cuts, self.index)

    def clone(self, kernels: Kernels, room: MergePoint | None) -> MergePoint:
        """Return a copy of the layers below and the own labels, in ``room`` if that is given."""
        if room is None:
            own = {
                name: tuple(kernels.empty(array.shape) for array in pair)
                for name, pair in self.labels[self.index].items()
            }
            lower = {name: kernels.empty(array.shape) for name, array in self.lower.items()}
            room = MergePoint(self.cuts, self.index, lower, {self.index: own})
        for out, array in zip(room.arrays(), self.arrays(), strict=True):
            kernels.copy(out.reshape(-1), array.reshape(-1))
        steps = None if self.steps is None else self.steps.copy()
        return replace(room, labels={self.index: room.labels[self.index]}, steps=steps)
