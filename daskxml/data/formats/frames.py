"""Data frames of pandas with the columns of `tables`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from daskxml.core.errors import InputError
from daskxml.data.formats.tables import (
    BadRowError,
    Column,
    Lists,
    Parse,
    parse_table,
)
from daskxml.data.parse import Dialect


def read_frame(
    frame: Any, columns: Sequence[str], dialect: Dialect, parse: Parse = parse_table
) -> Any:
    """Return what is made of the rows of a frame.

    Raises
    ------
    InputError
        At the first row that is wrong, counted from 0.
    """
    try:
        table = {name: _column(frame[name], name) for name in columns}
        return parse(table, len(frame), dialect)
    except BadRowError as error:
        raise InputError(f"row {error.row}: {error.problem}") from None


def _column(series: Any, name: str) -> Column:
    is_null = series.isna().to_numpy()
    if is_null.any():
        row = int(np.argmax(is_null))
        raise BadRowError(row, f"{name!r} is null; fill it, or drop the row")
    array = series.to_numpy()
    if array.dtype.kind in "biuf":
        return array
    values = array.tolist()
    if not values:
        return np.empty(0, np.int64)
    if isinstance(values[0], str):
        for row, value in enumerate(values):
            if not isinstance(value, str):
                raise BadRowError(row, f"{name!r} holds {value!r}, which is no text, as others are")
            if value.startswith("["):
                problem = f"{name!r} holds a list that Dask has made a text"
                hint = "set dask.config 'dataframe.convert-string' to False before"
                raise BadRowError(row, f"{problem}: {hint}, or give Arrow's lists")
        return values
    return Lists.of([_as_list(value) for value in values], name)


def _as_list(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return list(value) if isinstance(value, tuple | set) else value
