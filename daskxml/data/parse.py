"""Text of sparse rows to CSR arrays, and what is wrong with text that is not such rows.

The format is the Extreme Classification Repository's and multi-label libSVM's: labels separated by
commas, then ``feature:value`` tokens separated by white space. A row may have no label (its line
starts with white space, or with a feature) or no feature. A ``#`` starts a comment. There are two
passes: bytes that bound the sizes are counted at memory speed, then compiled code (`scan`) writes
the rows into arrays of those sizes.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from daskxml.core.arrays import Array, Csr, Partition
from daskxml.core.errors import InputError
from daskxml.core.text import quoted
from daskxml.data.blocks import LINE_BYTES, Block, count_lines_before, pad_text, read_texts
from daskxml.data.rows import tidy_rows
from daskxml.data.scan import LARGEST_ID, NEWLINE, PADDING, IdRanges, RowArrays, parse_rows
from daskxml.data.side_files import Names
from daskxml.data.text import Vectorizer

VALUE = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_NOT_FINITE = re.compile(rb"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_LIKE_A_NUMBER = re.compile(rb"[+-]?\d*\.?\d*([eE][+-]?\d+)?")
_NOT_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1f]")
UNKNOWN = -1  # as a number of columns: the largest id decides
_COUNTED_BYTES = 1 << 18  # counted at a time, so that the comparison's result stays in the cache


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How the ids of a file are counted.

    Attributes
    ----------
    features, labels
        Number of columns, from the header; None if unknown: the largest id decides.
    feature_base, label_base
        The smallest legal id, 0 or 1; it is subtracted from every id.
    feature_names, label_names
        Names by id, or the file that lists them, for files in which rows hold names; or ids by the
        names of labels, to which those that are none are added.
    text_column
        Of tables: the column that holds documents; "" for rows of features.
    vectorizer
        What makes rows of them.
    needs_labels
        Whether a file without labels is refused.
    line_bytes
        The longest line of a text.

    Examples
    --------
    >>> Dialect(features=500, labels=983).feature_base
    0
    """

    features: int | None = None
    labels: int | None = None
    feature_base: int = 0
    label_base: int = 0
    feature_names: Names = ()
    label_names: Names | defaultdict[str, int] = ()
    text_column: str = ""
    vectorizer: Vectorizer | None = None
    needs_labels: bool = True
    line_bytes: int = LINE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRows:
    """Rows of text as arrays, and what had to be put in order.

    Attributes
    ----------
    partition
        Features ``(rows, F)`` and labels ``(rows, L)``.
    unsorted_rows, merged_features, merged_labels
        Rows whose features did not ascend, and entries that repeated an id of their row.
    """

    partition: Partition
    unsorted_rows: int = 0
    merged_features: int = 0
    merged_labels: int = 0


def parse_pieces(block: Block, dialect: Dialect) -> Iterator[ParsedRows]:
    """Parse a block piece by piece: a stream in several pieces, a part of a plain file in one.

    Raises
    ------
    InputError
        The block cannot be read, or at its first malformed row, with its line.
    """
    for text, lines_before in read_texts(block, dialect.line_bytes):
        try:
            rows = parse_padded(text, dialect, blank_rows=block.has_header, path=block.path)
        except InputError as error:
            line = (error.line or 1) + lines_before + count_lines_before(block)
            raise InputError(error.problem, block.path, line) from None
        yield tidied(rows)


def parse_bytes(
    data: bytes | memoryview,
    dialect: Dialect = Dialect(),
    *,
    blank_rows: bool = False,
    path: str | None = None,
) -> ParsedRows:
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
    ParsedRows
        CSR arrays with sorted, distinct ids in every row.

    Raises
    ------
    InputError
        At the first malformed token.

    Examples
    --------
    >>> parsed = parse_bytes(b"0,3 1:0.5 4:2\\n 2:1e-3\\n")
    >>> parsed.partition.features.indices, parsed.partition.labels.indptr
    (array([1, 4, 2], dtype=int32), array([0, 2, 2]))
    """
    return tidied(parse_padded(pad_text(data), dialect, blank_rows=blank_rows, path=path))


def detect_feature_base(least: int | None) -> int:
    """The base of a file without a header, from its smallest feature id: 0 if it is 0, else 1.

    Examples
    --------
    >>> detect_feature_base(0), detect_feature_base(3)
    (0, 1)
    """
    return 0 if least in (0, None) else 1


def parse_padded(text: Array, dialect: Dialect, *, blank_rows: bool, path: str | None) -> Partition:
    """Parse a uint8 array that ends in `PADDING` newlines which are not part of the text.

    The rows are still to be `tidied`.
    """
    length = text.size - PADDING
    ids = IdRanges(
        dialect.feature_base, count_ids(dialect.features, dialect.feature_base),
        dialect.label_base, count_ids(dialect.labels, dialect.label_base),
    )  # fmt: skip
    arrays = _allocate(text[:length])
    rows, fault = parse_rows(text, length, blank_rows, ids, arrays)
    if fault >= 0:
        raise _error_at(text, fault, dialect, path)
    indptr, label_indptr = arrays.feature_indptr[: rows + 1], arrays.label_indptr[: rows + 1]
    return Partition(
        Csr(indptr, arrays.feature_ids, arrays.values, dialect.features or UNKNOWN),
        Csr(label_indptr, arrays.label_ids, None, dialect.labels or UNKNOWN),
    )


def count_ids(count: int | None, base: int) -> int:
    """The number of ids that are allowed: the known count, up to the largest possible one."""
    most = LARGEST_ID + 1 - base
    return most if count is None else min(count, most)


def _allocate(text: Array) -> RowArrays:
    """Allocate arrays large enough for any rows that the text may hold."""
    counts = np.zeros(3, np.int64)
    for start in range(0, text.size, _COUNTED_BYTES):
        part = text[start : start + _COUNTED_BYTES]
        counts += [np.count_nonzero(part == byte) for byte in b":,\n"]
    colons, commas, newlines = counts.tolist()
    return RowArrays(
        np.empty(newlines + 2, np.int64),
        np.empty(colons + 1, np.int32),
        np.empty(colons + 1, np.float32),
        np.empty(newlines + 2, np.int64),
        np.empty(commas + newlines + 1, np.int32),
    )


def tidied(rows: Partition) -> ParsedRows:
    """Sort the ids of each row in place, merge equal ones, and cut the arrays to size.

    A number of columns that is `UNKNOWN` becomes the largest id plus one.
    """
    features, unsorted, merged = _tidied(rows.features)
    labels, _, merged_labels = _tidied(rows.labels)
    return ParsedRows(
        partition=Partition(features, labels, rows.weights),
        unsorted_rows=unsorted,
        merged_features=merged,
        merged_labels=merged_labels,
    )


def _tidied(csr: Csr) -> tuple[Csr, int, int]:
    values = np.empty(0, np.float32) if csr.data is None else csr.data
    unsorted, merged, largest = tidy_rows(csr.indptr, csr.indices, values)
    size, columns = int(csr.indptr[-1]), largest + 1 if csr.columns == UNKNOWN else csr.columns
    data = None if csr.data is None else _trim(values, size)
    return Csr(_trim(csr.indptr), _trim(csr.indices, size), data, columns), unsorted, merged


def _trim(array: Array, size: int | None = None) -> Array:
    """The first `size` entries, copied where a view would keep much more alive."""
    cut, owner = array[:size], array if array.base is None else array.base
    return cut.copy() if owner.size > cut.size + 1024 + cut.size // 16 else cut


def _error_at(text: Array, fault: int, dialect: Dialect, path: str | None) -> InputError:
    """Make the error for the token at a position of the text."""
    match = re.match(rb"[^ \t\r\n#]*", text[fault : fault + 4096].tobytes())
    token = match.group() if match else b""
    is_label = fault == 0 or text[fault - 1] == NEWLINE
    line = 1 + int(np.count_nonzero(text[:fault] == NEWLINE))
    return InputError(explain_token(token, dialect, is_label=is_label), path, line)


def explain_token(token: bytes, dialect: Dialect, *, is_label: bool) -> str:
    """Explain what is wrong with a token that the parser refused, and what to do.

    Parameters
    ----------
    token
        The bytes up to the next white space.
    dialect
        What the ids were checked against.
    is_label
        Whether the token comes first in its line, where the labels are.

    Examples
    --------
    >>> explain_token(b"7:nan", Dialect(), is_label=False)
    "the value in '7:nan' is NaN or infinite; remove or replace it"
    """
    if _NOT_TEXT.search(token):
        return "the file is not text: it holds control bytes; give plain or gzipped (.gz) text"
    if token.lower().startswith(b"qid:"):
        return "ranking data (qid:) is not multi-label data; remove the qid field"
    if is_label and b":" not in token:
        return _explain_labels(token, dialect)
    return _explain_feature(token, dialect)


def _explain_labels(token: bytes, dialect: Dialect) -> str:
    """Explain what is wrong with a comma-separated list of labels."""
    for piece in token.split(b","):
        if piece.isdigit():
            problem = explain_range(int(piece), dialect.labels, dialect.label_base, "label", piece)
            if problem:
                return problem
        elif piece and _LIKE_A_NUMBER.fullmatch(piece):
            return (
                f"label {quoted(piece)} is not a non-negative integer: labels are ids of classes,"
                " not target values; renumber them from 0 (for instance -1 and +1 to 0 and 1)"
            )
        else:
            break
    return f"malformed labels {quoted(token)}; expected label,label,... as integers"


def _explain_feature(token: bytes, dialect: Dialect) -> str:
    """Explain what is wrong with a feature."""
    name, colon, value = token.partition(b":")
    if name.isdigit() and colon and not value:
        return f"{quoted(token)} has no value; the line seems cut: write the file again"
    if re.fullmatch(rb"-\d+", name) and colon:
        return f"feature id in {quoted(token)} is negative; renumber the features from 0 or 1"
    if name.isdigit() and colon:
        base = dialect.feature_base
        problem = explain_range(int(name), dialect.features, base, "feature", token)
        return problem or _explain_value(value, token)
    return f"malformed token {quoted(token)}; expected feature:value"


def _explain_value(value: bytes, token: bytes) -> str:
    """Explain what is wrong with the value of a feature whose id is right."""
    if VALUE.fullmatch(value) and math.isfinite(float(value)):
        return f"the value in {quoted(token)} does not fit float32; scale the values down"
    if _NOT_FINITE.fullmatch(value) or VALUE.fullmatch(value):
        return f"the value in {quoted(token)} is NaN or infinite; remove or replace it"
    return f"malformed value in {quoted(token)}; expected feature:number"


def explain_range(number: int, count: int | None, base: int, kind: str, token: bytes) -> str:
    """Explain why an id is out of range; an empty string if it is not."""
    if number - base < 0:
        return f"{kind} id 0 in {quoted(token)}, but the ids were taken to start at {base}"
    if count is not None and number - base >= count:
        return (
            f"{kind} id {number} in {quoted(token)} is out of range: {count} {kind}s counted"
            f" from {base}; correct the header or the row"
        )
    if number > LARGEST_ID:
        return f"{kind} id in {quoted(token)} is larger than {LARGEST_ID}; renumber the {kind}s"
    return ""
