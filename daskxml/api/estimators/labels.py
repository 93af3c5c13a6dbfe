"""The forms in which a user gives labels, and the sparse indicator that all of them become.

=========  ========================================  ============================================
form       given as                                  classes
=========  ========================================  ============================================
`single`   one label a row: ``["cat", "dog"]``       the different labels, sorted
`lists`    a list, tuple or set of each row's        the different names or ids, sorted
           names or ids: ``[["a", "b"], []]``
`sparse`   a SciPy matrix, 1 where a label is true   its columns
`dense`    the same as an array, nested lists, or a  its columns, by the names of a data frame's
           data frame of pandas or polars
=========  ========================================  ============================================

Nested lists of equal length that hold nothing but 0 and 1 are `dense`, as scikit-learn has it, and
lists of ids otherwise. A series of lists, of pandas or polars, is `lists`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.exceptions import DataConversionWarning
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d

from daskxml.core.errors import InputError
from daskxml.data.rows import check_targets, from_scipy, to_scipy
from daskxml.models.rankings import warn_of_unknown

COLUMN_VECTOR = "A column-vector y was passed when a 1d array was expected: it is taken as one"
COMMAS = (
    "y: a text with commas is one label: for several give lists, [text.split(',') for text in y]"
)


class LabelsError(InputError, ValueError):
    """Labels that cannot be used; a ValueError too, as scikit-learn expects."""


@dataclass(frozen=True)
class LabelSet:
    """The labels of an estimator, and the form in which they were given.

    Attributes
    ----------
    form
        See the head of this module.
    classes
        ``(labels,)``: the label of each column of the indicator.
    dtype
        Of the indicator that was given.
    """

    form: str
    classes: Any
    dtype: Any = "int64"

    @property
    def is_matrix(self) -> bool:
        """Whether labels are the columns of a matrix, which have no names."""
        return self.form in ("sparse", "dense")

    @cached_property
    def columns(self) -> Mapping[Any, int]:
        """The column of each label."""
        return {label: column for column, label in enumerate(self.classes.tolist())}

    @property
    def names(self) -> tuple[str, ...]:
        """The labels where they are names, else none."""
        has_names = all(isinstance(label, str) for label in self.classes.tolist())
        return tuple(self.classes.tolist()) if has_names else ()

    def grown(self, other: LabelSet) -> LabelSet:
        """Return these labels, and after them those that are new in ``other``.

        Raises
        ------
        LabelsError
            If one is a matrix, the other not; or one has names, the other ids.

        Examples
        --------
        >>> old, new = (LabelSet("lists", np.array(names)) for names in (["b", "c"], ["a", "b"]))
        >>> old.grown(new).classes.tolist()
        ['b', 'c', 'a']
        """
        if self.is_matrix != other.is_matrix:
            forms = f"y is {other.form} here, but {self.form} before"
            raise LabelsError(f"{forms}: give labels as they were given first")
        if self.is_matrix and not (self.names and other.names):
            widest = max(self.classes, other.classes, key=len)
            return replace(self, classes=widest)
        kinds = {isinstance(label, str) for label in (*self.columns, *other.columns)}
        if len(kinds) > 1:
            raise LabelsError("y: names and ids are mixed: give labels as they were given first")
        added = [label for label in other.classes.tolist() if label not in self.columns]
        classes = np.array(self.classes.tolist() + added) if added else self.classes
        return replace(self, classes=classes)

    def encode(self, y: Any) -> scipy.sparse.csr_matrix:
        """Return the indicator ``(rows, labels)`` float32 of labels that are given in any form.

        Labels that are not among these have columns after all others: no prediction hits them.
        """
        return read_labels(y, may_be_none=True).aligned(self)

    def encode_known(self, y: Any, rows: int) -> scipy.sparse.csr_matrix:
        """Return the indicator ``(rows, labels)`` of these labels alone; warn of others.

        Raises
        ------
        LabelsError
            If there are labels of more or fewer rows.
        """
        indicator, known = self.encode(y), len(self.classes)
        warn_of_unknown(indicator.shape[1] - known, "left out")
        check_lengths(rows, indicator.shape[0])
        return indicator[:, :known]

    def joined(self, other: LabelSet) -> LabelSet:
        """Return the labels of both, in sorted order.

        Raises
        ------
        LabelsError
            If they were not given in the same form.

        Examples
        --------
        >>> some, others = (LabelSet("lists", np.array(names)) for names in (["b", "c"], ["a"]))
        >>> some.joined(others).classes.tolist()
        ['a', 'b', 'c']
        """
        if self.form != other.form:
            problem = f"y: {other.form} in one block, {self.form} in another: give all alike"
            raise LabelsError(problem)
        if self.is_matrix:
            return self.grown(other)
        both = set(self.classes.tolist()) | set(other.classes.tolist())
        if len({isinstance(label, str) for label in both}) > 1:
            raise LabelsError("y: names and ids are mixed; give all blocks the same")
        return replace(self, classes=np.array(sorted(both))) if both else self


@dataclass(frozen=True)
class GivenLabels:
    """Labels as they were given: ``indicator`` is ``(rows, len(labels.classes))``."""

    labels: LabelSet
    indicator: scipy.sparse.csr_matrix

    def aligned(self, known: LabelSet) -> scipy.sparse.csr_matrix:
        """Return the indicator with the columns of ``known``, then those of new labels."""
        wider = known.grown(self.labels)
        shape = (self.indicator.shape[0], len(wider.classes))
        found, columns = self.indicator, self.indicator.indices
        is_by_name = not known.is_matrix or (known.names and self.labels.names)
        if is_by_name and columns.size:
            places = [wider.columns[label] for label in self.labels.classes.tolist()]
            columns = np.array(places, np.int32)[columns]
        aligned = scipy.sparse.csr_matrix((found.data, columns, found.indptr), shape)
        aligned.sort_indices()
        return aligned


def check_lengths(rows: int, labelled: int) -> None:
    """Refuse labels of more or fewer rows than there are.

    Raises
    ------
    LabelsError
        With both numbers.
    """
    if rows != labelled:
        raise LabelsError(f"X has {rows:,} rows, y has {labelled:,}: give each row its labels")


def read_labels(y: Any, *, may_be_none: bool = False) -> GivenLabels:
    """Read labels in any form.

    Parameters
    ----------
    y
        See the head of this module.
    may_be_none
        Whether lists may all be empty, as those of a few rows.

    Raises
    ------
    LabelsError
        If a row has a label that is neither a name nor an id, or names and ids are mixed.
    ValueError
        From scikit-learn, for arrays with NaN or of the wrong kind.

    Examples
    --------
    >>> given = read_labels([["b", "a"], [], ["b"]])
    >>> given.labels.classes.tolist(), given.indicator.toarray().tolist()
    (['a', 'b'], [[1.0, 1.0], [0.0, 0.0], [0.0, 1.0]])
    >>> read_labels(["cat", "dog", "cat"]).labels.form
    'single'
    """
    if y is None:
        raise LabelsError("requires y to be passed, but the target y is None")
    if scipy.sparse.issparse(y):
        return _indicator("sparse", check_array(y, accept_sparse="csr", dtype=None, input_name="y"))
    rows = _nested(y)
    if rows is not None:
        given = _lists(rows)
        if not (given.labels.classes.size or may_be_none):
            raise LabelsError("y: no row has a label, so there is nothing to learn")
        return given
    array = np.asarray(y)
    if array.ndim == 2 and array.shape[1] == 1 and array.dtype.kind not in "b":
        is_indicator = array.dtype.kind in "iuf" and np.isin(array, (0, 1)).all()
        if not is_indicator:
            warnings.warn(COLUMN_VECTOR, DataConversionWarning, stacklevel=4)
            array = array.ravel()
    if array.ndim != 2:
        return _single(array)
    given = _indicator("dense", check_array(array, dtype="numeric", input_name="y"))
    names = np.array(getattr(y, "columns", ()))  # of a data frame
    if not (names.size and all(isinstance(name, str) for name in names.tolist())):
        return given
    return replace(given, labels=replace(given.labels, classes=names.astype(str)))


def _nested(y: Any) -> list[Any] | None:
    """Return the rows of lists of names or ids; None where y is one label a row, or an array."""
    if hasattr(y, "to_list"):  # a series of pandas or polars, whose elements may be lists
        y = y.to_list()
    is_array = isinstance(y, np.ndarray) and y.dtype == object and y.ndim == 1
    rows = list(y) if is_array or isinstance(y, list | tuple) else []
    if not any(map(_is_row, rows)):
        return None
    for number, row in enumerate(rows):
        if not _is_row(row):
            raise LabelsError(
                f"y, row {number}: {row!r} is no list of labels: give each row a list of its names"
            )
    return None if _is_indicator(rows) else rows


def _is_row(value: Any) -> bool:
    is_vector = isinstance(value, np.ndarray) and value.ndim == 1
    return is_vector or isinstance(value, list | tuple | set | frozenset)


def _is_indicator(rows: list[Any]) -> bool:
    """Whether nested lists are an indicator: all of one length, of nothing but 0 and 1."""
    if any(isinstance(row, set | frozenset) for row in rows):
        return False
    lengths = {len(row) for row in rows}
    if len(lengths) != 1 or lengths == {0}:
        return False
    array = np.asarray(rows)
    return array.ndim == 2 and array.dtype.kind in "biuf" and bool(np.isin(array, (0, 1)).all())


def _lists(rows: list[Any]) -> GivenLabels:
    listed = [set(row.tolist() if isinstance(row, np.ndarray) else row) for row in rows]
    kinds: set[type] = set()
    for number, row in enumerate(listed):
        kinds |= {_kind(label, number) for label in row}
        if len(kinds) > 1:
            raise LabelsError(f"y, row {number}: names and ids are mixed; give all rows the same")
    binarizer = MultiLabelBinarizer(sparse_output=True)
    indicator = scipy.sparse.csr_matrix(binarizer.fit_transform(listed), dtype=np.float32)
    indicator.sort_indices()
    return GivenLabels(LabelSet("lists", np.array(binarizer.classes_.tolist())), indicator)


def _kind(label: Any, row: int) -> type:
    is_id = isinstance(label, int | np.integer) and not isinstance(label, bool)
    if not (is_id or isinstance(label, str)) or label == "":
        problem = f"y, row {row}: label {label!r}: give names (texts) or ids (whole numbers)"
        raise LabelsError(problem)
    return int if is_id else str


def _single(y: Any) -> GivenLabels:
    array = column_or_1d(y, warn=True)
    if array.dtype.kind == "f":
        check_array(array, ensure_2d=False, dtype=None, input_name="y")
    try:
        check_classification_targets(array)
        classes, columns = np.unique(array, return_inverse=True)
    except TypeError:  # they have no order
        row = int(np.argmax([type(label) is not type(array[0]) for label in array]))
        found = f"y: labels like {array[0]!r:.40} and, in row {row}, {array[row]!r:.40}"
        raise LabelsError(f"{found}: give all labels as names or all as ids") from None
    parts = [part.strip() for label in classes.tolist() for part in str(label).split(",")]
    if len(set(parts)) < len(parts):
        warnings.warn(COMMAS, UserWarning, stacklevel=4)
    indicator = scipy.sparse.identity(len(classes), np.float32, "csr")[columns]
    return GivenLabels(LabelSet("single", classes, array.dtype), indicator)


def _indicator(form: str, matrix: Any) -> GivenLabels:
    csr = scipy.sparse.csr_matrix(matrix)
    check_targets(csr.data)
    indicator = to_scipy(from_scipy(csr, ones=True))
    return GivenLabels(LabelSet(form, np.arange(csr.shape[1]), matrix.dtype), indicator)
