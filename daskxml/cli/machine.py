"""``daskxml doctor`` and ``bench``: what is installed on this machine, and how it performs.

The doctor runs where packages are missing: only the standard library is imported at the top.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

from daskxml.cli.arguments import Options


def doctor(options: Options) -> int:
    """Print the report.

    Returns
    -------
    The exit status: 2 if there is a problem, else 0.
    """
    from daskxml.cli.doctor import examine

    report = examine()
    if options.json:
        found = [dataclasses.asdict(finding) for finding in report.findings]
        print(json.dumps({"problems": len(report.problems), "findings": found}))
    else:
        print(*report.lines(), sep="\n")
    return 2 if report.problems else 0


def bench(options: Options) -> int:
    """Run every cell of a suite, print its table, and count the failures.

    Returns
    -------
    The exit status: 1 if a cell failed or all were skipped, else 0.
    """
    from daskxml.cli.bench import TABLE_FILE, load_suite, run_suite

    suite = load_suite(options.suite)
    out = Path(options.out or f"runs/bench-{suite.name}")
    print(f"bench {suite.name} in {out}; if it is broken off, the same command goes on", flush=True)
    write = functools.partial(print, end="", flush=True)
    done = run_suite(suite, out, data=options.data, against=options.against, write=write)
    print(f"\n{(done.path / TABLE_FILE).read_text(encoding='utf-8')}")
    if done.count("skipped") == len(done.cells):
        print("nothing was done: every cell was skipped")
        return 1
    if done.failed:
        print(f"{done.failed} of {len(done.cells)} cells failed")
    return 1 if done.failed else 0
