"""Texts to rows of TF-IDF weights: settings, counts that add up, and what is learnt of them."""

from daskxml.text.counts import (
    CountedTexts,
    WordCounts,
    choose_words,
    count_words,
    merge_counts,
)
from daskxml.text.settings import TextSettings
from daskxml.text.vectorizer import Vectorizer

__all__ = [
    "CountedTexts",
    "TextSettings",
    "Vectorizer",
    "WordCounts",
    "choose_words",
    "count_words",
    "merge_counts",
]
