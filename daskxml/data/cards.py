"""Dataset cards: where a set comes from, its counts, how it is written, and its constants.

A card is a TOML file in ``datasets/``. Cards of generated sets hold the generator's parameters.
"""

from __future__ import annotations

import difflib
import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from daskxml.core.errors import ConfigError, InputError
from daskxml.data.synthetic import SyntheticSpec


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


def card_files() -> dict[str, Path]:
    """Return the files of the cards that come with daskxml, by name.

    Examples
    --------
    >>> "delicious" in card_files()
    True
    """
    package = Path(__file__).parents[1]
    # In the wheel they are inside the package, in a source tree beside it.
    for folder in (package / "datasets", package.parent / "datasets"):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.toml"))}
    return {}


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
    known = card_files()
    path = known.get(name, Path(name))
    if not path.is_file():
        nearest = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else "known are " + ", ".join(known)
        raise ConfigError(f"{name}: no such dataset card; {hint}")
    try:
        return _card(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError, ConfigError) as error:
        raise ConfigError(f"{path}: not a dataset card: {error}") from error


def verify_file(card: DatasetCard, split: Literal["train", "test"], path: str) -> None:
    """Check that a file, gzipped or not, has the text that the card describes.

    Raises
    ------
    ConfigError
        If the card has no checksum of this split.
    InputError
        If the text differs, or cannot be read.
    """
    expected = (card.train if split == "train" else card.test).sha256
    if not expected:
        raise ConfigError(f"the card of {card.name} has no checksum of its {split} rows")
    if sha256_of_text(path) != expected:
        problem = f"is not the {split} file that the card of {card.name} describes; fetch it from "
        raise InputError(problem + card.source, path)


def sha256_of_text(path: str) -> str:
    """Return the SHA-256 of a file's text, unpacked where its name ends in ``.gz``."""
    import fsspec  # a card alone does not need it

    try:
        with fsspec.open(path, "rb", compression="gzip" if path.endswith(".gz") else None) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, EOFError) as error:
        raise InputError(f"cannot be read: {error}", path) from error


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
