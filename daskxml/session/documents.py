"""Documents to rows: words and labels are counted in parts, and columns chosen by all counts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import starmap
from typing import Any

from daskxml.config import RunConfig
from daskxml.core.arrays import Partition
from daskxml.core.errors import ConfigError, InputError
from daskxml.data.formats import (
    FORMATS,
    format_of,
    holds_documents,
    plan_files,
    read_documents,
)
from daskxml.data.parse import Dialect
from daskxml.data.reading import plan_source
from daskxml.data.rows import matrix_partition, to_scipy
from daskxml.data.settings import DataSection, TextSettings
from daskxml.data.tables import WEIGHTS, label_csr_of
from daskxml.data.text import (
    CountedTexts,
    WordCounts,
    choose_words,
    count_words,
    merge_counts,
)
from daskxml.models.rankings import warn_of_unknown
from daskxml.session.setup import ColumnNames

Found = tuple[WordCounts, frozenset[str]]  # words, and names of labels
TEXT_BLOCK_BYTES = 4 << 20  # texts take longer than rows


def has_texts(config: RunConfig, given: Collection[str]) -> bool:
    """Whether the training files of a run file hold documents.

    Parameters
    ----------
    given
        ``train`` and ``test``, where these rows are no files.

    Raises
    ------
    InputError
        If the first file cannot be read.
    ConfigError
        If test rows are none, documents have weights in their table, or there are settings of
        texts, but no documents.
    """
    text, files = config.text, () if "train" in given else config.data.train
    is_table = bool(files) and format_of(files[0], config.data.format) != "text"
    if is_table and holds_documents(files, config.data.format, text.column):
        if given:
            problem = "training rows are documents, test rows are none"
            raise ConfigError(f"{problem}: give files of both")
        if WEIGHTS in FORMATS[format_of(files[0], config.data.format)].names(files[0]):
            problem = f"a column {WEIGHTS!r} beside documents is not read"
            raise ConfigError(f"{files[0]}: {problem}: give the weights as data.weights")
        return True
    if text != TextSettings():
        place = files[0] if files else "training rows"
        problem = f"no column {text.column!r} of texts, for which there is a section [text]"
        raise ConfigError(f"{place}: {problem}: leave it out, or name text.column")
    return False


def vectorize_files(config: RunConfig) -> tuple[list[Partition], list[Partition], ColumnNames]:
    """Return the rows of a run file's documents, training and test, and what their columns are.

    Raises
    ------
    ConfigError, InputError
        As reading, counting and choosing words do.
    """
    train, test = (
        [read_documents(block, Dialect(text_column=config.text.column, needs_labels=False))
         for block in plan_files(paths, TEXT_BLOCK_BYTES)]
        for paths in (config.data.train, config.data.test)
    )  # fmt: skip
    settings = config.text.as_dict()
    counted = [count_texts(*part, **settings) for part in train]
    names = choose_columns(merge_names(list(starmap(find_names, counted))), config.text)
    weighed = (weigh_counted(*part, names) for part in counted)
    others = (vectorized(*part, names) for part in test)
    warn_of_others(join_labels([label_names(*part) for part in test]), names)
    return list(starmap(matrix_partition, weighed)), list(starmap(matrix_partition, others)), names


def count_texts(
    texts: Sequence[str], labels: Sequence[Any], **settings: Any
) -> tuple[CountedTexts, Sequence[Any]]:
    """Return the words of documents, counted, and the documents' labels."""
    if len(labels) and not isinstance(labels[0], list | tuple | set):
        raise InputError("labels are no lists of names: vectorize comes before what makes rows")
    return count_words(texts, TextSettings.of(settings)), labels


def names_of_files(data: DataSection) -> ColumnNames:
    """Return the names in files beside those of rows, or of the columns of a dense table.

    Raises
    ------
    InputError
        If a file cannot be read.
    """
    names = ColumnNames.read(data)
    return names if names.features else replace(names, features=plan_source(data).columns)


def find_names(counted: CountedTexts, labels: Sequence[Any]) -> Found:
    """Return how often each word occurs in some documents, and the names of their labels."""
    return counted.totals(), label_names((), labels)


def label_names(texts: Sequence[str], labels: Sequence[Any]) -> frozenset[str]:
    """Return the labels of documents."""
    return frozenset(str(name) for row in labels for name in row)


def join_labels(found: Sequence[frozenset[str]]) -> frozenset[str]:
    """Return the labels of all documents."""
    return frozenset().union(*found)


def warn_of_others(found: frozenset[str], names: ColumnNames) -> None:
    """Warn where test documents have labels that no training document has."""
    then = "left out of the metrics of this training, evaluate counts them"
    warn_of_unknown(len(found.difference(names.labels)), then)


def merge_names(found: Sequence[Found]) -> Found:
    """Return the counts and the labels of all documents."""
    words, names = zip(*found, strict=True)
    return merge_counts(words), frozenset().union(*names)


def choose_columns(found: Found, settings: TextSettings) -> ColumnNames:
    """Return the columns of rows, and what makes rows of texts.

    Raises
    ------
    InputError
        If no word is left.
    """
    vectorizer = choose_words(found[0], settings)
    return ColumnNames(vectorizer.words, tuple(sorted(found[1])), vectorizer)


def weigh_counted(
    counted: CountedTexts, labels: Sequence[Any], names: ColumnNames
) -> tuple[Any, Any]:
    """Return the rows of documents whose words are counted."""
    assert names.vectorizer is not None
    return names.vectorizer.weigh(counted.words, counted.counts), _label_matrix(labels, names)


def vectorized(texts: Sequence[str], labels: Sequence[Any], names: ColumnNames) -> tuple[Any, Any]:
    """Return the rows of documents, by the words and labels of others."""
    assert names.vectorizer is not None
    return names.vectorizer.transform(texts), _label_matrix(labels, names)


def _label_matrix(labels: Sequence[Any], names: ColumnNames) -> Any:
    """Return documents' labels by their columns, without those that are not known."""
    columns = {name: column for column, name in enumerate(names.labels)}
    named = [[str(name) for name in row] for row in labels]
    return to_scipy(label_csr_of(named, columns))
