"""Where a benchmark ran, and how its results are shown and kept."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(os.environ.get("DASKXML_RESULTS") or Path(__file__).parent / "results")
PACKAGES = ("numpy", "scipy", "numba", "dask", "distributed", "torch", "scikit-learn", "napkinxc")


def machine() -> dict[str, Any]:
    """Describe the machine, its software and the commit measured."""
    return {
        "cpu": read_field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "os": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in PACKAGES if version_of(name)},
        "blas": find_blas(),
        "commit": read_commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def read_field(path: str, name: str) -> str | None:
    """The first value of a ``name : value`` line of a file, or None."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    values = (line.partition(":")[2].strip() for line in lines if line.startswith(name))
    return next(values, None)


def version_of(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def find_blas() -> list[str]:
    """The BLAS libraries that NumPy and SciPy have loaded, with their threads."""
    import numpy as np  # loads its BLAS
    from threadpoolctl import threadpool_info

    assert np
    return [
        f"{pool['internal_api']} {pool['version']}, {pool['num_threads']} threads"
        for pool in threadpool_info()
        if pool["user_api"] == "blas"
    ]


def read_commit() -> str | None:
    """The commit checked out, with ``+`` where more than results differ; None outside of git."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        result = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True)
        return result.stdout.strip() if result.returncode == 0 else ""

    commit = git("rev-parse", "HEAD")
    changes = git("status", "--porcelain", "--", ":/", ":(top,exclude)benchmarks/results")
    return commit + "+" * bool(changes) if commit else None


def write_result(name: str, rows: Sequence[Mapping[str, Any]], **extra: Any) -> Path:
    """Print the rows as a table; write them, with the machine, to ``results/<name>.json``.

    ``DASKXML_RESULTS`` names another folder.

    Parameters
    ----------
    name
        Of the benchmark.
    rows
        Mappings with the same keys, which become the columns.
    extra
        Anything else to keep, such as the parameters.
    """
    print("\n".join(align(rows)), flush=True)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    found = {"benchmark": name, **extra, "rows": list(rows), "machine": machine()}
    path.write_text(json.dumps(found, indent=2) + "\n")
    return path


def align(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The rows as lines of a table: numbers to the right, words to the left.

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
    """A cell: four significant digits for a fraction, a dash for None."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if value >= 1e4 or abs(value) < 1e-3 else f"{value:#.4g}"
    return str(value)


if __name__ == "__main__":
    print(json.dumps(machine(), indent=2))
