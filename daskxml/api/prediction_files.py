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

import contextlib
import csv
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import scipy.sparse

from daskxml.core.errors import ConfigError, InputError
from daskxml.models.rankings import Ids, Scores, named, scores_csr
from daskxml.models.trained import Model

STDOUT = "-"
Block = tuple[Ids, Scores]  # of consecutive rows, ``(rows, k)`` each, best first
Row = tuple[int, list[Any], list[float]]


def write_predictions(out: str, model: Model, blocks: Iterable[Block]) -> tuple[int, int]:
    """Write predictions as they come; return the numbers of rows and of scores.

    A file is replaced when it is complete; if anything fails, it is as it was.

    Raises
    ------
    ConfigError
        If the suffix is none of those above, or pyarrow is missing.
    InputError
        If the file cannot be written.
    """
    write = _writer(out)
    counted = _Counted(blocks)
    if out == STDOUT:
        _write_json(sys.stdout.buffer, model, counted)
        return counted.rows, counted.scores
    path = Path(out)
    if not path.parent.is_dir():  # refused before the work is done
        raise InputError(f"cannot be written: there is no directory {path.parent}", out)
    with _replacing(path) as file:
        write(file, model, counted)
    return counted.rows, counted.scores


class _Counted:
    """Blocks, and how many rows and scores have passed."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._blocks, self.rows, self.scores = blocks, 0, 0

    def __iter__(self) -> Iterator[Block]:
        for ids, scores in self._blocks:
            self.rows += len(ids)
            self.scores += int((ids >= 0).sum())
            yield ids, scores


def check_target(out: str) -> None:
    """Refuse a name whose suffix is no known format.

    Raises
    ------
    ConfigError
        If the suffix is none of those above, or pyarrow is missing.
    """
    _writer(out)


def _writer(out: str) -> Any:
    suffix = Path(out).suffix.lower()
    if out == STDOUT or suffix in _WRITERS:
        return _WRITERS.get(suffix, _write_json)
    raise ConfigError(f"{out}: the name must end in .npz, .csv, .jsonl or .parquet, or be -")


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that replaces ``path``, under exactly this name, at the end."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise InputError(problem, str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


def _rows(model: Model, blocks: Iterable[Block]) -> Iterator[Row]:
    """Yield the number, the labels and the scores of each row."""
    names, number = model.header.label_names, 0
    for ids, scores in blocks:
        for row, values in zip(ids.tolist(), scores.tolist(), strict=True):
            labels = named(row, names)
            yield number, labels, values[: len(labels)]
            number += 1


def _write_npz(file: IO[bytes], model: Model, blocks: Iterable[Block]) -> None:
    labels = model.spec.labels
    parts = [scores_csr(ids, scores, labels) for ids, scores in blocks]
    scipy.sparse.save_npz(file, scipy.sparse.vstack(parts, format="csr"))


def _write_csv(file: IO[bytes], model: Model, blocks: Iterable[Block]) -> None:
    with _text(file) as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["row", "label", "score"])
        for number, labels, scores in _rows(model, blocks):
            pairs = zip(labels, scores, strict=True)
            writer.writerows([number, label, f"{score:.9g}"] for label, score in pairs)


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
    first = 0
    with parquet.ParquetWriter(file, schema) as writer:
        for ids, scores in blocks:
            rows = [(first + n, *rest) for n, *rest in _rows(model, [(ids, scores)])]
            first += len(rows)
            values = dict(zip(schema.names, zip(*rows, strict=True), strict=True))
            if rows:
                writer.write_table(arrow.table(values, schema=schema))


@contextlib.contextmanager
def _text(file: IO[bytes]) -> Iterator[IO[str]]:
    """Yield a text file over a binary one, which stays open."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    yield text
    text.flush()
    text.detach()


_WRITERS = {
    "": _write_npz,
    ".npz": _write_npz,
    ".csv": _write_csv,
    ".jsonl": _write_json,
    ".parquet": _write_parquet,
}
