"""Faults made by machine: which of them do the tests and the simulated faults not notice?

A mutant is one change of one statement of the package: a condition is negated, a bound is moved, a
call is dropped, or two calls change places. A seeded sample of all of them is examined: the
tests of the module's room that name the module run for a minute at most, and then simulated runs
with faults. What both pass has survived: a test is missing, or the change makes no difference.
Nothing is written to the sources: the mutant is made when its module is imported, also by the
processes that a test starts.

    PYTHONPATH=tests python tools/mutants.py [--sample 500] [--minutes 30] [--jobs 2]

A later call examines those of the sample that the result file does not have yet.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.machinery
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("session", "strategies", "cluster", "records", "worker")
VARIABLE = "DASKXML_MUTANT"
TESTS_S, SIMULATION_CPU_S, SIMULATIONS = 60, 90, 200
BOUNDS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}


@dataclass(frozen=True)
class Mutant:
    """One change: the module, the line and the column of what is changed, and how."""

    module: str
    line: int
    column: int
    kind: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}:{self.column} {self.kind}"

    @classmethod
    def parse(cls, text: str) -> Mutant:
        """The inverse of ``str``."""
        place, _, kind = text.partition(" ")
        module, line, column = place.split(":")
        return cls(module, int(line), int(column), kind)

    @property
    def path(self) -> Path:
        """Of the source."""
        return ROOT / f"{self.module.replace('.', '/')}.py"

    def source(self) -> str:
        """Return the line that is changed."""
        return self.path.read_text(encoding="utf-8").splitlines()[self.line - 1].strip()


def mutants(module: str) -> list[Mutant]:
    """Return all mutants of a module."""
    path = ROOT / f"{module.replace('.', '/')}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [(node, kind) for node, kind, _ in _changes(tree)]
    return [Mutant(module, node.lineno, node.col_offset, kind) for node, kind in found]


def mutated(source: str, mutant: Mutant) -> ast.Module:
    """Return a module's source with a mutant.

    Raises
    ------
    LookupError
        If it has no such mutant.
    """
    tree = ast.parse(source)
    for node, kind, change in _changes(tree):
        if (node.lineno, node.col_offset, kind) == (mutant.line, mutant.column, mutant.kind):
            change()
            return ast.fix_missing_locations(tree)
    raise LookupError(f"no mutant {mutant}")


def _changes(tree: ast.AST) -> Iterator[tuple[Any, str, Any]]:
    """Yield where something can be changed, how, and what changes it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            yield node.test, "condition negated", lambda n=node: setattr(n, "test", _not(n.test))
        if isinstance(node, ast.Compare) and type(node.ops[0]) in BOUNDS:
            other = BOUNDS[type(node.ops[0])]()
            yield node, "bound moved", lambda n=node, o=other: n.ops.__setitem__(0, o)
        for body in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            if isinstance(body, list):
                yield from _changes_of_body(body)


def _changes_of_body(body: list[ast.stmt]) -> Iterator[tuple[Any, str, Any]]:
    for place, statement in enumerate(body):
        if _is_call(statement):
            gone = ast.copy_location(ast.Pass(), statement)
            yield statement, "call dropped", lambda p=place, g=gone: body.__setitem__(p, g)
        after = body[place + 1] if place + 1 < len(body) else None
        if _is_call(statement) and _is_call(after):
            pair = [after, statement]
            both = slice(place, place + 2)
            yield statement, "order swapped", lambda b=both, p=pair: body.__setitem__(b, p)


def _not(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _is_call(statement: ast.stmt | None) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    value = value.value if isinstance(value, ast.Await) else value
    return isinstance(value, ast.Call)


# ------------------------------------------------------------- in the process of a test


class MutantFinder(importlib.abc.MetaPathFinder):
    """Finds one module, and compiles it with a mutant."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Return how the mutant's module is loaded; None: as ever."""
        if name != self._mutant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = MutantLoader(name, spec.origin)
        return spec


class MutantLoader(importlib.machinery.SourceFileLoader):
    """Compiles a module with the mutant of the environment, and caches nothing."""

    def get_code(self, name: str) -> Any:
        """Return the module's code."""
        source = Path(self.path).read_text(encoding="utf-8")
        return compile(mutated(source, Mutant.parse(os.environ[VARIABLE])), self.path, "exec")


def install() -> None:
    """Let the mutant that the environment names be imported in the place of its module."""
    if VARIABLE in os.environ:
        sys.meta_path.insert(0, MutantFinder(Mutant.parse(os.environ[VARIABLE])))


HOOK = f"import sys\nsys.path.append({str(ROOT / 'tools')!r})\nimport mutants\nmutants.install()\n"
SIMULATE = """
import sys
from harness.faults.schedule import draw_case
from harness.faults.simulation import simulate
for seed in range(int(sys.argv[1])):
    if simulate(draw_case(seed)).problem:
        sys.exit(1)
"""


# ------------------------------------------------------------------------ the sample


def examine(mutant: Mutant, hooks: str) -> str:
    """Return what notices a mutant: "tests", "simulation", or "" for a survivor."""
    ways = [("tests", _fails_tests), ("simulation", _fails_simulation)]
    if mutant.module.split(".")[1] == "cluster":  # whose tests wait for real processes
        ways.reverse()
    paths = (hooks, str(ROOT), str(ROOT / "tests"))
    env = os.environ | {VARIABLE: str(mutant), "PYTHONPATH": os.pathsep.join(paths)}
    return next((name for name, fails in ways if fails(mutant, env)), "")


def tests_of(module: str) -> list[str]:
    """Return the tests of a module: those of its room that name it, else all of the room."""
    room, name = module.split(".")[1], module.removeprefix("daskxml.")
    files = sorted((ROOT / "tests" / room).rglob("test_*.py"))
    naming = [path for path in files if name in path.read_text(encoding="utf-8")]
    return [str(ROOT / f"{module.replace('.', '/')}.py"), *map(str, naming or files)]


def _fails_tests(mutant: Mutant, env: dict[str, str]) -> bool:
    options = ["-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", *options, *tests_of(mutant.module)]
    return _ends_badly(command, env, TESTS_S)


def _fails_simulation(mutant: Mutant, env: dict[str, str]) -> bool:
    command = [sys.executable, "-c", SIMULATE, str(SIMULATIONS)]
    return _ends_badly(command, env, 20 * SIMULATION_CPU_S, SIMULATION_CPU_S)


def _ends_badly(command: list[str], env: dict[str, str], most_s: int, cpu_s: int = 0) -> bool:
    """Whether a command fails, or takes more processor time; not whether its minute is over."""

    def limit() -> None:
        if cpu_s:
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))

    with subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, preexec_fn=limit,
    ) as process:  # fmt: skip
        try:
            return process.wait(most_s) != 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)


def sample(size: int, seed: int) -> list[Mutant]:
    """Return a seeded sample of all mutants of the rooms."""
    files = [path for room in ROOMS for path in sorted((ROOT / "daskxml" / room).glob("*.py"))]
    modules = [f"daskxml.{path.parent.name}.{path.stem}" for path in files if path.stem[0] != "_"]
    every = [mutant for module in modules for mutant in mutants(module)]
    return random.Random(seed).sample(every, min(size, len(every)))


def main() -> int:
    """Examine, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    chosen = parser.parse_args()
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from machine import RESULTS, write_result

    path = RESULTS / "mutants.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    done = {row["mutant"] for row in rows}
    left = [each for each in sample(chosen.sample, chosen.seed) if str(each) not in done]
    until_s = time.monotonic() + 60.0 * chosen.minutes
    with tempfile.TemporaryDirectory() as hooks, ThreadPoolExecutor(chosen.jobs) as threads:
        (Path(hooks) / "sitecustomize.py").write_text(HOOK)

        def look(mutant: Mutant) -> None:
            if time.monotonic() < until_s:
                noticed_by = examine(mutant, hooks)
                rows.append({"mutant": str(mutant), "source": mutant.source(), "by": noticed_by})
                print(f"{noticed_by or 'SURVIVES':10}  {mutant}  {mutant.source()}", flush=True)

        list(threads.map(look, left))
    counts = Counter(row["by"] or "survived" for row in rows)
    print(dict(counts))
    write_result("mutants", rows, sample=chosen.sample, seed=chosen.seed, counts=dict(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
