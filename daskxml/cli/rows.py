"""The rows of a data file as a trained model reads them, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from daskxml.data.blocks import plan_blocks, read_header
from daskxml.data.faults import Dialect
from daskxml.data.parse import iterate_block
from daskxml.errors import InputError
from daskxml.model.trained import Model
from daskxml.types import Partition

BLOCK_BYTES = 16 << 20


def read_partitions(model: Model, paths: Sequence[str]) -> Iterator[Partition]:
    """Yield the rows of text files, with as many columns as the model has.

    Ids count from where the model's training files began; in files with a header, from 0.

    Raises
    ------
    InputError
        If a file cannot be read, is malformed, or has ids or a header that the model cannot take.
    """
    for block in plan_blocks(paths, BLOCK_BYTES):
        for parsed in iterate_block(block, _dialect(model, block.path)):
            yield parsed.partition


def _dialect(model: Model, path: str) -> Dialect:
    spec, written = model.spec, model.header
    header = read_header(path)
    if header is None:
        bases = {"feature_base": written.feature_base, "label_base": written.label_base}
        return Dialect(features=spec.features, labels=spec.labels, **bases)
    found, expected = (header.features, header.labels), (spec.features, spec.labels)
    if found != expected:
        problem = (
            f"its header has {found[0]} features and {found[1]} labels, the model has "
            f"{expected[0]} and {expected[1]}; give rows of the data set it was trained on"
        )
        raise InputError(problem, path, 1)
    return Dialect(features=spec.features, labels=spec.labels)
