"""Rows that are read and shuffled in this process."""

from __future__ import annotations

from collections.abc import Sequence

from daskxml.core.arrays import Array, Partition
from daskxml.data.reading import DataSource, Facts, Recipe, count_block, matrix_facts
from daskxml.session.row_loading import (
    ParsedBlocks,
    TasksHere,
    make_shards,
    parse_source,
    run_here,
)


def read_here(source: DataSource) -> tuple[Sequence[Partition], Facts, int]:
    """Return the blocks of a source, their sizes, and what is still subtracted from feature ids."""
    parsed = run_here(parse_source(TasksHere(), source, "here"))
    return parsed.blocks, parsed.facts, parsed.shift


def shuffle_here(
    blocks: Sequence[Partition], recipe: Recipe, weights: Array | None = None
) -> list[Partition]:
    """Return the partitions of parsed blocks."""
    counts = [count_block(block) for block in blocks]
    parsed = ParsedBlocks(blocks, counts, matrix_facts(counts, DataSource(paths=())), recipe.shift)
    return make_shards(TasksHere(), parsed, recipe, "here", weights).futures
