"""Parsing speed of one core: daskxml beside scikit-learn and napkinXC, on the same file.

Run ``python benchmarks/speed/parser.py [--data FILE] [--repeats N]``. The readers take turns, so
that other load on the machine disturbs all of them; a reader's figure is the median of its turns.
"""

from __future__ import annotations

import argparse
import gzip
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from daskxml.data.blocks import read_header
from daskxml.data.formats import plan_files, read_block
from daskxml.data.parse import Dialect, parse_bytes

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import write_result

MB = 1e6
SHAPE = {"features": 32_335, "labels": 21_764, "mean_features": 23.7, "mean_labels": 2.1}


def generate(path: Path, size_bytes: int = 60_000_000, seed: int = 0) -> None:
    """Write rows shaped like nvd-product's: Zipf-distributed ids, TF-IDF values of six digits."""
    rng = np.random.default_rng(seed)
    lines: list[str] = []
    written = 0
    while written < size_bytes:
        labels = np.unique((SHAPE["labels"] ** rng.random(rng.geometric(1 / 2.1))).astype(int)) - 1
        wanted = max(1, rng.poisson(SHAPE["mean_features"]))
        features = np.unique((SHAPE["features"] * rng.random(wanted) ** 2).astype(int))
        values = rng.gamma(2.0, 0.1, features.size)
        pairs = (f"{f}:{v:.6g}" for f, v in zip(features, values, strict=True))
        lines.append(",".join(map(str, labels)) + " " + " ".join(pairs) + "\n")
        written += len(lines[-1])
    header = f"{len(lines)} {SHAPE['features']} {SHAPE['labels']}\n"
    path.write_text(header + "".join(lines))


def unpack(source: Path, path: Path) -> None:
    """Copy a file as plain text, so that every reader reads the same and none decompresses."""
    data = source.read_bytes()
    path.write_bytes(gzip.decompress(data) if source.suffix == ".gz" else data)


def find_readers(path: Path) -> dict[str, Callable[[], object]]:
    """Return the installed readers, each a function that reads the whole file."""
    header = read_header(str(path))
    dialect = Dialect(features=header.features, labels=header.labels) if header else Dialect()
    [block] = plan_files([str(path)], 1 << 40)
    text = path.read_bytes().partition(b"\n")[2] if header else path.read_bytes()
    readers: dict[str, Callable[[], object]] = {
        "daskxml, from the file": lambda: read_block(block, dialect),
        "daskxml, from memory": lambda: parse_bytes(text, dialect, blank_rows=header is not None),
    }
    add_sklearn(readers, path, header is not None)
    add_napkinxc(readers, path)
    return readers


def add_sklearn(readers: dict[str, Callable[[], object]], path: Path, header: bool) -> None:
    """Add scikit-learn's reader; it cannot parse a header, so it gets a file without one."""
    try:
        from sklearn.datasets import load_svmlight_file
    except ImportError:
        return
    offset = len(path.open("rb").readline()) if header else 0
    headless = path.with_suffix(".svm")
    headless.write_bytes(path.read_bytes()[offset:])
    readers["scikit-learn"] = lambda: load_svmlight_file(str(headless), multilabel=True)


def add_napkinxc(readers: dict[str, Callable[[], object]], path: Path) -> None:
    """Add napkinXC's reader if it is installed."""
    try:
        from napkinxc.datasets import load_libsvm_file
    except ImportError:
        return
    readers["napkinXC"] = lambda: load_libsvm_file(str(path), labels_format="list")


def measure(readers: dict[str, Callable[[], object]], repeats: int) -> dict[str, dict[str, float]]:
    """Return each reader's median wall-clock time and CPU time of this thread, taking turns."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in readers}
    for turn in range(repeats + 1):
        for name, read in readers.items():
            clock, busy = time.perf_counter(), time.thread_time()
            read()
            taken = time.perf_counter() - clock, time.thread_time() - busy
            if turn:  # the first turn compiles and fills caches
                spent[name].append(taken)
    return {
        name: {
            "wall_s": statistics.median(wall for wall, _ in turns),
            "busy_s": statistics.median(busy for _, busy in turns),
        }
        for name, turns in spent.items()
    }


def measure_threads(text: bytes, threads: int, repeats: int) -> float:
    """Return the time in which each of the threads parses the text once (without the GIL)."""
    taken = []
    for _ in range(repeats):
        workers = [threading.Thread(target=parse_bytes, args=(text,)) for _ in range(threads)]
        clock = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        taken.append(time.perf_counter() - clock)
    return statistics.median(taken)


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a file with or without header, plain or .gz")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.txt"
        unpack(options.data, path) if options.data else generate(path)
        seconds = measure(find_readers(path), options.repeats)
        size_mb = path.stat().st_size / MB
        text = path.read_bytes().partition(b"\n")[2]
        cores = len(os.sched_getaffinity(0))
        alone, together = (measure_threads(text, n, options.repeats) for n in (1, cores))
    ours = seconds["daskxml, from the file"]["wall_s"]
    rows = [
        {
            "reader": name,
            "MB/s": size_mb / taken["wall_s"],
            "MB/s of CPU time": size_mb / taken["busy_s"],
            "daskxml is faster by": taken["wall_s"] / ours,
        }
        for name, taken in seconds.items()
    ]
    scaling = cores * alone / together
    write_result("parser", rows, size_mb=size_mb, data=options.data and options.data.name,
                 threads=cores, thread_speedup=scaling)  # fmt: skip
    print(f"{cores} threads parse {scaling:.2f} times as much as one")


if __name__ == "__main__":
    main()
