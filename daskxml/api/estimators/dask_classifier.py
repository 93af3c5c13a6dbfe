"""`DaskXMLClassifier`: the estimator for Dask collections, after the habits of ``xgboost.dask``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce, wraps
from operator import add
from typing import Any, Literal, Self

import numpy as np
from dask import compute, delayed, is_dask_collection
from distributed import Client
from sklearn.utils.validation import check_is_fitted

from daskxml.api.collections import DaskRows, as_scipy, find_rows, lazy_blocks, row_blocks
from daskxml.api.estimators.classifier import XMLClassifier, pair_of
from daskxml.api.estimators.labels import LabelsError, LabelSet, check_lengths, read_labels
from daskxml.api.estimators.settings import DEFAULT_METRIC, ranked_sums, resolve_settings
from daskxml.core.errors import ConfigError, InputError
from daskxml.data.formats import lists_again
from daskxml.models.rankings import warn_of_unknown

Pair = tuple[Any, Any]  # delayed blocks of rows and of their labels


def _lazily(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of `XMLClassifier` that gives a lazy Dask array for Dask rows."""

    @wraps(method)
    def of_blocks(self: DaskXMLClassifier, X: Any, *given: Any, **more: Any) -> Any:
        check_is_fitted(self)
        if not is_dask_collection(X):
            return method(self, X, *given, **more)
        here, args = self._in_memory(), (*given, *more.values())
        meta = method(here, np.zeros((1, here.n_features_in_)), *args)[:0]
        return lazy_blocks(self.client, X, "X", meta, here, method.__name__, *args)

    return of_blocks


@dataclass(eq=False, repr=False, kw_only=True)
class DaskXMLClassifier(XMLClassifier):
    """`XMLClassifier` for rows that are on a Dask cluster, in blocks that stay there.

    Predictions of Dask arrays and data frames are lazy Dask arrays; rows in memory are predicted
    at once, as by `XMLClassifier`.

    Parameters
    ----------
    run_file, **parameters
        Those of `XMLClassifier`, but `n_workers`, which are the cluster's.
    client
        A Dask client; None is the current one. It is not stored with the estimator.

    Examples
    --------
    ::

        X = dask.array.random.random((10_000, 50), chunks=(1000, 50))
        y = (X[:, :3] > 0.7).astype(int)
        classifier = daskxml.DaskXMLClassifier(n_estimators=3).fit(X, y)
        classifier.predict(X).compute()
    """

    client: Client | None = None

    _NOT_STORED = ("callbacks", "client")

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy with the same client, which cannot be copied."""
        parameters = copy.deepcopy({**self.get_params(deep=False), "client": None})
        return type(self)(**{**parameters, "client": self.client})

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "client": None}

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, eval_set: Any = None, model: Any = None
    ) -> Self:
        """Train on rows of a cluster.

        Parameters
        ----------
        X
            ``(rows, features)``: a Dask array of sparse or dense blocks, or a Dask data frame of
            numbers.
        y
            Labels in blocks of as many rows, each in a form that `XMLClassifier.fit` takes: a Dask
            array of indicators ``(rows, labels)`` or of one label a row, or a series of labels
            or of lists of them.
        sample_weight
            ``(rows,)``: what each row counts in the loss, in memory or as a Dask array; None: 1.
        eval_set
            ``(X, y)`` that are scored after every epoch.
        model
            Must be None: a run on a cluster starts from scratch.

        Raises
        ------
        DaskxmlError, ValueError
            With a message of one line: what is wrong, where, and what to do.
        """
        if model is not None:
            raise ConfigError("model= needs rows in one process: use XMLClassifier")
        if self.n_workers is not None:
            raise ConfigError("n_workers is the cluster's number here: leave it None")
        client = self.client or _current_client()
        columns, tests = _columns(X, "X"), None
        pairs, labels, rows = _encoded(client, X, y, "X")
        blocks = find_rows(pairs, "train")
        assert isinstance(blocks, DaskRows)
        given = replace(blocks, sample_weight=sample_weight)
        if eval_set is not None:
            tests, _, _ = _encoded(client, *pair_of(eval_set), "eval_set", labels)
        config = resolve_settings(self, rows, labels, has_tests=tests is not None)
        self.__dict__.pop("feature_names_in_", None)
        if columns:
            self.feature_names_in_: Any = np.array(columns, dtype=object)
        self._train(config, labels, given, tests, client=client)
        self.n_features_in_ = self.model_.spec.features
        return self

    def partial_fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, classes: Any = None
    ) -> Self:
        """Refuse: a run on a cluster starts from scratch.

        Raises
        ------
        ConfigError
            Always.
        """
        raise ConfigError("partial_fit trains in one process: take XMLClassifier")

    # -------------------------------------------------------------- prediction

    predict = _lazily(XMLClassifier.predict)
    predict_proba = _lazily(XMLClassifier.predict_proba)
    decision_function = _lazily(XMLClassifier.decision_function)

    def calibrate(
        self, X: Any, y: Any, *, k: int | None = None, f1: Literal["macro", "micro"] = "macro"
    ) -> Self:
        """Calibrate as `XMLClassifier.calibrate` does, on held-out rows in memory."""
        if is_dask_collection(X) or is_dask_collection(y):
            raise ConfigError("calibrate takes rows in memory, of which some thousands do: compute")
        return super().calibrate(X, y, k=k, f1=f1)

    def score(self, X: Any, y: Any) -> float:
        """Return `eval_metric` on rows in memory, or of Dask, which are scored where they are."""
        if not is_dask_collection(X):
            return super().score(X, y)
        check_is_fitted(self)
        blocks, sizes = row_blocks(self.client, X, "X")
        metric, targets = self.eval_metric or DEFAULT_METRIC, _label_blocks(y, sizes, "y")
        score, here = delayed(ranked_sums, pure=False), delayed(self._in_memory(), pure=False)
        tasks = [
            score(here, delayed(as_scipy)(X), delayed(_block_labels)(y), metric)
            for X, y in zip(blocks, targets, strict=True)
        ]
        return float(reduce(add, compute(*tasks, scheduler=self.client)).result()[metric])

    def _in_memory(self) -> XMLClassifier:
        """Return an estimator of rows in memory with the same model, for the workers."""
        plain = XMLClassifier(top_k=self.top_k, threshold=self.threshold)
        for name in ("model_", "labels_", "classes_", "n_features_in_"):
            setattr(plain, name, getattr(self, name))
        return plain


def _current_client() -> Client:
    try:
        return Client.current()
    except ValueError as error:
        need = "no Dask client: give client=, or make one (dask.distributed.Client) before"
        raise ConfigError(need) from error


def _columns(X: Any, name: str) -> list[str]:
    """Return the names of a data frame's columns; none for an array."""
    if not is_dask_collection(X):
        hint = "for rows in memory take XMLClassifier"
        raise InputError(f"{name} is {type(X).__name__}: give a Dask array or data frame; {hint}")
    return [str(column) for column in getattr(X, "columns", ())]


def _label_blocks(y: Any, sizes: Sequence[int], name: str) -> list[Any]:
    """Return delayed blocks of labels, of which there are as many as of rows."""
    if not is_dask_collection(y):
        raise LabelsError(f"{name}: X is on the cluster but y is not: give y as Dask blocks, too")
    if hasattr(y, "chunks"):
        if np.isnan(sum(y.chunks[0])):
            raise LabelsError(f"{name}: y has blocks of unknown sizes: call compute_chunk_sizes()")
        check_lengths(sum(sizes), sum(y.chunks[0]))
        y = y.rechunk((tuple(sizes), *[-1] * (y.ndim - 1)))
    blocks = list(np.ravel(y.to_delayed()))
    if len(blocks) != len(sizes):
        problem = f"{name}: {len(sizes)} blocks of X but {len(blocks)} of y: cut both alike"
        raise LabelsError(problem)
    return blocks


def _encoded(
    client: Client, X: Any, y: Any, name: str, known: LabelSet | None = None
) -> tuple[list[Pair], LabelSet, int]:
    """Return blocks of rows with the indicators of their labels, all labels, and how many rows.

    Labels are found on the workers, block by block; only the different ones come here.
    """
    blocks, sizes = row_blocks(client, X, name)
    targets = _label_blocks(y, sizes, name)
    find = delayed(_find_labels, pure=False)
    found = reduce(LabelSet.joined, compute(*[find(y) for y in targets], scheduler=client))
    if known is not None:
        warn_of_unknown(len(known.grown(found).classes) - len(known.classes), "left out")
    elif not len(found.classes):
        raise LabelsError("y: no row has a label, so there is nothing to learn")
    known = known or found
    encode = delayed(_encode, pure=False)
    labels = delayed(known, pure=False)
    pairs = [
        (delayed(as_scipy)(X), encode(y, labels)) for X, y in zip(blocks, targets, strict=True)
    ]
    return pairs, known, sum(sizes)


def _block_labels(y: Any) -> Any:
    """Return a block of labels; Dask makes texts of lists in a series."""
    texts = y.to_list() if hasattr(y, "to_list") else []
    if texts and all(isinstance(text, str) and text[:1] + text[-1:] == "[]" for text in texts):
        return lists_again(texts, "y")
    return as_scipy(y)


def _find_labels(y: Any) -> LabelSet:
    return read_labels(_block_labels(y), may_be_none=True).labels


def _encode(y: Any, labels: LabelSet) -> Any:
    return labels.encode(_block_labels(y))[:, : len(labels.classes)]
