"""Runs on a GPU that has less memory left than their batches need.

    pip install '.[cuda12]'
    python benchmarks/gpu/memory.py [--left-gib 6 3]

Generated rows with 200,000 labels are trained with batches of up to 8,192 rows, whose logits take
6.6 GB, first with all of the GPU's memory and then while another allocation leaves little of it.
The worker is told nothing of that: it has planned its batches before, and finds out in a step.
The result is ``benchmarks/results/gpu_memory.json``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import daskxml
from daskxml.cli import main as command

sys.path.append(str(Path(__file__).parent.parent))
from machine import write_result

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
    """Make the runs, and write what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--left-gib", type=float, nargs="+", default=[6.0, 3.0])
    options = parser.parse_args()
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except (ImportError, RuntimeError) as error:
        print(f"no GPU: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        sizes = {"--rows": ROWS, "--features": FEATURES, "--labels": LABELS}
        options_of = [text for pair in sizes.items() for text in map(str, pair)]
        command(["generate", f"{name}/train.txt", *options_of, "--test", f"{name}/test.txt"])
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
