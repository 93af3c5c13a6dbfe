"""How texts become words, and words weights: the parameters of scikit-learn's `TfidfVectorizer`.

Names, meanings and defaults are scikit-learn's. What is None there is written ``"none"`` in a run
file, and 0 for `max_features`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from daskxml.core.errors import ConfigError
from daskxml.core.fields import bounded, check_ranges

OFF = {"strip_accents": "none", "stop_words": "none", "norm": "none", "max_features": 0}
_ANALYSIS = (
    "strip_accents", "lowercase", "analyzer", "stop_words", "token_pattern", "ngram_range",
    "binary",
)  # fmt: skip
_OF_WORDS = ("stop_words", "token_pattern")
_WEIGHTS = ("norm", "use_idf", "smooth_idf", "sublinear_tf")
MISSING = "texts need scikit-learn: pip install 'daskxml[sklearn]'"


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """``[text]``: how words are found, which are kept, and what they weigh.

    Attributes
    ----------
    strip_accents, lowercase, analyzer, stop_words, token_pattern, ngram_range
        How a text is cut into words, or into sequences of words or characters.
    max_df, min_df
        Words in more or in fewer documents are left out: a number, or a share of all documents.
    max_features
        Only so many words are kept, those that occur most often.
    binary
        A word counts once in a document.
    norm, use_idf, smooth_idf, sublinear_tf
        What a word that occurs so often weighs.
    column
        Of tables and data frames: the column that holds the texts.
    n_features
        Words are hashed to so many columns, and have no names, as with scikit-learn's
        ``HashingVectorizer(alternate_sign=False)``; 0 learns a vocabulary.

    Examples
    --------
    >>> TextSettings(ngram_range=(1, 2), min_df=2).ngram_range
    (1, 2)
    >>> TextSettings(min_df=0)
    Traceback (most recent call last):
    daskxml.core.errors.ConfigError: min_df = 0: must be a number from 1 on, or a share like 0.01
    """

    strip_accents: Literal["none", "ascii", "unicode"] = "none"
    lowercase: bool = True
    analyzer: Literal["word", "char", "char_wb"] = "word"
    stop_words: Literal["none", "english"] | tuple[str, ...] = "none"
    token_pattern: str = r"(?u)\b\w\w+\b"
    ngram_range: tuple[int, ...] = (1, 1)
    max_df: int | float = 1.0
    min_df: int | float = 1
    max_features: int = bounded(0, low=0)
    binary: bool = False
    norm: Literal["l1", "l2", "none"] = "l2"
    use_idf: bool = True
    smooth_idf: bool = True
    sublinear_tf: bool = False
    column: str = "text"
    n_features: int = bounded(0, low=0, high=2**31 - 1)

    def __post_init__(self) -> None:
        check_ranges(self)
        for name in ("min_df", "max_df"):
            value = getattr(self, name)
            if isinstance(value, bool) or not (value >= 1 if _is_count(value) else 0 <= value <= 1):
                allowed = "must be a number from 1 on, or a share like 0.01"
                raise ConfigError(f"{name} = {value}: {allowed}", name)
        if len(self.ngram_range) != 2 or not 1 <= self.ngram_range[0] <= self.ngram_range[1]:
            given = list(self.ngram_range)
            raise ConfigError(f"ngram_range = {given}: must be like [1, 2]", "ngram_range")
        if isinstance(self.stop_words, str) and self.stop_words not in ("none", "english"):
            raise ConfigError(
                f"stop_words = {self.stop_words!r}: must be 'english', 'none' or a list of words",
                "stop_words",
            )
        if self.n_features:
            self._check_hashing()

    def _check_hashing(self) -> None:
        """Refuse what needs a vocabulary."""
        for name in ("min_df", "max_df", "max_features"):
            if getattr(self, name) != getattr(TextSettings, name):
                problem = f"{name} chooses among words, but [text] n_features hashes them"
                raise ConfigError(f"{problem}: leave one out", name)
        if self.use_idf and not self.smooth_idf:
            problem = "smooth_idf = False: words of no document would weigh infinitely with hashing"
            raise ConfigError(f"{problem}; leave it True", "smooth_idf")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> TextSettings:
        """Return settings by scikit-learn's names, where None switches something off.

        Raises
        ------
        ConfigError
            If a name is unknown, or a value not allowed.

        Examples
        --------
        >>> TextSettings.of({"norm": None, "ngram_range": [1, 2]}).norm
        'none'
        >>> TextSettings.of({"ngram_rang": [1, 2]})
        Traceback (most recent call last):
        daskxml.core.errors.ConfigError: ngram_rang: is no setting of texts, did you mean
        'ngram_range'?
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in names:
                near = difflib.get_close_matches(name, names, 1)
                hint = f", did you mean {near[0]!r}?" if near else f"; they are {', '.join(names)}"
                raise ConfigError(f"{name}: is no setting of texts{hint}", name)
        values: dict[str, Any] = {}
        for name, each in given.items():
            known = OFF.get(name) if each is None else each
            values[name] = tuple(known) if isinstance(known, list) else known
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"settings of texts: {error}") from error

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, of which `of` makes equal settings."""
        found = dataclasses.asdict(self)
        return {
            name: list(result) if isinstance(result, tuple) else result
            for name, result in found.items()
        }

    def counter(self, vocabulary: Mapping[str, int] | None = None) -> Any:
        """Return scikit-learn's counter of words: with a vocabulary, of all words, or by hashing.

        Raises
        ------
        ConfigError
            If scikit-learn is missing, or refuses the token pattern.
        """
        try:
            from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer
        except ImportError as error:
            raise ConfigError(MISSING) from error
        skipped = () if self.analyzer == "word" else _OF_WORDS  # else scikit-learn warns
        analysis = self._values(tuple(name for name in _ANALYSIS if name not in skipped))
        if self.n_features:
            hashing = {"n_features": self.n_features, "norm": None, "alternate_sign": False}
            found = HashingVectorizer(**analysis, **hashing)
        else:
            found = CountVectorizer(**analysis, vocabulary=vocabulary)
        try:
            found.build_analyzer()
        except Exception as error:  # re.error, or ValueError for several groups
            problem = f"token_pattern = {self.token_pattern!r}: {error}"
            raise ConfigError(problem, "token_pattern") from error
        return found

    def weights(self) -> dict[str, Any]:
        """Return the parameters of scikit-learn's ``TfidfTransformer``."""
        return self._values(_WEIGHTS)

    def _values(self, names: tuple[str, ...]) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in names}
        return {
            name: None if name in OFF and each == OFF[name] else _listed(each, name)
            for name, each in values.items()
        }


def _is_count(value: Any) -> bool:
    return isinstance(value, int)


def _listed(value: Any, name: str) -> Any:
    """Return words as a list: scikit-learn refuses tuples of them."""
    return list(value) if name == "stop_words" and isinstance(value, tuple) else value
