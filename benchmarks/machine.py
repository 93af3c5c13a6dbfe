"""The machine that a benchmark ran on, and the table and file of its results."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from daskxml.core.hardware import find_gpus, versions
from daskxml.records.environment import describe

RESULTS = Path(os.environ.get("DASKXML_RESULTS") or Path(__file__).parent / "results")
PACKAGES = ("numpy", "scipy", "numba", "dask", "distributed", "torch", "scikit-learn", "napkinxc")
ROOT = Path(__file__).parents[1]
DESCRIBED = ("cpu", "cores", "memory_gib", "os", "python", "commit", "date")


def machine() -> dict[str, Any]:
    """Describe the machine, its software and the commit measured."""
    found = describe()
    described = {name: found[name] for name in DESCRIBED}
    described["gpus"] = [f"{gpu.name}, driver {gpu.driver}" for gpu in find_gpus()]
    described["sources"] = sources_digest(("daskxml", "benchmarks"))
    load = round(os.getloadavg()[0], 2)
    return {**described, "load": load, "packages": versions(PACKAGES), "blas": find_blas()}


@functools.cache
def sources_digest(paths: tuple[str, ...], root: Path = ROOT) -> str:
    """Return twelve digits that change with the content of files, and of folders' sources.

    Parameters
    ----------
    paths
        Relative to ``root``; a path that is not there counts as an empty folder.
    """
    found = hashlib.sha256()
    for path in sorted(paths):
        place = root / path
        files = [place] if place.is_file() else sorted(place.rglob("*"))
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                found.update(file.relative_to(root).as_posix().encode() + b"\0")
                found.update(hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()[:12]


def find_blas() -> list[str]:
    """Return the BLAS libraries that NumPy and SciPy have loaded, with their threads."""
    import numpy as np  # loads its BLAS
    from threadpoolctl import threadpool_info

    assert np
    return [
        f"{pool['internal_api']} {pool['version']}, {pool['num_threads']} threads"
        for pool in threadpool_info()
        if pool["user_api"] == "blas"
    ]


def anonymous_mib() -> float:
    """Return this process's memory that no file holds."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def write_result(name: str, rows: Sequence[Mapping[str, Any]], **extra: Any) -> Path:
    """Print the rows as a table; write them, with the machine, to ``results/<name>.json``.

    Lists are written and not printed. ``DASKXML_RESULTS`` names another folder.

    Parameters
    ----------
    name
        Of the benchmark.
    rows
        Mappings with the same keys, which become the columns.
    extra
        More to keep, such as the parameters.
    """
    shown = [{k: v for k, v in row.items() if not isinstance(v, list)} for row in rows]
    print("\n".join(align(shown)), flush=True)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    found = {"benchmark": name, **extra, "rows": list(rows), "machine": machine()}
    path.write_text(json.dumps(found, indent=2) + "\n")
    return path


def with_earlier(name: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows, marked with the time and the load, after those that a result file has.

    For times that differ from day to day. Of earlier ones the last two measurements are kept.
    """
    described = describe()
    now = {"measured": described["date"][:16].replace("T", " "), "load": os.getloadavg()[0]}
    try:
        before = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    except (OSError, ValueError):
        before = []
    kept = sorted({row["measured"] for row in before})[-2:]
    return [*(row for row in before if row["measured"] in kept), *({**now, **row} for row in rows)]


def align(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return rows as lines of a table, numbers aligned to the right, text to the left.

    Examples
    --------
    >>> align([{"reader": "ours", "MB/s": 812.4}, {"reader": "theirs", "MB/s": 31.0}])
    ['reader   MB/s', 'ours    812.4', 'theirs  31.00']
    """
    if not rows:
        return []
    names = list(rows[0])
    cells = [names, *([spell(row.get(name)) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    is_number = [isinstance(rows[0].get(name), int | float) for name in names]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, is_number, strict=True)
        ).rstrip()
        for line in cells
    ]


def spell(value: Any) -> str:
    """Return a cell: four significant digits for a fraction, a dash for None."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if value >= 1e4 or abs(value) < 1e-3 else f"{value:#.4g}"
    return str(value)


if __name__ == "__main__":
    print(json.dumps(machine(), indent=2))
