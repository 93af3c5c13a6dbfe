"""Ranked labels: how many of several rankings, and sparse matrices of scores, and names."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from daskxml.core.arrays import starts_of
from daskxml.core.text import counted

Ids = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float32]
Ranking = tuple[Ids, Scores]  # ``(rows, k)``, best first
_CANDIDATES, _LEAST_CANDIDATES = 2, 20  # for each label that is asked for, and at all


def scores_csr(ids: Ids, scores: Scores, labels: int) -> scipy.sparse.csr_matrix:
    """Return ranked labels ``(rows, k)`` as a matrix ``(rows, labels)`` of their scores.

    Labels of -1 are left out.

    Examples
    --------
    >>> scores_csr(np.int32([[2, 0]]), np.float32([[0.75, 0.5]]), 3).toarray()
    array([[0.5 , 0.  , 0.75]], dtype=float32)
    """
    is_there = ids >= 0
    entries = scores[is_there], ids[is_there], starts_of(is_there.sum(axis=1))
    matrix = scipy.sparse.csr_matrix(entries, shape=(ids.shape[0], labels))
    matrix.sort_indices()
    return matrix


def chosen_first(is_chosen: Any, ids: Ids, scores: Scores) -> Ranking:
    """Return the chosen ones of ranked labels first; -1 and minus infinity where no more is chosen.

    Examples
    --------
    >>> is_chosen = np.array([[False, True]])
    >>> chosen_first(is_chosen, np.array([[7, 3]]), np.array([[0.75, 0.5]]))
    (array([[ 3, -1]]), array([[ 0.5, -inf]]))
    """
    order = np.argsort(~is_chosen, axis=1, kind="stable")
    ids, scores = np.where(is_chosen, ids, -1), np.where(is_chosen, scores, -np.inf)
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(scores, order, axis=1)


def is_empty(rows: Any) -> npt.NDArray[np.bool_]:
    """Return which rows of a matrix in CSR form hold nothing, or zeros alone."""
    ends = starts_of(rows.data != 0)[rows.indptr]
    return ends[1:] == ends[:-1]


def as_given(X: Any, found: Any) -> Any:
    """Return a sparse matrix as a sparse array where X is such."""
    return scipy.sparse.csr_array(found) if isinstance(X, scipy.sparse.sparray) else found


def unknown_texts(count: int, texts: int) -> str:
    """Say that some texts have no word that a model knows.

    Examples
    --------
    >>> unknown_texts(2, 1000)
    '2 of 1,000 texts have no word that the model knows: they get no labels'
    """
    return f"{count:,} of {texts:,} texts have no word that the model knows: they get no labels"


def warn_of_unknown(labels: int, then: str) -> None:
    """Warn in one line where a model does not know so many of the rows' labels.

    Examples
    --------
    >>> warn_of_unknown(0, "left out")
    """
    if labels:
        found = f"the model does not know {counted(labels, 'label')} of the rows"
        warnings.warn(f"{found}: {then}", stacklevel=4)


def named(labels: Sequence[int], names: Sequence[str]) -> list[Any]:
    """Return a row's ranked labels by their names, by ids without any; without the missing ones.

    Examples
    --------
    >>> named([1, 0, -1], ("cat", "dog")), named([1, 0, -1], ())
    (['dog', 'cat'], [1, 0])
    """
    return [names[label] if names else label for label in labels if label >= 0]


def candidates(k: int, labels: int) -> int:
    """Return how many labels each of several rankings has for the best k of all.

    Examples
    --------
    >>> candidates(5, labels=1000), candidates(5, labels=4)
    (20, 4)
    """
    return min(labels, max(_LEAST_CANDIDATES, _CANDIDATES * k))
