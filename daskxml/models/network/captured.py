"""Steps of plain SGD on a GPU as CUDA graphs: the host queues a batch's rows, and one graph.

A small step is some forty operations, each of which takes the host longer to queue than the GPU to
do. So a step reads its rows, its learning rate and the keys of its dropout from one place in device
memory. The second batch of a size is captured, and the others of that size are replays. The bits do
not depend on which: the first one reads the same place. Batches are of one size if they have the
same number of rows, and `CapturedStep.room` for the same number of entries: launches depend on it.

Not captured are steps of other optimizers, whose constants change with the number of the step.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import SupportsFloat

import numpy as np

from daskxml.core.arrays import Array, Partition, Segment
from daskxml.kernels.cuda.kernels import CudaKernels
from daskxml.kernels.cuda.sparse import StagedCsr
from daskxml.kernels.operands import KEEP_ALL, DeviceKey, DeviceNumber, Drop
from daskxml.models.batch import Buffers, stream_key
from daskxml.models.network.mlp import Mlp
from daskxml.optim import Optimizer

_MOST_GRAPHS, _TRIES = 64, 4
_FINE_ROOM = 1 << 15


@dataclass(frozen=True, slots=True)
class Entries:
    """Where the entries of a batch's rows are.

    Attributes
    ----------
    header
        ``(4 * rows + 2,)`` int64 on the host: where the features of each row begin in the batch,
        and where they end; the same of labels; where both begin in their matrices.
    counts
        Stored features, and labels.
    """

    header: Array
    counts: tuple[int, int]


@dataclass(slots=True)
class _Form:
    """What batches of one size have in common.

    Attributes
    ----------
    batch
        Their rows, in the place that every step reads.
    header, begins
        See `Entries`: all of it on the device, and the parts that say where entries begin in the
        matrices that they are copied from, of features and of labels.
    uses
        Batches so far.
    replay
        Launches the graph and returns the loss, once a step is captured.
    """

    batch: list[Segment]
    header: Array
    begins: tuple[Array, Array]
    uses: int = 0
    replay: Callable[[], SupportsFloat] | None = None


class CapturedStep:
    """Plain SGD on a GPU, one graph a step.

    Parameters
    ----------
    mlp, updates
        The model, and its optimizer.

    Attributes
    ----------
    captures
        Whether steps are captured, and not done one operation after the other.
    """

    def __init__(self, kernels: CudaKernels, mlp: Mlp, updates: Optimizer) -> None:
        self._kernels, self._mlp, self._updates = kernels, mlp, updates
        self._buffers, self._sizes, self.captures = Buffers(kernels), (0, 0), True
        self._rate, self._loss = kernels.zeros(1), kernels.zeros(1, "float64")
        self._written_rate = 0.0
        self._keys = kernels.zeros(1 + len(mlp.spec.hidden), "uint64")
        self._forms: OrderedDict[tuple[int, int, int], _Form] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Bytes of the place of a batch's rows; graphs take some more, outside of any pool."""
        own = (self._rate, self._loss, self._keys)
        return self._buffers.nbytes + sum(int(array.nbytes) for array in own)

    def reserve(self, rows: int, entries: int) -> None:
        """Make room for a batch of so many rows and entries; a larger place is a new one."""
        sizes = max(rows, self._sizes[0]), max(self.room(entries), self._sizes[1])
        if sizes == self._sizes:
            return
        self._forms.clear()  # before there is more, as they keep what they use
        self._buffers.reserve("header", 4 * sizes[0] + 2, "int64")
        self._buffers.reserve("numbers", sizes[0], "int64")
        self._kernels.write(self._buffers.array("numbers", sizes[0]), np.arange(sizes[0]))
        for name in ("feature", "label"):
            for part, kind in (("ids", "int32"), ("rows", "int32"), ("values", "float32")):
                self._buffers.reserve(f"{name} {part}", sizes[1], kind)
        self._sizes = sizes

    def release(self) -> None:
        """Free the graphs and the place."""
        self._forms.clear()
        self._buffers, self._sizes = Buffers(self._kernels), (0, 0)

    @staticmethod
    def room(entries: int) -> int:
        """Return the entries that there is room for: few sizes, as each has a graph of its own.

        Examples
        --------
        >>> [CapturedStep.room(entries) for entries in (0, 5, 4_400, 76_800)]
        [1, 8, 8192, 81920]
        """
        size = 1 << max(0, entries - 1).bit_length()
        if size <= _FINE_ROOM:
            return size
        return -(-entries // (size // 16)) * (size // 16)

    def entries(self, batch: Sequence[Segment]) -> Entries:
        """Return where the entries of a batch's rows are."""
        rows = sum(int(segment.rows.shape[0]) for segment in batch)
        header, counts = np.zeros(4 * rows + 2, np.int64), []
        for kind in range(2):
            starts, row = header[kind * (rows + 1) : (kind + 1) * (rows + 1)], 0
            begins = header[2 * (rows + 1) + kind * rows :]
            for segment in batch:
                x = (segment.partition.features, segment.partition.labels)[kind]
                indptr, chosen = (self._kernels.host_copy(a) for a in (x.indptr, segment.rows))
                span = slice(row, row + len(chosen))
                begins[span] = indptr[chosen]
                starts[1:][span] = indptr[chosen + 1] - begins[span]
                row = span.stop
            np.cumsum(starts, out=starts)
            counts.append(int(starts[-1]))
        return Entries(header, (counts[0], counts[1]))

    def step(
        self, batch: Sequence[Segment], lr: float, key: int, entries: Entries
    ) -> SupportsFloat:
        """Step with a batch and its `entries`, for which there is room; return its loss."""
        pieces = [(segment.partition, int(segment.rows.shape[0])) for segment in batch]
        rows, kernels = sum(count for _, count in pieces), self._kernels
        form = self._form(rows, entries.counts, batch[0].partition)
        kernels.write(form.header, entries.header)
        if lr != self._written_rate:
            kernels.write(self._rate, np.array([lr], np.float32))
            self._written_rate = lr
        staged = form.batch[0].partition
        spec = self._mlp.spec
        drops = Drop(rate=spec.feature_dropout, key=stream_key(key, 0)), KEEP_ALL
        if spec.dropout:
            keys = [stream_key(key, stream) for stream in range(self._keys.shape[0])]
            kernels.write(self._keys, np.array(keys, np.uint64))
        for name, begins, drop in zip(("features", "labels"), form.begins, drops, strict=True):
            matrices = [(getattr(part, name), count) for part, count in pieces]
            kernels.stage_rows(getattr(staged, name), begins, matrices, rows, drop)
        if self.captures and form.replay is None and 0 < form.uses < _TRIES:
            form.replay = kernels.capture(lambda: self._work(form), self._loss)
        form.uses += 1
        return self._work(form) if form.replay is None else form.replay()

    def _work(self, form: _Form) -> SupportsFloat:
        rate, key = DeviceNumber(self._rate), DeviceKey(self._keys)
        return self._mlp.step(form.batch, rate, key, self._updates)

    def _form(self, rows: int, counts: tuple[int, int], like: Partition) -> _Form:
        features, labels = (self.room(count) for count in counts)
        key = rows, features, labels
        form = self._forms.get(key)
        if form is None:
            array, ends = self._buffers.array, (rows + 1, 2 * rows + 2, 3 * rows + 2)
            header = array("header", 4 * rows + 2)
            matrices = [
                StagedCsr(
                    indptr, array(f"{name} ids", size), array(f"{name} values", size),
                    columns, array(f"{name} rows", size),
                )
                for name, indptr, size, columns in (
                    ("feature", header[: ends[0]], features, like.features.columns),
                    ("label", header[ends[0] : ends[1]], labels, like.labels.columns),
                )
            ]  # fmt: skip
            segment = Segment(Partition(*matrices), array("numbers", rows))
            begins = header[ends[1] : ends[2]], header[ends[2] :]
            form = self._forms[key] = _Form([segment], header, begins)
            if len(self._forms) > _MOST_GRAPHS:
                self._forms.popitem(last=False)
        self._forms.move_to_end(key)
        return form
