"""Documents on a cluster, wherever they come from.

A partition of documents is a pair of lists: texts, and the names of each one's labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dask import is_dask_collection
from dask.base import tokenize
from distributed import Client

from daskxml.core.errors import InputError
from daskxml.data.blocks import stamp_files
from daskxml.data.formats import plan_files, read_documents, read_frame
from daskxml.data.parse import Dialect
from daskxml.data.tables import (
    LABELS,
    Documents,
    columns_to_read,
    parse_documents,
)
from daskxml.data.text.counts import check_texts

_DOCUMENTS = 2048  # of a list that are a partition
BLOCK_BYTES = 4 << 20  # texts take longer than rows

Part = tuple[Any, ...]  # a task: a function, and its arguments


class TextFiles(tuple[str, ...]):
    """Paths of files, globs and URLs, which are no documents themselves."""


class TextSource:
    """Documents of files, of this process, or of a Dask bag or data frame.

    Parameters
    ----------
    given
        A path, glob or URL, or a list of `pathlib.Path`; a list of texts; a bag of texts, of pairs
        of a text and its labels, or of dictionaries; or a data frame.
    labels
        For a list of texts: a list of each one's labels.
    column
        Of texts, in tables, data frames and dictionaries.

    Raises
    ------
    InputError
        If it is something else, or the data frame has no such column.
    """

    def __init__(self, given: Any, labels: Any, column: str) -> None:
        self.given, self.labels = given, labels
        self.dialect = Dialect(text_column=column, needs_labels=False)
        self.files = _paths(given)
        self.is_list = isinstance(given, list | tuple) and not self.files
        self.columns: list[str] = []
        if hasattr(given, "columns") and is_dask_collection(given):
            self.columns = columns_to_read(list(map(str, given.columns)), self.dialect)
        elif not (self.files or self.is_list or is_dask_collection(given)):
            kind = type(given).__name__
            problem = "give files, a list of texts, or a Dask bag or data frame"
            raise InputError(f"documents are a {kind}: {problem}")
        if labels is not None and not self.is_list:
            problem = "labels are for a list of texts: give them beside each text"
            raise InputError(f"{problem}, in a column {LABELS!r}")
        if self.is_list:
            check_texts(given)
            if labels is not None and len(labels) != len(given):
                told = f"{len(given):,} texts, but labels of {len(labels):,}"
                raise InputError(f"{told}: give each text a list of its labels")

    def identity(self, client: Client) -> Any:
        """Return what stands for the documents in a stage's key."""
        if self.files:
            stamps = client.submit(stamp_files, self.files, pure=False).result()
            return [self.files, stamps]
        return tokenize(self.given, self.labels)

    def parts(self, client: Client) -> list[Part]:
        """Return the tasks that make a partition of documents each."""
        dialect = self.dialect
        if self.files:
            blocks = client.submit(plan_files, self.files, BLOCK_BYTES, pure=False).result()
            return [(read_documents, block, dialect) for block in blocks]
        if self.is_list:
            return self._listed(client)
        blocks = client.compute(self.given.to_delayed())
        if self.columns:
            return [(read_frame, block, self.columns, dialect, parse_documents) for block in blocks]
        return [(_from_items, block, dialect.text_column) for block in blocks]

    def _listed(self, client: Client) -> list[Part]:
        """Put the documents of this process on the workers."""
        labels = self.labels or [[] for _ in self.given]
        names = [_names(row, number) for number, row in enumerate(labels)]
        starts = range(0, max(1, len(names)), _DOCUMENTS)
        pairs = [
            (list(self.given[first : first + _DOCUMENTS]), names[first : first + _DOCUMENTS])
            for first in starts
        ]
        return [(_same, future) for future in client.scatter(pairs, hash=False)]


def _paths(given: Any) -> list[str]:
    """Return the paths of files; none where documents are given in another way."""
    listed = given if isinstance(given, list | tuple) else [given]
    if isinstance(given, str | TextFiles) or (
        listed and all(isinstance(each, Path) for each in listed)
    ):
        return [str(each) if "://" in str(each) else str(Path(each).absolute()) for each in listed]
    return []


def _same(documents: Documents) -> Documents:
    return documents


def _from_items(items: Iterable[Any], column: str) -> Documents:
    """Return the documents of a part of a bag."""
    texts: list[str] = []
    labels: list[list[str]] = []
    for place, item in enumerate(items):
        text: Any = item
        given: Any = []
        if isinstance(item, Mapping):
            text, given = item.get(column), item.get(LABELS) or []
        elif isinstance(item, tuple) and len(item) == 2:
            text, given = item
        if not isinstance(text, str):
            shown = repr(item)[:40]
            need = f"give texts, pairs of a text and its labels, or {{{column!r}: ...}}"
            raise InputError(f"item {place} is {shown}: {need}")
        texts.append(text)
        labels.append(_names(given, place))
    return texts, labels


def _names(given: Any, row: int) -> list[str]:
    """Return the names of a document's labels, of which one may stand alone."""
    listed = [given] if isinstance(given, str | int) else list(given)
    names = [str(label) for label in listed]
    for label, name in zip(listed, names, strict=True):
        if label is None or isinstance(label, float) or not name:
            raise InputError(f"document {row}: the label {label!r}: give names, or ids")
    return names
