"""Reading a source: the plan of its blocks, the checks of what they hold, and its partitions.

These are the pure parts, which `daskxml.session.row_loading` runs as tasks: on the workers of a
cluster, or in this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from daskxml.core.arrays import Array, Csr, Partition
from daskxml.core.errors import InputError
from daskxml.data.blocks import LINE_BYTES, Block, Header
from daskxml.data.formats import declared, plan_files
from daskxml.data.order import derive_key, shuffled_positions, shuffled_sources
from daskxml.data.parse import Dialect, detect_feature_base
from daskxml.data.rows import concatenate, split_rows, take_rows, unit_rows


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """What to read and how; zeros and ``"auto"`` are determined from the data.

    Attributes
    ----------
    paths
        Files, globs or URLs.
    format
        ``"xml"`` (text with a header), ``"libsvm"`` (without), a key in
        `daskxml.data.formats.FORMATS`, or ``"auto"``: by the suffix of each file's name.
    feature_base, label_base
        The smallest id that may occur: 0, 1, or ``"auto"`` for features.
    features, labels
        Numbers of columns, where the user gave them.
    feature_names, label_names
        Files that list the names of all columns, for rows that hold names.
    normalize
        ``"l2"`` or ``"none"``.
    block_bytes
        Size of the text that one task reads.
    line_bytes
        The longest line of a text.
    """

    paths: tuple[str, ...]
    format: str = "auto"
    feature_base: int | str = "auto"
    label_base: int = 0
    features: int = 0
    labels: int = 0
    feature_names: str = ""
    label_names: str = ""
    normalize: str = "l2"
    block_bytes: int = 16 * 2**20
    line_bytes: int = LINE_BYTES


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Sizes of a parsed block; ``least`` is its smallest feature id, -1 if it has none.

    ``weighted_rows`` are those that have a weight.
    """

    rows: int
    nonzeros: int
    label_nonzeros: int
    nbytes: int
    least: int
    features: int
    labels: int
    weighted_rows: int = 0


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Sizes of a whole data set, in rows, columns, entries and bytes, and its first feature id."""

    rows: int
    features: int
    labels: int
    nonzeros: int
    label_nonzeros: int
    nbytes: int
    feature_base: int


def count_block(partition: Partition) -> BlockCounts:
    """Count what a parsed block holds."""
    ids = partition.features.indices
    return BlockCounts(
        partition.rows,
        partition.features.nonzeros,
        partition.labels.nonzeros,
        partition.nbytes,
        int(ids.min()) if len(ids) else -1,
        partition.features.columns,
        partition.labels.columns,
        0 if partition.weights is None else partition.rows,
    )


def have_weights(counts: Sequence[BlockCounts]) -> bool:
    """Whether rows have weights, as those of tables may.

    Raises
    ------
    InputError
        If only some have.
    """
    weighted = sum(block.weighted_rows for block in counts)
    if weighted not in (0, sum(block.rows for block in counts)):
        raise InputError(
            "a column 'sample_weight' in some files only: give all training files one, or none"
        )
    return weighted > 0


def weights_of(block: Partition) -> Array:
    """Return the weights of a block's rows, which have such or are none."""
    return np.empty(0, np.float32) if block.weights is None else block.weights


@dataclass(frozen=True)
class ReadPlan:
    """How a source is read: its blocks in the order of its files, and the headers by file."""

    source: DataSource
    blocks: list[Block]
    headers: dict[str, Header]

    @property
    def dialect(self) -> Dialect:
        """What the parser checks ids against; a base that is still unknown is taken for 0."""
        source, headers = self.source, self.headers.values()
        features = source.features or max((h.features or 0 for h in headers), default=0)
        labels = source.labels or max((h.labels or 0 for h in headers), default=0)
        base = 0 if headers or source.feature_base == "auto" else int(source.feature_base)
        return Dialect(
            features=None if self._base_unknown else features or None,
            labels=labels or None,
            feature_base=base,
            label_base=0 if any(h.labels for h in headers) else source.label_base,
            feature_names=source.feature_names,
            label_names=source.label_names,
            line_bytes=source.line_bytes,
        )

    @property
    def _base_unknown(self) -> bool:
        """Whether only the data can show which feature id is the first."""
        if self.headers or self.source.feature_base != "auto":
            return False
        are_named = self.source.feature_names and self.blocks[0].format != "text"
        return not are_named  # the ids of names count from 0

    def find_shift(self, counts: Sequence[BlockCounts]) -> int:
        """Check the rows of the files; return what is still to be subtracted from feature ids.

        Raises
        ------
        InputError
            If a file has more or fewer rows than its header says.
        """
        _check_rows(self.blocks, counts, self.headers)
        if not self._base_unknown:
            return 0
        return detect_feature_base(min((n.least for n in counts if n.least >= 0), default=None))

    def stricter_dialect(self, counts: Sequence[BlockCounts], shift: int) -> Dialect | None:
        """Return the dialect with which parsing again names the line of an id that is too large.

        None if no id is: that shows only once the first feature id is known.
        """
        limit = self.source.features
        if self._base_unknown and limit and max(n.features for n in counts) - shift > limit:
            return replace(self.dialect, features=limit, feature_base=shift)
        return None

    def facts(self, counts: Sequence[BlockCounts], shift: int) -> Facts:
        """Return the sizes of the source.

        Raises
        ------
        InputError
            If there is no row.
        """
        facts = _sum_up(counts, self.source.features, shift, self.dialect.feature_base)
        if not facts.rows:
            paths = ", ".join(self.source.paths)
            raise InputError("no rows in the file; give one with data", paths)
        return facts


def plan_source(source: DataSource) -> ReadPlan:
    """Find the files of a source, and read their headers.

    Raises
    ------
    InputError
        If a file is missing, or its header is missing or does not fit.
    """
    blocks = plan_files(source.paths, source.block_bytes, source.format)
    formats = {block.path: block.format for block in blocks}
    if source.format == "libsvm":
        return ReadPlan(source, blocks, {})
    read = {path: declared(path, format) for path, format in formats.items()}
    headers = {path: header for path, header in read.items() if header is not None}
    missing = [path for path in formats if path not in headers]
    if missing and (headers or source.format == "xml"):
        if formats[missing[0]] != "text":
            problem = f"does not declare its columns, as {next(iter(headers))} does"
            raise InputError(f"{problem}; give files of one format", missing[0])
        problem = "no header 'rows features labels' on the first line, as the other files have"
        raise InputError(problem if headers else problem.split(",")[0], missing[0], 1)
    _check_columns(source, headers)
    return ReadPlan(source, blocks, headers)


def _check_columns(source: DataSource, headers: dict[str, Header]) -> None:
    for path, header in headers.items():
        for kind in ("features", "labels"):
            found, known = getattr(header, kind), getattr(source, kind)
            if known and (found or 0) > known:
                problem = f"its header has {found} {kind}, but the model has {known}"
                raise InputError(f"{problem}; give rows of the same data set", path, 1)


def _check_rows(
    blocks: Sequence[Block], counts: Sequence[BlockCounts], headers: dict[str, Header]
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


def matrix_facts(counts: Sequence[BlockCounts], source: DataSource) -> Facts:
    """Return the sizes of matrices that the user passed instead of files.

    Raises
    ------
    InputError
        If they have no row, or more columns than ``source`` says.
    """
    facts = _sum_up(counts, source.features)
    for kind, found, given in (
        ("features", max(n.features for n in counts), source.features),
        ("labels", facts.labels, source.labels),
    ):
        if given and found > given:
            raise InputError(f"a matrix has {found} {kind}, but the model has {given}")
    if not facts.rows:
        raise InputError("the matrices have no rows")
    return replace(facts, labels=source.labels or facts.labels)


def _sum_up(
    counts: Sequence[BlockCounts], features: int, shift: int = 0, feature_base: int = 0
) -> Facts:
    """Add up the counts of all blocks; ``features`` is 0 where the user gave none."""
    return Facts(
        rows=sum(n.rows for n in counts),
        features=features or max(n.features for n in counts) - shift,
        labels=max(n.labels for n in counts),
        nonzeros=sum(n.nonzeros for n in counts),
        label_nonzeros=sum(n.label_nonzeros for n in counts),
        nbytes=sum(n.nbytes for n in counts),
        feature_base=shift or feature_base,
    )


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
    block: Partition, start: int, recipe: Recipe, weights: Array | None = None
) -> list[Partition]:
    """Scale a block's rows and split them by partition; ``start`` is the number of the first.

    ``weights`` are those of all rows of the source.
    """
    features, labels = block.features, block.labels
    values = np.array(features.data)  # a copy: Dask may use the block again
    features = Csr(features.indptr, features.indices - recipe.shift, values, recipe.features)
    if recipe.normalize == "l2":
        unit_rows(features)
    labels = replace(labels, columns=recipe.labels)
    stop = start + block.rows
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


def shuffle_key(seed: int) -> int:
    """Return the key of the shuffle at ingest."""
    return derive_key(seed, 0x1A6E57)
