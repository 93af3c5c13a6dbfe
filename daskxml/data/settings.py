"""``[data]`` and ``[text]`` of a run file, and dataset cards, whose values ``[data]`` takes.

A card is a TOML file in ``datasets/``: where a set comes from, its counts, how it is written, and
its constants. Cards of generated sets hold the generator's parameters.

The settings of ``[text]`` are the parameters of scikit-learn's `TfidfVectorizer`, whose names,
meanings and defaults they have. What is None there is written ``"none"`` in a run file, and 0 for
`max_features`.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from daskxml.core.errors import ConfigError, InputError
from daskxml.core.fields import Checked, bounded, size
from daskxml.core.files import packaged
from daskxml.data.synthetic import SyntheticSpec

OFF = {"strip_accents": "none", "stop_words": "none", "norm": "none", "max_features": 0}
_ANALYSIS = (
    "strip_accents", "lowercase", "analyzer", "stop_words", "token_pattern", "ngram_range",
    "binary",
)  # fmt: skip
_OF_WORDS = ("stop_words", "token_pattern")
_WEIGHTS = ("norm", "use_idf", "smooth_idf", "sublinear_tf")
MISSING = "texts need scikit-learn: pip install 'daskxml[sklearn]'"


@dataclass(frozen=True, kw_only=True)
class DataSection(Checked):
    """``[data]``: which files, how they are written, and how they are on the workers.

    Attributes
    ----------
    train, test
        Paths, globs or fsspec URLs; relative ones count from the working directory.
    weights
        A file with a number for each training row, in their order, ``.npy`` or text with one on
        each line: what the row counts in the loss. Without one, all count 1.
    card
        A dataset card (a name in ``datasets/``, or a TOML file) whose format, base and
        propensity constants replace the defaults below; a value in the run file wins over it.
    format, feature_base, label_base
        How rows and ids are written. ``auto`` knows tables (Parquet, Arrow, JSON lines, CSV, npz)
        by the suffix of a file's name, and inspects text (``xml`` has a header, ``libsvm`` none);
        ids of files with a header, npz and dense tables count from 0, those of others from their
        smallest one, 0 or 1.
    features, labels
        Columns; 0 takes them from the header, from the names, or from the data.
    feature_names, label_names
        Text files with a name on each line, in the order of the ids: they are stored with the
        model, and predictions use them. The lists and texts of tables may then hold names.
    normalize
        ``l2`` scales each row to unit length.
    residency
        ``replicate`` keeps all rows on every worker, ``shard`` a share on each, ``auto`` the
        first where the rows take at most `replicate_budget` bytes.
    replicate_budget
        Bytes of rows that ``residency = "auto"`` keeps on every worker.
    block_bytes
        Bytes of a file read by one parsing task, where its format can be cut.
    line_bytes
        The longest line of a text, which is refused before more of it is read.
    partitions
        Pieces that the shuffled rows are cut into; 0 chooses by the size of the data.
    propensity_a, propensity_b
        Constants of the propensity model of Jain et al. (KDD 2016).
    validation
        Share of the training rows, the last of their shuffled order, that is held out of training
        and scored instead of the test rows during a run: whatever is chosen by those
        figures is not chosen on the test rows. At least one row, unless it is 0.
    """

    train: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    weights: str = ""
    card: str = ""
    format: Literal["auto", "xml", "libsvm", "parquet", "arrow", "jsonl", "csv", "npz"] = "auto"
    feature_base: Literal["auto", 0, 1] = "auto"
    label_base: Literal[0, 1] = 0
    features: int = bounded(0, low=0, high=2**31 - 1)
    labels: int = bounded(0, low=0, high=2**31 - 1)
    feature_names: str = ""
    label_names: str = ""
    normalize: Literal["l2", "none"] = "l2"
    residency: Literal["auto", "replicate", "shard"] = "auto"
    replicate_budget: int = size("1GiB")
    block_bytes: int = size("16MiB")
    line_bytes: int = size("64MiB")
    partitions: int = bounded(0, low=0, high=100_000)
    propensity_a: float = bounded(0.55, above=0, high=10)
    propensity_b: float = bounded(1.5, above=0, high=100)
    validation: float = bounded(0.0, low=0, below=1)


@dataclass(frozen=True, kw_only=True)
class Split:
    """One of a set's two files: its name, its rows, and the SHA-256 of its text unpacked."""

    file: str = ""
    rows: int = 0
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class DatasetCard:
    """Description of a data set.

    Attributes
    ----------
    name, title
        The key in ``datasets/``, and one line of text.
    source, licence, citation
        Where it was published, under which terms, and the paper to cite.
    format, feature_base, label_base
        How the text is written, as in ``[data]`` of a run file.
    features, labels, features_per_row, labels_per_row
        Numbers of columns, and mean entries of a row of the training file; 0 where the source
        does not tell.
    train, test
        The two files.
    propensity_a, propensity_b
        Constants of the propensity model of Jain et al. (KDD 2016).
    synthetic
        The generator's parameters where the set is generated.
    """

    name: str
    title: str
    source: str
    licence: str = ""
    citation: str = ""
    format: Literal["xml", "libsvm"] = "xml"
    feature_base: Literal["auto", 0, 1] = "auto"
    label_base: Literal[0, 1] = 0
    features: int
    labels: int
    features_per_row: float = 0.0
    labels_per_row: float
    train: Split = field(default_factory=Split)
    test: Split = field(default_factory=Split)
    propensity_a: float = 0.55
    propensity_b: float = 1.5
    synthetic: SyntheticSpec | None = None

    def data_values(self) -> dict[str, Any]:
        """Return the keys of a run file's ``[data]`` that the card sets.

        Examples
        --------
        >>> load_card("amazon-670k").data_values()["propensity_a"]
        0.6
        """
        names = ("format", "feature_base", "label_base", "propensity_a", "propensity_b")
        return {name: getattr(self, name) for name in names}


def load_card(name: str) -> DatasetCard:
    """Read a card by its name in ``datasets/``, or by the path of a TOML file.

    Raises
    ------
    ConfigError
        If there is no such card, or if it has a wrong or missing key.

    Examples
    --------
    >>> load_card("delicious").labels
    983
    """
    known = packaged("datasets")
    path = known.get(name, Path(name))
    if not path.is_file():
        nearest = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else "known are " + ", ".join(known)
        raise ConfigError(f"{name}: no such dataset card; {hint}", "card")
    try:
        return _card(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError, ConfigError) as error:
        raise ConfigError(f"{path}: not a dataset card: {error}", "card") from error


def verify_file(card: DatasetCard, split: str, path: str) -> None:
    """Check that a file, gzipped or not, has the text of which the card has a checksum, if it has.

    Raises
    ------
    InputError
        If the text differs, or cannot be read.
    """
    import fsspec  # a card alone does not need it

    expected = (card.train if split == "train" else card.test).sha256
    if not expected:
        return
    try:
        with fsspec.open(path, "rb", compression="gzip" if path.endswith(".gz") else None) as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, EOFError) as error:
        raise InputError(f"cannot be read: {error}", path) from error
    if found != expected:
        problem = f"is not the {split} file that the card of {card.name} describes; fetch it from "
        raise InputError(problem + card.source, path)


def _card(table: Mapping[str, Any]) -> DatasetCard:
    values = dict(table)
    for split in ("train", "test"):
        values[split] = Split(**values.get(split, {}))
    values |= {f"propensity_{name}": value for name, value in values.pop("propensity", {}).items()}
    if "synthetic" in values:
        shared = {name: values[name] for name in ("features", "labels")}
        shared |= {"rows": values["train"].rows, "test_rows": values["test"].rows}
        values["synthetic"] = SyntheticSpec(**shared, **values["synthetic"])
    return DatasetCard(**values)


@dataclass(frozen=True, kw_only=True)
class TextSettings(Checked):
    """``[text]``: how words are found, which are kept, and what they weigh.

    Attributes
    ----------
    strip_accents, lowercase, analyzer, stop_words, token_pattern, ngram_range
        How a text is cut into words, or into sequences of words or characters.
    max_df, min_df
        Words in more or in fewer documents are left out: a number, or a share of all documents; 1
        is a number, 1.0 a share.
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
        super().__post_init__()
        for name in ("min_df", "max_df"):
            value = getattr(self, name)
            is_allowed = value >= 1 if isinstance(value, int) else 0 <= value <= 1
            if isinstance(value, bool) or not is_allowed:
                raise self.refusal(name, "must be a number from 1 on, or a share like 0.01")
        if len(self.ngram_range) != 2 or not 1 <= self.ngram_range[0] <= self.ngram_range[1]:
            raise self.refusal("ngram_range", "must be like [1, 2]")
        if isinstance(self.stop_words, str) and self.stop_words not in ("none", "english"):
            raise self.refusal("stop_words", "must be 'english', 'none' or a list of words")
        if self.n_features:
            self._check_hashing()

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other)  # 1 is a number of documents, 1.0 a share of them

    def _check_hashing(self) -> None:
        """Refuse what needs a vocabulary."""
        for name in ("min_df", "max_df", "max_features"):
            if repr(getattr(self, name)) != repr(getattr(TextSettings, name)):
                problem = f"{name} chooses among words, but [text] n_features hashes them"
                raise ConfigError(f"{problem}: leave one out", name)
        if self.use_idf and not self.smooth_idf:
            problem = "words of no document would weigh infinitely with hashing; leave it True"
            raise self.refusal("smooth_idf", problem)

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


def _listed(value: Any, name: str) -> Any:
    """Return words as a list: scikit-learn refuses tuples of them."""
    return list(value) if name == "stop_words" and isinstance(value, tuple) else value
