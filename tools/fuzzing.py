"""Fuzzing at length: a million inputs of the text parser, a hundred thousand of each other reader.

The readers take turns, some inputs at a time, and the results are written after each turn: they
say how many inputs each reader has had. What a reader raises beside an error of daskxml is in
them, with the number that repeats the input; the reader goes on behind it.

    PYTHONPATH=tests python tools/fuzzing.py [--inputs 100000] [--text 1000000] \
        [--jobs 1]
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from fuzz.readers import READERS, UnforeseenError, fuzz, write_good_run

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from machine import write_result

TURN = 5000  # inputs
folder = tempfile.TemporaryDirectory()  # of this process
run = Path(folder.name) / "run"


def take_turn(reader: str, inputs: int, first: int) -> tuple[str, int, int, float, list[str]]:
    """Fuzz one reader; return its name, inputs, how many were refused, seconds and failures."""
    if not run.exists():
        write_good_run(run)
    began_s, number, refused, failures = time.process_time(), first, 0, []
    while number < first + inputs:
        try:
            refused += fuzz(READERS[reader], first + inputs - number, number, run)
            break
        except UnforeseenError as error:
            failures.append(str(error))
            number = error.number + 1
    return reader, inputs, refused, time.process_time() - began_s, failures


def main() -> None:
    """Fuzz, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--text", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    wanted = dict.fromkeys(READERS, options.inputs) | {"text": options.text}
    rounds = -(-options.inputs // TURN)
    rows: dict[str, dict[str, Any]] = {
        name: {"reader": name, "inputs": 0, "refused": 0, "CPU s": 0.0, "unforeseen": []}
        for name in READERS
    }
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        turns = [
            pool.submit(take_turn, name, inputs // rounds, number * (inputs // rounds))
            for number in range(rounds)
            for name, inputs in wanted.items()
        ]
        for turn in as_completed(turns):
            name, inputs, refused, spent_s, failures = turn.result()
            row = rows[name]
            row["inputs"] += inputs
            row["refused"] += refused
            row["CPU s"] += spent_s
            row["unforeseen"] += failures
            write_result("fuzz", list(rows.values()), wanted=wanted)


if __name__ == "__main__":
    main()
