"""Rows of texts are those of scikit-learn, however the documents are cut into partitions."""

import json
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer, TfidfVectorizer
from sklearn.pipeline import make_pipeline

import daskxml
from daskxml.data.settings import TextSettings
from daskxml.data.text import Vectorizer, choose_words, count_words, merge_counts

WORDS = ["red", "Red", "apple", "green", "the", "car", "ünder", "x", "42", "a-b", "I'm"]
texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join), min_size=1)
options = st.fixed_dictionaries(
    {},
    optional={
        "strip_accents": st.sampled_from([None, "ascii", "unicode"]),
        "lowercase": st.booleans(),
        "analyzer": st.sampled_from(["word", "char", "char_wb"]),
        "token_pattern": st.sampled_from([r"(?u)\b\w\w+\b", r"\S+"]),
        "ngram_range": st.sampled_from([(1, 1), (1, 2), (2, 3)]),
        "max_df": st.sampled_from([1.0, 0.5, 1, 3]),
        "min_df": st.sampled_from([1, 2, 1.0, 0.2]),
        "max_features": st.sampled_from([None, 1, 4]),
        "binary": st.booleans(),
        "norm": st.sampled_from([None, "l1", "l2"]),
        "use_idf": st.booleans(),
        "smooth_idf": st.booleans(),
        "sublinear_tf": st.booleans(),
    },
)


def learned(documents: Sequence[str], wanted: TextSettings, cuts: int) -> tuple[Vectorizer, Any]:
    """Learn from documents in partitions, merged two at a time; return their rows as well."""
    counted = [count_words(list(part), wanted) for part in np.array_split(documents, cuts)]
    counts = [part.totals() for part in counted]
    while len(counts) > 1:
        counts = [merge_counts(counts[i : i + 2]) for i in range(0, len(counts), 2)]
    vectorizer = choose_words(merge_counts(counts), wanted)
    return vectorizer, sp.vstack([vectorizer.weigh(part.words, part.counts) for part in counted])


@settings(max_examples=60, deadline=None)
@given(texts, options, st.integers(1, 4))
def test_rows_are_those_of_scikit_learn(
    documents: list[str], chosen: dict[str, Any], cuts: int
) -> None:
    wanted = TextSettings.of(chosen)
    if chosen.get("analyzer", "word") != "word":  # scikit-learn would warn
        chosen.pop("token_pattern", None)
    peer = TfidfVectorizer(**chosen)
    try:
        expected = peer.fit_transform(documents)
    except ValueError:  # no word, or none is left
        with pytest.raises(daskxml.InputError):
            learned(documents, wanted, cuts)
        return
    vectorizer, rows = learned(documents, wanted, cuts)
    assert list(vectorizer.words) == peer.get_feature_names_out().tolist()
    found = vectorizer.transform(documents)
    assert found.dtype == rows.dtype == np.float32
    assert (rows != found).nnz == 0
    np.testing.assert_allclose(found.toarray(), expected.toarray(), rtol=1e-6)
    stored = json.loads(json.dumps(vectorizer.as_dict()))
    again = Vectorizer.from_dict(stored, vectorizer.words)
    assert again == vectorizer == pickle.loads(pickle.dumps(vectorizer))
    assert (again.transform(documents) != found).nnz == 0


@settings(max_examples=20, deadline=None)
@given(texts, st.booleans(), st.integers(1, 4))
def test_hashed_rows_are_those_of_scikit_learn(
    documents: list[str], use_idf: bool, cuts: int
) -> None:
    hashing = HashingVectorizer(n_features=32, norm=None, alternate_sign=False)
    peer = make_pipeline(hashing, TfidfTransformer(use_idf=use_idf))
    vectorizer, rows = learned(documents, TextSettings(n_features=32, use_idf=use_idf), cuts)
    expected = peer.fit_transform(documents).toarray()
    for found in (vectorizer.transform(documents), rows):
        np.testing.assert_allclose(found.toarray(), expected, rtol=1e-6)
    assert (vectorizer.words, vectorizer.columns) == ((), 32)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"min_df": 0}, r"min_df = 0: must be a number from 1 on"),
        ({"max_df": 1.5}, r"max_df = 1.5: must be"),
        ({"ngram_range": (2, 1)}, r"ngram_range = \[2, 1\]: must be like \[1, 2\]"),
        ({"analyzer": "words"}, r"analyzer = 'words': must be one of 'word', 'char'"),
        ({"stop_words": "german"}, "stop_words = 'german': must be 'english', 'none' or a list"),
        ({"mindf": 2}, "mindf: is no setting of texts, did you mean 'min_df'"),
        ({"n_features": 8, "min_df": 2}, "min_df chooses among words, but .* n_features hashes"),
        ({"n_features": 8, "max_df": 1}, "max_df chooses among words, but .* n_features hashes"),
        ({"n_features": 8, "smooth_idf": False}, "smooth_idf = False"),
        ({"max_features": -1}, "max_features = -1: must be at least 0"),
    ],
)
def test_wrong_settings_are_one_line(wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(daskxml.ConfigError, match=problem):
        TextSettings.of(wrong)


@pytest.mark.parametrize(
    ("documents", "chosen", "problem"),
    [
        (["a", ""], {}, r"none of 2 documents has a word by \[text\] token_pattern"),
        (["the of"], {"stop_words": "english"}, "none of 1 documents has a word"),
        (["red", "car"], {"min_df": 2}, "none of 2 words is in at least 2 and at most 2 of 2"),
        (["red", None], {}, 'document 1 is None: give texts, "" for one without words'),
        (["a"], {"token_pattern": "a*"}, "token_pattern matches an empty text"),
    ],
)
def test_documents_without_words_are_one_line(
    documents: list[Any], chosen: dict[str, Any], problem: str
) -> None:
    wanted = TextSettings.of(chosen)
    with pytest.raises(daskxml.InputError, match=problem):
        choose_words(count_words(documents, wanted).totals(), wanted)


def test_a_pattern_that_scikit_learn_refuses_is_one_line() -> None:
    for pattern in ("(", "(a)(b)"):
        with pytest.raises(daskxml.ConfigError, match="token_pattern = "):
            count_words(["red"], TextSettings(token_pattern=pattern))


def test_stop_words_of_ones_own() -> None:
    vectorizer, _ = learned(["the red car", "red"], TextSettings(stop_words=("the", "car")), 1)
    assert vectorizer.words == ("red",)
