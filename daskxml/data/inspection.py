"""Description of a data set, found in one reading; memory grows with its distinct ids only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from daskxml.core.arrays import Csr, Partition
from daskxml.data.blocks import Block, Header, is_gzipped, join_headers
from daskxml.data.formats import FORMATS, declared, holds_documents, plan_files, read_pieces
from daskxml.data.parse import Dialect, ParsedRows, detect_feature_base
from daskxml.data.rows import from_scipy
from daskxml.data.settings import TextSettings
from daskxml.data.side_files import Names, ids_by_name
from daskxml.data.tables import label_csr_of, parse_documents
from daskxml.data.text import count_words

BLOCK_BYTES = 1 << 25
MIB = 1 << 20
FEW = 5  # a label with at most so many rows is called rare


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The mean, median and maximum of a number per row."""

    mean: float
    median: float
    largest: int

    def __str__(self) -> str:
        return f"mean {self.mean:.1f}, median {self.median:g}, largest {self.largest:,}"

    @staticmethod
    def of(sizes: Counter[int]) -> Spread:
        """Summarise counted sizes; zeros where there are none.

        Examples
        --------
        >>> Spread.of(Counter([1, 2, 6]))
        Spread(mean=3.0, median=2.0, largest=6)
        """
        each = np.repeat(np.array([*sizes], np.int64), [*sizes.values()])
        if not each.size:
            return Spread(mean=0.0, median=0.0, largest=0)
        return Spread(mean=float(each.mean()), median=float(np.median(each)), largest=max(sizes))


@dataclass
class Census:
    """Counts of the rows read so far; ids as written."""

    features: Counter[int] = field(default_factory=Counter)
    labels: Counter[int] = field(default_factory=Counter)
    features_per_row: Counter[int] = field(default_factory=Counter)
    labels_per_row: Counter[int] = field(default_factory=Counter)
    unsorted_rows: int = 0
    merged_features: int = 0
    merged_labels: int = 0

    def add(self, parsed: ParsedRows) -> None:
        """Add the rows of another piece."""
        for name in ("features", "labels"):
            csr = getattr(parsed.partition, name)
            for key, found in ((name, csr.indices), (f"{name}_per_row", np.diff(csr.indptr))):
                values, counts = (each.tolist() for each in np.unique(found, return_counts=True))
                getattr(self, key).update(dict(zip(values, counts, strict=True)))
        self.unsorted_rows += parsed.unsorted_rows
        self.merged_features += parsed.merged_features
        self.merged_labels += parsed.merged_labels


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Description of a data set; see `inspect_file`.

    Attributes
    ----------
    format, gzipped, feature_base
        The kind of text, whether any file is compressed, and the smallest feature id (0 or 1).
    rows, features, labels
        Rows found, and columns: as declared by the header, or the largest id found plus one.
    seen_features, seen_labels
        Columns with at least one entry.
    features_per_row, labels_per_row
        Their mean, median and maximum.
    sparsity
        Share of the feature matrix that is zero.
    unseen_labels, single_labels, rare_labels, top_label_share
        Shares of the labels with no row, with one, with 1 to 5; share of rows with the top label.
    csr_mib
        Memory of the parsed rows, in MiB.
    problems
        One sentence each.
    """

    format: str
    gzipped: bool
    feature_base: int
    rows: int
    features: int
    labels: int
    seen_features: int
    seen_labels: int
    features_per_row: Spread
    labels_per_row: Spread
    sparsity: float
    unseen_labels: float
    single_labels: float
    rare_labels: float
    top_label_share: float
    csr_mib: float
    problems: tuple[str, ...]

    def lines(self) -> list[str]:
        """The same as text for a terminal, line by line."""
        zipped = ", gzipped" if self.gzipped else ""
        pairs = {
            "format": f"{self.format}{zipped}, features from {self.feature_base}",
            "rows": f"{self.rows:,}",
            "features": f"{self.features:,} ({self.seen_features:,} seen)",
            "labels": f"{self.labels:,} ({self.seen_labels:,} seen)",
            "features per row": str(self.features_per_row),
            "labels per row": str(self.labels_per_row),
            "sparsity": f"{self.sparsity:.4%} of the feature matrix is zero",
            "label counts": f"{self.unseen_labels:.1%} of the labels never seen, "
            f"{self.single_labels:.1%} once, {self.rare_labels:.1%} 1 to {FEW} times; "
            f"top label in {self.top_label_share:.1%} of the rows",
            "memory": f"{self.csr_mib:,.1f} MiB of rows",
            "problems": f"{len(self.problems)}" if self.problems else "none",
        }
        described = [f"{name:<18}{text}" for name, text in pairs.items()]
        return described + [f"  - {problem}" for problem in self.problems]


def inspect_file(
    paths: str | Sequence[str],
    *,
    block_bytes: int = BLOCK_BYTES,
    feature_names: Names = (),
    label_names: Names = (),
) -> Inspection:
    """Read a data set once and describe it.

    Parameters
    ----------
    paths
        One or several files, globs or fsspec URLs that together are one data set. The features of
        tables of documents are their words.
    block_bytes
        Bytes of a file parsed at a time, where its format can be cut.
    feature_names, label_names
        The names of all columns, for tables that contain names.

    Raises
    ------
    InputError
        A file cannot be read, or at the first malformed row.

    Examples
    --------
    >>> import fsspec
    >>> fsspec.filesystem("memory").pipe("/inspect.txt", b"3 9 2\\n0 1:1 8:2\\n 4:1\\n")
    >>> found = inspect_file("memory://inspect.txt")
    >>> found.rows, found.seen_features, found.problems[0]
    (2, 3, 'the header declares 3 rows, but 2 were found; fetch or write the file again')
    """
    names = [paths] if isinstance(paths, str) else list(paths)
    blocks = plan_files(names, block_bytes)
    if holds_documents(names):
        return _inspect_documents(blocks)
    headers = [declared(path) for path in dict.fromkeys(block.path for block in blocks)]
    columns = feature_names or next((header.columns for header in headers if header), ())
    census, dialect = Census(), Dialect(feature_names=columns, label_names=label_names)
    for block in blocks:
        for parsed in read_pieces(block, dialect):
            census.add(parsed)
    if feature_names and blocks[0].format != "text":
        named = len(ids_by_name(feature_names)), len(ids_by_name(label_names)) or None
        headers = [Header(None, *named)]
    return _conclude(census, blocks, headers)


def _inspect_documents(blocks: Sequence[Block]) -> Inspection:
    """Describe documents by the words and the labels that a training would find in them."""
    census, settings = Census(), TextSettings()
    dialect = Dialect(text_column=settings.column, needs_labels=False)
    words: dict[str, int] = {}
    labels: dict[str, int] = {}
    for block in blocks:
        for texts, names in read_pieces(block, dialect, parse_documents):
            counted = count_words(texts, settings)
            columns = [words.setdefault(word, len(words)) for word in counted.words]
            for name in chain.from_iterable(names):
                labels.setdefault(name, len(labels))
            found = from_scipy(counted.counts.astype(np.float32))
            ids = np.array(columns, np.int32)[found.indices]
            features = Csr(found.indptr, ids, found.data, len(words))
            partition = Partition(features, label_csr_of(names, labels))
            census.add(ParsedRows(partition=partition))
    return _conclude(census, blocks, [Header(None, len(words), len(labels))], "documents in ")


def _conclude(
    census: Census, blocks: Sequence[Block], declared: Sequence[Header | None], what: str = ""
) -> Inspection:
    """Derive the description from the counts and from what each file declares."""
    headers = [header for header in declared if header]
    header = join_headers(headers)
    base = 0 if headers else detect_feature_base(min(census.features, default=0))
    features = header.features or max(census.features, default=base - 1) + 1 - base
    labels = header.labels or max(census.labels, default=-1) + 1
    rows = census.features_per_row.total()
    entries, label_entries = census.features.total(), census.labels.total()
    seen = np.array([*census.labels.values()], np.int64)
    return Inspection(
        format=what + _describe_formats(blocks, bool(headers)),
        gzipped=any(is_gzipped(block.path) for block in blocks),
        feature_base=base,
        rows=rows,
        features=features,
        labels=labels,
        seen_features=len(census.features),
        seen_labels=len(census.labels),
        features_per_row=Spread.of(census.features_per_row),
        labels_per_row=Spread.of(census.labels_per_row),
        sparsity=1 - entries / max(1, rows * features),
        unseen_labels=1 - seen.size / max(1, labels, seen.size),
        single_labels=int((seen == 1).sum()) / max(1, labels),
        rare_labels=int((seen <= FEW).sum()) / max(1, labels),
        top_label_share=int(seen.max(initial=0)) / max(1, rows),
        csr_mib=(16 * (rows + 1) + 8 * entries + 4 * label_entries) / MIB,
        problems=tuple(_find_problems(census, headers, rows, len(declared))),
    )


def _describe_formats(blocks: Sequence[Block], has_header: bool) -> str:
    text = "XML repository's format (with header)" if has_header else "libSVM text (no header)"
    titles = [text if block.format == "text" else FORMATS[block.format].title for block in blocks]
    return " and ".join(dict.fromkeys(titles))


def _find_problems(census: Census, headers: Sequence[Header], rows: int, files: int) -> list[str]:
    """Problems that the user may want to fix, a sentence each."""
    found = _header_problems(census, headers, rows, files)
    counted = {
        "rows have no label": census.labels_per_row[0],
        "rows have no feature": census.features_per_row[0],
        "rows have features that do not ascend; they are sorted when read": census.unsorted_rows,
        "features repeat an id of their row; their values are summed": census.merged_features,
        "labels repeat an id of their row; they count once": census.merged_labels,
    }
    found += [f"{count:,} {problem}" for problem, count in counted.items() if count]
    return found


def _header_problems(census: Census, headers: Sequence[Header], rows: int, files: int) -> list[str]:
    """Contradictions between the headers and the rows."""
    if not headers:
        return [] if rows else ["there are no rows"]
    header, found = join_headers(headers), []
    if len(headers) < files:
        found.append(
            f"{files - len(headers)} of {files} files have no header; give all of them one"
        )
    if len({(one.features, one.labels) for one in headers}) > 1:
        found.append("the headers of the files declare different counts; make them equal")
    if header.rows not in (None, rows):
        problem = f"the header declares {header.rows:,} rows, but {rows:,} were found"
        found.append(f"{problem}; fetch or write the file again")
    for kind, seen, columns in (
        ("feature", census.features, header.features),
        ("label", census.labels, header.labels),
    ):
        if columns is None:
            continue
        most, used = max(seen, default=-1), sum(each < columns for each in seen)
        if most >= columns:
            found.append(f"{kind} id {most} is out of range: the header declares {columns:,}")
        if used < columns:
            found.append(f"{columns - used:,} of {columns:,} {kind} ids are never used")
    return found
