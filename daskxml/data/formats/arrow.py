"""Parquet and Arrow files with the columns of `tables`, by pyarrow.

Blocks are row groups of a Parquet file, and record batches of an Arrow file (``.feather`` of
version 2 as well); a stream of batches cannot be entered in the middle, and is one block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import numpy as np

from daskxml.core.errors import ConfigError, InputError
from daskxml.data.blocks import Block, Header, open_file
from daskxml.data.formats.tables import (
    BadRowError,
    Column,
    Lists,
    Parse,
    columns_to_read,
    dense_header,
    parse_table,
)
from daskxml.data.parse import Dialect

_BATCH_ROWS = 1 << 16  # parsed at a time


def read_parquet_header(path: str) -> Header | None:
    """Return the number of columns of a dense table; see `Format.header`."""
    with _parquet(path) as file:
        return dense_header(file.schema_arrow.names)


def cut_parquet(path: str, block_bytes: int) -> list[Block]:
    """Cut a file into blocks of consecutive row groups; see `Format.cut`."""
    with _parquet(path) as file:
        groups = file.metadata.num_row_groups
        sizes = [file.metadata.row_group(group).total_byte_size for group in range(groups)]
    starts = np.append(0, np.cumsum(sizes))[:-1]
    blocks = []
    for _, members in groupby(range(groups), key=lambda group: starts[group] // block_bytes):
        first, *rest = members
        blocks.append(Block(path, first, [first, *rest][-1] + 1, format="parquet"))
    return blocks or [Block(path, 0, 0, format="parquet")]


def read_parquet(block: Block, dialect: Dialect, parse: Parse = parse_table) -> Iterator[Any]:
    """Parse row groups; see `Format.read`."""
    assert block.stop is not None
    with _parquet(block.path) as file:
        names = columns_to_read(file.schema_arrow.names, dialect)
        groups = range(block.start, block.stop)
        before = range(block.start)
        row = sum(file.metadata.row_group(group).num_rows for group in before)
        batches = file.iter_batches(_BATCH_ROWS, row_groups=list(groups), columns=names)
        yield from _parse(batches if groups else (), row, dialect, block.path, parse)


def read_arrow_header(path: str) -> Header | None:
    """Return the number of columns of a dense table; see `Format.header`."""
    with _arrow(path) as file:
        return dense_header(file.schema.names)


def cut_arrow(path: str, block_bytes: int) -> list[Block]:
    """Cut a file into blocks of as many record batches; see `Format.cut`."""
    with open_file(path) as opened, _arrow(path) as file:
        if not hasattr(file, "num_record_batches"):
            return [Block(path, 0, None, format="arrow")]
        batches, nbytes = file.num_record_batches, opened.seek(0, 2)
    step = max(1, batches * block_bytes // max(1, nbytes))
    starts = range(0, max(1, batches), step)
    return [Block(path, start, min(start + step, batches), format="arrow") for start in starts]


def read_arrow(block: Block, dialect: Dialect, parse: Parse = parse_table) -> Iterator[Any]:
    """Parse record batches; see `Format.read`."""
    with _arrow(block.path) as file:
        names = columns_to_read(file.schema.names, dialect)
        if block.stop is None:
            batches: Any = file
            row = 0
        else:
            row = sum(file.get_batch(number).num_rows for number in range(block.start))
            batches = (file.get_batch(number) for number in range(block.start, block.stop))
        selected = (batch.select(names) for batch in batches)
        yield from _parse(selected, row, dialect, block.path, parse)


@contextmanager
def _parquet(path: str) -> Iterator[Any]:
    pyarrow = _pyarrow(path)
    with open_file(path) as file, _errors_explained(pyarrow, path, "Parquet"):
        yield pyarrow.parquet.ParquetFile(file)


@contextmanager
def _arrow(path: str) -> Iterator[Any]:
    """Open a file of record batches, or a stream of them."""
    pyarrow = _pyarrow(path)
    with open_file(path) as file, _errors_explained(pyarrow, path, "Arrow"):
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        yield pyarrow.ipc.open_file(file) if is_file else pyarrow.ipc.open_stream(file)


@contextmanager
def _errors_explained(pyarrow: Any, path: str, kind: str) -> Iterator[None]:
    try:
        yield
    except (MemoryError, OverflowError):
        problem = f"a part of it is larger than the memory, or its {kind} is damaged"
        raise InputError(f"{problem}: write it in smaller parts", path) from None
    except (pyarrow.ArrowException, OSError) as error:
        told = " ".join(str(error).split())[:120]
        problem = f"not a whole {kind} file ({told}); fetch or write it again"
        raise InputError(problem, path) from None
    except InputError as error:
        raise InputError(error.problem, path, error.line) from None


def _pyarrow(path: str) -> Any:
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        need = f"{path}: Parquet and Arrow files need pyarrow: pip install 'daskxml[parquet]'"
        raise ConfigError(need) from error
    return pyarrow


def _parse(batches: Any, first: int, dialect: Dialect, path: str, parse: Parse) -> Iterator[Any]:
    """Parse batches of rows, of which the first is row ``first`` of the file."""
    for batch in batches:
        batch.validate(full=True)  # damaged offsets would be followed out of the memory
        try:
            table = {name: _column(batch.column(name), name) for name in batch.schema.names}
            yield parse(table, batch.num_rows, dialect)
        except BadRowError as error:
            raise InputError(f"row {first + error.row}: {error.problem}", path) from None
        first += batch.num_rows


def _column(array: Any, name: str) -> Column:
    """Return an Arrow array without nulls as a column."""
    import pyarrow
    from pyarrow import types

    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise BadRowError(row, f"{name!r} is null; fill it, or drop the row")
    if _holds_texts(array):
        return list(array.to_pylist())
    if types.is_fixed_size_list(array.type):
        array = array.cast(pyarrow.list_(array.type.value_type))
    if not (types.is_list(array.type) or types.is_large_list(array.type)):
        return _numbers(array, name)
    offsets = array.offsets.to_numpy().astype(np.int64)
    items = array.flatten()
    lists = Lists(offsets - offsets[0], None)
    if types.is_dictionary(items.type):
        items = items.dictionary_decode()
    if items.null_count:
        place = int(np.argmax(items.is_null().to_numpy(zero_copy_only=False)))
        raise BadRowError(lists.row_of(place), f"{name!r} holds a null; fill it, or drop the row")
    if _holds_texts(items):
        return Lists(lists.indptr, items.to_pylist())
    return Lists(lists.indptr, _numbers(items, name))


def _holds_texts(array: Any) -> bool:
    return str(array.type) in ("string", "large_string", "string_view")


def _numbers(array: Any, name: str) -> Any:
    from pyarrow import types

    kind = array.type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        if not len(array):
            return np.empty(0, np.int64)
        raise BadRowError(0, f"column {name!r} is of type {kind}: give numbers, texts, or lists")
    return array.to_numpy(zero_copy_only=False)
