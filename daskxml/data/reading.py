"""What is found out about text files of rows before and after they are parsed.

Pure parts of reading a source, shared by the tasks of `daskxml.data.ingest`, which parse its blocks
on a cluster, and by `read_here`, which parses them in this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from daskxml.data.blocks import Block, Header, plan_blocks, read_header
from daskxml.data.faults import Dialect
from daskxml.data.parse import detect_feature_base, parse_block
from daskxml.errors import InputError
from daskxml.types import Partition


@dataclass(frozen=True, kw_only=True)
class Source:
    """What to read and how; zeros and ``"auto"`` are found out from the data.

    Attributes
    ----------
    paths
        Files, globs or URLs.
    format
        ``"xml"`` (with a header), ``"libsvm"`` (without) or ``"auto"``.
    feature_base, label_base
        The least id that may occur: 0, 1, or "auto" for features.
    features, labels
        Columns, where the user gave them.
    normalize
        ``"l2"`` or ``"none"``.
    block_bytes
        Text read by one task.
    """

    paths: tuple[str, ...]
    format: str = "auto"
    feature_base: int | str = "auto"
    label_base: int = 0
    features: int = 0
    labels: int = 0
    normalize: str = "l2"
    block_bytes: int = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers that describe a parsed block."""

    rows: int
    nonzeros: int
    label_nonzeros: int
    nbytes: int
    least: int
    features: int
    labels: int


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a data set once it is read: sizes in rows, columns, entries and bytes."""

    rows: int
    features: int
    labels: int
    nonzeros: int
    label_nonzeros: int
    nbytes: int
    feature_base: int


def describe(partition: Partition) -> Numbers:
    """Return the numbers that the caller needs of a parsed block."""
    ids = partition.features.indices
    return Numbers(
        partition.rows,
        partition.features.nonzeros,
        partition.labels.nonzeros,
        partition.nbytes,
        int(ids.min()) if len(ids) else -1,
        partition.features.columns,
        partition.labels.columns,
    )


@dataclass(frozen=True)
class Plan:
    """How a source is read: its blocks in the order of its files, and the headers of these."""

    source: Source
    blocks: list[Block]
    headers: dict[str, Header]

    @property
    def dialect(self) -> Dialect:
        """What the parser checks ids against; a base still to be found out is read as zero."""
        source, headers = self.source, self.headers.values()
        features = source.features or max((h.features for h in headers), default=0)
        labels = source.labels or max((h.labels for h in headers), default=0)
        return Dialect(
            features=None if self._is_open else features or None,
            labels=labels or None,
            feature_base=0 if headers or self._is_open else int(source.feature_base),
            label_base=0 if headers else source.label_base,
        )

    @property
    def _is_open(self) -> bool:
        """Whether the data must say which feature id is the first."""
        return not self.headers and self.source.feature_base == "auto"

    def find_shift(self, numbers: Sequence[Numbers]) -> int:
        """Check the blocks' numbers against the headers; return what is to be taken off ids.

        Raises
        ------
        InputError
            If a file has more or fewer rows than its header says.
        """
        _check_rows(self.blocks, numbers, self.headers)
        if not self._is_open:
            return 0
        return detect_feature_base(min((n.least for n in numbers if n.least >= 0), default=None))

    def stricter_dialect(self, numbers: Sequence[Numbers], shift: int) -> Dialect | None:
        """Return what the blocks must be parsed with once more, to name the file and the line.

        That is where ids turn out too large once it is known from where they count.
        """
        limit = self.source.features
        if self._is_open and limit and max(n.features for n in numbers) - shift > limit:
            return replace(self.dialect, features=limit, feature_base=shift)
        return None

    def facts(self, numbers: Sequence[Numbers], shift: int) -> Facts:
        """Return what is known now.

        Raises
        ------
        InputError
            If there is no row.
        """
        facts = sum_up(numbers, self.source.features, shift, self.dialect.feature_base)
        if not facts.rows:
            paths = ", ".join(self.source.paths)
            raise InputError("no rows in the file; give one with data", paths)
        return facts


def plan_source(source: Source) -> Plan:
    """Look at the files of a source, and at their first lines.

    Raises
    ------
    InputError
        If there is no such file, or its header is missing or does not fit.
    """
    blocks = plan_blocks(source.paths, source.block_bytes)
    paths = list(dict.fromkeys(block.path for block in blocks))
    if source.format == "libsvm":
        return Plan(source, blocks, {})
    read = {path: read_header(path) for path in paths}
    headers = {path: header for path, header in read.items() if header is not None}
    missing = [path for path in paths if path not in headers]
    if missing and (headers or source.format == "xml"):
        problem = "no header 'rows features labels' on the first line, as the other files have"
        raise InputError(problem if headers else problem.split(",")[0], missing[0], 1)
    _check_columns(source, headers)
    return Plan(source, blocks, headers)


def _check_columns(source: Source, headers: dict[str, Header]) -> None:
    for path, header in headers.items():
        for what in ("features", "labels"):
            found, known = getattr(header, what), getattr(source, what)
            if known and found > known:
                problem = f"its header has {found} {what}, but the model has {known}"
                raise InputError(f"{problem}; give rows of the same data set", path, 1)


def _check_rows(
    blocks: Sequence[Block], numbers: Sequence[Numbers], headers: dict[str, Header]
) -> None:
    found = dict.fromkeys(headers, 0)
    for block, number in zip(blocks, numbers, strict=True):
        if block.path in found:
            found[block.path] += number.rows
    for path, header in headers.items():
        if found[path] != header.rows:
            problem = f"the header says {header.rows} rows but the file has {found[path]}"
            cut = "the file is cut off or the header is wrong: write it again"
            hint = cut if found[path] < header.rows else "correct the header"
            raise InputError(f"{problem}; {hint}", path, 1)


def sum_up(
    numbers: Sequence[Numbers], features: int, shift: int = 0, feature_base: int = 0
) -> Facts:
    """Return the facts of all blocks; ``features`` as the user gave it, 0 for the largest."""
    return Facts(
        rows=sum(n.rows for n in numbers),
        features=features or max(n.features for n in numbers) - shift,
        labels=max(n.labels for n in numbers),
        nonzeros=sum(n.nonzeros for n in numbers),
        label_nonzeros=sum(n.label_nonzeros for n in numbers),
        nbytes=sum(n.nbytes for n in numbers),
        feature_base=shift or feature_base,
    )


def describe_matrices(numbers: Sequence[Numbers], source: Source) -> Facts:
    """Return the facts of a user's matrices, which hold as many columns as they show.

    Raises
    ------
    InputError
        If they have no row, or more columns than ``source`` says.
    """
    facts = sum_up(numbers, source.features)
    for what, found, given in (
        ("features", max(n.features for n in numbers), source.features),
        ("labels", facts.labels, source.labels),
    ):
        if given and found > given:
            raise InputError(f"a matrix has {found} {what}, but the model has {given}")
    if not facts.rows:
        raise InputError("the matrices have no rows")
    return facts


def read_here(source: Source) -> tuple[list[Partition], Facts, int]:
    """Read and parse all files of a source in this process.

    Returns
    -------
    blocks
        In the order of the files.
    facts
        Sizes.
    shift
        Still to be subtracted from feature ids.

    Raises
    ------
    InputError
        The first problem in the order of the files.
    """
    plan = plan_source(source)
    blocks = [parse_block(block, plan.dialect) for block in plan.blocks]
    numbers = [describe(block) for block in blocks]
    shift = plan.find_shift(numbers)
    strict = plan.stricter_dialect(numbers, shift)
    if strict is not None:
        for block in plan.blocks:
            parse_block(block, strict)  # raises
    return blocks, plan.facts(numbers, shift), shift
