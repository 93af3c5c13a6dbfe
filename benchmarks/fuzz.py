"""Fuzzing at length: a million inputs of the text parser, a hundred thousand of each other reader.

Every reader runs in a process of its own, and the results are written after each. A reader that
raises something unforeseen is in them by the last line of what it raised.

    python benchmarks/fuzz.py [--inputs 100000] [--text 1000000] [--first 0] [--jobs 1] [NAME ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from machine import write_result

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from fuzz.readers import READERS  # noqa: E402


def fuzz(reader: str, inputs: int, first: int) -> dict[str, Any]:
    """Fuzz one reader; return the row of the results."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    began_s = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "fuzz.readers", reader, str(inputs), str(first)],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}, check=False,
    )  # fmt: skip
    took_s = time.monotonic() - began_s
    row = {"reader": reader, "inputs": inputs, "refused": None, "seconds": round(took_s)}
    if ended.returncode:
        last = ended.stderr.strip().splitlines()[-1:] or [f"exit status {ended.returncode}"]
        return {**row, "unforeseen": last[0]}
    found = json.loads(ended.stdout.splitlines()[-1])
    return {**row, "refused": found["refused"], "unforeseen": None}


def main() -> None:
    """Fuzz, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="readers; all unless given")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--text", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--jobs", type=int, default=1, help="readers at a time")
    options = parser.parse_args()

    def row(name: str) -> dict[str, Any]:
        inputs = options.text if name == "text" else options.inputs
        return fuzz(name, inputs, options.first)

    rows = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for found in pool.map(row, options.names or READERS):
            rows.append(found)
            write_result("fuzz", rows, first=options.first)


if __name__ == "__main__":
    main()
