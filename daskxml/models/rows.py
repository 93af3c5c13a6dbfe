"""Rows of files as a model takes them, by its columns, bases and names; metrics of such rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from daskxml.core.arrays import Partition
from daskxml.core.errors import InputError
from daskxml.data.blocks import Block
from daskxml.data.formats import declared, plan_files, read_pieces
from daskxml.data.parse import Dialect
from daskxml.data.rows import from_scipy, to_scipy
from daskxml.metrics import MetricSums, metric_sums
from daskxml.models.rankings import warn_of_unknown
from daskxml.models.trained import Model

BLOCK_BYTES = 16 << 20


def read_rows(
    model: Model, paths: Sequence[str], *, needs_labels: bool = True,
    new_names: Sequence[str] | None = None, may_be_new: bool = False,
) -> Iterator[Partition]:  # fmt: skip
    """Yield the rows of files block by block, with as many columns as the model has.

    Where ``new_names`` are given, be they none, labels may be new: these have the names, and the
    ids behind the model's. Without, names that the model does not know are left out, or if they
    ``may_be_new``, have columns behind the model's; a warning says how many there are.

    Ids count from the base of the model's training files; in files with a header, from 0. Names in
    tables are those of the model. Documents become rows by the model's vectorizer: a column of
    texts, or the lines of a text without a header.

    Raises
    ------
    InputError
        If a file cannot be read, is malformed, or has ids or a header that do not fit the model.
    """
    model.check_new_names(new_names or ())
    known, labels = model.header.label_names, model.spec.labels
    names: Any = (*known, *(new_names or ()))
    if known and new_names is None:
        names = defaultdict(count(labels).__next__, zip(known, count(), strict=False))
    for block in plan_files(paths, BLOCK_BYTES):
        for part in read_block_rows(model, block, names, new_names, needs_labels=needs_labels):
            if new_names is not None or may_be_new or part.labels.columns <= labels:
                yield part
            else:
                own = to_scipy(part.labels)[:, :labels]
                yield replace(part, labels=from_scipy(own, ones=True))
    if new_names is None and known:
        then = "they count as missed" if may_be_new else "left out"
        warn_of_unknown(len(names) - labels, then)


def read_block_rows(
    model: Model, block: Block, names: Any = (), new_names: Sequence[str] | None = None, *,
    needs_labels: bool,
) -> Iterator[Partition]:  # fmt: skip
    """Yield the rows of a block of a file; see `read_rows`, and `Dialect` of labels' ``names``."""
    dialect = _dialect(model, block.path, names, new_names)
    for parsed in read_pieces(block, replace(dialect, needs_labels=needs_labels)):
        yield parsed.partition


def _dialect(model: Model, path: str, names: Any, new_names: Sequence[str] | None) -> Dialect:
    """Return how the ids of a file are counted."""
    spec, stored = model.spec, model.header
    column = "" if stored.vectorizer is None else stored.vectorizer.settings.column
    known = Dialect(
        features=spec.features,
        labels=spec.labels if new_names is None else len(names) or None,
        label_base=stored.label_base,
        feature_names=stored.feature_names,
        label_names=names,
        text_column=column,
        vectorizer=stored.vectorizer,
    )
    header = declared(path, text_column=column)
    if header is None:
        return replace(known, feature_base=stored.feature_base)
    are_named = header.columns and stored.feature_names  # which are compared, not counted
    features = spec.features if are_named else header.features or spec.features
    found = (features, header.labels or spec.labels)
    if found != (spec.features, spec.labels if new_names is None else found[1]):
        problem = (
            f"its header has {found[0]} features and {found[1]} labels, the model has "
            f"{spec.features} and {spec.labels}; give rows of the data set it was trained on"
        )
        raise InputError(problem, path, 1)
    return replace(known, label_base=0) if header.labels else known


def evaluate_partitions(
    model: Model, partitions: Iterable[Partition], k: Sequence[int] = (1, 3, 5)
) -> MetricSums:
    """Sum the metrics over partitions, one at a time, as they come from a file.

    Parameters
    ----------
    model
        What to evaluate.
    partitions
        Host rows as parsed, not scaled, with the model's numbers of features and labels; labels
        behind the model's count as missed.
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
    >>> import numpy as np
    >>> from daskxml.core.arrays import Csr
    >>> from daskxml.models.network.spec import ModelSpec
    >>> from daskxml.models.store import ModelHeader
    >>> spec = ModelSpec(features=2, labels=2, hidden=())
    >>> weights = {"output.weight": np.eye(2, dtype=np.float32),
    ...            "output.bias": np.zeros(2, np.float32)}
    >>> model = Model(ModelHeader(spec=spec, training_rows=9), weights, np.array([4, 6]), threads=1)
    >>> rows = Csr(np.array([0, 1]), np.array([1], np.int32), np.ones(1, np.float32), columns=2)
    >>> evaluate_partitions(model, [Partition(rows, rows)], k=(1,)).result()["P@1"]
    1.0
    """
    sums = MetricSums.zero(k)
    for partition in partitions:
        ids, _ = model.predict_top_k(partition, sums.ks[-1])
        weights = model.weights_of(partition.labels.columns)
        sums += metric_sums(ids, partition.labels, weights, sums.ks)
    return sums
