"""The labels that a step is trained on, where it is not trained on all of them.

Labels that were drawn uniformly may stand for all that are not in the sample: with the weight ``w``
each, softmax's sum over labels is ``sum of exp(z) over certain ones + w * sum of exp(z) over drawn
ones``, which is unbiased whatever the hash tables named; the sigmoid loss is weighted the same way.
With a sample for each row (`daskxml.kernels.RowSamples`) this applies row by row. Only the sampled
rows of the weights, and of the optimizer's state, change.
"""

from __future__ import annotations

from dataclasses import dataclass

from daskxml.core.arrays import Array
from daskxml.models.batch import BatchSegment, Updates


@dataclass(frozen=True, slots=True)
class LabelSample:
    """The labels that one batch is trained on.

    Attributes
    ----------
    ids
        ``(count,)`` int32, each once; valid until the next sample.
    certain
        The first so many are the rows' own or from the source; the others were drawn uniformly.
    weight
        How many labels each drawn one stands for.
    targets
        The whole batch, with its labels as positions in ``ids``.
    """

    ids: Array
    certain: int
    weight: float
    targets: BatchSegment

    @property
    def pairs(self) -> int:
        """How many logits a step computes."""
        return int(self.targets.rows.shape[0]) * int(self.ids.shape[0])


class SampleUpdates:
    """Updates of a small layer whose label ``i`` is ``ids[i]`` of the whole one."""

    def __init__(self, updates: Updates, ids: Array) -> None:
        self._updates, self._ids = updates, ids

    def dense(self, name: str, grad: Array, lr: float, rows: slice = slice(None)) -> None:
        """Apply the gradient of some labels of the sample."""
        self._updates.subset(name, self._ids[rows], grad, lr)

    def product(
        self, name: str, rows: slice, left: Array, right: Array, lr: float, scale: float = 1.0
    ) -> None:
        """Apply a gradient that is a product."""
        if scale != 1.0:
            raise NotImplementedError("gradients of sampled labels are never scaled")
        self._updates.subset_product(name, self._ids[rows], left, right, lr)

    def in_place(self, name: str, lr: float) -> None:
        """Return None: gradients of a sample are added elsewhere."""
        return
