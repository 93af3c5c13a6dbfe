"""Rows of a pipeline as files: SciPy matrices of each partition, and the names of their columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import scipy.sparse

from daskxml.core.arrays import Partition
from daskxml.core.errors import InputError
from daskxml.core.files import replacing
from daskxml.data.rows import to_scipy

FEATURE_NAMES, LABEL_NAMES = "feature_names.txt", "label_names.txt"
_FEATURES, _LABELS = "features-{:05d}.npz", "labels-{:05d}.npz"


def write_matrices(partition: Any, folder: str, number: int) -> Path:
    """Write the features and the labels of a partition, and return the file of the features.

    They are not compressed, so that they are read in parts.

    Raises
    ------
    InputError
        If the partition is no pair of matrices.
    """
    if not isinstance(partition, Partition):
        raise InputError("these rows are no matrices: write those that vectorize or map has made")
    for name, csr in ((_LABELS, partition.labels), (_FEATURES, partition.features)):
        with replacing(Path(folder) / name.format(number)) as partial, partial.open("wb") as file:
            scipy.sparse.save_npz(file, to_scipy(csr), compressed=False)
    return Path(folder) / _FEATURES.format(number)


def write_names(path: Path, names: Sequence[str]) -> None:
    """Write a name on each line, or remove the file where there are none.

    Raises
    ------
    InputError
        If a name has a line break, or is empty.
    """
    if not names:
        path.unlink(missing_ok=True)
        return
    for name in names:
        if not name or {"\r", "\n"} & set(name):
            raise InputError(f"the name {name!r} is no line of a file: choose another", str(path))
    with replacing(path) as partial:
        partial.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")


def remove_others(folder: Path, written: Sequence[Path]) -> list[Path]:
    """Remove what is left of an earlier call with more partitions; return what was written."""
    number = len(written)
    while (folder / _FEATURES.format(number)).exists():
        for name in (_FEATURES, _LABELS):
            (folder / name.format(number)).unlink(missing_ok=True)
        number += 1
    return list(written)
