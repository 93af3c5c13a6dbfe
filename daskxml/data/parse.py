"""Text of sparse rows to CSR arrays, by compiled code without a lock (twin: `parse_naive`).

The format is the Extreme Classification Repository's and multi-label libSVM's: labels separated by
commas, then ``feature:value`` tokens separated by white space. A row may have no label (its line
starts with white space, or with a feature) or no feature. A ``#`` starts a comment. Two passes:
bytes that bound the sizes are counted at memory speed, then the rows are written into arrays of
those sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskxml.data.blocks import Block, count_lines_before, pad_text, read_texts
from daskxml.data.faults import Dialect, explain_token
from daskxml.data.rows import concatenate, tidy_rows
from daskxml.data.scanning import Limits, Store, Tally, parse_rows
from daskxml.data.words import LARGEST_ID, NEWLINE, PADDING
from daskxml.errors import InputError
from daskxml.types import Array, Csr, Partition

COUNTED_BYTES = 1 << 18  # counted at a time, so that the comparison's result stays in the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """Rows of text as arrays, and what was noticed on the way.

    Attributes
    ----------
    partition
        Features ``(rows, F)`` and labels ``(rows, L)``.
    least_feature, least_label
        The smallest id as written, before the base is subtracted; None where there is none.
    unsorted_rows, merged_features, merged_labels
        Rows whose features did not ascend, and entries that repeated an id of their row.
    """

    partition: Partition
    least_feature: int | None
    least_label: int | None
    unsorted_rows: int
    merged_features: int
    merged_labels: int


def make_store(text: Array) -> Store:
    """Allocate arrays large enough for whatever the text holds."""
    counts = np.zeros(3, np.int64)
    for start in range(0, text.size, COUNTED_BYTES):
        part = text[start : start + COUNTED_BYTES]
        counts += [np.count_nonzero(part == byte) for byte in b":,\n"]
    colons, commas, newlines = (int(count) for count in counts)
    return Store(
        np.empty(newlines + 2, np.int64),
        np.empty(colons + 1, np.int32),
        np.empty(colons + 1, np.float32),
        np.empty(newlines + 2, np.int64),
        np.empty(commas + newlines + 1, np.int32),
    )


def parse_bytes(
    data: bytes | memoryview,
    dialect: Dialect = Dialect(),  # noqa: B008 - frozen
    *,
    blank_rows: bool = False,
    path: str | None = None,
) -> Parsed:
    """Parse whole lines of text.

    Parameters
    ----------
    data
        The text; the last line need not end in a newline.
    dialect
        The counts that ids are checked against and the bases subtracted from them.
    blank_rows
        Whether a blank line is a row without labels and features (as in files with a header) or
        nothing.
    path
        Named in errors, with the line counted from the beginning of `data`.

    Returns
    -------
    Parsed
        CSR arrays with sorted, distinct ids in every row.

    Raises
    ------
    InputError
        At the first token that is wrong.

    Examples
    --------
    >>> parsed = parse_bytes(b"0,3 1:0.5 4:2\\n 2:1e-3\\n")
    >>> parsed.partition.features.indices, parsed.partition.labels.indptr
    (array([1, 4, 2], dtype=int32), array([0, 2, 2]))
    """
    return parse_padded(pad_text(data), dialect, blank_rows=blank_rows, path=path)


def parse_padded(text: Array, dialect: Dialect, *, blank_rows: bool, path: str | None) -> Parsed:
    """Parse a uint8 array that ends in `PADDING` newlines which are not part of the text."""
    length = text.size - PADDING
    limits = Limits(
        dialect.feature_base, count_or_most(dialect.features, dialect.feature_base),
        dialect.label_base, count_or_most(dialect.labels, dialect.label_base),
    )  # fmt: skip
    store = make_store(text[:length])
    tally = parse_rows(text, length, blank_rows, limits, store)
    if tally.fault >= 0:
        raise fault_at(text, tally.fault, dialect, path)
    return assemble(store, tally, dialect)


def count_or_most(count: int | None, base: int) -> int:
    """The count, or the largest possible one where it is not known or larger."""
    most = LARGEST_ID + 1 - base
    return most if count is None else min(count, most)


def fault_at(text: Array, fault: int, dialect: Dialect, path: str | None) -> InputError:
    """Make the error for the token at a position of the text."""
    before = text[:fault]
    match = re.match(rb"[^ \t\r\n#]*", text[fault : fault + 4096].tobytes())
    token = match.group() if match else b""
    is_label = fault == 0 or text[fault - 1] == NEWLINE
    line = 1 + int(np.count_nonzero(before == NEWLINE))
    return InputError(explain_token(token, dialect, is_label=is_label), path, line)


def assemble(store: Store, tally: Tally, dialect: Dialect) -> Parsed:
    """Cut the filled arrays to size and set untidy rows in order."""
    indptr, label_indptr = (a[: tally.rows + 1] for a in (store.feature_indptr, store.label_indptr))
    nothing = np.empty(0, np.float32)
    merged = tidy_rows(indptr, store.feature_ids, store.values) if tally.unsorted_features else 0
    merged_labels = (
        tidy_rows(label_indptr, store.label_ids, nothing) if tally.unsorted_labels else 0
    )
    columns = tally.most_feature + 1 - dialect.feature_base if tally.features else 0
    label_columns = tally.most_label + 1 - dialect.label_base if tally.labels else 0
    features = Csr(
        trim(indptr, tally.rows + 1),
        trim(store.feature_ids, int(indptr[-1])),
        trim(store.values, int(indptr[-1])),
        columns if dialect.features is None else dialect.features,
    )
    labels = Csr(
        trim(label_indptr, tally.rows + 1),
        trim(store.label_ids, int(label_indptr[-1])),
        None,
        label_columns if dialect.labels is None else dialect.labels,
    )
    return Parsed(
        partition=Partition(features, labels),
        least_feature=tally.least_feature if tally.features else None,
        least_label=tally.least_label if tally.labels else None,
        unsorted_rows=tally.unsorted_features,
        merged_features=int(merged),
        merged_labels=int(merged_labels),
    )


def trim(array: Array, size: int) -> Any:
    """The first `size` entries, copied where a view would keep much more alive."""
    owner = array if array.base is None else array.base
    return array[:size].copy() if owner.size > size + 1024 + size // 16 else array[:size]


def iterate_block(block: Block, dialect: Dialect) -> Iterator[Parsed]:
    """Parse a block piece by piece: a stream in several pieces, a part of a plain file in one.

    Raises
    ------
    InputError
        With the line counted from the beginning of the file.
    """
    for text, lines_before in read_texts(block):
        try:
            parsed = parse_padded(text, dialect, blank_rows=block.has_header, path=block.path)
        except InputError as error:
            line = (error.line or 1) + lines_before + count_lines_before(block)
            raise InputError(error.problem, block.path, line) from None
        yield parsed


def scan_block(block: Block, dialect: Dialect) -> Parsed:
    """Parse a block, and tell the smallest ids and what was untidy as well.

    Raises
    ------
    InputError
        The block cannot be read, or at its first wrong token.
    """
    return join_parsed(list(iterate_block(block, dialect)), dialect)


def parse_block(block: Block, dialect: Dialect) -> Partition:
    """Parse a block of a file.

    Parameters
    ----------
    block
        As planned by `plan_blocks`.
    dialect
        The counts that ids are checked against and the bases subtracted from them.

    Returns
    -------
    Partition
        Features ``(rows, F)`` float32 and labels ``(rows, L)``; ids sorted, distinct in a row.

    Raises
    ------
    InputError
        The block cannot be read, or at its first wrong token, with path and line.

    Examples
    --------
    >>> import fsspec
    >>> from daskxml.data.blocks import plan_blocks
    >>> fsspec.filesystem("memory").pipe("/parse.txt", b"1 3 2\\n0,1 2:0.5\\n")
    >>> [block] = plan_blocks(["memory://parse.txt"], 1 << 20)
    >>> parse_block(block, Dialect(features=3, labels=2)).labels.indices
    array([0, 1], dtype=int32)
    """
    return scan_block(block, dialect).partition


def join_parsed(pieces: list[Parsed], dialect: Dialect) -> Parsed:
    """Put the pieces of a block together."""
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return parse_bytes(b"", dialect)
    features = [piece.least_feature for piece in pieces if piece.least_feature is not None]
    labels = [piece.least_label for piece in pieces if piece.least_label is not None]
    return Parsed(
        partition=concatenate([piece.partition for piece in pieces]),
        least_feature=min(features, default=None),
        least_label=min(labels, default=None),
        unsorted_rows=sum(piece.unsorted_rows for piece in pieces),
        merged_features=sum(piece.merged_features for piece in pieces),
        merged_labels=sum(piece.merged_labels for piece in pieces),
    )


def detect_feature_base(least: int | None) -> int:
    """The base of a file without a header, from its smallest feature id: 0 if it is 0, else 1.

    Examples
    --------
    >>> detect_feature_base(0), detect_feature_base(3)
    (0, 1)
    """
    return 0 if least in (0, None) else 1
