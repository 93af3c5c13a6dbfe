"""Finished simulations on disk, and those that are missing, one on every core of this process.

A file for each run holds its history, under a key of everything that decides it: the resolved
configuration, the speeds, the costs, the network, the data's name and daskxml's version. So figures
share runs, and a study that was broken off goes on where it was.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import daskxml
from daskxml.api.simulate import simulate
from daskxml.config import RunConfig
from daskxml.core.errors import TrainingError
from daskxml.local import Rows, read_rows
from study import CACHE, DATA, Job, cost_of, network_of, resolve

PROCESSES = len(os.sched_getaffinity(0))
History = list[dict[str, Any]]


@functools.lru_cache(maxsize=2)
def _rows(data: str, folder: Path, validates: bool) -> Rows:
    """Read a set; the same rows in the same order for any number of workers."""
    job = Job(data=data, algorithm="elastic", lr=1.0, validates=validates)
    return read_rows(resolve(job, folder), len(job.worker_speeds))


def _key(job: Job, config: RunConfig, decides: dict[str, Any]) -> Path:
    return run_file(DATA[job.data].name, config, decides)


def run_file(data: str, config: RunConfig, decides: dict[str, Any]) -> Path:
    """Return where a run on the set of that name is kept, by all that decides it."""
    tables = config.as_dict()
    tables["data"] |= {"train": data, "test": "", "card": ""}  # not where it lies
    tables["run"]["name"] = ""
    text = json.dumps([tables, decides, daskxml.__version__], sort_keys=True)
    return CACHE / "runs" / data / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def find(job: Job, folder: Path) -> tuple[Path, RunConfig, dict[str, Any]]:
    """Return the file of a run, its configuration, and what else `simulate` needs."""
    config, rows = resolve(job, folder), _rows(job.data, folder, job.validates)
    cost, network = cost_of(job, rows), network_of(config, rows, job.slowdown)
    decides = {
        "speeds": job.worker_speeds,
        "cost": dataclasses.asdict(cost),
        "network": dataclasses.asdict(network),
        "synthetic": dataclasses.asdict(spec) if (spec := DATA[job.data].synthetic) else None,
    }
    path = _key(job, config, decides)
    return path, config, {"speeds": job.worker_speeds, "cost": cost, "network": network}


def _simulate(job: Job, folder: Path) -> dict[str, Any]:
    """Return a run's history, from the cache if it is there."""
    path, config, given = find(job, folder)
    return keep(job, path, config, rows=_rows(job.data, folder, job.validates), **given)


def keep(job: Any, path: Path, config: RunConfig, **given: Any) -> dict[str, Any]:
    """Simulate a run, unless its file is there, and write its history.

    Parameters
    ----------
    job
        Any dataclass with a ``label``.
    path, config
        Of the run.
    given
        The other arguments of `simulate`.
    """
    if path.exists():
        return {"job": job, "path": path, "took_s": 0.0}
    begun_s = time.perf_counter()
    found: dict[str, Any] = {"label": job.label, "job": dataclasses.asdict(job)}
    history: History = []
    try:
        simulate(config, on_megabatch=lambda row: history.append(slim(row)), **given)
        found["failed"] = ""
    except TrainingError as error:
        found["failed"] = str(error)
    found["history"], found["took_s"] = history, time.perf_counter() - begun_s
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(found))
    partial.replace(path)
    return {"job": job, "path": path, "took_s": found["took_s"]}


def slim(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the history without the places of its rows."""
    workers = {
        name: {key: value for key, value in worker.items() if key != "leases"}
        for name, worker in row["workers"].items()
    }
    return {**row, "workers": workers}


def run_all(
    jobs: Sequence[Any],
    folder: Path,
    simulate_one: Callable[[Any, Path], dict[str, Any]] = _simulate,
) -> dict[Any, History]:
    """Simulate what is missing; return the histories of all.

    A run whose weights did not stay finite has the history up to there.

    Parameters
    ----------
    simulate_one
        Returns what `keep` does; jobs of other studies have one of their own.
    """
    jobs = list(dict.fromkeys(jobs))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"  # inherited by the processes
    paths: dict[Any, Path] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        futures = [pool.submit(simulate_one, job, folder) for job in jobs]
        for number, future in enumerate(as_completed(futures), 1):
            done = future.result()
            paths[done["job"]] = done["path"]
            took = f"{done['took_s']:.0f} s" if done["took_s"] else "known"
            print(f"{number}/{len(jobs)}  {done['job'].label}  {took}", flush=True)
    return {job: json.loads(paths[job].read_text())["history"] for job in jobs}
