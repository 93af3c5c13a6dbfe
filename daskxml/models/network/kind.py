"""Networks as a kind of model, which ranks labels on the CPU for several callers at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from daskxml.core.arrays import Array, Csr, Segment
from daskxml.core.errors import ConfigError
from daskxml.kernels import Kernels
from daskxml.kernels.cpu.thread_team import ONE_THREAD
from daskxml.kernels.operands import Quantised, quantise
from daskxml.models.batch import batch_rows
from daskxml.models.network.mlp import Mlp
from daskxml.models.network.spec import Layout, ModelSpec, check_rank
from daskxml.models.protocol import Arrays, Limit, TrainedKind, difference

if TYPE_CHECKING:
    from daskxml.kernels.cpu.kernels import CpuKernels

QUANTISABLE: Final = ("hidden0.weight", "output.weight")  # nearly all weights
_BATCH_ROWS = 512  # as in the evaluation of a run, so that both round alike
_BLOCK_LABELS = 8192  # whose weights are float64 at a time, for `NetworkRanker.logits`
_LOGITS_BYTES = 2**20  # of a thread: blocks of logits are used while they are in the cache


class Network(TrainedKind[ModelSpec]):
    """See `daskxml.models.protocol.TrainedKind`."""

    title = "networks"
    Spec = ModelSpec
    scores_all = True
    strategy: str | None = "adaptive-sgd"
    needs_all_rows = False
    scales_weights = True
    row_s: float | None = None

    def problem(self, spec: ModelSpec, arrays: Arrays) -> str | None:
        """Compare shapes and dtypes; the large matrices may be `Quantised`."""
        for name, array in arrays.items():
            if isinstance(array, Quantised) and name not in QUANTISABLE:
                return f"array {name!r} is quantised, which only {' and '.join(QUANTISABLE)} may be"
        slots = Layout(spec).slots.items()
        return difference({name: (slot.shape, "float32") for name, slot in slots}, arrays)

    def ranker(self, spec: ModelSpec, arrays: Arrays, kernels: Kernels) -> NetworkRanker:
        """Return the network ready to rank."""
        return NetworkRanker(spec, arrays, kernels)

    def describe(self, spec: ModelSpec, arrays: Arrays) -> str:
        """Return the widths of its layers, and the loss."""
        return f"{' -> '.join(map(str, spec.widths))}, {spec.loss}"

    def bound(self, spec: ModelSpec, scores: Array) -> Any:
        """Return one half; under softmax half of a row's best, as a row's targets are alike."""
        return 0.5 * scores[:, :1] if spec.loss == "softmax" else 0.5

    def smaller(
        self, spec: ModelSpec, arrays: Arrays, bits: int, drop: float
    ) -> tuple[ModelSpec, dict[str, Any]]:
        """Store the large matrices in multiples of a scale of each row.

        So the rows of rare features and labels, whose weights are small, are no less exact than
        the others.
        """
        small = dict(arrays)
        for name in QUANTISABLE:
            if isinstance(small.get(name), Quantised):
                raise ConfigError("the model is compressed already: give the one it was made from")
            if name in small:
                if not np.isfinite(small[name]).all():
                    raise ConfigError(f"{name} of the model is not finite: train it again")
                small[name] = quantise(small[name], bits)
        return spec, small

    def explain(self, spec: ModelSpec, arrays: Arrays, row: Csr, label: int) -> Array:
        """Return values times derivatives of the logit."""
        from daskxml.models.network.explanation import contributions  # loads SciPy's functions

        return contributions(spec, arrays, row, label)

    def limits(self, config: Any) -> Iterator[Limit]:
        """Yield that networks have no trees."""
        yield Limit("training.trees", (0,), "networks have none: give [training] epochs")

    def work(self, row: Mapping[str, Any]) -> str:
        """Return rows and epochs."""
        return f"{row['rows']:,} rows, {row['epoch']:.2f} epochs"


class NetworkRanker:
    """Ranks labels with parameters that are used where they are, and not copied.

    Each call has buffers of its own, a few MiB, so that calls from several threads do not wait for
    each other; they are kept for later calls.

    Parameters
    ----------
    spec
        Sizes and layers.
    parameters
        float32 arrays by name, of the shapes of ``Layout(spec)``, the weights of first and output
        layer perhaps `Quantised`; not changed.
    kernels
        Of the CPU.
    """

    def __init__(self, spec: ModelSpec, parameters: Mapping[str, Array], kernels: Kernels) -> None:
        self._spec, self._kernels = spec, kernels
        self._parameters = {
            name: array if isinstance(array, Quantised) else np.ascontiguousarray(array, np.float32)
            for name, array in parameters.items()
        }
        self._idle: list[Mlp] = []
        self._team = cast("CpuKernels", kernels).team

    def top_k(self, segments: Sequence[Segment], k: int) -> tuple[Any, Any]:
        """Return ids and probabilities of the best ``k`` labels of every row; see `Mlp.top_k`."""
        check_rank(k, self._spec.labels)
        with self._network() as network:
            if batch_rows(segments) != 1:
                return network.top_k(segments, k)
            return self._rank_row(network.last_hidden(segments)[0], k)

    def last_hidden(self, segments: Sequence[Segment]) -> Any:
        """Return what the output layer takes, ``(rows, units)``; see `Mlp.last_hidden`."""
        with self._network() as network:
            return network.last_hidden(segments)

    def logits(self, segments: Sequence[Segment]) -> Any:
        """Return the logits of all labels, ``(rows, labels)`` float64; sums are float64, too."""
        hidden = self.last_hidden(segments).astype(np.float64)
        weight, bias = self._output
        out = np.empty((hidden.shape[0], self._spec.labels))
        for first in range(0, self._spec.labels, _BLOCK_LABELS):
            labels = slice(first, first + _BLOCK_LABELS)
            np.matmul(hidden, weight[labels].T.astype(np.float64), out=out[:, labels])
            out[:, labels] += bias[labels]
        return out

    def probabilities(self, segments: Sequence[Segment]) -> Any:
        """Return the probabilities of all labels; see `Ranker.probabilities`."""
        from scipy.special import expit, softmax  # which take a while to load

        logits = self.logits(segments)
        return softmax(logits, axis=1) if self._spec.loss == "softmax" else expit(logits)

    def _rank_row(self, hidden: Array, k: int) -> tuple[Any, Any]:
        scores, ids = np.empty((1, k), np.float32), np.empty((1, k), np.int32)
        totals = np.empty((1, 2)) if self._spec.loss == "softmax" else None
        total = None if totals is None else totals[0]
        from daskxml.kernels.cpu.ranking import rank_row  # imports Numba

        rank_row(self._team, hidden, *self._output, scores, ids, total)
        if totals is None:
            self._kernels.sigmoid_scores(scores, ids)
        else:
            peak = totals[:, 0].astype(np.float32)
            self._kernels.softmax_scores(scores, ids, peak, totals[:, 1])
        return ids, scores

    @property
    def _output(self) -> tuple[Any, Any]:
        return self._parameters["output.weight"], self._parameters["output.bias"]

    @contextlib.contextmanager
    def _network(self) -> Iterator[Mlp]:
        """Lend the layers with buffers that no other caller has."""
        try:
            network = self._idle.pop()
        except IndexError:
            budget = _LOGITS_BYTES * self._kernels.threads
            arguments = self._spec, self._kernels, self._parameters, _BATCH_ROWS, budget
            network = Mlp(*arguments)
        with ONE_THREAD:
            yield network
        self._idle.append(network)  # not one whose call failed
