"""Runs of the cluster's own code under simulated faults, and how many planted faults they find.

Each run has a seed, from which its settings, its faults and all chance follow: see
`tests/harness/faults`. The first run in which an invariant does not hold ends it, with the line
that repeats it and the least of its faults that leads to it, in words. With ``--planted`` the
product is changed, one fault at a time: each run is made once as it is, and once more with each
fault that was not found yet and whose statement it has reached. As many runs go on at once as there
are cores. Needs greenlet (``daskxml[test]``).

    PYTHONPATH=tests python benchmarks/quality/simulated_faults.py 1000 [--seed 0] [--planted] \
    [--result]

``--minutes`` ends it early. With ``--result`` both go on where the result file ends: runs as a new
stretch, with the commit that it was made of, and planted faults if the simulation is still the one
that wrote the file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import harness.faults
from harness.faults.planted import PLANTS, Plant, watched
from harness.faults.schedule import Case, Fault, draw_case, shrink
from harness.faults.simulation import simulate

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import RESULTS, machine, write_result

WRITTEN = "planted_faults"
CHUNK = 25  # seeds that are handed out at once


def main() -> int:
    """Return the exit status: 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=int, help="how many; with --planted the most for each fault")
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--planted", action="store_true", help="look for planted faults")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which to end")
    parser.add_argument("--result", action="store_true", help="write benchmarks/results")
    chosen = parser.parse_args()
    seeds = range(chosen.seed, chosen.seed + chosen.runs)
    until_s = time.monotonic() + 60.0 * chosen.minutes
    if chosen.planted:
        return _look_for_all(seeds, until_s, writes=chosen.result)
    return _simulate_all(seeds, until_s, writes=chosen.result)


def _simulate_all(seeds: range, until_s: float, *, writes: bool) -> int:
    before = _read("simulated_faults") if writes else {}
    stretches = before.get("stretches", [])
    faults = Counter[str](before.get("faults", {}))
    counted = {row.pop("strategy"): Counter[str](row) for row in before.get("rows", [])}
    first, problem = seeds.start + sum(it["runs"] for it in stretches), ""
    took_s, seed = 0.0, first
    with _pool() as pool:
        runs = pool.imap(_simulated, range(first, seeds.stop), chunksize=CHUNK)
        for struck, name, sizes, run_s, problem in runs:
            faults.update(struck)
            counted.setdefault(name, Counter()).update(sizes)
            took_s += run_s
            seed += 1
            if problem or time.monotonic() > until_s:
                break
    print(f"{seed - first} runs from seed {first}: {took_s:.0f} s of one core")
    print(problem or "no invariant violated")
    if writes:
        rows = [{"strategy": name, **sizes} for name, sizes in sorted(counted.items())]
        stretch = {"first_seed": first, "runs": seed - first, "commit": machine()["commit"]}
        stretch |= {"processor_s": round(took_s), "found": problem.partition("\n")[0]}
        write_result(
            "simulated_faults", rows, runs=seed - seeds.start,
            faults=dict(sorted(faults.items())), stretches=[*stretches, stretch],
        )  # fmt: skip
    return int(bool(problem))


def _simulated(seed: int) -> tuple[Counter[str], str, dict[str, int], float, str]:
    """Return the faults of a run, its kind, its sizes, its processor time, and what it violated."""
    began_s, case = time.process_time(), draw_case(seed)
    outcome = simulate(case)
    name = case.strategy + ", quorum" * case.quorum + ", pools" * bool(case.pools)
    sizes = {"runs": 1, "followed": int(case.follows), "faults": len(case.faults)}
    sizes |= {"starts": outcome.starts, "merges": outcome.merges, "steps": outcome.steps}
    problem = outcome.problem and explain(case, outcome.problem)
    struck = Counter(fault.kind for fault in case.faults)
    return struck, name, sizes, time.process_time() - began_s, problem


def _pool() -> Pool:
    return multiprocessing.get_context("spawn").Pool(os.cpu_count())


def explain(case: Case, problem: str) -> str:
    """Return how to repeat a failure, and the least that leads to it, in words."""

    def fails(faults: tuple[Fault, ...]) -> bool:
        return simulate(replace(case, faults=faults)).problem[:40] == problem[:40]

    least = replace(case, faults=shrink(case.faults, fails))
    commit = machine()["commit"]
    line = f"repeat: make simulate-faults N=1 SEED={case.seed} (at commit {commit})"
    return f"{problem}\n{line}\nleast:  {least}"


# ------------------------------------------------------------------------ planted faults


def _look_for_all(seeds: range, until_s: float, *, writes: bool) -> int:
    """Look for every planted fault in one run after the other."""
    simulation, rows = _identity(), {plant.name: _row(plant) for plant in PLANTS}
    before = _before(simulation, seeds.start) if writes else {}
    rows |= {row["planted"]: row for row in before.get("rows", []) if row["planted"] in rows}
    runs = before.get("runs", 0)
    left = [plant for plant in PLANTS if rows[plant.name]["found in run"] is None]
    with _pool() as pool:
        while left and runs < len(seeds) and time.monotonic() < until_s:
            some = seeds[runs : runs + CHUNK]
            tasks = [(seed, [plant.name for plant in left]) for seed in some]
            for without, found in pool.imap(_planted, tasks):
                runs += 1
                if without:
                    print(f"without a planted fault: {without}")
                    return 1
                for plant in [plant for plant in left if plant.name in found]:
                    rows[plant.name]["reached"] += 1
                    if problem := found[plant.name]:
                        by = problem.partition("\n")[0][:100]
                        rows[plant.name] |= {"found in run": runs, "by": by}
                        left.remove(plant)
                        print(f"run {runs}, {plant.name}: {by}", flush=True)
    found = len(PLANTS) - len(left)
    print(f"{found} of {len(PLANTS)} planted faults found in {runs} runs")
    print("\n".join(f"not found: {plant.name}" for plant in left))
    if writes:
        sizes = {"found": found, "planted": len(rows), "runs": runs, "simulation": simulation}
        write_result(WRITTEN, [*rows.values()], first_seed=seeds.start, **sizes)
    return 0


def _planted(task: tuple[int, Sequence[str]]) -> tuple[str, dict[str, str]]:
    """Return what a run violates, and what it does with each fault whose statement it reaches."""
    seed, names = task
    case, plants = draw_case(seed), [plant for plant in PLANTS if plant.name in names]
    with watched(plants) as reached:
        problem = _problem_of(case)
    if problem:
        return explain(case, problem), {}
    found = dict[str, str]()
    for plant in [plant for plant in plants if plant.name in reached]:
        with plant.planted():
            found[plant.name] = _problem_of(case)
    return "", found


def _row(plant: Plant) -> dict[str, Any]:
    place = {"planted": plant.name, "where": plant.where}
    return {**place, "found in run": None, "reached": 0, "by": ""}


def _identity() -> str:
    """Return what a seed depends on beside the product: the sources of the simulation.

    The list of planted faults is none of them: a fault that is added is looked for from then on.
    """
    (folder,) = harness.faults.__path__
    sources = sorted(path for path in Path(folder).glob("*.py") if path.stem != "planted")
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


def _read(name: str) -> dict[str, Any]:
    """Return a result file."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _before(simulation: str, first_seed: int) -> dict[str, Any]:
    """Return the result file, if this simulation has written it."""
    found = _read(WRITTEN)
    made_of = found.get("simulation"), found.get("first_seed")
    return found if made_of == (simulation, first_seed) else {}


def _problem_of(case: Case) -> str:
    try:
        return simulate(case).problem
    except Exception as error:  # what the fault led to, in the simulation itself
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
