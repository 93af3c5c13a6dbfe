"""What is wrong with a token of a data file, in words, and what to do about it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from daskxml.data.words import LARGEST_ID

QUOTED_CHARACTERS = 40
VALUE = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
NOT_FINITE = re.compile(rb"[+-]?(nan|inf|infinity)", re.IGNORECASE)
LIKE_A_NUMBER = re.compile(rb"[+-]?\d*\.?\d*([eE][+-]?\d+)?")
NOT_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1f]")


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How the ids of a file are counted.

    Parameters
    ----------
    features, labels
        Number of columns, from the header; None where not known yet: the largest id decides.
    feature_base, label_base
        The smallest legal id, 0 or 1; it is subtracted from every id.

    Examples
    --------
    >>> Dialect(features=500, labels=983)
    Dialect(features=500, labels=983, feature_base=0, label_base=0)
    """

    features: int | None = None
    labels: int | None = None
    feature_base: int = 0
    label_base: int = 0

    def __post_init__(self) -> None:
        for name in ("feature_base", "label_base"):
            if getattr(self, name) not in (0, 1):
                raise ValueError(f"{name} must be 0 or 1, not {getattr(self, name)!r}")


def quote(token: bytes) -> str:
    """The token between quotes, cut to 40 characters, unprintable bytes escaped.

    Examples
    --------
    >>> quote(b"3:x")
    "'3:x'"
    """
    text = token.decode("ascii", "backslashreplace")
    if len(text) > QUOTED_CHARACTERS:
        text = text[: QUOTED_CHARACTERS - 3] + "..."
    return repr(text)


def explain_token(token: bytes, dialect: Dialect, *, is_label: bool) -> str:
    """Say what is wrong with a token that the parser refused.

    Parameters
    ----------
    token
        The bytes up to the next white space.
    dialect
        What the ids were checked against.
    is_label
        Whether the token stands first in its line, where the labels are.

    Returns
    -------
    str
        The problem and what to do, without the place.

    Examples
    --------
    >>> explain_token(b"7:nan", Dialect(), is_label=False)
    "the value in '7:nan' is NaN or infinite; remove or replace it"
    """
    if NOT_TEXT.search(token):
        return "the file is not text: it holds control bytes; give plain or gzipped (.gz) text"
    if token.lower().startswith(b"qid:"):
        return "ranking data (qid:) is not multi-label data; remove the qid field"
    if is_label and b":" not in token:
        return explain_labels(token, dialect)
    return explain_feature(token, dialect)


def explain_labels(token: bytes, dialect: Dialect) -> str:
    """Say what is wrong with a comma-separated list of labels."""
    for piece in token.split(b","):
        if piece.isdigit():
            problem = explain_range(int(piece), dialect.labels, dialect.label_base, "label", piece)
            if problem:
                return problem
        elif piece and LIKE_A_NUMBER.fullmatch(piece):
            return (
                f"label {quote(piece)} is not a non-negative integer: labels are ids of classes,"
                " not target values; renumber them from 0 (for instance -1 and +1 to 0 and 1)"
            )
        else:
            break
    return f"malformed labels {quote(token)}; expected label,label,... as integers"


def explain_feature(token: bytes, dialect: Dialect) -> str:
    """Say what is wrong with a feature."""
    name, colon, value = token.partition(b":")
    if name.isdigit() and colon and not value:
        return f"{quote(token)} has no value; the line seems cut: write the file again"
    if re.fullmatch(rb"-\d+", name) and colon:
        return f"feature id in {quote(token)} is negative; renumber the features from 0 or 1"
    if name.isdigit() and colon:
        base = dialect.feature_base
        problem = explain_range(int(name), dialect.features, base, "feature", token)
        return problem or explain_value(value, token)
    return f"malformed token {quote(token)}; expected feature:value"


def explain_value(value: bytes, token: bytes) -> str:
    """Say what is wrong with the value of a feature whose id is fine."""
    overflows = VALUE.fullmatch(value) and math.isfinite(float(value))
    if overflows:
        return f"the value in {quote(token)} does not fit float32; scale the values down"
    if NOT_FINITE.fullmatch(value) or VALUE.fullmatch(value):
        return f"the value in {quote(token)} is NaN or infinite; remove or replace it"
    return f"malformed value in {quote(token)}; expected feature:number"


def explain_range(number: int, count: int | None, base: int, kind: str, token: bytes) -> str:
    """Say why an id is out of range, or return an empty string where it is not."""
    if number - base < 0:
        return f"{kind} id 0 in {quote(token)}, but the ids were taken to start at {base}"
    if count is not None and number - base >= count:
        return (
            f"{kind} id {number} in {quote(token)} is out of range: {count} {kind}s counted"
            f" from {base}; correct the header or the row"
        )
    if number > LARGEST_ID:
        return f"{kind} id in {quote(token)} is larger than {LARGEST_ID}; renumber the {kind}s"
    return ""
