"""Generated multi-label data with Zipf-distributed labels and features and something to learn.

Every label owns a prototype, a few features that speak for it. A row draws labels by a
Zipf-Mandelbrot law, then its words: most from the prototypes of its labels, the others from a
Zipf-Mandelbrot background. Counts of words become TF-IDF-like values. The rows are drawn block by
block, each from its own seed, so that memory is bounded and any block can be made alone.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from daskxml.core.arrays import Csr, Partition, starts_of
from daskxml.core.fields import Checked, bounded
from daskxml.core.files import replacing

BLOCK_ROWS = 4096
VALUE_STEPS = 10_000  # values are multiples of 1e-4, so that text holds them exactly
MOST_ROWS, MOST_COLUMNS = 10**12, 2**31 - 1  # ids are int32
_STREAMS = {"train": 0, "test": 1, "world": 2}
SplitName = Literal["train", "test"]


@dataclass(frozen=True, kw_only=True)
class SyntheticSpec(Checked):
    """The generator's parameters.

    Attributes
    ----------
    rows, test_rows, features, labels
        Sizes of the two files.
    features_per_row, labels_per_row
        Means; a row has at least one label and usually at least one feature.
    feature_exponent, label_exponent, flatness
        The r-th most frequent of them has a probability proportional to
        ``(r + flatness) ** -exponent``.
    prototype_features
        Features in each label's prototype.
    noise
        Share of a row's words that are drawn from the background.
    seed
        Of all draws.
    """

    rows: int = bounded(MISSING, low=1, high=MOST_ROWS)
    test_rows: int = bounded(0, low=0, high=MOST_ROWS)
    features: int = bounded(MISSING, low=1, high=MOST_COLUMNS)
    labels: int = bounded(MISSING, low=1, high=MOST_COLUMNS)
    features_per_row: float = bounded(30.0, low=1)
    labels_per_row: float = bounded(2.5, low=1)
    feature_exponent: float = bounded(1.0, low=0)
    label_exponent: float = bounded(1.0, low=0)
    flatness: float = bounded(5.0, low=0)
    prototype_features: int = bounded(12, low=1)
    noise: float = bounded(0.5, low=0, high=1)
    seed: int = bounded(0, low=0)

    def rows_of(self, split: SplitName) -> int:
        """Return the number of rows of one of the two files."""
        return self.rows if split == "train" else self.test_rows


@dataclass(frozen=True)
class World:
    """The distributions that all rows are drawn from.

    Attributes
    ----------
    label_cdf, feature_cdf
        Cumulative probabilities by rank, ``(labels,)`` and ``(features,)``.
    label_ids, feature_ids
        The id of each rank.
    prototypes
        ``(labels, prototype_features)`` feature ids.
    idf
        ``(features,)`` weight of a word, greater for rarer ones.
    """

    label_cdf: np.ndarray
    feature_cdf: np.ndarray
    label_ids: np.ndarray
    feature_ids: np.ndarray
    prototypes: np.ndarray
    idf: np.ndarray


def generate(spec: SyntheticSpec) -> tuple[Partition, Partition]:
    """Return all training rows and all test rows.

    Examples
    --------
    >>> train, test = generate(SyntheticSpec(rows=100, test_rows=20, features=50, labels=10))
    >>> train.rows, test.rows, train.features.columns, train.labels.columns
    (100, 20, 50, 10)
    """
    from daskxml.data.rows import concatenate  # loads Numba, which a spec alone does not need

    return concatenate(list(blocks(spec, "train"))), concatenate(list(blocks(spec, "test")))


def write_xml(path: str | Path, spec: SyntheticSpec, split: SplitName = "train") -> Path:
    """Write one split as text with a header line, gzipped where the name ends in ``.gz``.

    The file appears under its name only once it is whole. It holds exactly the values of
    `generate`.

    Raises
    ------
    ModelError
        If the file cannot be written.
    """
    path = Path(path)
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with replacing(path) as partial:
        path.parent.mkdir(parents=True, exist_ok=True)
        with opener(partial, "wt", encoding="ascii") as file:
            file.write(f"{spec.rows_of(split)} {spec.features} {spec.labels}\n")
            for block in blocks(spec, split):
                file.writelines(_lines(block))
    return path


def blocks(spec: SyntheticSpec, split: SplitName) -> Iterator[Partition]:
    """Yield one split in blocks of at most `BLOCK_ROWS` rows; one empty block if it has no rows.

    Examples
    --------
    >>> [block.rows for block in blocks(SyntheticSpec(rows=5000, features=9, labels=3), "train")]
    [4096, 904]
    """
    world, total = make_world(spec), spec.rows_of(split)
    for number, start in enumerate(range(0, max(total, 1), BLOCK_ROWS)):
        rng = np.random.default_rng([spec.seed, _STREAMS[split], number])
        yield make_block(spec, world, min(BLOCK_ROWS, total - start), rng)


def make_world(spec: SyntheticSpec) -> World:
    """Draw the ranks' ids and the prototypes, and weigh the words."""
    rng = np.random.default_rng([spec.seed, _STREAMS["world"]])
    label_p = zipf_mandelbrot(spec.labels, spec.label_exponent, spec.flatness)
    feature_p = zipf_mandelbrot(spec.features, spec.feature_exponent, spec.flatness)
    feature_ids = rng.permutation(spec.features)
    # The square root flattens the law: rare words speak for a label more than their share.
    flat_cdf = np.cumsum(np.sqrt(feature_p) / np.sqrt(feature_p).sum())
    prototypes = _draw(flat_cdf, spec.labels * spec.prototype_features, rng)
    expected = np.empty(spec.features)
    expected[feature_ids] = feature_p * spec.features_per_row
    return World(
        label_cdf=np.cumsum(label_p),
        feature_cdf=np.cumsum(feature_p),
        label_ids=rng.permutation(spec.labels),
        feature_ids=feature_ids,
        prototypes=feature_ids[prototypes].reshape(spec.labels, -1),
        idf=np.log1p(1.0 / expected),
    )


def make_block(spec: SyntheticSpec, world: World, rows: int, rng: np.random.Generator) -> Partition:
    """Draw `rows` rows: labels first, then words that depend on them."""
    counts = 1 + rng.poisson(spec.labels_per_row - 1, rows)
    owners = np.repeat(np.arange(rows), counts)
    drawn = world.label_ids[_draw(world.label_cdf, owners.size, rng)]
    owners, drawn, _ = _distinct(owners, drawn, spec.labels)
    labels = _csr(rows, owners, drawn, None, spec.labels)

    counts = 1 + rng.poisson(spec.features_per_row - 1, rows)
    owners = np.repeat(np.arange(rows), counts)
    words = world.feature_ids[_draw(world.feature_cdf, owners.size, rng)]
    meant = rng.random(owners.size) >= spec.noise
    words[meant] = _prototype_words(world, labels, owners[meant], rng)
    owners, words, repeats = _distinct(owners, words, spec.features)
    steps = np.rint((1 + np.log(repeats)) * world.idf[words] * VALUE_STEPS)
    values = (np.maximum(steps, 1) / VALUE_STEPS).astype(np.float32)
    return Partition(_csr(rows, owners, words, values, spec.features), labels)


def zipf_mandelbrot(count: int, exponent: float, flatness: float) -> np.ndarray:
    """Return ``(count,)`` probabilities proportional to ``(rank + flatness) ** -exponent``.

    Examples
    --------
    >>> zipf_mandelbrot(2, 1.0, 0.0).round(3).tolist()
    [0.667, 0.333]
    """
    weights = (np.arange(1, count + 1) + flatness) ** -exponent
    return weights / weights.sum()


def _prototype_words(
    world: World, labels: Csr, owners: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Draw for each owner row a word of one of its labels, mostly from a prototype's beginning."""
    first, last = labels.indptr[owners], labels.indptr[owners + 1]
    label = labels.indices[first + (rng.random(owners.size) * (last - first)).astype(np.int64)]
    width = world.prototypes.shape[1]
    return world.prototypes[label, (rng.random(owners.size) ** 1.5 * width).astype(np.int64)]


def _draw(cdf: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    ranks = np.searchsorted(cdf, rng.random(count), side="right")
    return np.minimum(ranks, cdf.size - 1)  # the last cumulative sum may be a bit below 1


def _distinct(
    owners: np.ndarray, ids: np.ndarray, columns: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sort pairs by row and id; return each once, with its number of repeats."""
    keys, repeats = np.unique(owners * columns + ids, return_counts=True)
    return keys // columns, keys % columns, repeats


def _csr(
    rows: int, owners: np.ndarray, ids: np.ndarray, values: np.ndarray | None, columns: int
) -> Csr:
    indptr = starts_of(np.bincount(owners, minlength=rows))
    return Csr(indptr, ids.astype(np.int32), values, columns)


def _lines(block: Partition) -> Iterator[str]:
    values = np.asarray(block.features.data, np.float64)
    steps = np.rint(values * VALUE_STEPS).astype(np.int64)
    pairs = [
        f"{word}:{step // VALUE_STEPS}.{step % VALUE_STEPS:04d}"
        for word, step in zip(block.features.indices.tolist(), steps.tolist(), strict=True)
    ]
    names = list(map(str, block.labels.indices.tolist()))
    words, labels = block.features.indptr.tolist(), block.labels.indptr.tolist()
    for row in range(block.rows):
        head = ",".join(names[labels[row] : labels[row + 1]])
        yield f"{head} {' '.join(pairs[words[row] : words[row + 1]])}\n"
