"""Rows of files as a model takes them: its numbers of columns, its bases, its names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from daskxml.core.arrays import Partition
from daskxml.core.errors import InputError
from daskxml.data.blocks import Block
from daskxml.data.formats import FORMATS, declared, format_of, plan_files, read_pieces
from daskxml.data.parse import Dialect
from daskxml.models.trained import Model

BLOCK_BYTES = 16 << 20


def read_rows(
    model: Model, paths: Sequence[str], *, needs_labels: bool = True
) -> Iterator[Partition]:
    """Yield the rows of files block by block, with as many columns as the model has.

    Ids count from the base of the model's training files; in files with a header, from 0. Names in
    tables are those of the model. Documents become rows by the model's vectorizer: a column of
    texts, or the lines of a text without a header.

    Raises
    ------
    InputError
        If a file cannot be read, is malformed, or has ids or a header that do not fit the model.
    """
    for block in plan_files(paths, BLOCK_BYTES):
        yield from read_block_rows(model, block, needs_labels=needs_labels)


def read_block_rows(model: Model, block: Block, *, needs_labels: bool) -> Iterator[Partition]:
    """Yield the rows of a block of a file; see `read_rows`."""
    dialect = replace(_dialect(model, block.path), needs_labels=needs_labels)
    for parsed in read_pieces(block, dialect):
        yield parsed.partition


def _dialect(model: Model, path: str) -> Dialect:
    """Return how the ids of a file are counted."""
    spec, stored = model.spec, model.header
    known = Dialect(
        features=spec.features,
        labels=spec.labels,
        label_base=stored.label_base,
        feature_names=stored.feature_names,
        label_names=stored.label_names,
    )
    if stored.vectorizer is not None and FORMATS[format_of(path)].is_table:
        column = stored.vectorizer.settings.column
        return replace(known, text_column=column, vectorizer=stored.vectorizer)
    known = replace(known, vectorizer=stored.vectorizer)
    header = declared(path)
    if header is None:
        return replace(known, feature_base=stored.feature_base)
    found = (header.features or spec.features, header.labels or spec.labels)
    if found != (spec.features, spec.labels):
        problem = (
            f"its header has {found[0]} features and {found[1]} labels, the model has "
            f"{spec.features} and {spec.labels}; give rows of the data set it was trained on"
        )
        raise InputError(problem, path, 1)
    return replace(known, label_base=0) if header.labels else known
