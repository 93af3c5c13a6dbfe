"""Text files to parsed blocks on the workers, as Dask tasks; nothing large passes the caller.

A block of text is a task; what comes back to the caller is a few numbers that describe it.
`daskxml.data.shuffle` makes partitions of the blocks. A block or a partition that is lost with its
worker is read again by Dask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distributed import Client, Future, wait

from daskxml.data.blocks import Block
from daskxml.data.faults import Dialect
from daskxml.data.parse import parse_block
from daskxml.data.reading import (
    Facts,
    Numbers,
    Plan,
    Source,
    describe,
    describe_matrices,
    plan_source,
)

__all__ = ["Facts", "Parsed", "Source", "describe_blocks", "parse_source", "settle"]


@dataclass(frozen=True)
class Parsed:
    """Blocks on the workers, in the order of the files; ``shift`` is still to be subtracted."""

    blocks: list[Future]
    block_rows: list[int]
    facts: Facts
    shift: int


async def parse_source(client: Client, source: Source, name: str) -> Parsed:
    """Read and parse all files of a source, a block a task.

    Raises
    ------
    InputError
        The first problem in the order of the files.
    """
    plan: Plan = await client.submit(plan_source, source, key=f"plan-{name}", pure=False)
    parsed, numbers = await _parse(client, plan.blocks, plan.dialect, name)
    shift = plan.find_shift(numbers)
    strict = plan.stricter_dialect(numbers, shift)
    if strict is not None:
        await _parse(client, plan.blocks, strict, f"check-{name}")  # raises
    facts = plan.facts(numbers, shift)
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
    facts = describe_matrices(numbers, source)
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
