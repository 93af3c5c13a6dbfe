"""Texts to rows of TF-IDF weights: words counted in parts of the documents, and in all.

Counts of parts add up to those of all documents; the words that are chosen of them are columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from daskxml.core.arrays import Array, starts_of
from daskxml.core.errors import ConfigError, InputError
from daskxml.data.settings import TextSettings

_EMPTY = "empty vocabulary"  # how scikit-learn's message begins where no text has a word
_WORD_BYTES = 60  # of a short text in Python


@dataclass(frozen=True)
class CountedTexts:
    """How often each of some documents has each of its words.

    Attributes
    ----------
    words
        Of the columns; none where they are hashed.
    counts
        ``(documents, words)`` CSR int32, or float64 where they are hashed.
    """

    words: list[str]
    counts: Any

    def __len__(self) -> int:
        return int(self.counts.shape[0])

    def __sizeof__(self) -> int:
        held = self.counts
        return int(held.data.nbytes + held.indices.nbytes + _WORD_BYTES * len(self.words))

    def totals(self) -> WordCounts:
        """Return the counts in all documents together."""
        columns, held = self.counts.shape[1], self.counts
        in_documents = np.bincount(held.indices, minlength=columns)
        in_all = np.asarray(held.sum(axis=0), np.int64).ravel() if self.words else _NONE
        return WordCounts(len(self), self.words, in_documents, in_all)


@dataclass(frozen=True)
class WordCounts:
    """What is known of the words of some documents.

    Attributes
    ----------
    documents
        Their number.
    words
        The different words; none where they are hashed.
    in_documents
        ``(words,)`` int64: how many documents have each; of hashed ones by column.
    in_all
        ``(words,)`` int64: how often each occurs.
    """

    documents: int
    words: list[str]
    in_documents: Array
    in_all: Array


_NONE = np.empty(0, np.int64)


def count_words(texts: Sequence[str], settings: TextSettings) -> CountedTexts:
    """Count the words of some documents.

    Raises
    ------
    InputError
        If one is no text.

    Examples
    --------
    >>> counted = count_words(["red apple", "red red car"], TextSettings())
    >>> counted.words, counted.counts.toarray().tolist()
    (['apple', 'car', 'red'], [[1, 0, 1], [0, 1, 2]])
    >>> counted.totals().in_documents, counted.totals().in_all
    (array([1, 1, 2]), array([1, 1, 3]))
    """
    check_texts(texts)
    counter = settings.counter()
    if settings.n_features:
        empty = csr_matrix((0, settings.n_features))
        return CountedTexts([], counter.transform(texts) if texts else empty)
    try:
        if texts:
            counts = counter.fit_transform(texts)
            return CountedTexts(counter.get_feature_names_out().tolist(), counts.astype(np.int32))
    except ValueError as error:
        if not str(error).startswith(_EMPTY):
            raise
    return CountedTexts([], csr_matrix((len(texts), 0), dtype=np.int32))


def check_texts(texts: Sequence[Any]) -> None:
    """Refuse what is no text.

    Raises
    ------
    InputError
        With the number of the first document that is none.

    Examples
    --------
    >>> check_texts(["red", None])
    Traceback (most recent call last):
    daskxml.core.errors.InputError: document 1 is None: give texts, "" for one without words
    """
    if isinstance(texts, str):
        raise InputError("a single text: give a list of documents")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            shown = repr(text)[:40]
            raise InputError(f'document {number} is {shown}: give texts, "" for one without words')


def merge_counts(counts: Sequence[WordCounts]) -> WordCounts:
    """Return the counts of all documents, of counts of some each.

    Examples
    --------
    >>> counted = [count_words([text], TextSettings()) for text in ("red", "blue red")]
    >>> both = merge_counts([part.totals() for part in counted])
    >>> both.words, both.in_documents
    (['red', 'blue'], array([2, 1]))
    """
    documents = sum(part.documents for part in counts)
    if not any(part.words for part in counts):  # hashed: columns are the same
        in_documents = np.sum([part.in_documents for part in counts], axis=0)
        return WordCounts(documents, [], in_documents, _NONE)
    columns: dict[str, int] = {}
    places = [
        np.array([columns.setdefault(word, len(columns)) for word in part.words], np.int64)
        for part in counts
    ]
    in_documents, in_all = np.zeros((2, len(columns)), np.int64)
    for part, place in zip(counts, places, strict=True):
        in_documents[place] += part.in_documents  # the words of a part differ
        in_all[place] += part.in_all
    return WordCounts(documents, list(columns), in_documents, in_all)


def choose_words(counts: WordCounts, settings: TextSettings) -> Vectorizer:
    """Choose the words that become columns, as scikit-learn does, in sorted order.

    Raises
    ------
    InputError
        If none is left.

    Examples
    --------
    >>> counted = count_words(["red apple", "red red car"], TextSettings())
    >>> choose_words(counted.totals(), TextSettings(min_df=2)).words
    ('red',)
    """
    if settings.n_features:
        found = counts.in_documents.tolist() if settings.use_idf else ()
        return Vectorizer(settings, (), counts.documents, tuple(found))
    if not counts.words:
        raise InputError(
            f"none of {counts.documents:,} documents has a word by [text] token_pattern = "
            f"{settings.token_pattern!r}, without the stop words: give others, or change these"
        )
    words = np.array(counts.words, dtype=object)
    order = np.argsort(words, kind="stable")
    words, in_documents = words[order], counts.in_documents[order]
    least, most = (
        bound if isinstance(bound, int) else bound * counts.documents
        for bound in (settings.min_df, settings.max_df)
    )
    kept = np.flatnonzero((in_documents >= least) & (in_documents <= most))
    if settings.max_features and len(kept) > settings.max_features:
        often = counts.in_all[order][kept]
        kept = np.sort(kept[(-often).argsort()[: settings.max_features]])  # ties: as scikit-learn
    if not len(kept):
        raise InputError(
            f"none of {len(words):,} words is in at least {least:g} and at most {most:g} of "
            f"{counts.documents:,} documents: change [text] min_df or max_df"
        )
    if "" in words[kept]:
        raise InputError("[text] token_pattern matches an empty text: let it match some letters")
    found = in_documents[kept] if settings.use_idf else ()
    return Vectorizer(
        settings, tuple(words[kept].tolist()), counts.documents, tuple(map(int, found))
    )


@dataclass(frozen=True)
class Vectorizer:
    """What was learnt of documents: texts in, rows of TF-IDF weights out.

    Attributes
    ----------
    settings
        How words are found and weighed.
    words
        The word of each column; none where they are hashed.
    documents
        How many there were.
    counts
        In how many of them the word of each column is; none without inverse document frequencies.

    Examples
    --------
    >>> vectorizer = Vectorizer(TextSettings(norm="none"), ("apple", "red"), 2, (1, 2))
    >>> vectorizer.transform(["red red apple", "blue"]).toarray().round(2)
    array([[1.41, 2.  ],
           [0.  , 0.  ]], dtype=float32)
    """

    settings: TextSettings
    words: tuple[str, ...]
    documents: int
    counts: tuple[int, ...] = ()

    @property
    def columns(self) -> int:
        """Number of features of a row."""
        return self.settings.n_features or len(self.words)

    def transform(self, texts: Sequence[str]) -> Any:
        """Return a row for each text, ``(texts, columns)`` CSR float32; unknown words are left out.

        The sums are float64, as scikit-learn's are.

        Raises
        ------
        InputError
            As `check_texts` does.
        """
        check_texts(texts)
        return self._weighed(self._counter.transform(texts)) if len(texts) else self._empty

    def weigh(self, words: Sequence[str], counts: Any) -> Any:
        """Return the rows of documents whose words are counted, as `transform` does of their texts.

        Parameters
        ----------
        words
            Of the columns of ``counts``; none where they are hashed.
        counts
            ``(documents, words)`` CSR.
        """
        if not self.settings.n_features:
            place = np.fromiter((self._vocabulary.get(w, -1) for w in words), np.int32, len(words))
            columns = place[counts.indices]
            is_known = columns >= 0
            ends = starts_of(is_known)[counts.indptr]
            known = counts.data[is_known].astype(np.float64), columns[is_known], ends
            counts = csr_matrix(known, (counts.shape[0], self.columns))
            counts.sort_indices()
        return self._weighed(counts) if counts.shape[0] else self._empty

    def _weighed(self, counts: Any) -> Any:
        return csr_matrix(self._weigher.transform(counts), dtype=np.float32)

    @property
    def _empty(self) -> Any:
        return csr_matrix((0, self.columns), dtype=np.float32)

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        return {word: column for column, word in enumerate(self.words)}

    @cached_property
    def _counter(self) -> Any:
        return self.settings.counter(self._vocabulary or None)

    @cached_property
    def _weigher(self) -> Any:
        from sklearn.feature_extraction.text import TfidfTransformer

        weigh = TfidfTransformer(**self.settings.weights())
        if not self.settings.use_idf:
            weigh.fit(csr_matrix((1, self.columns)))  # which learns nothing, but asks to be called
        else:
            smooth = int(self.settings.smooth_idf)
            found = np.array(self.counts, np.float64) + smooth
            weigh.idf_ = np.log((self.documents + smooth) / found) + 1.0
        return weigh

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is made again in another process."""
        return {name: each for name, each in self.__dict__.items() if not name.startswith("_")}

    def as_dict(self) -> dict[str, Any]:
        """Return plain values without the words, which are names of features."""
        return {
            "settings": self.settings.as_dict(),
            "documents": self.documents,
            "counts": list(self.counts),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], words: Sequence[str]) -> Vectorizer:
        """Return the vectorizer that `as_dict` was made from.

        Raises
        ------
        KeyError, TypeError, ConfigError
            If a value is missing or invalid.
        """
        settings, counts = TextSettings.of(dict(values["settings"])), tuple(values["counts"])
        made = cls(settings, tuple(words), int(values["documents"]), counts)
        if settings.use_idf and len(counts) != made.columns:
            raise ConfigError(f"{len(counts):,} counts of words for {made.columns:,} columns")
        if not all(type(count) is int and 0 <= count <= made.documents for count in counts):
            raise ConfigError("a count of a word is none of documents")
        return made
