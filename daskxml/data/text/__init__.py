"""Texts to rows of TF-IDF weights: settings, counts that add up, and what is learnt of them."""

from daskxml.data.text.counts import (
    CountedTexts,
    WordCounts,
    choose_words,
    count_words,
    merge_counts,
)
from daskxml.data.text.settings import TextSettings
from daskxml.data.text.vectorizer import Vectorizer

__all__ = [
    "CountedTexts",
    "TextSettings",
    "Vectorizer",
    "WordCounts",
    "choose_words",
    "count_words",
    "merge_counts",
]
