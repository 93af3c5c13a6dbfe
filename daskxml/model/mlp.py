"""A multi-layer perceptron over sparse rows: forward, and backward with the update in it.

With ``A0 = x`` and ``A(i+1) = act(A(i) W(i) + b(i))`` the last hidden layer feeds
:class:`daskxml.model.output.OutputLayer`, which returns the gradient by it; then, top down,
``delta = gradient * act'`` and ``gradient = delta W.T`` with the old weights, before
``A.T delta`` goes to the optimizer. The first layer's ``x.T delta`` touches only the rows of the
features in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsFloat

from daskxml.model.batch import Buffers, Placed, Updates, batch_rows, placed, stream_key
from daskxml.model.output import OutputLayer
from daskxml.model.sampling import (
    ALL_LABELS,
    LabelTables,
    RowSampledOutput,
    SampledOutput,
    SamplingConfig,
)
from daskxml.model.spec import ModelSpec
from daskxml.ops import KEEP_ALL, Drop, Kernels
from daskxml.types import Array, Segment


class Mlp:
    """The layers over one set of parameters, with the buffers that a step needs.

    Parameters
    ----------
    parameters
        Views by name, as :class:`daskxml.model.parameters.Layout` gives them.
    max_rows
        The largest batch.
    budget_bytes
        The most that the matrix of logits may take; beyond, labels are walked in blocks.
    sampling, tables
        Which labels a batch sees in training, and where they are looked up if that hashes.
    has_halves
        Whether the logits of a step are float16.
    """

    def __init__(
        self, spec: ModelSpec, kernels: Kernels, parameters: dict[str, Array],
        max_rows: int, budget_bytes: int, sampling: SamplingConfig = ALL_LABELS,
        tables: LabelTables | None = None, has_halves: bool = False,
    ) -> None:  # fmt: skip
        self.spec, self.kernels, self.parameters = spec, kernels, parameters
        self.buffers = Buffers(kernels)
        layer = kernels, parameters["output.weight"], parameters["output.bias"], spec.loss
        self.output = OutputLayer(*layer, budget_bytes, has_halves)
        self.sampled: SampledOutput | RowSampledOutput | None = None
        if sampling.is_on and sampling.sets == "row":
            self.sampled = RowSampledOutput(*layer, sampling, tables)
        elif sampling.is_on:
            self.sampled = SampledOutput(*layer, budget_bytes, sampling, tables)
        self.seen = 0  # labels that the rows of the last step saw, summed over rows
        self._reserved_rows = 0  # that the layer of all labels has room for
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
        if self.sampled is None:
            self._reserve_output()

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        sampled = self.sampled.nbytes if self.sampled is not None else 0
        return self.buffers.nbytes + self.output.buffers.nbytes + sampled

    def step(
        self, batch: Sequence[Segment], lr: float, key: int, updates: Updates
    ) -> SupportsFloat:
        """Update with the mean gradient over the batch; the sum of the rows' losses.

        Who makes a float of it waits for the device. ``key`` seeds dropout: see
        :class:`daskxml.ops.Drop`.
        """
        pieces = tuple(placed(batch))
        layers = self._forward(pieces, batch_rows(batch), key)
        loss: SupportsFloat
        if self.sampled is not None:
            loss, gradient = self.sampled.step(layers[-1], pieces, lr, key, updates)
            self.seen = self.sampled.seen
        else:
            loss, gradient = self.output.step(layers[-1], pieces, lr, updates)
            self.seen = batch_rows(batch) * self.spec.labels
        self._backward(pieces, layers, gradient, lr, key, updates)
        return loss

    def loss_sum(self, batch: Sequence[Segment]) -> float:
        """The sum of the rows' losses over all labels; nothing is dropped, nothing changes."""
        self._reserve_output()
        pieces = tuple(placed(batch))
        return self.output.loss_sum(self._forward(pieces, batch_rows(batch), None)[-1], pieces)

    def top_k(self, batch: Sequence[Segment], scores: Array, ids: Array) -> None:
        """Fill ``scores`` float32 and ``ids`` int32 ``(rows, k)``; nothing is dropped."""
        self._reserve_output()
        hidden = self._forward(tuple(placed(batch)), batch_rows(batch), None)[-1]
        self.output.top_k(hidden, scores, ids)

    def _reserve_output(self) -> None:
        """Allocate for all labels, which training on a sample never asks for."""
        if self._reserved_rows < self._max_rows:
            self.output.reserve(self._max_rows)
            self._reserved_rows = self._max_rows

    def _forward(self, pieces: Sequence[Placed], rows: int, key: int | None) -> list[Array]:
        """The output of every hidden layer ``(rows, units)``; of none, the dense input."""
        if not self.spec.hidden:
            return [self._dense_input(pieces, rows, key)]
        layers: list[Array] = []
        for layer, units in enumerate(self.spec.hidden):
            out = self.buffers.matrix(f"hidden{layer}", rows, units)
            if layer == 0:
                self._sparse_forward(out, pieces, key)
            else:
                self.kernels.fill_rows(out, self.parameters[f"hidden{layer}.bias"])
                weight = self.parameters[f"hidden{layer}.weight"]
                self.kernels.gemm(out, layers[-1], weight, beta=1.0)
            self.kernels.activate(out, self.spec.activation)
            self.kernels.dropout(out, self._unit_drop(layer, key))
            layers.append(out)
        return layers

    def _sparse_forward(self, out: Array, pieces: Sequence[Placed], key: int | None) -> None:
        weight, bias = self.parameters["hidden0.weight"], self.parameters["hidden0.bias"]
        for piece in pieces:
            x, rows = piece.segment.partition.features, piece.segment.rows
            drop = self._feature_drop(piece, key)
            self.kernels.sparse_forward(out[piece.span], x, rows, weight, bias, drop)

    def _dense_input(self, pieces: Sequence[Placed], rows: int, key: int | None) -> Array:
        out = self.buffers.matrix("input", rows, self.spec.features)
        for piece in pieces:
            x, chosen = piece.segment.partition.features, piece.segment.rows
            self.kernels.densify(out[piece.span], x, chosen, self._feature_drop(piece, key))
        return out

    def _backward(
        self, pieces: Sequence[Placed], layers: list[Array], gradient: Array, lr: float,
        key: int, updates: Updates,
    ) -> None:  # fmt: skip
        for layer in reversed(range(len(self.spec.hidden))):
            delta = gradient
            self.kernels.dropout(delta, self._unit_drop(layer, key))
            self.kernels.activation_gradient(
                delta, layers[layer], self.spec.activation, 1.0 - self.spec.dropout
            )
            if layer > 0:
                gradient = self.buffers.matrix(f"delta{layer - 1}", *layers[layer - 1].shape)
                weight = self.parameters[f"hidden{layer}.weight"]
                self.kernels.gemm(gradient, delta, weight.T)
                name, before = f"hidden{layer}.weight", layers[layer - 1]
                updates.product(name, slice(None), before, delta, lr)
            else:
                self._update_first(pieces, delta, lr, key, updates)
            sums = self.buffers.vector(f"bias{layer}", self.spec.hidden[layer])
            self.kernels.column_sums(sums, delta)
            updates.dense(f"hidden{layer}.bias", sums, lr)

    def _update_first(
        self, pieces: Sequence[Placed], delta: Array, lr: float, key: int, updates: Updates
    ) -> None:
        for piece in pieces:
            x, rows = piece.segment.partition.features, piece.segment.rows
            drop = self._feature_drop(piece, key)
            updates.sparse_product("hidden0.weight", x, rows, delta[piece.span], lr, drop)

    def _unit_drop(self, layer: int, key: int | None) -> Drop:
        if key is None or self.spec.dropout == 0.0:
            return KEEP_ALL
        return Drop(rate=self.spec.dropout, key=stream_key(key, layer + 1))

    def _feature_drop(self, piece: Placed, key: int | None) -> Drop:
        rate = self.spec.feature_dropout
        if key is None or rate == 0.0:
            return KEEP_ALL
        return Drop(rate=rate, key=stream_key(key, 0), first_row=piece.first_row)
