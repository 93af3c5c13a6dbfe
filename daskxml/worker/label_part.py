"""A part of a network whose output layer is cut along its labels: as it steps, and as it is kept.

A `LabelPart` steps. A `MergePoint` is what all go back to when a worker is lost: the layers below,
this worker's labels, and copies of other workers' labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from daskxml.core.arrays import Array
from daskxml.kernels import Kernels
from daskxml.model.partitioned import PartitionedMlp
from daskxml.model.spec import Layout
from daskxml.optim import Optimizer
from daskxml.worker.settings import WorkerSettings

_OUTPUT = ("output.weight", "output.bias")


class LabelPart:
    """The layers below, and the labels at the places ``cuts[index]`` to ``cuts[index + 1]``.

    Parameters
    ----------
    cuts
        The first place of every part, and the end: see `daskxml.model.partitioned.cut_labels`.
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
        self.optimizer = Optimizer(config.optimizer, kernels, self.parameters, *sizes)
        rows = max(settings.max_batch_rows, config.evaluation.batch_rows)
        budget = settings.logits_budget_bytes
        self.mlp = PartitionedMlp(self.spec, kernels, self.parameters, rows, budget)
        self.mlp.output.first_label = self.start

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

    def pieces(self, flat: Array, start: int, stop: int) -> Iterator[Array]:
        """Yield what ``flat`` holds of the labels at the places ``start`` to ``stop``, flat."""
        views = self.layout.views(flat)
        for name in _OUTPUT:
            yield views[name][start - self.start : stop - self.start].reshape(-1)


@dataclass(frozen=True, slots=True)
class MergePoint:
    """What a worker keeps of the model of the last merge.

    Attributes
    ----------
    cuts
        Of all parts.
    index
        The worker's own part.
    lower
        The layers below, flat.
    labels
        By part, its own and copies of others: ``(labels, units)`` weights and ``(labels,)`` biases.
    """

    cuts: tuple[int, ...]
    index: int
    lower: Array
    labels: dict[int, tuple[Array, Array]]

    def pieces(self, part: int, start: int, stop: int) -> Iterator[Array]:
        """Yield what a part holds of the labels at the places ``start`` to ``stop``, flat."""
        first = self.cuts[part]
        for array in self.labels[part]:
            yield array[start - first : stop - first].reshape(-1)
