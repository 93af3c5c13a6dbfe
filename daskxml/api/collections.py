"""Rows and documents in Dask collections: a block becomes a partition on the worker that holds it.

Nothing of the rows passes through the client or the scheduler. The blocks stay tasks of the
cluster, so that Dask computes those again that are lost with a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

import numpy as np
from dask import compute, delayed, is_dask_collection
from dask.base import tokenize
from dask.delayed import Delayed
from distributed import Client, Future

from daskxml.api.run import Matrices
from daskxml.api.stage_tasks import as_partition
from daskxml.cluster.connection import kept, submit
from daskxml.config import RunConfig
from daskxml.core.arrays import Partition
from daskxml.core.errors import InputError
from daskxml.data.blocks import stamp_files
from daskxml.data.formats import plan_files, read_documents, read_frame
from daskxml.data.parse import Dialect, ParsedRows
from daskxml.data.rows import matrix_partition
from daskxml.data.settings import DataSection
from daskxml.data.tables import LABELS, Documents, columns_to_read, dense_header, parse_documents
from daskxml.data.text import check_texts
from daskxml.session.documents import TEXT_BLOCK_BYTES
from daskxml.session.setup import ColumnNames

if TYPE_CHECKING:
    from daskxml.api.stages import Rows


@dataclass(frozen=True)
class DaskRows:
    """Rows on a cluster, in blocks.

    Attributes
    ----------
    blocks
        For each block the arguments of ``read``, Dask's tasks among them.
    read
        Makes a partition of them on a worker; of a data frame's, with a `Dialect` and the columns
        to read.
    columns
        Of a data frame.
    sample_weight
        What each row counts in the loss, an array of this process or a Dask array; None: 1.
    """

    blocks: Sequence[tuple[Any, ...]]
    read: Callable[..., Partition]
    columns: tuple[str, ...] = ()
    sample_weight: Any = None

    def partitions(
        self, client: Client, data: DataSection, features: tuple[str, ...] = ()
    ) -> list[Future]:
        """Start the tasks that make a partition of each block, and return their futures.

        Parameters
        ----------
        features
            The names of a dense table's features, in their order.

        Raises
        ------
        InputError
            If a data frame lacks a column.
        """
        dialect = Dialect(
            features=data.features or None,
            labels=data.labels or None,
            feature_base=0 if data.feature_base == "auto" else int(data.feature_base),
            label_base=data.label_base,
            feature_names=data.feature_names or features,
            label_names=data.label_names,
        )
        how = (dialect, columns_to_read(self.columns, dialect)) if self.columns else ()
        task = delayed(self.read, pure=False, name="read-block")
        name = f"read-block-{uuid4().hex}"  # of this call: Dask shares tasks with the same keys
        parts = [
            task(*block, *how, dask_key_name=f"{name}-{number}")
            for number, block in enumerate(self.blocks)
        ]
        return list(client.compute(parts))


def find_rows(given: Any, name: str) -> Given | None:
    """Return rows that are no files, of Dask collections or in memory; None for files.

    Parameters
    ----------
    given
        ``Matrices(X, Y)``, in memory or of two dask arrays, a dask data frame, or a list of delayed
        values or of futures, each of a pair ``(X, Y)``, or of such pairs; or rows of a
        `daskxml.Pipeline`.
    name
        ``"train"`` or ``"test"``, for messages.

    Raises
    ------
    InputError
        If their blocks do not fit each other, or have sizes that are not known.

    Examples
    --------
    >>> import dask.array as da
    >>> X, Y = da.ones((6, 3), chunks=(2, 3)), da.ones((6, 2), chunks=(3, 1))
    >>> len(find_rows(Matrices(X, Y), "train").blocks)
    3
    """
    from daskxml.api.stages import Rows  # which imports this module

    if isinstance(given, Rows):
        given.made()  # what is wrong with them is said before a run begins
        return given
    if isinstance(given, DaskRows):
        return given
    if isinstance(given, Matrices):
        if is_dask_collection(given.X) or is_dask_collection(given.Y):
            blocks = _array_blocks(given.X, given.Y, name)
            return DaskRows(blocks, _read_arrays, sample_weight=given.sample_weight)
        return given
    if is_dask_collection(given) and hasattr(given, "columns"):
        if getattr(dict(given.dtypes).get("text"), "kind", "") == "O":
            way_on = "write it as Parquet files, which go in as they are, or use daskxml.Pipeline"
            raise InputError(f"{name} is a Dask data frame of texts, which is not read: {way_on}")
        blocks = [(block, number) for number, block in enumerate(given.to_delayed())]
        return DaskRows(blocks, _read_frame, tuple(map(str, given.columns)))
    if isinstance(given, list | tuple) and any(map(_is_block, given)):
        for number, block in enumerate(given):
            if not _is_block(block):
                problem = "is neither delayed nor a future, nor a pair of them"
                raise InputError(f"{name}, element {number}: {problem}; give all alike")
        return DaskRows([(block, number) for number, block in enumerate(given)], _read_pair)
    if is_dask_collection(given) and hasattr(given, "shape"):
        raise InputError(f"{name} is a Dask array of features only: give daskxml.Matrices(X, Y)")
    return None


def _is_block(given: Any) -> bool:
    is_pair = isinstance(given, tuple) and len(given) == 2
    return all(isinstance(each, Delayed | Future) for each in (given if is_pair else [given]))


def _array_blocks(X: Any, Y: Any, name: str) -> list[tuple[Any, ...]]:
    """Return the blocks of two arrays, each with the number of its first row."""
    for kind, array in (("X", X), ("Y", Y)):
        if not (is_dask_collection(array) and hasattr(array, "chunks")):
            raise InputError(f"{name}: {kind} is no Dask array, but the other is: give both alike")
        check_blocks(array, f"{name}: {kind}")
    if X.shape[0] != Y.shape[0]:
        raise InputError(f"{name}: X has {X.shape[0]} rows but Y has {Y.shape[0]}")
    blocks, sizes = row_blocks(None, X, name)
    targets, _ = row_blocks(None, Y.rechunk({0: tuple(sizes)}), name)
    firsts = np.cumsum([0, *sizes[:-1]]).tolist()
    rows = zip(blocks, targets, firsts, strict=True)
    return [(*row, X.shape[1], Y.shape[1]) for row in rows]


def check_blocks(array: Any, name: str) -> None:
    """Refuse an array that is no matrix of rows, or whose blocks are of unknown sizes.

    Raises
    ------
    InputError
        With what to do.
    """
    if array.ndim != 2:
        raise InputError(f"{name} has {array.ndim} dimensions: give a row for each sample")
    if np.isnan(sum(sum(sizes) for sizes in array.chunks)):
        hint = "call its compute_chunk_sizes() first"
        raise InputError(f"{name} has blocks of unknown sizes (chunks {array.chunks}): {hint}")


def row_blocks(client: Client | None, X: Any, name: str) -> tuple[list[Any], list[int]]:
    """Return the delayed blocks of rows, and how many rows each has.

    Raises
    ------
    InputError
        If the sizes of an array's blocks are not known, or it has no two dimensions.
    """
    if hasattr(X, "columns"):
        sizes = compute(*[delayed(len)(part) for part in X.to_delayed()], scheduler=client)
        X = X.to_dask_array(lengths=sizes)
    if not hasattr(X, "chunks"):
        raise InputError(f"{name}: give a Dask array or a Dask data frame")
    check_blocks(X, name)
    X = X.rechunk({1: -1}) if len(X.chunks[1]) > 1 else X
    return list(X.to_delayed()[:, 0]), [int(size) for size in X.chunks[0]]


def lazy_blocks(
    client: Client | None, X: Any, name: str, meta: Any, ranker: Any, method: str, *args: Any
) -> Any:
    """Return a lazy array of ``ranker.method(block, *args)`` of each block of rows.

    ``meta`` is what the method returns of no rows.
    """
    import dask.array as da  # which trainings do not need

    blocks, sizes = row_blocks(client, X, name)
    call, shared = delayed(_call, pure=False), delayed(ranker, pure=False)
    return da.concatenate([
        da.from_delayed(
            call(shared, method, block, *args), (size, *meta.shape[1:]), dtype=meta.dtype, meta=meta
        )
        for block, size in zip(blocks, sizes, strict=True)
    ])  # fmt: skip


def _call(ranker: Any, method: str, block: Any, *args: Any) -> Any:
    return getattr(ranker, method)(as_scipy(block), *args)


def as_scipy(block: Any) -> Any:
    """Return a SciPy matrix instead of one of the package `sparse`."""
    return block.to_scipy_sparse() if hasattr(block, "to_scipy_sparse") else block


def _read_arrays(X: Any, Y: Any, first: int, features: int, labels: int) -> Partition:
    return matrix_partition(X, Y, first_row=first, shape=(features, labels))


def _read_pair(pair: Any, number: int) -> Partition:
    try:
        found = as_partition(pair)
    except InputError as error:
        raise InputError(f"block {number}: {error.problem}") from None
    if not isinstance(found, Partition):
        raise InputError(f"block {number}: is no pair (X, Y) of two matrices")
    return found


def _read_frame(frame: Any, number: int, dialect: Dialect, known: Sequence[str]) -> Partition:
    try:
        parsed: ParsedRows = read_frame(frame, known, dialect)
    except InputError as error:
        raise InputError(f"partition {number}, {error.problem}") from None
    return parsed.partition


Tasks = tuple[Any, ...]  # a function, what it is called with in each, and its other arguments
Given: TypeAlias = "Matrices | DaskRows | Rows"
Scattered = Mapping[str, list[Future]]  # rows on the workers
_DOCUMENTS = 2048  # of a list that are a partition


def place_given(client: Client, matrices: Mapping[str, Given], config: RunConfig) -> Scattered:
    """Put rows that are no files on the workers; return their futures by ``train`` and ``test``."""
    placed: dict[str, list[Future]] = {}
    train, features = matrices.get("train"), tuple[str, ...]()
    table = dense_header(train.columns) if isinstance(train, DaskRows) else None
    if table and not config.data.feature_names:
        features = table.columns
        placed["names"] = [kept(client, ColumnNames(features))]
    for name, rows in matrices.items():
        if isinstance(rows, DaskRows):
            placed[name] = rows.partitions(client, config.data, features)
        elif isinstance(rows, Matrices):
            placed[name] = [kept(client, part) for part in rows.partitions()]
        else:
            placed[name] = rows.partitions
            if name == "train" and rows.names:
                placed["names"] = [rows.names.made()]
            continue
        if name == "train" and rows.sample_weight is not None:
            placed["weights"] = [kept(client, np.asarray(rows.sample_weight))]
    return placed


# ----------------------------------------------------- documents: texts, and names of their labels


class TextFiles(tuple[str, ...]):
    """Paths of files, globs and URLs, which are no documents themselves."""


def find_documents(
    client: Client, given: Any, labels: Any, column: str
) -> tuple[Any, Callable[[], Tasks]]:
    """Return what stands for documents, and what returns the tasks that make their partitions.

    A partition of documents is a pair of lists: texts, and the names of each one's labels.

    Parameters
    ----------
    given
        A path, glob or URL, or a list of `pathlib.Path`; a list of texts; or a Dask data frame.
    labels
        For a list of texts: a list of each one's labels.
    column
        Of texts, in tables and data frames.

    Raises
    ------
    InputError
        If it is something else, or the data frame has no such column.
    """
    dialect = Dialect(text_column=column, needs_labels=False)
    if isinstance(given, list | tuple) and not _paths(given):
        pairs = _pairs_of(given, labels)
        return tokenize(given, labels), lambda: (tuple, [kept(client, pair) for pair in pairs])
    if labels is not None:
        problem = "labels are for a list of texts: give them beside each text"
        raise InputError(f"{problem}, in a column {LABELS!r}")
    if files := _paths(given):

        def read() -> Tasks:
            blocks = submit(client, plan_files, files, TEXT_BLOCK_BYTES).result()
            return read_documents, blocks, dialect

        return [files, submit(client, stamp_files, files).result()], read
    if not (is_dask_collection(given) and hasattr(given, "columns")):
        problem = "give files, a list of texts, or a Dask data frame, as bag.to_dataframe() is one"
        raise InputError(f"documents are a {type(given).__name__}: {problem}")
    how = columns_to_read(list(map(str, given.columns)), dialect), dialect, parse_documents
    return tokenize(given), lambda: (read_frame, client.compute(given.to_delayed()), *how)


def _pairs_of(texts: Sequence[Any], labels: Any) -> list[Documents]:
    """Return the partitions of documents of this process."""
    check_texts(texts)
    if labels is not None and len(labels) != len(texts):
        found = f"{len(texts):,} texts, but labels of {len(labels):,}"
        raise InputError(f"{found}: give each text a list of its labels")
    names = [_names(row, number) for number, row in enumerate(labels or [[]] * len(texts))]
    starts = range(0, max(1, len(names)), _DOCUMENTS)
    spans = [slice(first, first + _DOCUMENTS) for first in starts]
    return [(list(texts[span]), names[span]) for span in spans]


def _paths(given: Any) -> list[str]:
    """Return the paths of files; none where documents are given in another way."""
    listed = given if isinstance(given, list | tuple) else [given]
    if isinstance(given, str | TextFiles) or (
        listed and all(isinstance(each, Path) for each in listed)
    ):
        return [str(each) if "://" in str(each) else str(Path(each).absolute()) for each in listed]
    return []


def _names(given: Any, row: int) -> list[str]:
    """Return the names of a document's labels, of which one may stand alone."""
    listed = [given] if isinstance(given, str | int) else list(given)
    names = [str(label) for label in listed]
    for label, name in zip(listed, names, strict=True):
        if label is None or isinstance(label, float) or not name:
            raise InputError(f"document {row}: the label {label!r}: give names, or ids")
    return names
