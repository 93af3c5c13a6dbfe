"""Digests of a small simulated run of every run file: two checkouts with equal digests train alike.

The model's arrays and what the history says of rows, batches and metrics have a digest each, so
that a difference says where to look. Compare two checkouts::

    PYTHONPATH=OTHER python tools/digests.py > before
    PYTHONPATH=. python tools/digests.py | diff before -

With ``--papers FOLDER``, where the real sets are, it is the beginning of runs of each figure of the
papers, drawn at random: where all of them are the same, the figures of OTHER are those of this
checkout, and ``same`` of ``benchmarks/results/index.toml`` names its commit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import daskxml
from daskxml.config import load_run_config, packaged_run_files
from daskxml.data.synthetic import SyntheticSpec, write_xml

DATA = SyntheticSpec(rows=1500, test_rows=200, features=300, labels=60, seed=5)
SPEEDS = {"a": 1.0, "b": 0.7, "c": 0.4}
DRAWN, MEGABATCHES = 2, 3  # runs of a figure, and of each so many
WITHOUT_RUNS = {"slide_speed", "fig01", "adasum_fig02", "adasum_table1"}
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


class Listed(Exception):  # noqa: N818 - an event, not an error
    """The runs of a figure are known."""


def jobs_of_papers(folder: Path) -> Iterator[tuple[str, Any, Any]]:
    """Yield some of the first runs of every figure: its name, the run, and what simulates it."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "papers"))
    import run
    import study

    def listed(jobs: Any, _: Path, simulate_one: Any = study._simulate) -> None:
        raise Listed([*dict.fromkeys(jobs)], simulate_one)

    for module in (study, run.adaptive, run.adasum, run.hogbatch):
        module.run_all = listed
    study.simulate = partial(daskxml.simulate, overrides={"training.megabatches": MEGABATCHES})
    for name in sorted(run.figures().keys() - WITHOUT_RUNS):
        given = run.figures()[name]
        figure = run.Figure(name=name, given=given, folder=folder, sets=given.get("sets", ()))
        try:
            run.KINDS[str(given["kind"])](figure)
        except Listed as found:
            jobs, simulate_one = found.args
            for job in random.Random(name).sample(jobs, min(DRAWN, len(jobs))):
                yield name, job, simulate_one


def of_papers(folder: Path) -> None:
    """Print a line for each run."""
    with tempfile.TemporaryDirectory() as cache:
        for name, job, simulate_one in jobs_of_papers(folder):
            import study

            study.CACHE = Path(cache)
            found = json.loads(simulate_one(job, folder)["path"].read_text("utf-8"))
            rows = [{**row, "trace": []} for row in found["history"]]  # its format may change
            text = json.dumps([rows, found["failed"]], sort_keys=True)
            print(f"{name:<20}{digest(text.encode())}  {job.label}", flush=True)


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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="run files")
    parser.add_argument("--papers", type=Path, metavar="FOLDER", help="runs of the papers' figures")
    chosen = parser.parse_args()
    of_papers(chosen.papers) if chosen.papers else main(chosen.names)
