"""A step with one row as a single kernel, where the model is one that it is made for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daskxml.model.parameters import Layout
from daskxml.model.spec import ModelSpec
from daskxml.ops import Kernels, RowNet, scratch_floats
from daskxml.types import Array, Segment

_FLOAT_BYTES = 4


class RowStep:
    """Plain SGD over one model's parameters, a row at a time.

    Parameters
    ----------
    flat
        ``(layout.size,)``: the parameters, changed in place.
    output_factor
        What the learning rate is multiplied by in the output layer.

    Examples
    --------
    >>> from daskxml.ops import get_kernels
    >>> from daskxml.types import Csr, Partition
    >>> x = Csr(np.array([0, 1]), np.array([0], np.int32), np.ones(1, np.float32), 1)
    >>> row = Segment(Partition(x, Csr(x.indptr, x.indices, None, 2)), np.array([0]))
    >>> spec, kernels = ModelSpec(features=1, labels=2, hidden=(1,)), get_kernels("cpu", 1)
    >>> layout = Layout(spec)
    >>> flat = kernels.zeros(layout.size)
    >>> loss, rows, nonzeros = RowStep(spec, kernels, layout, flat, 0.5).step([row], lr=1.0)
    >>> round(loss, 4), rows, nonzeros, layout.views(flat)["output.bias"]
    (0.6931, 1, 1, array([ 0.25, -0.25], dtype=float32))
    """

    def __init__(
        self, spec: ModelSpec, kernels: Kernels, layout: Layout, flat: Array,
        output_factor: float = 1.0,
    ) -> None:  # fmt: skip
        offsets = [slot.offset for slot in layout.slots.values()]
        places = np.array(
            list(zip(offsets[::2], offsets[1::2], spec.widths, spec.widths[1:], strict=False)),
            np.int64,
        )
        self._kernels, self._output_factor = kernels, output_factor
        self._net = RowNet(
            flat=flat, places=kernels.to_device(places),
            scratch=kernels.empty(scratch_floats(places)),
            activation=spec.activation, loss=spec.loss,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of buffers."""
        return int(self._net.scratch.nbytes)

    def step(self, batch: Sequence[Segment], lr: float) -> tuple[float, int, int]:
        """Step with the only row of a batch; return its loss, 1 row, and its stored features."""
        segment = next(segment for segment in batch if segment.rows.shape[0])
        part, row = segment.partition, int(segment.rows[0])
        x = part.features
        output_lr = lr * self._output_factor
        loss = self._kernels.row_step(self._net, x, part.labels, row, lr, output_lr)
        return loss, 1, int(x.indptr[row + 1] - x.indptr[row])


def takes_row_steps(spec: ModelSpec, kernels: Kernels, budget_bytes: int) -> bool:
    """Whether batches of one row are for `RowStep`, if the optimizer is plain SGD.

    They are where there is a hidden layer, nothing is dropped, the device has the kernel, and a
    row's logits fit into the budget.

    Examples
    --------
    >>> from daskxml.ops import get_kernels
    >>> spec, one = ModelSpec(features=5, labels=9), get_kernels("cpu", 1)
    >>> takes_row_steps(spec, one, 36), takes_row_steps(spec, one, 35)
    (True, False)
    """
    drops = spec.dropout > 0.0 or spec.feature_dropout > 0.0
    fits = spec.labels * _FLOAT_BYTES <= budget_bytes
    return bool(spec.hidden) and not drops and fits and kernels.has_row_step
