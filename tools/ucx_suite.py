"""The tests of cluster and transport over ucx, one process for each test function.

    make test-ucx            # in an environment of its own, with the pinned Dask
    python tools/ucx_suite.py [--only NAME | --again] [--timeout 300]

UCX has one context per process, which does not survive many clusters in succession: the fourth may
find no workers. So every test function has a process, and a case that fails after others of its
function, which had clusters of their own, has one more to itself; that outcome counts. There UCX
makes progress in a thread (``UCXPY_PROGRESS_MODE=thread``; Dask's default is ``blocking``): with
more polling processes than cores, this halves the time of the tests. The outcome is what pytest
reports; an interpreter that crashes afterwards, in UCX's tear-down, is counted separately. The
result is ``benchmarks/results/ucx_suite.txt``; ``--again`` runs what failed there once more and
appends the outcome. The exit status is 1 if a test failed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from daskxml.core.hardware import versions

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from machine import RESULTS, machine

ROOT = Path(__file__).parents[1]
RESULT = RESULTS / "ucx_suite.txt"
FOLDERS = ("tests/cluster", "tests/transport")
WHOLE = f"make test-ucx: {' and '.join(FOLDERS)}, without those marked slow, on clusters over ucx"
AGAIN = "once more, what failed above"
PACKAGES = ("dask", "distributed", "distributed-ucxx-cu12", "libucx-cu12", "numpy", "numba")
MODE = "UCXPY_PROGRESS_MODE"
UCX = {MODE: "thread"} | os.environ | {"DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME": "ucx"}
PYTEST = (sys.executable, "-m", "pytest", "-q", "-m", "not slow")


def functions(only: str) -> list[str]:
    """Return the test functions, without their parameters."""
    command = [*PYTEST, "--collect-only", *FOLDERS]
    found = subprocess.run(command, cwd=ROOT, env=UCX, capture_output=True, text=True)
    names = [line.partition("[")[0] for line in found.stdout.splitlines() if "::" in line]
    if not names:
        raise SystemExit(found.stdout + found.stderr)
    return [name for name in dict.fromkeys(names) if only in name]


def failed_in(lines: list[str]) -> list[str]:
    """Return the test functions that failed according to a result, without their parameters."""
    names = [line.partition("[")[0].partition(" ")[0] for line in lines if "::" in line]
    parts = [name.partition("::") for name in dict.fromkeys(names)]
    return [f"{file.replace('.', '/')}.py::{function}" for file, _, function in parts]


def run(function: str, timeout_s: float) -> tuple[Counter[str], list[str]]:
    """Run one test function, or one case of it; return the counts of outcomes, and the failures."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [*PYTEST, f"--junitxml={report}", f"--timeout={timeout_s:g}", function]
        with (Path(folder) / "log").open("w+") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=UCX, stdout=log, stderr=log)
            try:
                status = process.wait(10 * timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
            log.seek(0)
            if not report.exists():
                return Counter(failed=1), [f"{function}: no report, status {status}", log.read()]
        found = dict(cases(report))
        ends, problems = Counter(found.values()), list[str]()
        bad = {name: end for name, end in found.items() if end in ("failed", "error")}
        if bad:
            print((Path(folder) / "log").read_text())
    if status < 0:
        ends["bad exit afterwards"] += 1
    first = next(iter(found), "")
    for name, end in bad.items():
        case = function + "".join(name.partition("[")[1:])
        if case == function or name == first:
            problems.append(f"{name} {end}")
            continue
        alone, wrong = run(case, timeout_s)
        ends = ends - Counter([end]) + alone
        problems += wrong
    return ends, problems


def cases(report: Path) -> Iterator[tuple[str, str]]:
    """Yield the cases of a JUnit report with their outcomes."""
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {"failure": "failed", "error": "error", "skipped": "skipped"}
        end = next((kinds[child.tag] for child in case if child.tag in kinds), "passed")
        yield f"{case.get('classname')}::{case.get('name')}", end


def main() -> int:
    """Run the tests; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="test functions with this in their name")
    parser.add_argument("--again", action="store_true", help="those that failed in the result")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for a test")
    options = parser.parse_args()
    if find_spec("distributed_ucxx") is None:
        raise SystemExit("UCX is not installed: make test-ucx, or pip install 'daskxml[ucx]'")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background shells ignore it
    begun_s, total, problems = time.monotonic(), Counter[str](), list[str]()
    before = RESULT.read_text().splitlines() if options.again else []
    for function in failed_in(before) if options.again else functions(options.only):
        started_s = time.monotonic()
        ends, wrong = run(function, options.timeout)
        took_s = time.monotonic() - started_s
        counts = (f"{count} {end}" for end, count in ends.items())
        print(function, *counts, f"in {took_s:.0f} s", *wrong, flush=True)
        total += ends
        problems += wrong
    heading = AGAIN if options.again else WHOLE
    lines = [heading, *summary(total, problems, time.monotonic() - begun_s)]
    print("\n".join(lines))
    if not options.only:
        RESULT.write_text("\n".join([*before, *lines]) + "\n")
    return int(bool(problems))


def summary(total: Counter[str], problems: list[str], lasted_s: float) -> list[str]:
    """Return the lines of the result: machine, versions, counts, and failures."""
    here, installed = machine(), versions(PACKAGES)
    return [
        f"{here['cpu']}, {here['cores']} cores; Python {here['python']}; commit {here['commit']}",
        ", ".join(f"{name} {installed.get(name)}" for name in PACKAGES) + f"; {MODE}={UCX[MODE]}",
        f"{', '.join(f'{count} {end}' for end, count in total.items())} in {lasted_s:.0f} s",
        *problems,
    ]


if __name__ == "__main__":
    sys.exit(main())
