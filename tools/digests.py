"""Digests of a small simulated run of every run file: two checkouts with equal digests train alike.

The model's arrays and what the history says of rows, batches and metrics have a digest each, so
that a difference says where to look. Compare two checkouts::

    PYTHONPATH=OTHER python tools/digests.py > before
    PYTHONPATH=. python tools/digests.py | diff before -
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import daskxml
from daskxml.config import load_run_config, packaged_run_files
from daskxml.data.synthetic import SyntheticSpec, write_xml

DATA = SyntheticSpec(rows=1500, test_rows=200, features=300, labels=60, seed=5)
SPEEDS = {"a": 1.0, "b": 0.7, "c": 0.4}
CHOSEN = ("rows", "updates", "batch_rows", "lr", "weights", "metrics")  # of a row of the history


def digest(value: bytes) -> str:
    """Return the first half of a SHA-256."""
    return hashlib.sha256(value).hexdigest()[:16]


def of_arrays(arrays: Any) -> str:
    """Return the digest of a model's arrays, with their names, shapes and dtypes."""
    parts = []
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        parts.append(f"{name} {array.shape} {array.dtype}".encode() + array.tobytes())
    return digest(b"".join(parts))


def run(name: str, data: dict[str, Path]) -> str:
    """Return one line: the run file's name, and the digests of its model and its history."""
    packaged = load_run_config(name)
    small = {"training.epochs" if packaged.has_strategy else "training.trees": 2}
    pools = {"c": 2} if packaged.cluster.pools else {}
    found = daskxml.simulate(name, SPEEDS, pools=pools, overrides=small, **data)
    history = [{key: row.get(key) for key in CHOSEN} for row in found.history]
    text = json.dumps(history, sort_keys=True, default=str)
    return f"{name:<24}{of_arrays(found.model.parameters)}  {digest(text.encode())}"


def main(names: list[str]) -> None:
    """Print a line for each run file, or for those that are named."""
    with tempfile.TemporaryDirectory() as folder:
        data = {
            part: write_xml(Path(folder) / f"{part}.txt", DATA, part) for part in ("train", "test")
        }
        for name in names or sorted(packaged_run_files()):
            try:
                print(run(name, data), flush=True)
            except daskxml.DaskxmlError as error:
                print(f"{name:<24}{error}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
