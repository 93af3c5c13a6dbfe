"""Throughput under faults, in virtual time: what the others merge while one worker is away.

    PYTHONPATH=tests python tools/pace.py [--runs 200] [--seed 0] [--minutes 30] [--planted NAME]

Each run is made twice, with one worker frozen, slow or lost, and undisturbed: see
`harness.faults.pace`. Ends with the first that violates an invariant, with what repeats it; else
writes ``pace.json``. With ``--planted`` the product has that fault, and nothing is written.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path

from harness.faults.pace import draw_paced, least_shares, paced
from harness.faults.planted import PLANTS

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from machine import write_result


def main() -> int:
    """Return the exit status: 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--planted", default="")
    chosen = parser.parse_args()
    until_s, outcomes = time.monotonic() + 60.0 * chosen.minutes, []
    with contextlib.ExitStack() as stack:
        for plant in (it for it in PLANTS if it.name == chosen.planted):
            stack.enter_context(plant.planted())
        for seed in range(chosen.seed, chosen.seed + chosen.runs):
            case = draw_paced(seed)
            problem, share, silence_s = paced(case)
            if problem:
                print(f"{problem}\nrepeat: tools/pace.py --runs 1 --seed {seed}\n{case}")
                return 1
            outcomes.append((case, share, silence_s))
            if time.monotonic() > until_s:
                break
    if not chosen.planted:
        write_result("pace", least_shares(outcomes), first_seed=chosen.seed, runs=len(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
