"""Text files to parsed blocks on the workers, as Dask tasks; nothing large passes the caller.

A block of text is a task; what comes back to the caller is a few numbers that describe it.
`daskxml.data.shuffle` makes partitions of the blocks. A block or a partition that is lost with its
worker is read again by Dask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from distributed import Client, Future, wait

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


@dataclass(frozen=True)
class Parsed:
    """Blocks on the workers, in the order of the files; ``shift`` is still to be subtracted."""

    blocks: list[Future]
    block_rows: list[int]
    facts: Facts
    shift: int


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


async def parse_source(client: Client, source: Source, name: str) -> Parsed:
    """Read and parse all files of a source, a block a task.

    Raises
    ------
    InputError
        The first problem in the order of the files.
    """
    blocks, headers = await client.submit(_plan, source, key=f"plan-{name}", pure=False)
    _check_columns(source, headers)
    dialect = _dialect(source, headers)
    parsed, numbers = await _parse(client, blocks, dialect, name)
    _check_rows(blocks, numbers, headers)
    shift = 0
    if not headers and source.feature_base == "auto":
        shift = detect_feature_base(min((n.least for n in numbers if n.least >= 0), default=None))
        if source.features and max(n.features for n in numbers) - shift > source.features:
            strict = replace(dialect, features=source.features, feature_base=shift)
            await _parse(client, blocks, strict, f"check-{name}")  # names the file and the line
    facts = _facts(dialect, numbers, source.features, shift)
    if not facts.rows:
        raise InputError("no rows in the file; give one with data", ", ".join(source.paths))
    return Parsed(parsed, [n.rows for n in numbers], facts, shift)


async def describe_blocks(
    client: Client, blocks: list[Future], source: Source, name: str
) -> Parsed:
    """Take blocks that are on the workers already, such as a user's matrices.

    Raises
    ------
    InputError
        If they have no row, or more columns than ``source`` says.
    """
    numbers = await _describe(client, blocks, name)
    facts = _facts(Dialect(), numbers, source.features, 0)
    for what, found, given in (
        ("features", max(n.features for n in numbers), source.features),
        ("labels", facts.labels, source.labels),
    ):
        if given and found > given:
            raise InputError(f"a matrix has {found} {what}, but the model has {given}")
    if not facts.rows:
        raise InputError("the matrices have no rows")
    return Parsed(blocks, [n.rows for n in numbers], facts, 0)


async def _parse(
    client: Client, blocks: Sequence[Block], dialect: Dialect, name: str
) -> tuple[list[Future], list[Numbers]]:
    parsed = [
        client.submit(parse_block, block, dialect, key=f"parse-{name}-{i}", pure=False)
        for i, block in enumerate(blocks)
    ]
    return parsed, await _describe(client, parsed, name)


async def _describe(client: Client, blocks: list[Future], name: str) -> list[Numbers]:
    numbers = [
        client.submit(describe, block, key=f"describe-{name}-{i}", pure=False)
        for i, block in enumerate(blocks)
    ]
    return await gather_in_order(client, numbers)


async def gather_in_order(client: Client, futures: Sequence[Future]) -> list[Any]:
    """Return all results, or raise the error of the first future in the list that failed."""
    await settle(futures)
    return list(await client.gather(list(futures)))


async def settle(futures: Sequence[Future]) -> None:
    """Wait until all are computed, and leave them where they are; raise the first error."""
    await wait(futures)
    for future in futures:
        if future.status == "error":
            raise await future.exception()


def _plan(source: Source) -> tuple[list[Block], dict[str, Header]]:
    blocks = plan_blocks(source.paths, source.block_bytes)
    paths = list(dict.fromkeys(block.path for block in blocks))
    if source.format == "libsvm":
        return blocks, {}
    read = {path: read_header(path) for path in paths}
    headers = {path: header for path, header in read.items() if header is not None}
    missing = [path for path in paths if path not in headers]
    if missing and (headers or source.format == "xml"):
        problem = "no header 'rows features labels' on the first line, as the other files have"
        raise InputError(problem if headers else problem.split(",")[0], missing[0], 1)
    return blocks, headers


def _check_columns(source: Source, headers: dict[str, Header]) -> None:
    for path, header in headers.items():
        for what in ("features", "labels"):
            found, known = getattr(header, what), getattr(source, what)
            if known and found > known:
                problem = f"its header has {found} {what}, but the model has {known}"
                raise InputError(f"{problem}; give rows of the same data set", path, 1)


def _dialect(source: Source, headers: dict[str, Header]) -> Dialect:
    """What the parser checks ids against; a base still to be found out is read as zero."""
    is_open = not headers and source.feature_base == "auto"
    features = source.features or max((h.features for h in headers.values()), default=0)
    labels = source.labels or max((h.labels for h in headers.values()), default=0)
    return Dialect(
        features=None if is_open else features or None,
        labels=labels or None,
        feature_base=0 if headers or is_open else int(source.feature_base),
        label_base=0 if headers else source.label_base,
    )


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


def _facts(dialect: Dialect, numbers: Sequence[Numbers], features: int, shift: int) -> Facts:
    return Facts(
        rows=sum(n.rows for n in numbers),
        features=features or max(n.features for n in numbers) - shift,
        labels=max(n.labels for n in numbers),
        nonzeros=sum(n.nonzeros for n in numbers),
        label_nonzeros=sum(n.label_nonzeros for n in numbers),
        nbytes=sum(n.nbytes for n in numbers),
        feature_base=shift or dialect.feature_base,
    )
