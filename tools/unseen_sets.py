"""Real data sets that no default was chosen on, made from Debian's packages.

    python tools/unseen_sets.py FOLDER [--sets jargon-links,...]

downloads the packages with ``apt-get`` and writes ``NAME.train.txt.gz`` and ``NAME.test.txt.gz``:
words weighted by scikit-learn's ``TfidfVectorizer``, labels of two rows at least, and every fifth
row by chance for testing.

==============  =====================  ====================================================
set             package                a row, and its labels
==============  =====================  ====================================================
foldoc-links    dict-foldoc            an entry of the dictionary of computing; its links
jargon-links    dict-jargon            an entry of the jargon lexicon; its links
german-words    dict-de-en             a German phrase, by parts of words; the English words
kconfig-needs   linux-source-6.1       a kernel option's text; what it depends on or selects
==============  =====================  ====================================================

``foldoc-links`` had a part in some defaults, see the table in ``docs/decisions/label-trees.md``.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

Row = tuple[str, set[str]]
DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"  # of dictd's numbers
LINK = re.compile(r"\{([^{}]+)\}")
WORD = re.compile(r"[a-z]{2,}")
SYMBOL = re.compile(r"\b[A-Z][A-Z0-9_]{2,}\b")
OPTION = re.compile(r"^(?:menu)?config (\w+)$", re.MULTILINE)
NEEDS = re.compile(r"^\s+(?:depends on|select|imply) (.*)$", re.MULTILINE)


def unpacked(package: str, folder: Path) -> Path:
    """Return where a package is unpacked, downloaded if it is not there."""
    place = folder / package
    if not place.exists():
        subprocess.run(["apt-get", "download", package], cwd=folder, check=True)
        (archive,) = folder.glob(f"{package}_*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, place], check=True)
    return place


def entries(package: str, name: str, folder: Path) -> Iterator[str]:
    """Yield the entries of a dictionary, each once."""
    place = unpacked(package, folder) / "usr/share/dictd"
    data = gzip.decompress((place / f"{name}.dict.dz").read_bytes())
    lines = (place / f"{name}.index").read_text("utf8", "replace").splitlines()
    spans = {
        tuple(map(_number, line.split("\t")[1:3])) for line in lines if "00database" not in line
    }
    for start, length in sorted(spans):
        yield data[start : start + length].decode("utf8", "replace")


def _number(text: str) -> int:
    value = 0
    for digit in text:
        value = 64 * value + DIGITS.index(digit)
    return value


def links(package: str, name: str, folder: Path) -> Iterator[Row]:
    """Yield entries with the entries that they link to."""
    for text in entries(package, name, folder):
        yield text, {" ".join(it.lower().split()) for it in LINK.findall(text)}


def translations(folder: Path) -> Iterator[Row]:
    """Yield the first line of every fourth German entry with the words of its other lines."""
    for text in itertools.islice(entries("dict-de-en", "german-english", folder), 0, None, 4):
        german, _, english = text.partition("\n")
        yield german, set(WORD.findall(english.lower()))


def options(folder: Path) -> Iterator[Row]:
    """Yield the text of each option of the kernel with the options that it names as needed."""
    place = unpacked("linux-source-6.1", folder)
    if not (files := [*place.rglob("Kconfig*")]):
        (archive,) = place.rglob("*.tar.xz")
        subprocess.run(["tar", "--wildcards", "-xJf", archive, "*/Kconfig*"], cwd=place, check=True)
        files = [*place.rglob("Kconfig*")]
    for file in sorted(it for it in files if it.is_file()):
        parts = OPTION.split(file.read_text("utf8", "replace"))
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            needed = set(SYMBOL.findall(" ".join(NEEDS.findall(body)))) - {name}
            yield f"{name.replace('_', ' ')} {NEEDS.sub('', body)}", needed


SETS: dict[str, tuple[Callable[[Path], Iterator[Row]], dict[str, object]]] = {
    "foldoc-links": (lambda folder: links("dict-foldoc", "foldoc", folder), {}),
    "jargon-links": (lambda folder: links("dict-jargon", "jargon", folder), {}),
    "german-words": (translations, {"analyzer": "char_wb", "ngram_range": (3, 5)}),
    "kconfig-needs": (options, {}),
}


def write(name: str, folder: Path) -> str:
    """Write a set; return its sizes in words."""
    make, how = SETS[name]
    rows = list(make(folder))
    counts = Counter(label for _, labels in rows for label in labels)
    rows = [(text, [it for it in sorted(labels) if counts[it] > 1]) for text, labels in rows]
    rows = [row for row in rows if row[1]]
    numbers = {label: n for n, label in enumerate(sorted({it for _, own in rows for it in own}))}
    x = TfidfVectorizer(min_df=2, dtype=np.float32, **how).fit_transform([text for text, _ in rows])
    known = np.flatnonzero(np.diff(x.indptr))  # rows with words: some tools read no others
    x, rows = x[known], [rows[i] for i in known]
    is_test = np.random.default_rng(0).random(len(rows)) < 0.2
    for part, chosen in (("train", ~is_test), ("test", is_test)):
        with gzip.open(folder / f"{name}.{part}.txt.gz", "wt") as file:
            file.write(f"{chosen.sum()} {x.shape[1]} {len(numbers)}\n")
            for i in np.flatnonzero(chosen):
                row = slice(x.indptr[i], x.indptr[i + 1])
                values = zip(x.indices[row].tolist(), x.data[row].tolist(), strict=True)
                words = " ".join(f"{column}:{value:.4g}" for column, value in sorted(values))
                file.write(f"{','.join(str(numbers[it]) for it in rows[i][1])} {words}\n")
    return f"{len(rows):,} rows, {x.shape[1]:,} features, {len(numbers):,} labels"


def main() -> None:
    """Write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", type=lambda text: text.split(","), default=[*SETS])
    chosen = parser.parse_args()
    chosen.folder.mkdir(exist_ok=True)
    for name in chosen.sets:
        print(f"{name}: {write(name, chosen.folder)}", file=sys.stderr)


if __name__ == "__main__":
    main()
