"""Metrics of ranked predictions, in one pass over the rows.

Definitions are those of the Extreme Classification Repository and of its evaluation scripts
(Bhatia et al., http://manikvarma.org/downloads/XC/XMLRepository.html; Jain et al., KDD 2016; the
same as napkinXC's and pyxclib's). With y the true labels of a row, r its ranked predictions, q
the inverse propensities and D(k) = sum of 1 / log2(j + 1) for j = 1..k:

- P@k: hits among r[:k] over k;
- nDCG@k: sum of 1 / log2(j + 1) over the hits, over D(min(k, ``|y|``));
- recall@k: hits among r[:k] over ``|y|``;
- PSP@k: sum of q over the hits; PSnDCG@k: sum of q / log2(j + 1) over the hits, over
  D(min(k, ``|y|``)). Both are summed over all rows and only then divided by the same sum for the
  best prediction there is, as the repository reports them.

**Rows without labels** attain 0 in every metric and stay in the denominator of P, nDCG and recall,
as with napkinXC and in the repository's P@k. In PSP and PSnDCG they count in neither sum, because
nothing is attainable on them. Their number is reported beside the metrics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from daskxml.core.arrays import Csr
from daskxml.core.errors import ConfigError, InputError
from daskxml.core.jit import njit
from daskxml.metrics.sums import UNIT_BITS, MetricSums, check_cut_offs

_UNIT = float(1 << UNIT_BITS)
_LOW_BITS = 32  # totals are kept in two int64 parts: 2**31 rows cannot overflow them
_LOW_MASK = (1 << _LOW_BITS) - 1
_LARGEST_VALUE = float(1 << 22)  # of a row, so that it fits an int64 in units of 2**-40
_FIELDS = ("ndcg", "recall", "attained", "attained_dcg", "attainable", "attainable_dcg")


def metric_sums(
    ids: npt.NDArray[np.int32],
    labels: Csr,
    inverse_propensity: npt.NDArray[np.float64],
    ks: Sequence[int] = (1, 3, 5),
) -> MetricSums:
    """Sum the metrics at each of ``ks`` over the rows of one block of predictions.

    Parameters
    ----------
    ids
        ``(rows, k)`` predicted labels, best first, each at most once in a row; -1 is no prediction
        and never a hit, and so are those that ``k`` is short of the largest of ``ks``.
    labels
        ``(rows, labels)``, the true labels, on the host.
    inverse_propensity
        ``(labels,)`` float64, as returned by ``propensities``.
    ks
        The cut-offs.

    Raises
    ------
    ConfigError
        If the cut-offs or the inverse propensities are not usable.
    InputError
        If rows or labels do not match.

    Examples
    --------
    >>> labels = Csr(np.array([0, 2, 2]), np.array([0, 2], dtype=np.int32), None, columns=3)
    >>> ids = np.array([[2, 1], [0, 1]], dtype=np.int32)
    >>> sums = metric_sums(ids, labels, np.ones(3), ks=(1, 2))
    >>> sums.result()["P@1"], sums.rows_without_labels
    (0.5, 1)
    """
    ks = check_cut_offs(ks)
    _check(ids, labels, inverse_propensity, ks)
    if ids.shape[1] < ks[-1]:
        ids = np.pad(ids, ((0, 0), (0, ks[-1] - ids.shape[1])), constant_values=-1)
    positions = np.arange(ks[-1])
    discounts = 1.0 / np.log2(positions + 2.0)
    ideal = np.concatenate(([0.0], np.cumsum(discounts)))
    hits = np.zeros(len(ks), dtype=np.int64)
    parts = np.zeros((2, len(_FIELDS), len(ks)), dtype=np.int64)
    without = _accumulate(
        np.ascontiguousarray(ids), labels.indptr, labels.indices,
        np.ascontiguousarray(inverse_propensity, dtype=np.float64),
        np.array(ks), discounts, ideal, hits, parts,
    )  # fmt: skip
    totals = (parts[1].astype(object) << _LOW_BITS) + parts[0]  # of unbounded integers
    return MetricSums(
        ks=ks,
        rows=labels.rows,
        rows_without_labels=int(without),
        hits=tuple(hits.tolist()),
        **dict(zip(_FIELDS, map(tuple, totals.tolist()), strict=True)),
    )


def _check(ids: Any, labels: Csr, inverse: Any, ks: tuple[int, ...]) -> None:
    """Refuse arrays that the kernel would read beyond the end of."""
    if ids.ndim != 2 or ids.shape[0] != labels.rows:
        raise InputError(f"predictions of shape {ids.shape} for {labels.rows} rows of labels")
    if inverse.shape != (labels.columns,):
        known = inverse.shape[0]
        raise InputError(f"{labels.columns} labels in the data, but propensities for {known}")
    if labels.nonzeros and not 0 <= labels.indices.min() <= labels.indices.max() < labels.columns:
        raise InputError(f"a label id is outside 0..{labels.columns - 1}")
    largest = float(inverse.max(initial=0.0))
    if not (largest * ks[-1] < _LARGEST_VALUE and inverse.min(initial=0.0) >= 0.0):
        problem = f"inverse propensities up to {largest:g}: must be numbers from 0 to 2**20"
        raise ConfigError(problem)


@njit(nogil=True)
def _accumulate(ids, indptr, indices, inverse, ks, discounts, ideal, hits, parts):  # type: ignore[no-untyped-def]
    """Add every row to ``hits`` (ks,) and ``parts`` (2, fields, ks) in place; count empty rows."""
    best = np.empty(discounts.shape[0])
    values = np.empty((parts.shape[1], ks.shape[0]))
    without = 0
    for row in range(ids.shape[0]):
        truth = indices[indptr[row] : indptr[row + 1]]
        if truth.shape[0] == 0:
            without += 1
            continue
        _rank_attainable(truth, inverse, best)
        _evaluate_row(ids[row], truth, inverse, best, ks, discounts, ideal, hits, values)
        for field in range(values.shape[0]):
            for at in range(values.shape[1]):
                units = np.int64(np.rint(values[field, at] * _UNIT))
                parts[0, field, at] += units & _LOW_MASK
                parts[1, field, at] += units >> _LOW_BITS
    return without


@njit(nogil=True)
def _evaluate_row(ids, truth, inverse, best, ks, discounts, ideal, hits, values):  # type: ignore[no-untyped-def]
    """Write one row's metrics to ``values`` (fields, ks); add its hits to ``hits``."""
    found, dcg = 0, 0.0
    attained, attained_dcg, attainable, attainable_dcg = 0.0, 0.0, 0.0, 0.0
    at = 0
    for position in range(discounts.shape[0]):
        discount = discounts[position]
        if _contains(truth, ids[position]):
            weight = inverse[ids[position]]
            found += 1
            dcg += discount
            attained += weight
            attained_dcg += weight * discount
        attainable += best[position]
        attainable_dcg += best[position] * discount
        if position + 1 == ks[at]:
            norm = ideal[min(ks[at], truth.shape[0])]
            hits[at] += found
            values[0, at] = dcg / norm
            values[1, at] = found / truth.shape[0]
            values[2, at] = attained
            values[3, at] = attained_dcg / norm
            values[4, at] = attainable
            values[5, at] = attainable_dcg / norm
            at += 1


@njit(nogil=True)
def _rank_attainable(truth, inverse, best):  # type: ignore[no-untyped-def]
    """Write the largest inverse propensities of the true labels to ``best``, descending, then 0."""
    best[:] = 0.0
    last = best.shape[0] - 1
    for label in truth:
        weight = inverse[label]
        if weight <= best[last]:
            continue
        place = last
        while place > 0 and best[place - 1] < weight:
            best[place] = best[place - 1]
            place -= 1
        best[place] = weight


@njit(nogil=True)
def _contains(truth, label):  # type: ignore[no-untyped-def]
    """Whether the ascending ``truth`` holds ``label``."""
    low, high = 0, truth.shape[0]
    while low < high:  # `np.searchsorted` would load what only a compiler needs
        middle = (low + high) // 2
        if truth[middle] < label:
            low = middle + 1
        else:
            high = middle
    return low < truth.shape[0] and truth[low] == label


def propensities(
    label_counts: npt.NDArray[np.int64], rows: int, a: float = 0.55, b: float = 1.5
) -> npt.NDArray[np.float64]:
    """Inverse propensity of each label: the weight of a hit in PSP@k and PSnDCG@k.

    After Jain, Prabhu and Varma, KDD 2016. The probability ``p`` that a true label was recorded is
    modelled from its number of rows ``n``, ``1 / p = 1 + C * (n + b) ** -a`` with
    ``C = (log N - 1) * (b + 1) ** a``. The constants are a data set's own: 0.55 and 1.5, but 0.6
    and 2.6 for Amazon's sets and 0.5 and 0.4 for Wikipedia's.

    Parameters
    ----------
    label_counts
        ``(labels,)``: number of training rows with each label.
    rows
        Number of training rows. Below ``e`` rows the paper's ``C`` would be negative, and a rare
        label count less than a frequent one; ``C`` is 0 there, and every label counts 1.
    a, b
        The data set's constants, both positive, up to 10 and 100.

    Returns
    -------
    ``(labels,)`` float64, at least 1.

    Raises
    ------
    ConfigError
        If a constant is not a positive number, or larger.

    Examples
    --------
    >>> propensities(np.array([0, 10, 1000]), rows=1000).round(2)
    array([8.82, 3.55, 1.22])
    """
    for name, value, most in (("propensity_a", a, 10), ("propensity_b", b, 100)):
        if not 0 < value <= most:
            raise ConfigError(f"{name} = {value}: must be a positive number, at most {most}")
    scale = max(math.log(max(rows, 1)) - 1, 0.0) * (b + 1) ** a
    return 1.0 + scale * (np.asarray(label_counts, dtype=np.float64) + b) ** -a
