"""The trained model of a user: predict, evaluate, save, load, without a cluster."""

from __future__ import annotations

import contextlib
import math
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from daskxml.core.arrays import Csr, Partition, Segment
from daskxml.core.errors import ConfigError, InputError
from daskxml.core.hardware import usable_cores
from daskxml.data.matrices import feature_blocks, label_csr
from daskxml.data.rows import unit_rows
from daskxml.data.text.counts import check_texts
from daskxml.kernels import Kernels, get_kernels
from daskxml.metrics import MetricSums, metric_sums, propensities
from daskxml.models.decisions import Decisions
from daskxml.models.kinds import AnySpec
from daskxml.models.mix.mixture import Mixture, Ranker, part_arrays
from daskxml.models.mix.spec import MixtureSpec
from daskxml.models.network.ranker import NetworkRanker
from daskxml.models.network.spec import ModelSpec, check_rank
from daskxml.models.store import ModelHeader, read_model, write_model
from daskxml.models.trees.forest import Forest, count_trees
from daskxml.models.trees.spec import TreeSpec

Ids = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float32]

_LEAST_DECIDED, _DECIDED = 20, 4  # labels looked at: at least, and for each of a training row
_BLOCK_LABELS = 8192  # whose weights are float64 at a time, for `Model.logits`


class Model:
    """A trained classifier, on the CPU.

    Parameters
    ----------
    header
        Sizes, preprocessing and constants.
    parameters
        float32 arrays by name, of the shapes of ``Layout(header.spec)``; not copied. The weights of
        first and output layer may be `daskxml.kernels.quantised.Quantised`: see `compress`.
    label_counts
        ``(labels,)`` int64: in how many training rows each label occurs.
    threads
        Compute threads; 0: every core that this process may use.

    Examples
    --------
    >>> spec = ModelSpec(features=3, labels=2, hidden=())
    >>> weights = {"output.weight": np.eye(2, 3, dtype=np.float32),
    ...            "output.bias": np.zeros(2, np.float32)}
    >>> header = ModelHeader(spec=spec, training_rows=10)
    >>> model = Model(header, weights, np.array([4, 6]), threads=1)
    >>> model.predict_top_k([[0.0, 5.0, 0.0]], k=2)[0]
    array([[1, 0]], dtype=int32)
    """

    def __init__(
        self,
        header: ModelHeader,
        parameters: Mapping[str, Any],
        label_counts: npt.NDArray[np.int64],
        *,
        threads: int = 0,
    ) -> None:
        self.header = header
        self.parameters = dict(parameters)
        self.label_counts = label_counts
        self.threads = threads or usable_cores()
        self._ranker: Ranker | None = None
        self._preparing = threading.Lock()

    @classmethod
    def load(cls, directory: str | Path, *, threads: int = 0, verify: bool = True) -> Model:
        """Read a model directory, or the directory of a run.

        Parameters
        ----------
        directory
            With ``model.json`` and ``model.safetensors``.
        threads
            As above.
        verify
            Whether every byte is read to compare its digest; without, loading takes milliseconds
            whatever the size, and pages are read when they are used: see
            `daskxml.models.store.read_model`.

        Raises
        ------
        ModelError
            If it holds no model, or one that is damaged or of another version.
        """
        return cls(*read_model(directory, verify=verify), threads=threads)

    def warm_up(self) -> None:
        """Load, and if need be compile, the kernels, so that the first prediction does not wait."""
        row = scipy.sparse.csr_matrix(([1.0], [0], [0, 1]), (1, self.spec.features), np.float32)
        for rows in (row, scipy.sparse.vstack([row, row])):
            self.predict_top_k(rows, 1)
        if self.header.vectorizer is not None:
            with contextlib.suppress(ConfigError):  # without scikit-learn rows are still ranked
                self.header.vectorizer.transform([""])

    def save(self, directory: str | Path, *, overwrite: bool = False) -> None:
        """Write ``model.safetensors`` and ``model.json``; see ``daskxml.models.store``.

        Raises
        ------
        ModelError
            If there is a model and ``overwrite`` is not set, or the disk is full.
        """
        arguments = (directory, self.header, self.parameters, self.label_counts)
        write_model(*arguments, overwrite=overwrite)

    @property
    def spec(self) -> AnySpec | MixtureSpec:
        """Sizes, and layers and loss of a network."""
        return self.header.spec

    @property
    def network(self) -> ModelSpec:
        """Layers and loss of a network.

        Raises
        ------
        ConfigError
            If the model is of another kind.
        """
        if not isinstance(self.spec, ModelSpec):
            kind = "mixtures" if isinstance(self.spec, MixtureSpec) else "label trees"
            raise ConfigError(f"{kind} score a few labels of each row: ask for the top k")
        return self.spec

    @property
    def inverse_propensity(self) -> npt.NDArray[np.float64]:
        """``(labels,)``: what a hit of each label counts in PSP@k and PSnDCG@k."""
        header = self.header
        constants = (header.propensity_a, header.propensity_b)
        return propensities(self.label_counts, header.training_rows, *constants)

    def predict(self, X: Any, top_k: int = 5) -> scipy.sparse.csr_matrix:
        """Score the best labels of each row.

        Parameters
        ----------
        X
            ``(rows, features)``: SciPy sparse of any format, dense numbers, or a ``Partition``;
            it is scaled here as the training rows were.
        top_k
            Labels of a row, at most all labels.

        Returns
        -------
        ``(rows, labels)`` CSR float32 of probabilities, columns ascending, ``top_k`` entries a
        row, stored even where one rounds to 0; fewer where the beam of label trees holds fewer.
        Sorting a row's entries by score, ties to the lowest id, gives the order of
        ``predict_top_k``.

        Raises
        ------
        InputError
            If X has another number of features or a value that is not finite.
        ConfigError
            If ``top_k`` is below 1.
        """
        return scores_csr(*self.predict_top_k(X, min(top_k, self.spec.labels)), self.spec.labels)

    def predict_labels(self, X: Any, k: int = 5) -> list[list[Any]]:
        """Return the best ``k`` labels of each row, best first, by their names.

        By their ids where the model has no names of labels.
        """
        ids, _ = self.predict_top_k(X, min(k, self.spec.labels))
        return [named(row, self.header.label_names) for row in ids.tolist()]

    def text_rows(self, texts: Sequence[str]) -> scipy.sparse.csr_matrix:
        """Return a row for each text, ``(texts, features)``, by the words of the training texts.

        Words that were not among them are left out; a row may hold none.

        Raises
        ------
        ConfigError
            If the model was not trained on texts.
        InputError
            If one is no text.
        """
        if self.header.vectorizer is None:
            raise ConfigError("the model was not trained on texts: give rows of features")
        check_texts(texts)
        return self.header.vectorizer.transform(texts)

    def predict_text(self, texts: Sequence[str], k: int = 5) -> list[list[Any]]:
        """Return the best ``k`` labels of each text, best first, by their names.

        Texts without a word that the model knows have the labels of an empty row, and a warning
        says how many there are.

        Raises
        ------
        ConfigError, InputError
            See `text_rows`.
        """
        rows = self.text_rows(texts)
        if count := empty_rows(rows):
            warnings.warn(unknown_texts(count, len(texts)), stacklevel=2)
        return self.predict_labels(rows, k)

    def predict_top_k(self, X: Any, k: int = 5) -> tuple[Ids, Scores]:
        """Rank the best labels of each row.

        Labels are ranked by their logits, ties to the lowest id. Where logits differ but the
        probabilities round to equal ones, as near 0 and 1, one is moved by one unit in the last
        place if sorting by score and id would give another order.

        Returns
        -------
        ids
            ``(rows, k)`` int32, best first; -1 where there are fewer than ``k`` labels, or the
            beam of label trees holds fewer.
        scores
            ``(rows, k)`` float32 probabilities, calibrated where the model is; minus infinity where
            the id is -1.

        Raises
        ------
        InputError
            If X has another number of features or a value that is not finite.
        ConfigError
            If ``k`` is below 1, or far above the number of labels.
        """
        ids, scores = self._ranked(X, k)
        return ids, self._calibrated(ids, scores)

    def choose(
        self, X: Any, k: int | None = None, *, threshold: float | None = None
    ) -> tuple[Ids, Scores]:
        """Choose the labels of each row that are above their thresholds.

        Thresholds are those that `calibrate` has found. A model without has one half, or where a
        network has the softmax loss, half of the score of the row's best label.

        Parameters
        ----------
        X
            As for `predict`.
        k
            At most so many labels of a row; None: as many as `calibrate` looks at, which is the
            limit of a calibrated model in any case.
        threshold
            Choose labels with probabilities above this one instead.

        Returns
        -------
        ids, scores
            ``(rows, k)`` as of `predict_top_k`; -1 and minus infinity where no more is chosen.

        Raises
        ------
        InputError
            If X has another number of features or a value that is not finite.
        ConfigError
            If ``k`` is below 1.
        """
        made = self.header.decisions
        most = min(made.k if made else self.decided_k, self.spec.labels)
        k = most if k is None else min(k, most if made else self.spec.labels)
        ids, scores = self._ranked(X, k)
        found = self._calibrated(ids, scores)
        is_chosen = scores > self.bounds(ids, scores) if threshold is None else found > threshold
        is_chosen &= ids >= 0
        order = np.argsort(~is_chosen, axis=1, kind="stable")
        ids, found = np.where(is_chosen, ids, -1), np.where(is_chosen, found, -np.inf)
        return np.take_along_axis(ids, order, axis=1), np.take_along_axis(found, order, axis=1)

    def bounds(self, ids: Ids, scores: Scores) -> Any:
        """Return the scores, before calibration, above which ranked labels are chosen."""
        if self.header.decisions:
            return self.header.decisions.bounds(ids)
        if isinstance(self.spec, ModelSpec) and self.spec.loss == "softmax":
            return 0.5 * scores[:, :1]  # a row's targets are alike
        return 0.5

    @property
    def decided_k(self) -> int:
        """How many of a row's best labels are looked at where some are to be chosen."""
        mean = float(self.label_counts.sum()) / max(1, self.header.training_rows)
        return min(self.spec.labels, max(_LEAST_DECIDED, math.ceil(_DECIDED * mean)))

    def with_decisions(self, decisions: Decisions | None) -> Model:
        """Return the model with another calibration and other thresholds, or without any."""
        header = replace(self.header, decisions=decisions)
        return Model(header, self.parameters, self.label_counts, threads=self.threads)

    def _ranked(self, X: Any, k: int) -> tuple[Ids, Scores]:
        """Rank labels by their scores, which are not calibrated."""
        check_rank(k, self.spec.labels)
        found = [self._rank(block, k) for block in feature_blocks(X, self.spec.features)]
        if len(found) == 1:
            return found[0]
        found.append((np.empty((0, k), np.int32), np.empty((0, k), np.float32)))
        ids, scores = zip(*found, strict=True)
        return np.concatenate(ids), np.concatenate(scores)

    def _calibrated(self, ids: Ids, scores: Scores) -> Scores:
        if self.header.decisions is None:
            return scores
        found = self.header.decisions.calibrated(ids, scores)
        return np.where(ids < 0, np.float32(-np.inf), found)

    def last_hidden(self, X: Any) -> npt.NDArray[np.float32]:
        """Compute what the output layer of a network takes, ``(rows, units)`` float32.

        Raises
        ------
        InputError
            If X has another number of features or a value that is not finite.
        """
        found = [np.empty((0, self.network.widths[-2]), np.float32)]
        found += [self._last_hidden(block) for block in feature_blocks(X, self.spec.features)]
        return np.concatenate(found)

    def logits(self, X: Any) -> npt.NDArray[np.float64]:
        """Score all labels of each row; memory for a number of each label and row is needed.

        Sums of the output layer are float64: a row's scores do not depend on the rows beside it.

        Returns
        -------
        ``(rows, labels)`` float64: the logits, of which ``predict`` gives the softmax or sigmoid.

        Raises
        ------
        InputError
            If X has another number of features or a value that is not finite.

        Examples
        --------
        >>> spec = ModelSpec(features=2, labels=2, hidden=())
        >>> weights = {"output.weight": np.eye(2, dtype=np.float32),
        ...            "output.bias": np.ones(2, np.float32)}
        >>> header = ModelHeader(spec=spec, training_rows=9, normalize="none")
        >>> Model(header, weights, np.array([4, 6]), threads=1).logits([[0.0, 5.0]])
        array([[1., 6.]])
        """
        found = [np.empty((0, self.network.labels))]
        found += [self._logits(block) for block in feature_blocks(X, self.spec.features)]
        return np.concatenate(found)

    def evaluate(self, X: Any, Y: Any = None, k: Sequence[int] = (1, 3, 5)) -> dict[str, float]:
        """Compute P@k, nDCG@k, PSP@k, PSnDCG@k and recall@k; see ``daskxml.metrics``.

        Parameters
        ----------
        X
            As for ``predict``.
        Y
            ``(rows, labels)``: what is not zero is a true label. May be left out if X is a
            ``Partition``, which has its own.
        k
            The cut-offs.

        Raises
        ------
        InputError
            If X or Y does not match the model.
        ConfigError
            If a cut-off is below 1.
        """
        if Y is None and not isinstance(X, Partition):
            raise InputError("Y is missing: give the true labels, a row for each row of X")
        Y = X.labels if Y is None else Y
        zero = MetricSums.zero(k)
        ids, _ = self.predict_top_k(X, zero.ks[-1])
        labels = label_csr(Y, ids.shape[0], self.spec.labels)
        return metric_sums(ids, labels, self.inverse_propensity, zero.ks).result()

    def _rank(self, features: Csr, k: int) -> tuple[Ids, Scores]:
        """Rank the rows of a block, which is scaled in place."""
        ids, scores = self._ready().top_k([self._segment(features)], k)
        if ids.shape[1] < k:  # trees give no more columns than there are labels
            missing = ((0, 0), (0, k - ids.shape[1]))
            ids, scores = np.pad(ids, missing, constant_values=-1), np.pad(scores, missing)
        scores[ids < 0] = -np.inf
        return ids, scores

    def _last_hidden(self, features: Csr) -> npt.NDArray[np.float32]:
        """Compute the last hidden layer of a block, which is scaled in place."""
        network = self._ready()
        assert isinstance(network, NetworkRanker)
        hidden: npt.NDArray[np.float32] = network.last_hidden([self._segment(features)])
        return hidden

    def _logits(self, features: Csr) -> npt.NDArray[np.float64]:
        """Score the rows of a block, which is scaled in place."""
        hidden = self._last_hidden(features).astype(np.float64)
        weight, bias = self.parameters["output.weight"], self.parameters["output.bias"]
        out = np.empty((features.rows, self.spec.labels))
        for first in range(0, self.spec.labels, _BLOCK_LABELS):
            labels = slice(first, first + _BLOCK_LABELS)
            np.matmul(hidden, weight[labels].T.astype(np.float64), out=out[:, labels])
            out[:, labels] += bias[labels]
        return out

    def _segment(self, features: Csr) -> Segment:
        if self.header.normalize == "l2":
            unit_rows(features)
        labels = Csr(np.zeros(features.rows + 1, np.int64), np.empty(0, np.int32), None, 0)
        return Segment(Partition(features, labels), np.arange(features.rows))

    def _ready(self) -> Ranker:
        with self._preparing:
            if self._ranker is None:
                self._ranker = _ranker(self.spec, self.parameters, get_kernels("cpu", self.threads))
            return self._ranker

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arrays, but not the buffers."""
        return _restored, (self.header, self.parameters, self.label_counts, self.threads)

    def __repr__(self) -> str:
        if isinstance(self.spec, MixtureSpec):
            sizes = f"{self.spec.features} -> {self.spec.labels}"
            return f"<daskxml.Model {sizes}, mixture of {len(self.spec.parts)} models>"
        if isinstance(self.spec, TreeSpec):
            trees = count_trees(self.parameters)
            sizes = f"{self.spec.features} -> {self.spec.labels}"
            return f"<daskxml.Model {sizes}, {trees} label tree{'s' * (trees > 1)}>"
        sizes = " -> ".join(map(str, (self.spec.features, *self.spec.hidden, self.spec.labels)))
        return f"<daskxml.Model {sizes}, {self.spec.loss}>"


def load(directory: str | Path) -> Model:
    """Load the model of a run.

    Raises
    ------
    ModelError
        If there is none, or it is damaged or of another version.
    """
    return Model.load(directory)


def scores_csr(ids: Ids, scores: Scores, labels: int) -> scipy.sparse.csr_matrix:
    """Return ranked labels ``(rows, k)`` as a matrix ``(rows, labels)`` of their scores.

    Labels of -1 are left out.

    Examples
    --------
    >>> scores_csr(np.int32([[2, 0]]), np.float32([[0.75, 0.5]]), 3).toarray()
    array([[0.5 , 0.  , 0.75]], dtype=float32)
    """
    order = np.argsort(ids, axis=1)
    ids = np.take_along_axis(ids, order, axis=1)
    scores = np.take_along_axis(scores, order, axis=1)
    is_there = ids >= 0
    indptr = np.concatenate([[0], np.cumsum(is_there.sum(axis=1, dtype=np.int64))])
    entries = scores[is_there], ids[is_there], indptr
    return scipy.sparse.csr_matrix(entries, shape=(ids.shape[0], labels))


def empty_rows(rows: Any) -> int:
    """Return how many rows of a matrix in CSR form hold nothing."""
    return int(np.count_nonzero(np.diff(rows.indptr) == 0))


def unknown_texts(count: int, texts: int) -> str:
    """Say that some texts have no word that a model knows.

    Examples
    --------
    >>> unknown_texts(2, 1000)
    '2 of 1,000 texts have no word that the model knows: their labels are those of an empty row'
    """
    told = f"{count:,} of {texts:,} texts have no word that the model knows"
    return f"{told}: their labels are those of an empty row"


def named(labels: Sequence[int], names: Sequence[str]) -> list[Any]:
    """Return a row's ranked labels by their names, by ids without any; without the missing ones.

    Examples
    --------
    >>> named([1, 0, -1], ("cat", "dog")), named([1, 0, -1], ())
    (['dog', 'cat'], [1, 0])
    """
    return [names[label] if names else label for label in labels if label >= 0]


def evaluate_partitions(
    model: Model, partitions: Iterable[Partition], k: Sequence[int] = (1, 3, 5)
) -> MetricSums:
    """Sum the metrics over partitions, one at a time, as they come from a file.

    Parameters
    ----------
    model
        What to evaluate.
    partitions
        Host rows as parsed, not scaled, with the model's numbers of features and labels.
    k
        The cut-offs.

    Raises
    ------
    InputError
        If features or labels are not as many as the model's.
    ConfigError
        If a cut-off is below 1.

    Examples
    --------
    >>> spec = ModelSpec(features=2, labels=2, hidden=())
    >>> weights = {"output.weight": np.eye(2, dtype=np.float32),
    ...            "output.bias": np.zeros(2, np.float32)}
    >>> model = Model(ModelHeader(spec=spec, training_rows=9), weights, np.array([4, 6]), threads=1)
    >>> rows = Csr(np.array([0, 1]), np.array([1], np.int32), np.ones(1, np.float32), columns=2)
    >>> evaluate_partitions(model, [Partition(rows, rows)], k=(1,)).result()["P@1"]
    1.0
    """
    sums = MetricSums.zero(k)
    weights = model.inverse_propensity
    for partition in partitions:
        ids, _ = model.predict_top_k(partition, sums.ks[-1])
        sums += metric_sums(ids, partition.labels, weights, sums.ks)
    return sums


def _ranker(spec: AnySpec | MixtureSpec, parameters: Mapping[str, Any], kernels: Kernels) -> Ranker:
    if isinstance(spec, MixtureSpec):
        parts = [
            _ranker(part, part_arrays(parameters, number), kernels)
            for number, part in enumerate(spec.parts)
        ]
        return Mixture(parts, spec.weights, spec.labels, kernels)
    if isinstance(spec, TreeSpec):
        return Forest(spec, parameters, kernels)
    return NetworkRanker(spec, parameters, kernels)


def _restored(header: ModelHeader, parameters: Any, label_counts: Any, threads: int) -> Model:
    return Model(header, parameters, label_counts, threads=threads)
