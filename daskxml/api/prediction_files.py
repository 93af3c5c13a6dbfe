"""Predictions as a file: SciPy npz, CSV, JSON lines or Parquet, by the suffix of its name.

============  =======================================================================
suffix        contents
============  =======================================================================
``.npz``      ``(rows, labels)`` scores as SciPy CSR; also for a name without a suffix
``.csv``      a line for each row and label: ``row,label,score``, the best label first
``.jsonl``    a line for each row: ``{"row": 0, "labels": [...], "scores": [...]}``
``.parquet``  the same as a table; needs pyarrow
``-``         JSON lines on the standard output
============  =======================================================================

Rows count from 0. Labels are names where the model has them, else ids.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import scipy.sparse

from daskxml.core.arrays import Partition
from daskxml.core.errors import ConfigError, InputError
from daskxml.core.files import replacing
from daskxml.models.rankings import Ids, Scores, is_empty, named, scores_csr
from daskxml.models.trained import Model

STDOUT = "-"
_GROUP_ROWS = 1 << 13  # of a Parquet file that are in memory as Python objects
Row = tuple[int, list[Any], list[float]]


class Block(NamedTuple):
    """Predictions of consecutive rows, ``(rows, k)`` each, best first.

    ``unknown`` of them are of texts without a word that the model knows.
    """

    ids: Ids
    scores: Scores
    unknown: int = 0

    @classmethod
    def of(cls, rows: Partition, model: Model, k: int) -> Block:
        """Rank the labels of rows."""
        return cls(*model.predict_top_k(rows, k, rank_empty=False), unknown_rows(model, rows))


def unknown_rows(model: Model, rows: Partition) -> int:
    """Return how many rows are texts without a word that the model knows."""
    return int(is_empty(rows.features).sum()) if model.header.vectorizer else 0


class Predicted(NamedTuple):
    """What a prediction has done.

    Attributes
    ----------
    rows, scores
        How many are in the file.
    unknown
        Texts without a word that the model knows.
    out
        The file.
    """

    rows: int
    scores: int
    unknown: int
    out: Path


def write_predictions(out: str, model: Model, blocks: Iterable[Block]) -> Predicted:
    """Write predictions as they come.

    A file is replaced when it is complete; if anything fails, it is as it was.

    Raises
    ------
    ConfigError
        If the suffix is none of those above, or pyarrow is missing.
    InputError, ModelError
        If the file cannot be written.
    """
    write, counts, path = check_target(out), [(0, 0, 0)], Path(out)

    def counted() -> Iterator[Block]:
        for block in blocks:
            counts.append((len(block.ids), int((block.ids >= 0).sum()), block.unknown))
            yield block

    if out == STDOUT:
        write(sys.stdout.buffer, model, counted())
    elif not path.parent.is_dir():  # refused before the work is done
        raise InputError(f"cannot be written: there is no directory {path.parent}", out)
    else:
        with replacing(path) as partial, partial.open("wb") as file:
            write(file, model, counted())
    rows, scores, unknown = map(sum, zip(*counts, strict=True))
    return Predicted(rows, scores, unknown, path)


def check_target(out: str) -> Any:
    """Return what writes a file of this name.

    Raises
    ------
    ConfigError
        If the suffix is none of those above.
    """
    suffix = ".jsonl" if out == STDOUT else Path(out).suffix.lower()
    if suffix not in _WRITERS:
        raise ConfigError(f"{out}: the name must end in .npz, .csv, .jsonl or .parquet, or be -")
    return _WRITERS[suffix]


def _rows(model: Model, blocks: Iterable[Block]) -> Iterator[Row]:
    """Yield the number, the labels and the scores of each row."""
    names, number = model.header.label_names, 0
    for ids, scores, _ in blocks:
        for row, values in zip(ids.tolist(), scores.tolist(), strict=True):
            labels = named(row, names)
            yield number, labels, values[: len(labels)]
            number += 1


def _write_npz(file: IO[bytes], model: Model, blocks: Iterable[Block]) -> None:
    labels = model.spec.labels
    parts = [scores_csr(ids, scores, labels) for ids, scores, _ in blocks]
    scipy.sparse.save_npz(file, scipy.sparse.vstack(parts, format="csr"))


def _write_csv(file: IO[bytes], model: Model, blocks: Iterable[Block]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "label", "score"])
    for number, labels, scores in _rows(model, blocks):
        pairs = zip(labels, scores, strict=True)
        writer.writerows([number, label, f"{score:.9g}"] for label, score in pairs)
    text.detach()  # which writes the rest, and leaves the file open


def _write_json(file: IO[bytes], model: Model, blocks: Iterable[Block]) -> None:
    for number, labels, scores in _rows(model, blocks):
        line = json.dumps({"row": number, "labels": labels, "scores": scores}, ensure_ascii=False)
        file.write(line.encode() + b"\n")


def _write_parquet(file: IO[bytes], model: Model, blocks: Iterable[Block]) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    label = arrow.string() if model.header.label_names else arrow.int32()
    columns = {"row": arrow.int64(), "labels": arrow.list_(label)}
    schema = arrow.schema({**columns, "scores": arrow.list_(arrow.float32())})
    rows = _rows(model, blocks)
    with parquet.ParquetWriter(file, schema) as writer:
        while group := list(islice(rows, _GROUP_ROWS)):
            writer.write_table(arrow.table(list(zip(*group, strict=True)), schema=schema))


_WRITERS = {
    "": _write_npz,
    ".npz": _write_npz,
    ".csv": _write_csv,
    ".jsonl": _write_json,
    ".parquet": _write_parquet,
}
