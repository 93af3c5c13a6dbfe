"""Copies between a GPU and the host's memory: into new pages, used ones and page-locked ones.

    python benchmarks/gpu/pinned.py

The result is ``benchmarks/results/gpu_pinned.json``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parent.parent))
from machine import write_result

SIZES_MIB = 1, 8, 64
TIMES = 20


def milliseconds(wait: Callable[[], Any], work: Callable[[], Any]) -> float:
    """Return the mean of several in a row, after one that does not count."""
    work()
    wait()
    begun_s = time.perf_counter()
    for _ in range(TIMES):
        work()
    wait()
    return round((time.perf_counter() - begun_s) / TIMES * 1e3, 3)


def main() -> int:
    """Measure all sizes, and write what came of them."""
    try:
        import cupy
        from cupyx import empty_pinned

        wait = cupy.cuda.Device().synchronize
    except (ImportError, RuntimeError) as error:
        print(f"no GPU: {error}", file=sys.stderr)
        return 2
    rows = []
    for mib in SIZES_MIB:
        there = cupy.ones(mib << 18, "float32")
        used, pinned = np.ones(there.shape, "float32"), empty_pinned(there.shape, "float32")
        ways: dict[str, Callable[[], Any]] = {
            "to new pages": there.get,
            "to used pages": lambda a=there, b=used: a.get(out=b),
            "to page-locked": lambda a=there, b=pinned: a.get(out=b),
            "to new page-locked": lambda a=there: a.get(out=empty_pinned(a.shape, a.dtype)),
            "from used pages": lambda a=there, b=used: a.set(b),
            "from page-locked": lambda a=there, b=pinned: a.set(b),
        }
        times = {f"{name} ms": milliseconds(wait, work) for name, work in ways.items()}
        rows.append({"MiB": mib, **times})
    write_result("gpu_pinned", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
