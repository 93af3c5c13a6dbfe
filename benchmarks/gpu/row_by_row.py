"""Rows of a benchmark that needs a GPU, written as they come: what was measured stays."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from daskxml.core.errors import ConfigError
from daskxml.kernels import get_kernels

sys.path.append(str(Path(__file__).parent.parent))
from machine import align, write_result


def write_each(name: str, rows: Iterable[Mapping[str, Any]], device: str) -> int:
    """Write ``results/NAME.json`` anew after each row; return the exit status.

    Without a GPU that is 2, after a line that says so. On the device ``cpu``, which tries a script
    out, rows are printed only.
    """
    if device == "cuda":
        try:
            get_kernels("cuda", 1).close()
        except ConfigError as error:
            print(f"nothing is measured: {error}", file=sys.stderr)
            return 2
    found: list[Mapping[str, Any]] = []
    for row in rows:
        found.append(row)
        columns = dict.fromkeys(column for each in found for column in each)
        table = [{column: each.get(column) for column in columns} for each in found]
        if device == "cuda":
            write_result(name, table)
        else:
            print("\n".join(align(table)), flush=True)
    return 0
