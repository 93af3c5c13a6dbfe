"""The data sets of a suite: found in a folder, or made up."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from daskxml.bench.environment import digest
from daskxml.bench.suite import Suite
from daskxml.data.cards import DatasetCard, Split, load_card, sha256_of_text, verify_file
from daskxml.data.synthetic import SyntheticSpec, write_xml

SPLITS: tuple[Literal["train", "test"], ...] = ("train", "test")


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """The files of a set.

    Attributes
    ----------
    train, test
        Their paths; the second is empty where there are no test rows.
    contents
        What identifies their rows: digests of the text, or of what made it up.
    card
        The dataset card whose constants a run takes; empty for a set that only the suite knows.
    missing
        Why there are no files; empty where they are there.
    """

    train: str
    test: str = ""
    contents: tuple[str, ...] = ()
    card: str = ""
    missing: str = ""


def find_sets(suite: Suite, folder: Path | None, made_up: Path) -> dict[str, DataSet]:
    """Return the sets of a suite by name; what is made up is written where it is not there yet.

    Parameters
    ----------
    folder
        Where the files of dataset cards lie; None where the user named none.
    made_up
        The folder for rows that are made up.

    Raises
    ------
    ConfigError
        If a name is neither in the suite nor that of a card.
    InputError
        If a file is not the one that its card describes, or one cannot be written.
    """
    found = {}
    for name in suite.data:
        if name in suite.made_up:
            found[name] = _make_up(name, suite.made_up[name], made_up)
            continue
        card = load_card(name)
        if card.synthetic is not None:
            made = _make_up(name, card.synthetic, made_up)
            found[name] = dataclasses.replace(made, card=name)
        else:
            found[name] = _find(name, card, folder)
    return found


def _make_up(name: str, spec: SyntheticSpec, folder: Path) -> DataSet:
    contents = digest(dataclasses.asdict(spec))
    paths = {split: folder / f"{name}-{contents}.{split}.txt" for split in SPLITS}
    for split, path in paths.items():
        if spec.rows_of(split) and not path.exists():  # it appears only once it is whole
            write_xml(path, spec, split)
    test = str(paths["test"].absolute()) if spec.test_rows else ""
    return DataSet(train=str(paths["train"].absolute()), test=test, contents=(contents,))


def _find(name: str, card: DatasetCard, folder: Path | None) -> DataSet:
    splits: dict[str, Split] = {split: getattr(card, split) for split in SPLITS}
    names = {split: found.file for split, found in splits.items() if found.file}
    if folder is None:
        files = " and ".join(names.values())
        return DataSet(train="", card=name, missing=f"give --data FOLDER, with {files}")
    paths = {split: folder / file for split, file in names.items()}
    absent = [str(path) for path in paths.values() if not path.is_file()]
    if absent:
        return DataSet(train="", card=name, missing=f"no file {' and '.join(absent)}")
    for split in SPLITS:
        if split in paths and splits[split].sha256:
            verify_file(card, split, str(paths[split]))
    texts = [splits[s].sha256 or sha256_of_text(str(path)) for s, path in paths.items()]
    whole = {split: str(path.absolute()) for split, path in paths.items()}
    return DataSet(**whole, contents=tuple(texts), card=name)
