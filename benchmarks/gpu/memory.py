"""Copies between a GPU and the host's memory, and runs on a GPU that has little memory left.

    pip install '.[cuda12]'
    python benchmarks/gpu/memory.py [--left-gib 6 3]

Generated rows with 200,000 labels are trained with batches of up to 8,192 rows, whose logits take
6.6 GB, first with all of the GPU's memory and then while another allocation leaves little of it.
The worker has planned its batches before, and runs out of memory in a step.
The results are ``gpu_pinned.json`` and ``gpu_memory.json`` in ``benchmarks/results/``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import daskxml
from daskxml.data.synthetic import SyntheticSpec, write_xml

sys.path.insert(0, str(Path(__file__).parents[1]))

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


def copies() -> None:
    """Measure copies of all sizes, and write the table."""
    import cupy
    from cupyx import empty_pinned

    wait = cupy.cuda.Device().synchronize
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


ROWS, FEATURES, LABELS = 60_000, 50_000, 200_000
OVERRIDES = {
    "checkpoint.every": 0, "cluster.device": "cuda", "cluster.workers": 1, "cluster.rmm_pool": 0.0,
    "training.logits_budget": "8GiB", "strategy.batch_max": 8192, "strategy.batch_min": 64,
    "training.epochs": 2,
}  # fmt: skip


def train(folder: Path) -> dict[str, Any]:
    """Train once; P@1, rows, and the batch that each lack of memory has left."""
    files = {part: str(folder / f"{part}.txt") for part in ("train", "test")}
    run = daskxml.train("adaptive-sgd", **files, overrides=OVERRIDES)
    events = [event for row in run.history for event in row.get("events", ())]
    lowered = [event["batch_rows"] for event in events if event["kind"] == "memory"]
    return {
        "P@1": round(run.metrics["P@1"], 4),
        "rows": run.history[-1]["rows"],
        "batches lowered to": ", ".join(map(str, lowered)) or None,
    }


def main() -> int:
    """Measure copies and make the runs; write what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--left-gib", type=float, nargs="+", default=[6.0, 3.0])
    options = parser.parse_args()
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except (ImportError, RuntimeError) as error:
        print(f"no GPU: {error}", file=sys.stderr)
        return 2
    copies()
    with tempfile.TemporaryDirectory() as name:
        spec = SyntheticSpec(rows=ROWS, test_rows=ROWS // 6, features=FEATURES, labels=LABELS)
        for part in ("train", "test"):
            write_xml(Path(name, f"{part}.txt"), spec, part)
        rows = [{"left GiB": None, **train(Path(name))}]
        for left in options.left_gib:
            free, _ = cupy.cuda.runtime.memGetInfo()
            taken = cupy.cuda.runtime.malloc(int(free - left * 2**30))
            rows.append({"left GiB": left, **train(Path(name))})
            cupy.cuda.runtime.free(taken)
    write_result("gpu_memory", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
