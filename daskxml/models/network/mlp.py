"""A multi-layer perceptron over sparse rows: forward, and backward with the update in it.

With ``A0 = x`` and ``A(i+1) = act(A(i) W(i) + b(i))`` the last hidden layer feeds
`daskxml.models.network.output.OutputLayer`, which returns the gradient by it; then, top down,
``delta = gradient * act'`` and ``gradient = delta W.T`` with the old weights, before
``A.T delta`` goes to the optimizer. The first layer's ``x.T delta`` touches only the rows of the
features in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsFloat, cast

import numpy as np

from daskxml.core.arrays import Array, Segment
from daskxml.core.errors import ConfigError
from daskxml.kernels import Kernels
from daskxml.kernels.operands import KEEP_ALL, DeviceKey, Drop, RowNet, scratch_floats
from daskxml.models.batch import (
    BatchSegment,
    Buffers,
    batch_rows,
    has_weights,
    in_batches,
    stream_key,
    with_offsets,
)
from daskxml.models.network.output import Labels, OutputLayer
from daskxml.models.network.sampling import ALL_LABELS, SamplingConfig
from daskxml.models.network.spec import Layout, ModelSpec, check_rank

if TYPE_CHECKING:
    from daskxml.kernels.cpu.kernels import CpuKernels
    from daskxml.models.network.hash_tables import LabelTables
    from daskxml.optim import Optimizer

_FLOAT_BYTES = 4


class Mlp:
    """The layers over one set of parameters, with the buffers that a step needs.

    Parameters
    ----------
    parameters
        Views by name, as :class:`daskxml.models.network.spec.Layout` gives them.
    max_rows
        The largest batch.
    budget_bytes
        Upper bound of the matrix of logits; beyond it, labels are computed in blocks.
    sampling, tables
        Which labels a batch is trained on, and the hash tables that name them, if any do.
    uses_float16, adds_in_place
        See `daskxml.models.network.output.OutputLayer`.

    Attributes
    ----------
    evaluated
        Labels whose logits the last step computed, summed over rows.
    """

    def __init__(
        self, spec: ModelSpec, kernels: Kernels, parameters: dict[str, Array],
        max_rows: int, budget_bytes: int, sampling: SamplingConfig = ALL_LABELS,
        tables: LabelTables | None = None, uses_float16: bool = False, adds_in_place: bool = False,
    ) -> None:  # fmt: skip
        self.spec, self.kernels, self.parameters = spec, kernels, parameters
        self.buffers = Buffers(kernels)
        layer = parameters["output.weight"], parameters["output.bias"], spec.loss, budget_bytes
        self.output = OutputLayer(kernels, *layer, uses_float16, sampling.hashes, adds_in_place)
        self.tables, self.sampler = tables, None
        if sampling.is_on:
            from daskxml.models.network.samplers import new_sampler  # imports Numba

            self.sampler = new_sampler(sampling, kernels, spec.labels, tables)
        self.evaluated = 0
        self._reserved_rows = 0  # in the buffers of the layer of all labels
        self.reserve(max_rows)

    def reserve(self, max_rows: int) -> None:
        """Allocate for batches of up to ``max_rows`` rows."""
        for layer, units in enumerate(self.spec.hidden):
            self.buffers.reserve(f"hidden{layer}", max_rows * units)
            self.buffers.reserve(f"delta{layer}", max_rows * units)
            self.buffers.reserve(f"bias{layer}", units)
        if not self.spec.hidden:
            self.buffers.reserve("input", max_rows * self.spec.features)
        self._max_rows = max_rows
        if self.sampler is None:
            self._reserve_output()

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        sampler = self.sampler.buffers.nbytes if self.sampler is not None else 0
        return self.buffers.nbytes + self.output.nbytes + sampler

    def step(
        self, batch: Sequence[Segment], lr: float, key: int, updates: Optimizer
    ) -> SupportsFloat:
        """Update with the mean gradient over the batch; return the sum of the rows' losses.

        Converting it to float synchronizes with the device. ``key`` seeds dropout: see
        :class:`daskxml.kernels.Drop`.
        """
        pieces = tuple(with_offsets(batch))
        layers = self.forward(pieces, batch_rows(batch), key)
        labels = self._sample(layers[-1], pieces, key)
        loss, gradient = self.output.step(layers[-1], pieces, lr, updates, labels=labels)
        self.evaluated = batch_rows(batch) * self.spec.labels if labels is None else labels.pairs
        self.backward(pieces, layers, gradient, lr, key, updates)
        return loss

    def _sample(self, hidden: Array, pieces: Sequence[BatchSegment], key: int) -> Labels | None:
        """Return the labels that a batch is trained on; None: all of them."""
        if self.sampler is None:
            return None
        if has_weights(pieces) or self.output.label_weights is not None:
            problem = "weights of rows or labels need all labels: leave [sampling] method at 'none'"
            raise ConfigError(problem)
        if self.tables is not None:
            weight, bias = self.output.weight, self.output.bias
            kernels = cast("CpuKernels", self.kernels)
            self.tables.refresh(kernels, weight, bias, int(hidden.shape[0]))
        return self.sampler.sample(hidden, pieces, key)

    def weighs(self, batch: Sequence[Segment]) -> bool:
        """Whether rows of a batch, or their labels, have weights."""
        has_row_weights = any(segment.partition.weights is not None for segment in batch)
        return has_row_weights or self.output.label_weights is not None

    def loss_sum(self, batch: Sequence[Segment]) -> float:
        """Return the sum of the rows' losses over all labels, without dropout or update."""
        self._reserve_output()
        pieces = tuple(with_offsets(batch))
        return self.output.loss_sum(self.forward(pieces, batch_rows(batch), None)[-1], pieces)

    def top_k(self, segments: Sequence[Segment], k: int) -> tuple[Any, Any]:
        """Return the best ``k`` labels of every row, best first, on the host.

        Returns
        -------
        ids
            ``(rows, k)`` int32, -1 where there are fewer than k labels. Labels are ranked by
            their logits; among equal ones the lowest id comes first.
        scores
            ``(rows, k)`` float32: the labels' probabilities by softmax or sigmoid, -inf where
            there is no label. Ranking by score, lowest id first, gives the same order.

        Raises
        ------
        ConfigError
            If k is below 1, or far above the number of labels.
        """
        check_rank(k, self.spec.labels)
        self._reserve_output()
        total, done = batch_rows(segments), 0
        ids, scores = np.empty((total, k), np.int32), np.empty((total, k), np.float32)
        for batch in in_batches(segments, self._max_rows):
            rows = batch_rows(batch)
            found = self.kernels.empty((rows, k)), self.kernels.empty((rows, k), "int32")
            hidden = self.forward(tuple(with_offsets(batch)), rows, None)[-1]
            self.output.top_k(hidden, *found)
            scores[done : done + rows] = self.kernels.to_host(found[0])
            ids[done : done + rows] = self.kernels.to_host(found[1])
            done += rows
        return ids, scores

    def last_hidden(self, segments: Sequence[Segment]) -> Any:
        """Return what the output layer takes, ``(rows, units)`` float32 on the host.

        A network without hidden layers gives the rows themselves, dense.
        """
        found = [
            self.kernels.to_host(
                self.forward(tuple(with_offsets(batch)), batch_rows(batch), None)[-1]
            ).copy()
            for batch in in_batches(segments, self._max_rows)
        ]
        return np.concatenate(found)

    def _reserve_output(self) -> None:
        """Allocate for all labels, which training on a sample never needs."""
        if self._reserved_rows < self._max_rows:
            self.output.reserve(self._max_rows)
            self._reserved_rows = self._max_rows

    def forward(self, pieces: Sequence[BatchSegment], rows: int, key: int | None) -> list[Array]:
        """Return the output of every hidden layer ``(rows, units)``, or else the dense input."""
        if not self.spec.hidden:
            return [self._dense_input(pieces, rows, key)]
        layers: list[Array] = []
        for layer, units in enumerate(self.spec.hidden):
            out = self.buffers.array(f"hidden{layer}", rows, units)
            if layer == 0:
                weight, bias = self.parameters["hidden0.weight"], self.parameters["hidden0.bias"]
                for part in pieces:
                    given = part.x, part.rows, weight, bias, self._feature_drop(part, key)
                    self.kernels.sparse_forward(out[part.span], *given)
            else:
                self.kernels.fill_rows(out, self.parameters[f"hidden{layer}.bias"])
                weight = self.parameters[f"hidden{layer}.weight"]
                self.kernels.gemm(out, layers[-1], weight, beta=1.0)
            self.kernels.activate(out, self.spec.activation)
            self.kernels.dropout(out, self._unit_drop(layer, key))
            layers.append(out)
        return layers

    def _dense_input(self, pieces: Sequence[BatchSegment], rows: int, key: int | None) -> Array:
        out = self.buffers.array("input", rows, self.spec.features)
        for part in pieces:
            self.kernels.densify(out[part.span], part.x, part.rows, self._feature_drop(part, key))
        return out

    def backward(
        self, pieces: Sequence[BatchSegment], layers: list[Array], gradient: Array, lr: float,
        key: int, updates: Optimizer,
    ) -> None:  # fmt: skip
        """Update the hidden layers by the gradient of the last one's output, which is lost."""
        for layer in reversed(range(len(self.spec.hidden))):
            delta = gradient
            self.kernels.dropout(delta, self._unit_drop(layer, key))
            self.kernels.activation_gradient(
                delta, layers[layer], self.spec.activation, 1.0 - self.spec.dropout
            )
            if layer > 0:
                gradient = self.buffers.array(f"delta{layer - 1}", *layers[layer - 1].shape)
                weight = self.parameters[f"hidden{layer}.weight"]
                self.kernels.gemm(gradient, delta, weight.T)
                name, before = f"hidden{layer}.weight", layers[layer - 1]
                updates.product(name, slice(None), before, delta, lr)
            else:
                for part in pieces:
                    drop, change = self._feature_drop(part, key), delta[part.span]
                    updates.sparse_product("hidden0.weight", part.x, part.rows, change, lr, drop)
            sums = self.buffers.array(f"bias{layer}", self.spec.hidden[layer])
            self.kernels.column_sums(sums, delta)
            updates.dense(f"hidden{layer}.bias", sums, lr)

    def _unit_drop(self, layer: int, key: int | None) -> Drop:
        if key is None or self.spec.dropout == 0.0:
            return KEEP_ALL
        return Drop(rate=self.spec.dropout, key=stream_key(key, layer + 1))

    def _feature_drop(self, piece: BatchSegment, key: int | None) -> Drop:
        rate = self.spec.feature_dropout
        if key is None or rate == 0.0 or isinstance(key, DeviceKey):  # staged without them
            return KEEP_ALL
        return Drop(rate=rate, key=stream_key(key, 0), first_row=piece.first_row)


class RowStep:
    """Plain SGD over one model's parameters, a row at a time.

    Parameters
    ----------
    flat
        ``(layout.size,)``: the parameters, changed in place.
    output_factor
        Factor on the learning rate of the output layer.

    Examples
    --------
    >>> from daskxml.kernels import get_kernels
    >>> from daskxml.core.arrays import Csr, Partition
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
        from daskxml.kernels.cpu.row_step import row_step  # imports Numba

        self._row_step, self._output_factor = row_step, output_factor
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
        """Step with the only row of a batch; return its loss, rows (1) and non-zeros."""
        segment = next(segment for segment in batch if segment.rows.shape[0])
        part, row = segment.partition, int(segment.rows[0])
        x = part.features
        output_lr = lr * self._output_factor
        loss = self._row_step(self._net, x, part.labels, row, lr, output_lr)
        return loss, 1, int(x.indptr[row + 1] - x.indptr[row])


def takes_row_steps(spec: ModelSpec, kernels: Kernels, budget_bytes: int) -> bool:
    """Whether `RowStep` can take batches of one row, if the optimizer is plain SGD.

    It needs a hidden layer, no dropout, one thread of a CPU, and a budget for a row's logits.

    Examples
    --------
    >>> from daskxml.kernels import get_kernels
    >>> spec, one = ModelSpec(features=5, labels=9), get_kernels("cpu", 1)
    >>> takes_row_steps(spec, one, 36), takes_row_steps(spec, one, 35)
    (True, False)
    """
    drops = spec.dropout > 0.0 or spec.feature_dropout > 0.0
    fits = spec.labels * _FLOAT_BYTES <= budget_bytes
    is_alone = kernels.name == "cpu" and kernels.threads == 1  # several share the labels of a row
    return bool(spec.hidden) and not drops and fits and is_alone
