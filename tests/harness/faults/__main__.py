"""Simulate runs under faults: ``python -m harness.faults N [SEED]``; with ``--planted``, look for
each planted fault in at most N of them."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace

from harness.faults.planted import PLANTS, Plant
from harness.faults.schedule import Case, Fault, draw_case, shrink
from harness.faults.simulation import simulate


def main() -> int:
    """Return the exit status: 1 if an invariant was violated, or a planted fault was missed."""
    parser = argparse.ArgumentParser(prog="harness.faults", description=__doc__)
    parser.add_argument("runs", type=int, help="how many")
    parser.add_argument("seed", type=int, nargs="?", default=0, help="of the first one")
    parser.add_argument("--planted", nargs="?", const="", help="planted faults with this text")
    chosen = parser.parse_args()
    seeds = range(chosen.seed, chosen.seed + chosen.runs)
    if chosen.planted is not None:
        plants = [plant for plant in PLANTS if chosen.planted in plant.name]
        return int(not all([_look_for(plant, seeds) for plant in plants]))
    return _simulate_all(seeds)


def _simulate_all(seeds: range) -> int:
    begun_s, steps, merges, starts, faults = time.process_time(), 0, 0, 0, 0
    for seed in seeds:
        case = draw_case(seed)
        outcome = simulate(case)
        if outcome.problem:
            print(explain(case, outcome.problem))
            return 1
        steps, merges = steps + outcome.steps, merges + outcome.merges
        starts, faults = starts + outcome.starts, faults + len(case.faults)
    took_s = time.process_time() - begun_s
    print(
        f"{len(seeds)} runs from seed {seeds.start}: {faults} faults, {starts} starts, {merges} "
        f"merges, {steps} steps, {took_s:.0f} s of processor time; nothing found"
    )
    return 0


def explain(case: Case, problem: str) -> str:
    """Return how to repeat a failure, and the least that leads to it, in words."""

    def fails(faults: tuple[Fault, ...]) -> bool:
        return simulate(replace(case, faults=faults)).problem[:40] == problem[:40]

    least = replace(case, faults=shrink(case.faults, fails))
    return f"{problem}\nrepeat: make simulate-faults N=1 SEED={case.seed}\nleast:  {least}"


def _look_for(plant: Plant, seeds: range) -> bool:
    with plant.planted():
        for count, seed in enumerate(seeds, 1):
            problem = _problem_of(draw_case(seed))
            if problem:
                print(f"found   {plant.name}: in run {count}: {problem.splitlines()[0]}", flush=True)
                return True
    print(f"MISSED  {plant.name}: in {len(seeds)} runs", flush=True)
    return False


def _problem_of(case: Case) -> str:
    try:
        return simulate(case).problem
    except Exception as error:  # in the simulation itself, by what the fault led to
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
