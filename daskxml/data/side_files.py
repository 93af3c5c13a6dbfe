"""Files beside those of rows: names of features and labels, and what each row counts in the loss.

Names stand one a line, in the order of their ids.

A weight of 2 means the same as the row twice, a weight of 0 as no such row. Weights are an array of
their own, in the order in which the rows are given, until rows are shuffled into partitions, which
hold them from there on (`daskxml.core.arrays.Partition`). For networks they are divided by their
mean over all rows given, held-out ones too, so that the learning rate need not be changed; label
trees take them as they are, since their loss is a sum over rows. Only the loss knows of weights:
batches, epochs, the ledger and metrics count rows.

Weights of labels that are "balanced" are in inverse proportion to the rows that a label has, so
that labels with few rows count as much as one with the mean number of them; of "propensity" in
proportion to the label's inverse propensity (Jain, Prabhu and Varma, KDD 2016), which is what a hit
counts in PSP@k. Both are scaled so that a label of a training row counts 1 on average, but no
balanced label counts less than 1: frequent labels would have lower probabilities than in the data,
and fewer labels above one half. Weights that are given stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from daskxml.core.arrays import Array
from daskxml.core.errors import ConfigError, InputError
from daskxml.core.text import number_of, quoted
from daskxml.data.blocks import decoded, errors_explained, open_file, open_text

ClassWeight = str | Sequence[float] | Mapping[str, float]
Names = str | tuple[str, ...]  # the path of a file with a name on each line, or the names


@lru_cache(maxsize=4)
def ids_by_name(names: Names) -> Mapping[str, int]:
    """Return the ids of names; they are read once in a process.

    Examples
    --------
    >>> ids_by_name(("red", "green"))["green"]
    1
    """
    listed = read_names(names) if isinstance(names, str) else names
    return {name: number for number, name in enumerate(listed)}


def read_names(path: str) -> tuple[str, ...]:
    """Return the names in a text file, of which line ``i`` names column ``i - 1``.

    Parameters
    ----------
    path
        A file or an fsspec URL, UTF-8; gzipped if it ends in ``.gz``.

    Raises
    ------
    InputError
        If it cannot be read, is empty, or a line is empty or occurs twice; with the line.

    Examples
    --------
    >>> import fsspec
    >>> fsspec.filesystem("memory").pipe("/names.txt", "red\\ngreen\\n".encode())
    >>> read_names("memory://names.txt")
    ('red', 'green')
    """
    first: dict[str, int] = {}
    for line, name in enumerate(_lines(path), 1):
        if not name:
            raise InputError("an empty line; give a name on each line", path, line)
        if name in first:
            problem = f"the name {name!r} is that of line {first[name]} too; names must differ"
            raise InputError(problem, path, line)
        first[name] = line
    if not first:
        raise InputError("is empty; give a name on each line", path)
    return tuple(first)


def read_weights(path: str) -> Array:
    """Read a file with a number for each row: ``.npy``, or text with one on each line.

    Raises
    ------
    InputError
        If it cannot be read, or something in it is no number.

    Examples
    --------
    >>> import fsspec
    >>> fsspec.filesystem("memory").pipe("/weights.txt", b"1\\n2.5\\n")
    >>> read_weights("memory://weights.txt")
    array([1. , 2.5])
    """
    if path.endswith(".npy"):
        with open_file(path) as file, errors_explained(path):
            return np.asarray(np.load(file, allow_pickle=False))
    numbers = []
    for line, text in enumerate(_lines(path), 1):
        try:
            numbers.append(number_of(text))
        except ValueError:
            problem = f"{quoted(text.strip())} is no number; give a weight"
            raise InputError(problem, path, line) from None
    return np.array(numbers)


def _lines(path: str) -> list[str]:
    """Return the lines of a text in UTF-8, gzipped if its name ends in ``.gz``."""
    with open_text(path) as file:
        data = file.read()
    text = decoded(data, path)
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n") if text]


def row_weights(given: Any, rows: int, *, has_mean_one: bool) -> Array:
    """Check the weights of rows.

    Parameters
    ----------
    given
        ``(rows,)`` numbers, or the path of a file of them: see `read_weights`.
    rows
        How many there must be.
    has_mean_one
        Whether they are divided by their mean.

    Returns
    -------
    ``(rows,)`` float32.

    Raises
    ------
    InputError
        If one is negative or no finite number, all are 0, or there is not one for each row.

    Examples
    --------
    >>> row_weights([1, 3], 2, has_mean_one=True)
    array([0.5, 1.5], dtype=float32)
    >>> row_weights([1, -3], 2, has_mean_one=True)
    Traceback (most recent call last):
    daskxml.core.errors.InputError: weight of row 1 is -3.0: must be a finite number, at least 0
    """
    path = given if isinstance(given, str) else None
    weights = np.asarray(given if path is None else read_weights(path))
    if weights.ndim != 1 or weights.dtype.kind not in "biuf":
        found = f"weights of shape {weights.shape} and dtype {weights.dtype}"
        raise InputError(f"{found}: give one number for each row", path)
    if weights.shape[0] != rows:
        found = f"{weights.shape[0]:,} weights for {rows:,} rows"
        raise InputError(f"{found}: give one for each row", path)
    weights = weights.astype(np.float64)
    with np.errstate(over="ignore"):
        is_good = (weights >= 0.0) & np.isfinite(weights.astype(np.float32))
    if not is_good.all():
        row = int(np.argmin(is_good))
        found = f"weight of row {row} is {weights[row]}"
        raise InputError(f"{found}: must be a finite number, at least 0", path)
    if not weights.any():
        raise InputError("all weights are zero: give some rows a positive one", path)
    return (weights / weights.mean() if has_mean_one else weights).astype(np.float32)


def label_weights(
    class_weight: ClassWeight, counts: Array, inverse_propensity: Array, label_base: int = 0
) -> Array | None:
    """Return the weights of labels.

    Parameters
    ----------
    class_weight
        ``"none"``, ``"balanced"``, ``"propensity"``, a weight for each label, or weights by labels'
        ids as text, where the others have 1.
    counts, inverse_propensity
        ``(labels,)``: rows with each label, and see `daskxml.metrics.propensities`.
    label_base
        The first id.

    Returns
    -------
    ``(labels,)`` float32; None for ``"none"``.

    Raises
    ------
    ConfigError
        If there are too few or too many, or one is of a label that does not exist.

    Examples
    --------
    >>> label_weights("balanced", np.array([1, 3, 0]), np.ones(3))
    array([2., 1., 1.], dtype=float32)
    >>> label_weights({"2": 5.0}, np.array([1, 3, 1]), np.ones(3))
    array([1., 1., 5.], dtype=float32)
    """
    if class_weight == "none":
        return None
    labels = counts.shape[0]
    if isinstance(class_weight, Mapping):
        weights = np.ones(labels, np.float32)
        for name, weight in class_weight.items():
            weights[_column(name, labels, label_base)] = weight
        return weights
    if not isinstance(class_weight, str):
        if len(class_weight) != labels:
            raise ConfigError(
                f"class_weight has {len(class_weight):,} weights for {labels:,} labels: "
                "give one for each"
            )
        return np.array(class_weight, np.float32)
    raw = 1.0 / np.maximum(counts, 1) if class_weight == "balanced" else inverse_propensity
    weights = raw * (counts.sum() / max(float(counts @ raw), 1e-300))
    least = 1.0 if class_weight == "balanced" else 0.0
    return np.where(counts > 0, np.maximum(weights, least), 1.0).astype(np.float32)


def _column(name: str, labels: int, label_base: int) -> int:
    """Return the column of a label's id."""
    column = int(name) - label_base if name.isascii() and name.isdecimal() else -1
    if not 0 <= column < labels:
        raise ConfigError(
            f"training.class_weight: {name!r} is no label: give a name of data.label_names, or an "
            f"id from {label_base} to {labels - 1 + label_base}"
        )
    return column
