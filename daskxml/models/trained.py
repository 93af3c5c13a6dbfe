"""The trained model of a user: predict, evaluate, save, load, without a cluster."""

from __future__ import annotations

import contextlib
import functools
import math
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from daskxml.core.arrays import Csr, Partition, Segment
from daskxml.core.errors import ConfigError, InputError, ModelError
from daskxml.core.hardware import usable_cores
from daskxml.data.rows import concatenate, concatenate_csr, feature_blocks, label_csr, unit_rows
from daskxml.data.tables import in_order
from daskxml.kernels import get_kernels
from daskxml.kernels.operands import BITS
from daskxml.metrics import MetricSums, metric_sums, propensities
from daskxml.models import rankings, store
from daskxml.models.decisions import Average, Decisions, learn_decisions
from daskxml.models.kinds import kind_of
from daskxml.models.network.spec import check_rank
from daskxml.models.protocol import Ranker
from daskxml.models.rankings import Ranking
from daskxml.models.together import MEASURES, Measure, Together

DROP = 0.065  # of the squares of the weights of trees: half of the weights and more
_HIGHEST, _OUTSIDE = 1.0 - 2.0**-25, -1000.0  # probability, and logit, of a label of trees
_LEAST_DECIDED, _DECIDED = 20, 4  # labels looked at: at least, and for each of a training row
WholeModel = tuple[store.ModelHeader, Mapping[str, Any], npt.NDArray[np.int64]]
_LEAST_HELD_OUT = 200  # rows, for a calibration of which nobody has asked


@dataclass(eq=False, repr=False)
class Model:
    """A trained classifier, on the CPU.

    Parameters
    ----------
    header
        Sizes, preprocessing and constants.
    parameters
        float32 arrays by name, as the model's kind asks for; not copied. The weights of a network's
        first and output layer may be `daskxml.kernels.operands.Quantised`: see `compress`.
    label_counts
        ``(labels,)`` int64: in how many training rows each label occurs.
    threads
        Compute threads; 0: every core that this process may use.

    Examples
    --------
    >>> from daskxml.models.network.spec import ModelSpec
    >>> from daskxml.models.store import ModelHeader
    >>> spec = ModelSpec(features=3, labels=2, hidden=())
    >>> weights = {"output.weight": np.eye(2, 3, dtype=np.float32),
    ...            "output.bias": np.zeros(2, np.float32)}
    >>> header = ModelHeader(spec=spec, training_rows=10)
    >>> model = Model(header, weights, np.array([4, 6]), threads=1)
    >>> model.predict_top_k([[0.0, 5.0, 0.0]], k=2)[0]
    array([[1, 0]], dtype=int32)
    """

    header: store.ModelHeader
    parameters: Mapping[str, Any]
    label_counts: npt.NDArray[np.int64]
    _: KW_ONLY
    threads: int = 0

    def __post_init__(self) -> None:
        self.parameters = dict(self.parameters)
        self.threads = self.threads or usable_cores()
        self._ranker: Ranker | None = None
        self._preparing = threading.Lock()

    @classmethod
    def load(cls, directory: str | Path, *, threads: int = 0, verify: bool = True) -> Model:
        """Read a model directory, the directory of a run, or a model in one file.

        Parameters
        ----------
        directory
            With ``model.json`` and ``model.safetensors``; or a file of `save`.
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
        with store.folder_to_read(directory) as folder:
            return cls(*store.read_model(folder, verify=verify), threads=threads)

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

        A directory whose name ends in ``.zip`` is one file, which holds them.

        Raises
        ------
        ModelError
            If there is a model and ``overwrite`` is not set, or the disk is full.
        """
        with store.folder_to_write(directory, overwrite) as folder:
            arguments = (folder, self.header, self.parameters, self.label_counts)
            store.write_model(*arguments, overwrite=overwrite)

    def to_bytes(self) -> bytes:
        """Return the bytes of the one file that `save` writes."""
        with tempfile.TemporaryDirectory(prefix="daskxml-") as folder:
            self.save(file := Path(folder) / "model.zip")
            return file.read_bytes()

    @classmethod
    def from_bytes(cls, data: bytes, *, threads: int = 0) -> Model:
        """Return the model of `to_bytes`.

        Raises
        ------
        ModelError
            If they are no model, or damaged.
        """
        with tempfile.TemporaryDirectory(prefix="daskxml-") as folder:
            (file := Path(folder) / "model.zip").write_bytes(data)
            return cls.load(file, threads=threads)

    @property
    def spec(self) -> Any:
        """Sizes, and what else its kind has."""
        return self.header.spec

    @property
    def inverse_propensity(self) -> npt.NDArray[np.float64]:
        """``(labels,)``: what a hit of each label counts in PSP@k and PSnDCG@k."""
        return self.weights_of(self.label_counts.size)

    def weights_of(self, labels: int) -> npt.NDArray[np.float64]:
        """Return `inverse_propensity` of so many labels: no training row has those behind."""
        header, more = self.header, max(0, labels - self.label_counts.size)
        constants = (header.propensity_a, header.propensity_b)
        return propensities(np.pad(self.label_counts, (0, more)), header.training_rows, *constants)

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
        row, stored even where one rounds to 0; fewer where the beam of label trees holds fewer,
        and none where a row has no feature. Sorting a row's entries by score, ties to the lowest
        id, gives the order of ``predict_top_k``. A sparse array where X is one.

        Raises
        ------
        InputError
            If X has another number of features or a value that is not finite.
        ConfigError
            If ``top_k`` is below 1.
        """
        labels = self.spec.labels
        found = self.predict_top_k(X, min(top_k, labels), rank_empty=False)
        return rankings.as_given(X, rankings.scores_csr(*found, labels))

    def predict_labels(self, X: Any, k: int = 5) -> list[list[Any]]:
        """Return the best ``k`` labels of each row, best first, by their names.

        By their ids where the model has no names of labels. A row without features has none.
        """
        ids, _ = self.predict_top_k(X, min(k, self.spec.labels), rank_empty=False)
        return [rankings.named(row, self.header.label_names) for row in ids.tolist()]

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
        return self.header.vectorizer.transform(texts)

    def predict_text(self, texts: Sequence[str], k: int = 5) -> list[list[Any]]:
        """Return the best ``k`` labels of each text, best first, by their names.

        Texts without a word that the model knows get none, and a warning says how many there are.

        Raises
        ------
        ConfigError, InputError
            See `text_rows`.
        """
        rows = self.text_rows(texts)
        if count := int(rankings.is_empty(rows).sum()):
            warnings.warn(rankings.unknown_texts(count, len(texts)), stacklevel=2)
        return self.predict_labels(rows, k)

    def predict_top_k(self, X: Any, k: int = 5, *, rank_empty: bool = True) -> Ranking:
        """Rank the best labels of each row.

        Rows without features are ranked as well, as metrics take them, unless ``rank_empty`` is
        False: by what labels have in common with all rows.

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
        ids, scores = self._ranked(X, k, rank_empty)
        return ids, self._calibrated(ids, scores)

    def choose(self, X: Any, k: int | None = None, *, threshold: float | None = None) -> Ranking:
        """Choose the labels of each row that are above their thresholds.

        Thresholds are those that `calibrate` has found. A model without has one half, or where a
        network has the softmax loss, half of the score of the row's best label. A row without
        features gets no label.

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
        ids, scores = self._ranked(X, k, rank_empty=False)
        found = self._calibrated(ids, scores)
        is_chosen = scores > self.bounds(ids, scores) if threshold is None else found > threshold
        return rankings.chosen_first(is_chosen & (ids >= 0), ids, found)

    def choose_together(
        self, X: Any, k: int = 5, *, measure: Measure = "macro-F1", candidates: int = 50,
        beside: Any = None,
    ) -> Ranking:  # fmt: skip
        """Choose k labels for each row, so that a measure over all rows is highest.

        Calibrate the model first. How they are chosen is explained in `daskxml.models.together`.

        Parameters
        ----------
        X
            All rows, as for `predict`: which labels a row has depends on the others.
        k
            Labels of a row.
        measure
            ``"macro-F1"``; ``"macro-recall"``; ``"coverage"``: the share of labels with a hit; or
            ``"PSP"``: hits by inverse propensity.
        candidates
            How many of a row's best labels are looked at; a row takes 13 bytes of memory for each.
        beside
            Many rows like those to come: each row of X is then chosen for as one more of them,
            whatever else X holds. Their labels are not needed.

        Returns
        -------
        ids, scores
            ``(rows, k)`` as of `predict_top_k`; -1 and minus infinity where there are no more, as
            in rows without features.

        Raises
        ------
        InputError
            If X has another number of features or a value that is not finite.
        ConfigError
            If ``k`` or ``measure`` is out of range.
        """
        if measure not in MEASURES:
            raise ConfigError(f"measure = {measure!r}: must be one of {', '.join(MEASURES)}")
        check_rank(k, self.spec.labels)
        wide = max(k, min(candidates, self.spec.labels))
        own = self.predict_top_k(X, wide, rank_empty=False)
        others = own if beside is None else self.predict_top_k(beside, wide, rank_empty=False)
        share = (self.label_counts + 1.0) / max(1, self.header.training_rows)
        constants = self.inverse_propensity if measure == "PSP" else share * len(others[0])
        together = Together(measure, constants, k)
        is_chosen = together.choose(*others)
        if beside is not None:
            is_chosen = together.choose_alone(*own)
        ids, found = rankings.chosen_first(is_chosen, *own)
        return ids[:, :k], found[:, :k]

    def bounds(self, ids: rankings.Ids, scores: rankings.Scores) -> Any:
        """Return the scores, before calibration, above which ranked labels are chosen."""
        if self.header.decisions:
            return self.header.decisions.bounds(ids)
        return kind_of(self.spec).bound(self.spec, scores)

    @property
    def decided_k(self) -> int:
        """How many of a row's best labels are looked at where some are to be chosen."""
        mean = float(self.label_counts.sum()) / max(1, self.header.training_rows)
        return min(self.spec.labels, max(_LEAST_DECIDED, math.ceil(_DECIDED * mean)))

    def with_decisions(self, decisions: Decisions | None) -> Model:
        """Return the model with another calibration and other thresholds, or without any."""
        return replace(self, header=replace(self.header, decisions=decisions))

    def calibrate(
        self, X: Any, Y: Any = None, *, k: int | None = None, f1: Average = "macro"
    ) -> Model:
        """Return the model with calibrated probabilities, and with thresholds for choosing labels.

        The weights are the same, and so is the order of the labels of every row. What is learned,
        and how, is explained in `daskxml.models.decisions`; its effect is measured by
        cross-validation in five parts, and is ``model.header.decisions.measured`` afterwards.
        What the model had from an earlier calibration is replaced.

        Parameters
        ----------
        X, Y
            Rows that it was not trained on, as for `evaluate`.
        k
            How many of a row's best labels are looked at; None: 20, or four times as many as a
            training row has on average, if that is more.
        f1
            ``"macro"``: a threshold for each label, for the mean of their F1; ``"micro"``: one for
            all.

        Raises
        ------
        InputError
            If X or Y does not match the model, there are fewer than five rows, none of them has a
            label, or none of the ranked labels is true.
        ConfigError
            If ``k`` or ``f1`` is out of range.
        ModelError
            If the model's scores are not finite.

        Examples
        --------
        >>> import daskxml
        >>> from daskxml.api.in_process import train_here
        >>> rng = np.random.default_rng(0)
        >>> X = rng.random((90, 9))
        >>> Y = X[:, :5] > 0.7
        >>> rows = daskxml.Matrices(X[:60], Y[:60])
        >>> model = train_here("tree", train=rows, overrides=["training.trees=1"]).model
        >>> made = model.calibrate(X[60:], Y[60:]).header.decisions
        >>> made.k, list(made.measured)[:4]
        (5, ['rows', 'folds', 'calibration_error_before', 'calibration_error'])
        """
        if f1 not in ("macro", "micro"):
            raise ConfigError(f"f1 = {f1!r}: must be 'macro' or 'micro'")
        Y = _labels_of(X, Y)
        plain = self.with_decisions(None)
        k = min(plain.decided_k if k is None else k, self.spec.labels)
        ids, scores = plain.predict_top_k(X, k)
        truth = label_csr(Y, ids.shape[0], self.spec.labels)
        bounds = plain.bounds(ids, scores)
        return self.with_decisions(learn_decisions(ids, scores, truth, bounds, f1))

    def extend(self, X: Any, Y: Any = None, names: Sequence[str] | None = None) -> Model:
        """Return a model of label trees with new labels, which is not trained anew.

        Each new label goes to the leaves that it resembles, and its scores alone are fitted. What
        old labels score stays the same bit for bit, so a row's old labels keep their order and
        their probabilities. `daskxml.models.trees.extending` says how; what it is worth beside
        training anew is measured in the documents of label trees.

        Parameters
        ----------
        X
            Rows of the new labels, as for `evaluate`. Others are of use as well: they show what the
            new labels do not belong to.
        Y
            ``(rows, old + new labels)``: the model's labels, and behind them the new ones.
        names
            One for each new label, if the model has names of labels.

        Returns
        -------
        Model
            It is saved, loaded and used like any other. Its `label_counts` of the new labels are
            those of Y. A calibration is kept; it knows nothing of the new labels.

        Raises
        ------
        InputError
            If X or Y does not match the model, or a new label has no row, or most of them.
        ConfigError
            If a name is missing, superfluous, or known already.
        ModelError
            If it is no model of label trees.

        Examples
        --------
        >>> import daskxml
        >>> from daskxml.api.in_process import train_here
        >>> rng = np.random.default_rng(0)
        >>> X = rng.random((90, 9))
        >>> Y = X > 0.7
        >>> rows = daskxml.Matrices(X, Y[:, :7])
        >>> model = train_here("tree", train=rows, overrides=["training.trees=1"]).model
        >>> more = model.extend(X, Y)
        >>> model.spec.labels, more.spec.labels
        (7, 9)
        """
        old, known = self.spec.labels, self.header.label_names
        self.check_new_names(names or ())
        blocks = self._blocks(X)
        features = [self._segment(block).partition.features for block in blocks]
        labels = label_csr(_labels_of(X, Y), sum(block.rows for block in features), None)
        if labels.columns <= old:
            raise InputError(
                f"no label is new: the columns of Y are {labels.columns:,}, the model's labels "
                f"{old:,}; give a column for each of these, and behind them for each new one"
            )
        store.check_names("label", all_names := (*known, *(names or ())), labels.columns)
        found = np.bincount(labels.indices, minlength=labels.columns)[old:]
        if not found.all():
            label = old + int(np.argmin(found))
            raise InputError(f"new label {label} has no row: give some, or leave out its column")
        if 2 * found.max() > labels.rows:
            raise InputError(
                f"new label {old + int(np.argmax(found))} is in {found.max():,} of {labels.rows:,} "
                "rows, so it would rank high in all: give as many without it, or ten times as many"
            )
        weights = X.weights if isinstance(X, Partition) else None
        part = Partition(concatenate_csr(features), labels, weights)
        given = part, np.concatenate([self.label_counts, found]), get_kernels("cpu", self.threads)
        spec, arrays = kind_of(self.spec).extended(self.spec, self.parameters, *given)
        header = replace(self.header, spec=spec, label_names=all_names)
        return replace(self, header=header, parameters=arrays, label_counts=given[1])

    def check_new_names(self, names: Sequence[str]) -> None:
        """Refuse names of new labels where those of the model have none."""
        if names and not self.header.label_names:
            raise ConfigError(
                "the model's labels have no names: extend it without names of new ones"
            )

    def compress(self, *, bits: int = 16, drop: float = DROP) -> Model:
        """Return a smaller model that ranks nearly the same labels.

        Parameters
        ----------
        bits
            Of a weight in the first and the output layer of a network, 8 or 16 instead of 32. The
            labels of one row are found by 8 bits either way.
        drop
            The smallest weights of label trees are dropped: those with no more than this share
            of the sum of all their squares. In [0, 1).

        Returns
        -------
        Model
            It is saved, loaded and used like any other.

        Raises
        ------
        ConfigError
            If a value is out of its range, or the network is compressed already or has weights that
            are not finite.

        Examples
        --------
        >>> from daskxml.models.network.spec import ModelSpec
        >>> from daskxml.models.store import ModelHeader
        >>> weights = {"output.weight": np.eye(2, 30, dtype=np.float32),
        ...            "output.bias": np.zeros(2, np.float32)}
        >>> header = ModelHeader(spec=ModelSpec(features=30, labels=2, hidden=()), training_rows=9)
        >>> small = Model(header, weights, np.array([4, 6])).compress(bits=8)
        >>> weights["output.weight"].nbytes, small.parameters["output.weight"].nbytes
        (240, 68)
        """
        if bits not in BITS:
            raise ConfigError(f"bits = {bits!r}: must be 8 or 16")
        if not 0.0 <= drop < 1.0:
            raise ConfigError(f"drop = {drop!r}: must be in [0, 1)")
        spec, arrays = kind_of(self.spec).smaller(self.spec, self.parameters, bits, drop)
        return replace(self, header=replace(self.header, spec=spec), parameters=arrays)

    def explain(self, row: Any, label: int) -> tuple[rankings.Ids, npt.NDArray[np.float64]]:
        """Return the features of a row, and what each adds to the score of a label.

        The score of a network is the label's logit; that of label trees, and of mixtures, its
        probability before calibration, whether or not a beam holds the label.

        Parameters
        ----------
        row
            ``(1, features)``, sparse or dense; it is scaled as the training rows were.
        label
            The id of the label.

        Returns
        -------
        ids
            ``(nonzeros,)`` int32, ascending.
        added
            ``(nonzeros,)`` float64.

        Raises
        ------
        InputError
            If there is not one row, or no such label.

        Examples
        --------
        >>> from daskxml.models.network.spec import ModelSpec
        >>> from daskxml.models.store import ModelHeader
        >>> spec = ModelSpec(features=3, labels=2, hidden=())
        >>> weights = {"output.weight": np.float32([[1, 2, 3], [4, 5, 6]]),
        ...            "output.bias": np.zeros(2, np.float32)}
        >>> header = ModelHeader(spec=spec, training_rows=9, normalize="none")
        >>> Model(header, weights, np.array([4, 6])).explain([[10.0, 0.0, 1.0]], 1)
        (array([0, 2], dtype=int32), array([40.,  6.]))
        """
        blocks = list(self._blocks(row))
        if len(blocks) != 1 or blocks[0].rows != 1:
            raise InputError("one row is explained at a time: give a matrix of one row")
        if not 0 <= label < self.spec.labels:
            raise InputError(f"label {label}: the model has labels 0 to {self.spec.labels - 1}")
        scaled = self._segment(blocks[0]).partition.features
        added = kind_of(self.spec).explain(self.spec, self.parameters, scaled, label)
        return scaled.indices, added

    def _blocks(self, X: Any) -> Iterator[Csr]:
        return feature_blocks(in_order(X, self.header.feature_names), self.spec.features)

    def _ranked(self, X: Any, k: int, rank_empty: bool) -> Ranking:
        """Rank labels by their scores, which are not calibrated."""
        check_rank(k, self.spec.labels)
        found = [self._rank(block, k, rank_empty) for block in self._blocks(X)]
        if len(found) == 1:
            return found[0]
        found.append((np.empty((0, k), np.int32), np.empty((0, k), np.float32)))
        ids, scores = zip(*found, strict=True)
        return np.concatenate(ids), np.concatenate(scores)

    def _calibrated(self, ids: rankings.Ids, scores: rankings.Scores) -> rankings.Scores:
        if self.header.decisions is None:
            return scores
        found = self.header.decisions.calibrated(ids, scores)
        return np.where(ids < 0, np.float32(-np.inf), found)

    def probabilities(self, X: Any) -> npt.NDArray[np.float64]:
        """Score all labels of each row; memory for a number of each label and row is needed.

        Returns
        -------
        ``(rows, labels)`` float64, not calibrated. Label trees follow the best nodes of each level
        alone, their beam: labels that are in none of them have 0.

        Raises
        ------
        InputError
            If X has another number of features or a value that is not finite.
        """
        return self._all_labels(X, self._ready().probabilities)

    def logits(self, X: Any) -> npt.NDArray[np.float64]:
        """Score all labels of each row; memory for a number of each label and row is needed.

        Sums of a network's output layer are float64: a row's scores do not depend on the rows
        beside it.

        Returns
        -------
        ``(rows, labels)`` float64: a network's logits, of which ``predict`` gives the softmax or
        sigmoid; of label trees and mixtures log(p / (1 - p)) of their `probabilities`, and
        -1,000 where these are 0.

        Raises
        ------
        InputError
            If X has another number of features or a value that is not finite.

        Examples
        --------
        >>> from daskxml.models.network.spec import ModelSpec
        >>> from daskxml.models.store import ModelHeader
        >>> spec = ModelSpec(features=2, labels=2, hidden=())
        >>> weights = {"output.weight": np.eye(2, dtype=np.float32),
        ...            "output.bias": np.ones(2, np.float32)}
        >>> header = ModelHeader(spec=spec, training_rows=9, normalize="none")
        >>> Model(header, weights, np.array([4, 6]), threads=1).logits([[0.0, 5.0]])
        array([[1., 6.]])
        """
        if kind_of(self.spec).scores_all:
            return self._all_labels(X, self._ready().logits)
        found = self.probabilities(X).clip(max=_HIGHEST)
        with np.errstate(divide="ignore"):
            return np.maximum(np.log(found) - np.log1p(-found), _OUTSIDE)

    def _all_labels(self, X: Any, score: Callable[[list[Segment]], Any]) -> Any:
        found = [score([self._segment(block)]) for block in self._blocks(X)]
        return np.concatenate([np.empty((0, self.spec.labels)), *found])

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
        Y = _labels_of(X, Y)
        zero = MetricSums.zero(k)
        ids, _ = self.predict_top_k(X, zero.ks[-1])
        labels = label_csr(Y, ids.shape[0], self.spec.labels)
        return metric_sums(ids, labels, self.inverse_propensity, zero.ks).result()

    def _rank(self, features: Csr, k: int, rank_empty: bool) -> Ranking:
        """Rank the rows of a block, which is scaled in place."""
        ids, scores = self._ready().top_k([self._segment(features)], k)
        if ids.shape[1] < k:  # trees give no more columns than there are labels
            missing = ((0, 0), (0, k - ids.shape[1]))
            ids, scores = np.pad(ids, missing, constant_values=-1), np.pad(scores, missing)
        if not rank_empty:
            ids[rankings.is_empty(features)] = -1
        scores[ids < 0] = -np.inf
        return ids, scores

    def _segment(self, features: Csr) -> Segment:
        if self.header.normalize == "l2":
            unit_rows(features)
        labels = Csr(np.zeros(features.rows + 1, np.int64), np.empty(0, np.int32), None, 0)
        return Segment(Partition(features, labels), np.arange(features.rows))

    def _ready(self) -> Any:
        with self._preparing:
            if self._ranker is None:
                kernels = get_kernels("cpu", self.threads)
                self._ranker = kind_of(self.spec).ranker(self.spec, self.parameters, kernels)
            return self._ranker

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arrays, but not the buffers."""
        restored = functools.partial(Model, threads=self.threads)
        return restored, (self.header, self.parameters, self.label_counts)

    def __repr__(self) -> str:
        return f"<daskxml.Model {kind_of(self.spec).describe(self.spec, self.parameters)}>"


def _labels_of(X: Any, Y: Any) -> Any:
    if Y is None and not isinstance(X, Partition):
        raise InputError("Y is missing: give the true labels, a row for each row of X")
    return X.labels if Y is None else Y


def calibrated(
    header: store.ModelHeader, parameters: Mapping[str, Any], label_counts: npt.NDArray[np.int64],
    held_out: Sequence[Partition],
) -> WholeModel:  # fmt: skip
    """Return a new model, its header with what `Model.calibrate` learns from held-out rows.

    The header stays as it is where the run has held out no rows (they are test rows then), or so
    few or such ones that nothing can be learned from them.
    """
    is_held_out = "validation" in header.training
    if is_held_out and sum(part.rows for part in held_out) >= _LEAST_HELD_OUT:
        model = Model(header, parameters, label_counts)
        with contextlib.suppress(InputError, ModelError):
            header = model.calibrate(concatenate(held_out), f1="micro").header
    return header, parameters, label_counts


load = Model.load
