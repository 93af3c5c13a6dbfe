"""Rows of texts, by a vocabulary and its document frequencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from daskxml.core.errors import ConfigError
from daskxml.data.text.settings import TextSettings


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
        """
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
            ends = np.concatenate([[0], np.cumsum(is_known)])[counts.indptr]
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
