"""Rows that are read and shuffled in this process."""

from collections.abc import Sequence

from daskxml.core.arrays import Array, Partition
from daskxml.data.reading import Facts, Recipe, count_block, matrix_facts
from daskxml.data.settings import DataSection
from daskxml.session.row_loading import (
    ParsedBlocks,
    TasksHere,
    make_shards,
    parse_files,
    run_here,
)


def read_here(data: DataSection) -> tuple[Sequence[Partition], Facts]:
    """Return the blocks of the training files, and their sizes."""
    parsed = run_here(parse_files(TasksHere(), data, "here"))
    return parsed.blocks, parsed.facts


def shuffle_here(
    blocks: Sequence[Partition], recipe: Recipe, weights: Array | None = None
) -> list[Partition]:
    """Return the partitions of parsed blocks."""
    counts = [count_block(block) for block in blocks]
    parsed = ParsedBlocks(blocks, counts, matrix_facts(counts, DataSection()))
    return make_shards(TasksHere(), parsed, recipe, "here", weights).parts
