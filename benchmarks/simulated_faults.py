"""Runs of the cluster's own code under simulated faults, and how many planted faults they find.

Each run has a seed, from which its settings, its faults and all chance follow: see
`tests/harness/faults`. The first run in which an invariant does not hold ends it, with the line
that repeats it and the least of its faults that leads to it, in words. With ``--planted`` the
product is changed, one fault at a time, until a run finds it. Needs greenlet (``daskxml[test]``).

    PYTHONPATH=tests python benchmarks/simulated_faults.py 1000 [--seed 0] [--planted] [--result]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from harness.faults.planted import PLANTS, Plant
from harness.faults.schedule import Case, Fault, draw_case, shrink
from harness.faults.simulation import simulate
from machine import write_result


def main() -> int:
    """Return the exit status: 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=int, help="how many; with --planted the most for each fault")
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--planted", action="store_true", help="look for planted faults")
    parser.add_argument("--result", action="store_true", help="write benchmarks/results")
    chosen = parser.parse_args()
    seeds = range(chosen.seed, chosen.seed + chosen.runs)
    if chosen.planted:
        return _look_for_all(PLANTS, seeds, writes=chosen.result)
    return _simulate_all(seeds, writes=chosen.result)


def _simulate_all(seeds: range, *, writes: bool) -> int:
    counted: dict[str, Counter[str]] = {}
    began_s, faults = time.process_time(), Counter[str]()
    for seed in seeds:
        case = draw_case(seed)
        outcome = simulate(case)
        if outcome.problem:
            print(explain(case, outcome.problem))
            return 1
        faults.update(fault.kind for fault in case.faults)
        name = case.strategy + ", overlapping" * case.overlap
        sizes = {"runs": 1, "faults": len(case.faults), "starts": outcome.starts}
        sizes |= {"merges": outcome.merges, "steps": outcome.steps}
        counted.setdefault(name, Counter()).update(sizes)
    took_s = time.process_time() - began_s
    rows = [{"strategy": name, **sizes} for name, sizes in sorted(counted.items())]
    print(f"{len(seeds)} runs from seed {seeds.start}: no invariant violated; {took_s:.0f} s")
    if writes:
        write_result(
            "simulated_faults", rows, runs=len(seeds), first_seed=seeds.start, found=0,
            faults=dict(sorted(faults.items())), processor_s=took_s,
        )  # fmt: skip
    return 0


def explain(case: Case, problem: str) -> str:
    """Return how to repeat a failure, and the least that leads to it, in words."""

    def fails(faults: tuple[Fault, ...]) -> bool:
        return simulate(replace(case, faults=faults)).problem[:40] == problem[:40]

    least = replace(case, faults=shrink(case.faults, fails))
    return f"{problem}\nrepeat: make simulate-faults N=1 SEED={case.seed}\nleast:  {least}"


def _look_for_all(plants: Sequence[Plant], seeds: range, *, writes: bool) -> int:
    rows: list[dict[str, Any]] = []
    for row in _look_for(plants, seeds):
        rows.append(row)
        found = sum(row["found in run"] is not None for row in rows)
        if writes:  # what was found so far, as the rest may take hours
            sizes = {"found": found, "planted": len(rows), "most_runs": len(seeds)}
            write_result("planted_faults", rows, first_seed=seeds.start, **sizes)
    print(f"{found} of {len(rows)} planted faults found in {len(seeds)} runs at most for each")
    return 0


def _look_for(plants: Sequence[Plant], seeds: range) -> Iterator[dict[str, Any]]:
    for plant in plants:
        with plant.planted():
            problems = (
                (count, _problem_of(draw_case(seed))) for count, seed in enumerate(seeds, 1)
            )
            count, problem = next(((n, text) for n, text in problems if text), (None, ""))
        print(f"{plant.name}: {count}: {problem.splitlines()[:1]}", flush=True)
        seen = problem.partition("\n")[0][:100]
        yield {"planted": plant.name, "where": plant.where, "found in run": count, "by": seen}


def _problem_of(case: Case) -> str:
    try:
        return simulate(case).problem
    except Exception as error:  # what the fault led to, in the simulation itself
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
