"""Reading a source: the plan of its blocks, the checks of what they hold, and its partitions.

These are the pure parts, which `daskxml.session.row_loading` runs as tasks: on the workers of a
cluster, or in this process.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from daskxml.core.arrays import Array, Csr, Partition
from daskxml.core.errors import InputError
from daskxml.data.blocks import Block, Header, join_headers
from daskxml.data.formats import declared, plan_files
from daskxml.data.order import derive_key, shuffled_positions, shuffled_sources
from daskxml.data.parse import Dialect, detect_feature_base
from daskxml.data.rows import concatenate, split_rows, take_rows, unit_rows
from daskxml.data.settings import DataSection

CHANGED = (
    "rows that were lost with a worker are others when they are read again: a file, or what made "
    "the rows, has changed since the run began; start it again"
)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Sizes of a parsed block, or of a whole data set.

    Attributes
    ----------
    rows, features, labels, nonzeros, label_nonzeros, nbytes
        In rows, columns, entries of either kind, and bytes.
    weighted_rows
        Rows that have a weight, as those of tables may.
    feature_base
        The first feature id: of a block, its smallest, -1 if it has none.
    shift
        What is still to be subtracted from the feature ids of a data set's blocks.
    columns
        The names of all features, in a dense table.
    """

    rows: int
    features: int
    labels: int
    nonzeros: int
    label_nonzeros: int
    nbytes: int
    weighted_rows: int = 0
    feature_base: int = 0
    shift: int = 0
    columns: tuple[str, ...] = ()

    @property
    def has_weights(self) -> bool:
        """Whether rows have weights.

        Raises
        ------
        InputError
            If only some have.
        """
        if self.weighted_rows not in (0, self.rows):
            raise InputError(
                "a column 'sample_weight' in some files only: give all training files one, or none"
            )
        return self.weighted_rows > 0


def count_block(partition: Partition) -> Facts:
    """Count what a parsed block holds."""
    features, labels = partition.features, partition.labels
    return Facts(
        rows=partition.rows,
        features=features.columns,
        labels=labels.columns,
        nonzeros=features.nonzeros,
        label_nonzeros=labels.nonzeros,
        nbytes=partition.nbytes,
        weighted_rows=0 if partition.weights is None else partition.rows,
        feature_base=int(features.indices.min()) if features.nonzeros else -1,
    )


def _sum_up(counts: Sequence[Facts], data: DataSection, base: int = 0, shift: int = 0) -> Facts:
    """Add up the counts of all blocks."""
    sums = ("rows", "nonzeros", "label_nonzeros", "nbytes", "weighted_rows")
    return Facts(
        **{name: sum(getattr(block, name) for block in counts) for name in sums},
        features=data.features or max(block.features for block in counts) - shift,
        labels=max(block.labels for block in counts),
        feature_base=shift or base,
        shift=shift,
    )


def weights_of(block: Partition) -> Array:
    """Return the weights of a block's rows, which have such or are none."""
    return np.empty(0, np.float32) if block.weights is None else block.weights


@dataclass(frozen=True)
class ReadPlan:
    """How training files are read: blocks in the order of the files, and the headers by file."""

    data: DataSection
    blocks: list[Block]
    headers: dict[str, Header]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the features of a dense table."""
        return next((header.columns for header in self.headers.values()), ())

    @property
    def dialect(self) -> Dialect:
        """What the parser checks ids against; a base that is still unknown is taken for 0."""
        data, known = self.data, join_headers(self.headers.values())
        base = 0 if self.headers or data.feature_base == "auto" else int(data.feature_base)
        return Dialect(
            features=None if self._base_unknown else data.features or known.features,
            labels=data.labels or known.labels,
            feature_base=base,
            label_base=0 if known.labels else data.label_base,
            feature_names=data.feature_names or self.columns,
            label_names=data.label_names,
            line_bytes=data.line_bytes,
        )

    @property
    def _base_unknown(self) -> bool:
        """Whether only the data can show which feature id is the first."""
        if self.headers or self.data.feature_base != "auto":
            return False
        are_named = self.data.feature_names and self.blocks[0].format != "text"
        return not are_named  # the ids of names count from 0

    def facts(self, counts: Sequence[Facts]) -> Facts:
        """Return the sizes of all files, of those of their blocks.

        Raises
        ------
        InputError
            If a file has more or fewer rows than its header says, or there is no row at all.
        """
        _check_rows(self.blocks, counts, self.headers)
        least = min((n.feature_base for n in counts if n.feature_base >= 0), default=None)
        shift = detect_feature_base(least) if self._base_unknown else 0
        facts = _sum_up(counts, self.data, self.dialect.feature_base, shift)
        if not facts.rows:
            raise InputError("no rows in the file; give one with data", ", ".join(self.data.train))
        are_all = len(self.columns) == facts.features
        return replace(facts, columns=self.columns if are_all else ())

    def stricter_dialect(self, counts: Sequence[Facts], facts: Facts) -> Dialect | None:
        """Return the dialect with which parsing again names the line of an id that is too large.

        None if no id is: that shows only once the first feature id is known.
        """
        limit, found = self.data.features, max(n.features for n in counts) - facts.shift
        if self._base_unknown and limit and found > limit:
            return replace(self.dialect, features=limit, feature_base=facts.shift)
        return None


def plan_source(data: DataSection) -> ReadPlan:
    """Find the training files, and read their headers.

    Raises
    ------
    InputError
        If a file is missing, or its header is missing or does not fit.
    """
    blocks = plan_files(data.train, data.block_bytes, data.format)
    formats = {block.path: block.format for block in blocks}
    if data.format == "libsvm":
        return ReadPlan(data, blocks, {})
    read = {path: declared(path, format) for path, format in formats.items()}
    headers = {path: header for path, header in read.items() if header is not None}
    missing = [path for path in formats if path not in headers]
    if missing and (headers or data.format == "xml"):
        if formats[missing[0]] != "text":
            problem = f"does not declare its columns, as {next(iter(headers))} does"
            raise InputError(f"{problem}; give files of one format", missing[0])
        problem = "no header 'rows features labels' on the first line, as the other files have"
        raise InputError(problem if headers else problem.split(",")[0], missing[0], 1)
    _check_columns(data, headers)
    return ReadPlan(data, blocks, headers)


def _check_columns(data: DataSection, headers: dict[str, Header]) -> None:
    for path, header in headers.items():
        for kind in ("features", "labels"):
            found, known = getattr(header, kind), getattr(data, kind)
            if known and (found or 0) > known:
                problem = f"its header has {found} {kind}, but the model has {known}"
                raise InputError(f"{problem}; give rows of the same data set", path, 1)


def _check_rows(
    blocks: Sequence[Block], counts: Sequence[Facts], headers: dict[str, Header]
) -> None:
    found = dict.fromkeys(headers, 0)
    for block, count in zip(blocks, counts, strict=True):
        if block.path in found:
            found[block.path] += count.rows
    for path, header in headers.items():
        if header.rows is not None and found[path] != header.rows:
            problem = f"the header says {header.rows} rows but the file has {found[path]}"
            cut = "the file is cut off or the header is wrong: write it again"
            hint = cut if found[path] < header.rows else "correct the header"
            raise InputError(f"{problem}; {hint}", path, 1)


def matrix_facts(counts: Sequence[Facts], data: DataSection) -> Facts:
    """Return the sizes of matrices that the user passed instead of files.

    Raises
    ------
    InputError
        If they have no row, or more columns than ``data`` says.
    """
    facts = _sum_up(counts, data)
    for kind, found, given in (
        ("features", max(n.features for n in counts), data.features),
        ("labels", facts.labels, data.labels),
    ):
        if given and found > given:
            raise InputError(f"a matrix has {found} {kind}, but the model has {given}")
    if not facts.rows:
        raise InputError("the matrices have no rows")
    return replace(facts, labels=data.labels or facts.labels)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How parsed rows become partitions; the same for every task of a source.

    Attributes
    ----------
    rows
        Rows of the whole source.
    parts
        Number of partitions for training, or for testing.
    shuffle_key
        Key of the permutation; None keeps the order of the files.
    features, labels
        Numbers of columns of the model.
    shift
        Subtracted from feature ids.
    normalize
        ``"l2"`` or ``"none"``.
    held_rows, held_parts
        The last rows of the order are held out: they form partitions of their own, after the
        others.

    Examples
    --------
    >>> recipe = Recipe(rows=10, parts=2, shuffle_key=None, features=1, labels=1, shift=0,
    ...                 normalize="none", held_rows=2, held_parts=1)
    >>> [recipe.bounds(part) for part in range(recipe.pieces)]
    [(0, 4), (4, 8), (8, 10)]
    """

    rows: int
    parts: int
    shuffle_key: int | None
    features: int
    labels: int
    shift: int
    normalize: str
    held_rows: int = 0
    held_parts: int = 0

    @property
    def pieces(self) -> int:
        """Number of all partitions."""
        return self.parts + self.held_parts

    def bounds(self, part: int) -> tuple[int, int]:
        """Positions of partition ``part`` in the order: the first, and one after the last."""
        kept = self.rows - self.held_rows
        if part < self.parts:
            return kept * part // self.parts, kept * (part + 1) // self.parts
        part -= self.parts
        first = kept + self.held_rows * part // self.held_parts
        return first, kept + self.held_rows * (part + 1) // self.held_parts


def count_held(rows: int, share: float) -> int:
    """Return how many rows are held out for a share of them: at least one of each kind, or none.

    Raises
    ------
    InputError
        If there is only one row to divide.

    Examples
    --------
    >>> count_held(100, 0.25), count_held(100, 0.001), count_held(100, 0.0)
    (25, 1, 0)
    """
    if share == 0.0:
        return 0
    if rows < 2:
        raise InputError("one row cannot be divided: set data.validation = 0")
    return min(max(1, int(rows * share)), rows - 1)


def split_block(
    block: Partition, start: int, stop: int, recipe: Recipe, weights: Array | None = None
) -> list[Partition]:
    """Scale a block's rows and split them by partition.

    Parameters
    ----------
    start, stop
        The number of its first row, and of the one after its last, in the source.
    weights
        Of all rows of the source.

    Raises
    ------
    InputError
        If it has more or fewer rows: it was lost, and its file is another one now.
    """
    if block.rows != stop - start:
        raise InputError(CHANGED)
    features, labels = block.features, block.labels
    values = np.array(features.data)  # a copy: Dask may use the block again
    features = Csr(features.indptr, features.indices - recipe.shift, values, recipe.features)
    if recipe.normalize == "l2":
        unit_rows(features)
    labels = replace(labels, columns=recipe.labels)
    if recipe.shuffle_key is None:
        positions = np.arange(start, stop)
    else:
        positions = shuffled_positions(recipe.rows, recipe.shuffle_key, start, stop)
    stops = [recipe.bounds(part)[1] for part in range(recipe.pieces)]
    parts = np.searchsorted(stops, positions, side="right")
    own = None if weights is None else weights[start:stop]
    return split_rows(Partition(features, labels, own), parts, recipe.pieces)


def join_pieces(pieces: Sequence[Partition], part: int, recipe: Recipe) -> Partition:
    """Join the pieces of a partition, one of each block, and put its rows into their order.

    The pieces hold the rows by ascending source row: a row is at its rank among the sources.
    """
    joined = concatenate(pieces)
    if recipe.shuffle_key is None:
        return joined
    sources = shuffled_sources(recipe.rows, recipe.shuffle_key, *recipe.bounds(part))
    ranks = np.empty(len(sources), dtype=np.int64)
    ranks[np.argsort(sources)] = np.arange(len(sources))
    return take_rows(joined, ranks)


def checksum(partition: Partition) -> int:
    """Return the CRC-32 of all that a partition holds, which other rows hardly have.

    Examples
    --------
    >>> from daskxml.data.parse import parse_bytes
    >>> rows, others = (parse_bytes(text).partition for text in (b"0 1:1\\n", b"1 1:1\\n"))
    >>> checksum(rows) == checksum(replace(rows)), checksum(rows) == checksum(others)
    (True, False)
    """
    features, labels = partition.features, partition.labels
    arrays = (features.indptr, features.indices, features.data, labels.indptr, labels.indices)
    found = 0
    for array in (*arrays, partition.weights):
        if array is not None:
            found = zlib.crc32(np.ascontiguousarray(array).data, found)
    return found


def shuffle_key(seed: int) -> int:
    """Return the key of the shuffle at ingest."""
    return derive_key(seed, 0x1A6E57)
