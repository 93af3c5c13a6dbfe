"""`XMLClassifier`: a scikit-learn estimator for rows in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse
from scipy.special import log_expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from daskxml.api.estimators.labels import LabelsError, LabelSet, check_lengths, read_labels
from daskxml.api.estimators.settings import measure, one_epoch, resolve_settings, sets
from daskxml.api.in_process import train_here
from daskxml.api.run import Matrices, Run
from daskxml.config import RunConfig
from daskxml.core.errors import ConfigError, InputError, ModelError
from daskxml.core.files import replace_text
from daskxml.core.text import parse_json
from daskxml.data.side_files import row_weights
from daskxml.models.kinds import kind_of
from daskxml.models.rankings import as_given, scores_csr
from daskxml.models.store import folder_to_read, folder_to_write
from daskxml.models.trained import Model
from daskxml.observe.terminal import PlainProgress
from daskxml.session.commands import STOP

VALIDATION = "validation"  # the name of the evaluation rows in `evals_result_`
_BLOCK_SCORES = 1 << 22  # that are dense at a time
ESTIMATOR_FILE = "estimator.json"  # beside a model


@dataclass(eq=False, repr=False)
class XMLClassifier(ClassifierMixin, BaseEstimator):
    """A classifier of sparse rows with many labels, or with one label a row.

    Every parameter that is None has the value of the run file.

    Parameters
    ----------
    run_file
        A run file, the name of one that comes with daskxml, or a dictionary of its sections; None
        is ``"best"``, four label trees. The next parameters but `n_estimators` are for networks,
        such as ``"network"``.
    hidden
        Units of each hidden layer: a number, or a list of them; ``()`` is a linear model.
    loss
        ``"sigmoid"`` or ``"softmax"``.
    strategy
        Name of a strategy, or the table ``[strategy]``.
    optimizer, learning_rate, batch_size, dropout
        Of the training.
    n_estimators
        How many label trees there are.
    epochs
        How often a network sees the rows.
    validation_fraction
        Share of the rows that is held out and scored after every epoch.
    early_stopping_rounds
        The run ends once so many evaluations, one an epoch or label tree, have not improved
        `eval_metric`.
    eval_metric
        ``"P@1"``, ``"nDCG@5"``, ``"PSP@3"``, ``"recall@10"`` and the like; also what `score` gives,
        by default ``"P@1"``, which is the accuracy where rows have one label.
    class_weight
        What a row's own labels count in the loss: ``"balanced"``, ``"propensity"``, a weight for
        each label of `classes_`, or a dictionary by label, where others have 1
        (`daskxml.data.side_files`).
    top_k
        The most labels that `predict` gives a row; None: as many as `daskxml.Model.choose` looks
        at, four times those of a training row and at least 20.
    threshold
        Probability above which `predict` gives a label. None: what `calibrate` has found, or else
        one half, and with the softmax loss half of the probability of the row's best label.
    n_workers
        None trains in this process; a number on a local Dask cluster of so many processes.
    n_jobs
        Cores for training and predicting; None or -1: all that this process may use.
    device
        ``"auto"``, ``"cpu"`` or ``"cuda"``.
    random_state
        Seed of every random choice: a number or a ``numpy.random.RandomState``.
    callbacks
        Functions that are called with every row of the history; one that returns `daskxml.STOP`
        ends the training at the next merge, and exceptions are raised.
    settings
        ``{"section.key": value}`` for any other setting of a run file; they win.
    verbose
        Whether the progress of a fit is printed.

    Attributes
    ----------
    classes_
        ``(labels,)``: names or ids, in the order of the columns of predictions.
    n_features_in_, feature_names_in_
        Columns of X, and their names where X has such.
    model_
        The trained `daskxml.Model`.
    history_
        One dictionary a mega-batch.
    evals_result_
        ``{"validation": {"P@1": [...], ...}}``: every evaluation; empty without such rows.
    best_iteration_
        The evaluation, from 0, whose `eval_metric` is the best, and whose model `model_` is;
        None without evaluations.

    Examples
    --------
    >>> import numpy as np
    >>> X, y = np.eye(4), [["a"], ["a", "b"], ["b"], ["c"]]
    >>> classifier = XMLClassifier().fit(X, y)
    >>> classifier.predict_labels(X[:1], k=1)
    [['a']]
    """

    run_file: str | Path | Mapping[str, Any] | None = None
    _: KW_ONLY
    n_estimators: int | None = sets("training.trees", "trees", "give epochs")
    hidden: int | Sequence[int] | None = sets("model.hidden", "network")
    loss: str | None = sets("model.loss", "network")
    strategy: str | Mapping[str, Any] | None = sets("", "network")
    optimizer: str | None = sets("optimizer.name", "network")
    learning_rate: float | None = sets("strategy.lr", "network")
    batch_size: int | None = sets("strategy.batch_max", "network")
    epochs: float | None = sets("training.epochs", "network", "give n_estimators")
    dropout: float | None = sets("model.dropout", "network")
    class_weight: str | Mapping[Any, float] | Sequence[float] | None = sets("training.class_weight")
    validation_fraction: float | None = sets("data.validation")
    early_stopping_rounds: int | None = sets("training.patience")
    eval_metric: str | None = sets("training.target_metric")
    top_k: int | None = None
    threshold: float | None = None
    n_workers: int | None = sets("cluster.workers")
    n_jobs: int | None = sets("cluster.threads")
    device: str | None = sets("cluster.device")
    random_state: Any = sets("run.seed")  # noqa: RUF009 - it makes a field
    callbacks: Sequence[Callable[[dict[str, Any]], Any]] | None = None
    settings: Mapping[str, Any] | None = None
    verbose: bool = False

    _NOT_STORED: ClassVar[tuple[str, ...]] = ("callbacks",)  # parameters that are no values

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn may expect."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.multi_output = True
        tags.classifier_tags.multi_label = True
        return tags

    # ---------------------------------------------------------------- training

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, eval_set: Any = None, model: Any = None
    ) -> Self:
        """Train on rows.

        Parameters
        ----------
        X
            ``(rows, features)``: SciPy sparse of any format, or dense.
        y
            One label a row; or a list of names, or of ids, for each row; or an indicator ``(rows,
            labels)``, sparse or dense.
        sample_weight
            ``(rows,)``: what each row counts in the loss (`daskxml.data.side_files`); None: 1.
        eval_set
            ``(X, y)`` that are scored after every epoch; labels that the training rows do not have
            are left out, with a warning.
        model
            What to continue from: a fitted `XMLClassifier`, a `daskxml.Model`, or its directory.
            Labels that are new follow its own, whose scores stay until they are trained. To label
            trees others are added.

        Raises
        ------
        DaskxmlError, ValueError
            With a message of one line: what is wrong, where, and what to do.
        """
        start = None if model is None else _as_model(model)
        known = None if start is None else _known_labels(model, start)
        return self._fit(X, y, known, start, eval_set, sample_weight)

    def partial_fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, classes: Any = None
    ) -> Self:
        """Train for one epoch on rows, on top of what was learned before.

        The optimizer is reset in every call, and the learning rate is constant. Of label trees
        each call adds one, fitted to these rows; all trees count alike.

        Parameters
        ----------
        X, y, sample_weight
            As for `fit`; new labels follow those that are known. Earlier label trees take them in
            as `Model.extend` does.
        classes
            All labels that are to come, if they are known.
        """
        known, start = None, None
        if hasattr(self, "model_"):
            known, start = self.labels_, self.model_
        elif classes is not None:
            known = _given_classes(read_labels(y).labels.form, classes)
        calls = getattr(self, "_partial_fits", 0)
        self._fit(X, y, known, start, None, sample_weight, one_epoch_of=calls)
        self._partial_fits = calls + 1
        return self

    def _fit(
        self, X: Any, y: Any, known: LabelSet | None, start: Model | None, eval_set: Any,
        sample_weight: Any, one_epoch_of: int | None = None,
    ) -> Self:  # fmt: skip
        is_first = one_epoch_of is None or start is None
        X = self._check_features(X, reset=is_first)
        given = read_labels(y)
        check_lengths(X.shape[0], given.indicator.shape[0])
        known = known or given.labels
        labels, indicator = known.grown(given.labels), given.aligned(known)
        test = self._eval_rows(eval_set, labels)
        config = resolve_settings(self, X.shape[0], labels, has_tests=test is not None)
        if one_epoch_of is not None:
            config = one_epoch(config, one_epoch_of)
        if start and not config.has_strategy and start.spec.labels < len(labels.classes):
            names = _names_of(labels) if start.header.label_names else ()
            start = start.extend(X, indicator, names[start.spec.labels :])
        rows = Matrices(X, indicator, _checked_weights(sample_weight, X.shape[0]))
        self._train(config, labels, rows, test, start)
        if one_epoch_of is None:
            self._partial_fits = 0
        return self

    def _check_features(self, X: Any, *, reset: bool) -> Any:
        dtypes = [np.float64, np.float32]
        return validate_data(self, X, accept_sparse="csr", dtype=dtypes, reset=reset)

    def _eval_rows(self, eval_set: Any, labels: LabelSet) -> Matrices | None:
        if eval_set is None:
            return None
        X, y = pair_of(eval_set)
        X = self._check_features(X, reset=False)
        return Matrices(X, labels.encode_known(y, X.shape[0]))

    def _train(
        self, config: RunConfig, labels: LabelSet, rows: Any, test: Any,
        start: Model | None = None, client: Any = None,
    ) -> None:  # fmt: skip
        """Train in this process, or on a cluster, and set the attributes of a fit."""
        on_event = PlainProgress() if self.verbose else None
        given: dict[str, Any] = {"train": rows, "test": test, "on_event": on_event}
        given |= {"on_megabatch": self._call_back, "raises": (Exception,)}
        if self.n_workers is None and client is None:
            run = train_here(config, start=start, **given)
        elif start is not None:
            raise ConfigError("model= and partial_fit train in this process: leave n_workers None")
        else:
            from daskxml.api.train import train  # which loads the readers of files

            run = train(config, client=client, **given)
        self._keep(run, labels, config)

    def _call_back(self, row: Mapping[str, Any]) -> Any:
        answers = [callback(dict(row)) for callback in self.callbacks or ()]
        return STOP if any(answer is STOP for answer in answers) else None

    def _keep(self, run: Run, labels: LabelSet, config: RunConfig) -> None:
        """Set the attributes of a fit."""
        columns = getattr(self, "feature_names_in_", None)
        features = () if columns is None else tuple(map(str, columns))
        self.model_ = run.model
        if config.cluster.threads:
            self.model_.threads = config.cluster.threads
        self.model_.header = replace(
            self.model_.header, label_names=_names_of(labels), feature_names=features
        )
        self.labels_, self.classes_, self.history_ = labels, labels.classes, run.history
        measured = [row["metrics"] for row in run.history if row["metrics"]]
        self.evals_result_: dict[str, dict[str, list[float]]] = {}
        self.best_iteration_: int | None = None
        if measured:
            by_metric = {name: [row[name] for row in measured] for name in measured[0]}
            self.evals_result_ = {VALIDATION: by_metric}
            self.best_iteration_ = int(np.argmax(by_metric[config.training.target_metric]))

    def calibrate(
        self, X: Any, y: Any, *, k: int | None = None, f1: Literal["macro", "micro"] = "macro"
    ) -> Self:
        """Calibrate the probabilities, and find the thresholds of `predict`, on held-out rows.

        Afterwards `predict` gives the labels above their thresholds, unless the parameter
        `threshold` is set, and `predict_proba` calibrated probabilities; the order of labels
        stays. ``model_.header.decisions.measured`` has its effect. A later call replaces it,
        and `fit` drops it.

        Parameters
        ----------
        X, y
            Rows that `fit` has not seen, not even as an ``eval_set``.
        k, f1
            See `daskxml.Model.calibrate`.

        Raises
        ------
        DaskxmlError, ValueError
            If the rows do not fit, or have one label each.
        """
        X = self.check_rows(X)
        if self.labels_.form == "single":
            raise ConfigError(
                "calibrate is for rows of several labels: for one label a row take scikit-learn's "
                "CalibratedClassifierCV"
            )
        indicator = self.labels_.encode_known(y, X.shape[0])
        self.model_ = self.model_.calibrate(X, indicator, k=k, f1=f1)
        return self

    # -------------------------------------------------------------- prediction

    def predict(self, X: Any) -> Any:
        """Return labels.

        Returns
        -------
        numpy.ndarray or scipy.sparse.csr_matrix
            ``(rows,)`` labels where `fit` was given one label a row; else an indicator
            ``(rows, labels)``: dense where y was dense, sparse where it was sparse or lists, an
            array of SciPy where X is one. A row without features has no labels then.
        """
        given, X = X, self.check_rows(X)
        if self.labels_.form == "single":
            return self.classes_[self.model_.predict_top_k(X, 1)[0][:, 0]]
        ids, _ = self.model_.choose(X, self.top_k, threshold=self.threshold)
        chosen = scores_csr(ids, np.ones(ids.shape, self.labels_.dtype), len(self.classes_))
        return chosen.toarray() if self.labels_.form == "dense" else as_given(given, chosen)

    def predict_proba(self, X: Any, top_k: int | None = None) -> Any:
        """Return the probability of each label.

        Parameters
        ----------
        top_k
            Score only so many labels of each row, the best ones.

        Returns
        -------
        numpy.ndarray or scipy.sparse.csr_matrix
            ``(rows, labels)`` float64; where rows have one label, a row adds up to 1. Labels
            outside the beam of label trees have 0, and are left out of a CSR matrix where y was
            sparse or lists. With ``top_k`` a CSR matrix of float32 instead, as
            `daskxml.Model.predict` gives it. Both are calibrated after `calibrate`, which only
            looks at the best labels of a row: what others have is the calibration's
            continuation.
        """
        given, X = X, self.check_rows(X)
        if top_k is not None:
            return as_given(given, self.model_.predict(X, top_k))
        if self.labels_.form == "single":
            return softmax(self._scores(X), axis=1)
        if self.labels_.form == "dense" or kind_of(self.model_.spec).scores_all:
            return self._calibrated(self.model_.probabilities(X))
        rows = max(1, _BLOCK_SCORES // len(self.classes_))
        found = [
            scipy.sparse.csr_matrix(self.model_.probabilities(X[first : first + rows]))
            for first in range(0, X.shape[0], rows)
        ]
        scores = scipy.sparse.vstack(found, format="csr")
        scores.data = self._calibrated(scores.data)
        return as_given(given, scores)

    def _calibrated(self, found: Any) -> Any:
        made = self.model_.header.decisions
        return found if made is None else np.where(found > 0.0, made.probability(found), 0.0)

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Return a score of each label, ``(rows, labels)``, that grows with its probability.

        It is the logit of the label, and -1,000 outside the beam of label trees: a dense array in
        any case. Where rows have one of two labels it is ``(rows,)``, above 0 for the second.
        """
        scores = self._scores(self.check_rows(X))
        is_binary = self.labels_.form == "single" and len(self.classes_) == 2
        return scores[:, 1] - scores[:, 0] if is_binary else scores

    def predict_labels(self, X: Any, k: int = 5) -> list[list[Any]]:
        """Return the best ``k`` labels of each row, best first, by their names or ids.

        A row without features has none.
        """
        k = min(k, len(self.classes_))
        ids, _ = self.model_.predict_top_k(self.check_rows(X), k, rank_empty=False)
        return [self.classes_[row[row >= 0]].tolist() for row in ids]

    def score(self, X: Any, y: Any) -> float:
        """Return `eval_metric` on rows, by default P@1."""
        return measure(self, X, y)

    def explain(
        self, X: Any, label: Any, top_k: int = 10, *, names: Sequence[Any] | None = None
    ) -> list[list[tuple[Any, float]]]:
        """Return the features of each row that count most for or against a label.

        Parameters
        ----------
        names
            Of the features, such as ``vectorizer.get_feature_names_out()``; by default those that X
            had in `fit`, or numbers.

        Returns
        -------
        list
            For each row up to ``top_k`` pairs of a feature, and what it adds to the label's logit,
            or in label trees and mixtures to its probability (`daskxml.Model.explain`), the largest
            first.
        """
        X, column, names = self.check_rows(X), self._column_of(label), self._feature_names(names)
        explained = []
        for row in range(X.shape[0]):
            ids, added = self.model_.explain(X[row : row + 1], column)
            best = np.argsort(-np.abs(added), kind="stable")[:top_k]
            explained.append([(names[ids[i]], float(added[i])) for i in best])
        return explained

    def _column_of(self, label: Any) -> int:
        if label not in self.labels_.columns:
            raise LabelsError(f"label {label!r}: is none of the {len(self.classes_):,} in classes_")
        return self.labels_.columns[label]

    def _feature_names(self, given: Sequence[Any] | None) -> Any:
        if given is None:
            return getattr(self, "feature_names_in_", np.arange(self.n_features_in_))
        if len(given) != self.n_features_in_:
            raise ConfigError(f"{len(given):,} names for {self.n_features_in_:,} features")
        return given

    def check_rows(self, X: Any) -> Any:
        """Return rows as the model takes them; texts become rows where it was trained on such."""
        check_is_fitted(self)
        X = X.to_list() if hasattr(X, "to_list") else X  # a series of pandas or polars
        is_listed = isinstance(X, list | tuple | np.ndarray) and len(X) > 0
        if self.model_.header.vectorizer is not None and is_listed and isinstance(X[0], str):
            return self.model_.text_rows(X)
        return self._check_features(X, reset=False)

    def _scores(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the logits, or where rows have one label, their logarithmic probabilities."""
        scores = self.model_.logits(X)
        is_softmax = getattr(self.model_.spec, "loss", "sigmoid") == "softmax"
        return scores if is_softmax or self.labels_.form != "single" else log_expit(scores)

    # ----------------------------------------------------------------- storing

    def save(self, directory: str | Path, *, overwrite: bool = False) -> None:
        """Write the model and the estimator to a directory, for `load`; callbacks are not stored.

        A directory whose name ends in ``.zip`` is one file. `daskxml predict` and `daskxml.load`
        read the same.

        Raises
        ------
        ModelError
            If there is a model and ``overwrite`` is not set, or the disk is full.
        ConfigError
            If a parameter is no plain value.
        """
        check_is_fitted(self)
        stored = {
            "params": self.get_params() | dict.fromkeys(self._NOT_STORED),
            "form": self.labels_.form,
            "dtype": str(self.labels_.dtype),
            "classes": self.classes_.tolist(),
            "classes_dtype": str(self.classes_.dtype),
        }
        try:
            text = json.dumps(stored, indent=1)
        except TypeError as error:
            raise ConfigError(f"a parameter cannot be stored: {error}; use pickle") from error
        with folder_to_write(directory, overwrite) as folder:
            self.model_.save(folder, overwrite=overwrite)
            replace_text(folder / ESTIMATOR_FILE, text)

    @classmethod
    def load(cls, directory: str | Path) -> Self:
        """Read what `save` has written, or the model of any run of daskxml.

        Raises
        ------
        ModelError
            If there is no model, or it is damaged.
        """
        with folder_to_read(directory) as folder:
            model = Model.load(folder)
            params, labels = _read_estimator(folder / ESTIMATOR_FILE, model)
        estimator = cls(**params)
        estimator.model_, estimator.labels_, estimator.classes_ = model, labels, labels.classes
        estimator.n_features_in_ = model.spec.features
        if model.header.feature_names:
            estimator.feature_names_in_ = np.array(model.header.feature_names, dtype=object)
        estimator.history_, estimator.evals_result_, estimator.best_iteration_ = [], {}, None
        return estimator


def _names_of(labels: LabelSet) -> tuple[str, ...]:
    """Return the model's names of labels: names, or ids as texts; a matrix may have none."""
    return labels.names if labels.is_matrix else tuple(map(str, labels.classes.tolist()))


def _given_classes(form: str, classes: Any) -> LabelSet:
    listed = np.asarray(classes)
    if listed.ndim != 1 or not listed.size:
        raise LabelsError("classes: give a list of at least one label")
    if len(set(listed.tolist())) < listed.size:
        twice = next(label for label in listed.tolist() if listed.tolist().count(label) > 1)
        raise LabelsError(f"classes: {twice!r} occurs twice; give each label once")
    return LabelSet(form, np.unique(listed))


def _checked_weights(sample_weight: Any, rows: int) -> Any:
    if sample_weight is None:
        return None
    try:
        return row_weights(sample_weight, rows, has_mean_one=False)
    except InputError as error:
        raise LabelsError(f"sample_weight: {error}") from None


def pair_of(eval_set: Any) -> tuple[Any, Any]:
    """Return the pair of rows and labels, which may be the only one of a list.

    Raises
    ------
    LabelsError
        If there is no such pair.
    """
    pair = eval_set[0] if isinstance(eval_set, list) and len(eval_set) == 1 else eval_set
    if isinstance(pair, tuple | list) and len(pair) == 2:
        return pair[0], pair[1]
    raise LabelsError("eval_set: give one pair (X, y)")


def _read_estimator(path: Path, model: Model) -> tuple[dict[str, Any], LabelSet]:
    """Return parameters and labels; those of a model alone where no estimator was stored."""
    if not path.exists():
        return {}, _known_labels(model, model)
    try:
        stored = parse_json(path.read_text(encoding="utf-8"))
        classes = np.array(stored["classes"], np.dtype(stored["classes_dtype"]))
        labels = LabelSet(stored["form"], classes, stored["dtype"])
        params = dict(stored["params"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: damaged ({error!r}); save the estimator again") from error
    names = model.header.label_names
    is_its_own = model.spec.labels == classes.size and (not names or names == _names_of(labels))
    return (params, labels) if is_its_own else ({}, _known_labels(model, model))


def _as_model(given: Any) -> Model:
    """Return the model of an estimator, of a directory, or itself."""
    if isinstance(given, Model):
        return given
    if isinstance(given, str | Path):
        return Model.load(given)
    if not hasattr(given, "model_"):
        raise ConfigError("model: give a fitted XMLClassifier, a daskxml.Model or a directory")
    return given.model_


def _known_labels(given: Any, model: Model) -> LabelSet:
    """Return the labels of what `_as_model` takes, and of the model that it returns."""
    if hasattr(given, "labels_"):
        return given.labels_
    if model.header.label_names:
        return LabelSet("lists", np.array(model.header.label_names))
    return LabelSet("sparse", np.arange(model.spec.labels))
