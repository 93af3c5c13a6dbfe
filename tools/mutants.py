"""Faults made by machine: which of them do the tests and the simulated faults not notice?

A mutant is one change of one statement of the package: a condition is negated, a bound is moved, a
call is dropped, or two calls change places. A seeded sample of all of them is examined by the
tests that reach the change, quick ones first, until one fails; what passes them, by simulated runs
that reach it, for a minute of processor time. What passes both has survived: a test is missing, or
the change makes no difference.

Nothing is written to the sources. One process has imported and collected everything, with all
mutants of the sample in its modules, each behind a switch; a mutant is a fork of that process that
turns one switch on. That of a mutant is on in the processes that a test starts as well.

    PYTHONPATH=tests python tools/mutants.py [--sample 500] [--seed 0] [--minutes 30] [--map FILE] \
        [--result NAME]

A later call examines those of the sample that the result file does not have yet; the verdict on a
survivor is written there by hand. Another sample has another file. The map has, for
each test and each simulated run, its time and which mutants it reaches; it is made first.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import hashlib
import importlib.abc
import importlib.machinery
import io
import json
import math
import os
import random
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("session", "strategies", "cluster", "records", "worker")
TESTS = (
    *(f"tests/{room}" for room in ROOMS),
    "tests/local",
    "tests/faults",
    *(f"daskxml/{it}" for it in ROOMS),
)
VARIABLE = "DASKXML_MUTANT"
SWITCH = "_is_mutant"  # a function in each module that has mutants
SIMULATIONS = 200
MAP_S, TESTS_S, SIMULATION_S = 20.0, 60.0, 60.0  # of a test that is kept, of all for one mutant
HANGS_S, STARVED = 40.0, 20  # a step without an end; how much slower than alone a step may be
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
    return _Switches(module, {}).every(ast.parse(path.read_text(encoding="utf-8")))


def switched(source: str, numbers: dict[Mutant, int], module: str) -> ast.Module:
    """Return a module's source with mutants, each behind the switch with its number."""
    tree = ast.parse(source)
    _Switches(module, numbers).visit(tree)
    return ast.fix_missing_locations(tree)


class _Switches(ast.NodeTransformer):
    """Puts mutants behind switches: what is not chosen stays as it was."""

    def __init__(self, module: str, numbers: dict[Mutant, int]) -> None:
        self._module, self._numbers, self._found = module, numbers, list[Mutant]()
        self._functions = 0  # around a node: what runs at import has no mutants

    def every(self, tree: ast.Module) -> list[Mutant]:
        """Return all mutants, in the order of the source."""
        self.visit(tree)
        return sorted(self._found, key=lambda it: (it.line, it.column, it.kind))

    def _switch(self, node: Any, kind: str) -> ast.expr | None:
        """Return the condition under which something is changed, if it may be."""
        if not self._functions:
            return None
        mutant = Mutant(self._module, node.lineno, node.col_offset, kind)
        self._found.append(mutant)
        number = self._numbers.get(mutant)
        return None if number is None else ast.parse(f"{SWITCH}({number})", mode="eval").body

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        switch = self._switch(node, "bound moved") if type(node.ops[0]) in BOUNDS else None
        self.generic_visit(node)
        if switch is None:
            return node
        other = copy.deepcopy(node)
        other.ops[0] = BOUNDS[type(node.ops[0])]()
        return ast.IfExp(switch, other, node)

    def generic_visit(self, node: Any) -> Any:
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        self._functions += is_function
        has_test = isinstance(node, ast.If | ast.While | ast.IfExp)
        switch = self._switch(node.test, "condition negated") if has_test else None
        bodies = [name for name in ("body", "orelse", "finalbody")
                  if isinstance(getattr(node, name, None), list)]  # fmt: skip
        plans = {name: self._plan(getattr(node, name)) for name in bodies}
        super().generic_visit(node)
        for name, plan in plans.items():
            setattr(node, name, list(_arranged(getattr(node, name), plan)))
        self._functions -= is_function
        if switch is not None:
            node.test = ast.IfExp(switch, ast.UnaryOp(ast.Not(), node.test), node.test)
        return node

    def _plan(self, body: list[ast.stmt]) -> list[tuple[ast.expr | None, ast.expr | None]]:
        """Return, for each statement, when it is dropped, and when it follows the next."""
        plan = []
        for statement, after in zip_longest(body, body[1:]):
            dropped = self._switch(statement, "call dropped") if _is_call(statement) else None
            is_pair = _is_call(statement) and _is_call(after)
            plan.append((dropped, self._switch(statement, "order swapped") if is_pair else None))
        return plan


def _arranged(
    body: list[ast.stmt], plan: list[tuple[ast.expr | None, ast.expr | None]]
) -> Iterator[ast.stmt]:
    """Yield statements with their switches: a swapped pair is the second one, then the first."""
    follows = None
    for place, (statement, (dropped, swapped)) in enumerate(zip(body, plan, strict=True)):
        if swapped is not None:
            yield ast.If(swapped, [copy.deepcopy(body[place + 1])], [])
        gone = [it for it in (dropped, follows) if it is not None]
        for switch in gone:
            statement = ast.If(copy.deepcopy(switch), [ast.Pass()], [statement])
        yield statement
        follows = swapped


def _is_call(statement: ast.stmt | None) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    value = value.value if isinstance(value, ast.Await) else value
    return isinstance(value, ast.Call)


# ------------------------------------------------------------ in a process with mutants


class Switchboard(importlib.abc.MetaPathFinder):
    """Loads modules with mutants behind switches, of which at most one is on."""

    def __init__(self, chosen: Sequence[Mutant], active: int = -1) -> None:
        self.chosen, self.active, self.reached = chosen, active, set[int]()

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Return how a mutant's module is loaded; None: as ever."""
        if not any(mutant.module == name for mutant in self.chosen):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = SwitchedLoader(name, spec.origin, self)
        return spec

    def is_on(self, number: int) -> bool:
        """Whether a mutant takes its place; note that it would."""
        self.reached.add(number)
        return number == self.active


class SwitchedLoader(importlib.machinery.SourceFileLoader):
    """Compiles a module with switches, and caches nothing."""

    def __init__(self, name: str, path: str, board: Switchboard) -> None:
        super().__init__(name, path)
        self._board = board

    def get_code(self, name: str) -> Any:
        """Return the module's code."""
        numbers = {it: n for n, it in enumerate(self._board.chosen) if it.module == name}
        source = Path(self.path).read_text(encoding="utf-8")
        return compile(switched(source, numbers, name), self.path, "exec")

    def exec_module(self, module: Any) -> None:
        """Run it, with the switch among its names."""
        setattr(module, SWITCH, self._board.is_on)
        super().exec_module(module)


def install() -> None:
    """Let the mutant that the environment names be imported in the place of its module."""
    if VARIABLE in os.environ:
        sys.meta_path.insert(0, Switchboard([Mutant.parse(os.environ[VARIABLE])], active=0))


HOOK = f"import sys\nsys.path.append({str(ROOT / 'tools')!r})\nimport mutants\nmutants.install()\n"


# --------------------------------------------------------------------- forked processes


class Failed(Exception):  # noqa: N818 - of a step: the mutant is noticed
    """A test fails, or a simulated run violates an invariant."""


def forked(
    work: Callable[[Callable[..., None]], None], most_s: float
) -> tuple[str, list[dict[str, Any]]]:
    """Run something in a fork of this process; return how it ended and what it has told.

    Parameters
    ----------
    work
        What is run; it is given a function that tells something, by keywords. ``step`` is what is
        done next, ``takes_s`` how long that takes alone.
    most_s
        After so much processor time it is told to end, before the next step.

    Returns
    -------
    :
        ``"ended"``, ``"failed"``, ``"hangs"`` (a step has no end) or ``"died"``.
    """
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(source)
        _be_child(work, sink, most_s)
    os.close(sink)
    told, rest, limit_s, how = list[dict[str, Any]](), b"", HANGS_S, "died"
    while True:
        if not _is_readable(source, limit_s):
            how = "hangs"
            break
        data = os.read(source, 1 << 16)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        told += map(json.loads, lines)
        how = told[-1].get("how", how) if told else how
        if "takes_s" in told[-1]:
            limit_s = HANGS_S + STARVED * told[-1]["takes_s"]
    os.close(source)
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    os.waitpid(pid, 0)
    return how, told


def _is_readable(source: int, limit_s: float) -> bool:
    """Wait in steps of a second, so that this process is short of processor time as well."""
    return any(select.select([source], [], [], 1.0)[0] for _ in range(math.ceil(limit_s)))


def _be_child(work: Callable[[Callable[..., None]], None], sink: int, most_s: float) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    resource.setrlimit(resource.RLIMIT_CPU, (int(most_s + 2 * HANGS_S),) * 2)

    def tell(**what: Any) -> None:
        os.write(sink, json.dumps(what).encode() + b"\n")

    try:
        work(tell)
        tell(how="ended")
    except Failed as failed:
        tell(how="failed", by=str(failed))
    except BaseException:
        tell(how="died", trace=traceback.format_exc())
    os._exit(0)


# ------------------------------------------------------------------ tests and simulations


@dataclass
class Map:
    """What each test and each simulated run takes and reaches, and how it ends, without mutants.

    Attributes
    ----------
    tests, runs
        By name or seed: seconds of processor time, numbers of the mutants reached, and for
        simulated runs the digest of all that happens.
    files
        Digests of the files of tests that it has.
    chosen
        Digest of the mutants.
    """

    chosen: str
    tests: dict[str, Any] = field(default_factory=dict)
    runs: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def reaching(self, which: dict[str, Any], number: int) -> list[tuple[str, float]]:
        """Return names and seconds of those that reach a mutant, quick ones first."""
        those = [(name, it["s"]) for name, it in which.items() if number in it["reached"]]
        return sorted(those, key=lambda it: it[1])


class Examiner:
    """A plugin of pytest that has a map made and mutants examined in the place of a test run."""

    def __init__(self, board: Switchboard, hooks: str, map_path: Path, left: list[int]) -> None:
        self._board, self._hooks, self._map_path, self._left = board, hooks, map_path, left
        self.rows: list[dict[str, Any]] = []
        self.note: Callable[[dict[str, Any]], None]
        self.until_s = 0.0
        self._failed = ""
        self._is_skipped = False

    # -- what pytest calls

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note a failure."""
        self._failed = self._failed or (report.nodeid if report.failed else "")
        self._is_skipped = self._is_skipped or report.skipped

    def pytest_runtestloop(self, session: Any) -> bool:
        """Examine, with all tests collected."""
        self._items = {item.nodeid: item for item in session.items}
        found = self._mapped()
        for number in self._left:
            if time.monotonic() > self.until_s:
                break
            self.note(self._examined(number, found))
        return True

    # -- the map

    def _mapped(self) -> Map:
        path, chosen = self._map_path, _digest(" ".join(map(str, self._board.chosen)).encode())
        found = Map(**json.loads(path.read_text())) if path.exists() else Map(chosen)
        found = found if found.chosen == chosen else Map(chosen)
        by_file = dict[str, list[str]]()
        for name in self._items:
            by_file.setdefault(name.split("::")[0], []).append(name)
        for file, names in by_file.items():
            digest = _digest((ROOT / file).read_bytes())
            if found.files.get(file) == digest or time.monotonic() > self.until_s:
                continue
            how, told = forked(lambda tell, it=names: self._map_tests(it, tell), 1e4)
            print(f"map: {file}: {len(names)} tests, {how}", flush=True)
            found.tests |= {it["name"]: it for it in told if "name" in it and it["is_fit"]}
            found.files[file] = digest
            path.write_text(json.dumps(asdict(found)))
        missing = [seed for seed in range(SIMULATIONS) if str(seed) not in found.runs]
        for first in range(0, len(missing), 20):
            if time.monotonic() > self.until_s:
                break
            seeds = missing[first : first + 20]
            how, told = forked(lambda tell, it=seeds: self._map_runs(it, tell), 1e4)
            print(f"map: simulated runs {seeds[0]} to {seeds[-1]}: {how}", flush=True)
            found.runs |= {it["name"]: it for it in told if "name" in it}
            path.write_text(json.dumps(asdict(found)))
        return found

    def _map_tests(self, names: list[str], tell: Callable[..., None]) -> None:
        for name, after in zip_longest(names, names[1:]):
            tell(step=name, takes_s=10.0)
            self._board.reached.clear()
            began_s, self._failed, self._is_skipped = _spent_s(), "", False
            wall_s = time.monotonic()
            self._run(name, after)
            spent_s, wall_s = _spent_s() - began_s, time.monotonic() - wall_s
            is_fit = not (self._failed or self._is_skipped) and spent_s < MAP_S
            tell(name=name, s=max(spent_s, 1e-4), wall_s=wall_s, is_fit=is_fit,
                 reached=sorted(self._board.reached))  # fmt: skip

    def _map_runs(self, seeds: list[int], tell: Callable[..., None]) -> None:
        for seed in seeds:
            self._board.reached.clear()
            began_s = time.process_time()
            tell(step=str(seed), takes_s=10.0)
            digest = self._simulated(seed)
            tell(name=str(seed), s=time.process_time() - began_s, digest=digest,
                 reached=sorted(self._board.reached))  # fmt: skip

    # -- one mutant

    def _examined(self, number: int, found: Map) -> dict[str, Any]:
        mutant = self._board.chosen[number]
        row = {"mutant": str(mutant), "source": mutant.source(), "by": "", "how": ""}
        tests = [it for it in found.reaching(found.tests, number) if it[0] in self._items]
        runs = found.reaching(found.runs, number)
        row |= {"step": "", "tests": len(tests), "runs": len(runs), "changed": 0, "verdict": ""}
        for by, most_s, work in (
            ("tests", TESTS_S, lambda tell: self._try_tests(number, tests, tell)),
            ("simulation", SIMULATION_S, lambda tell: self._try_runs(number, runs, found, tell)),
        ):
            how, told = forked(work, most_s)
            row["changed"] += sum(it.get("changed", 0) for it in told)
            if how != "ended":
                last = next((it["step"] for it in reversed(told) if "step" in it), "")
                return row | {"by": by, "how": how, "step": last}
        return row

    def _try_tests(
        self, number: int, tests: list[tuple[str, float]], tell: Callable[..., None]
    ) -> None:
        self._turn_on(number)
        began_s, (names, times) = _spent_s(), _in_order(tests)
        for name, after in zip_longest(names, names[1:]):
            if _spent_s() - began_s > TESTS_S:
                return
            tell(step=name, takes_s=times[name])
            self._failed = ""
            self._run(name, after)
            if self._failed:
                raise Failed(name)

    def _try_runs(
        self, number: int, runs: list[tuple[str, float]], found: Map, tell: Callable[..., None]
    ) -> None:
        self._turn_on(number)
        began_s = time.process_time()
        for seed, takes_s in runs:
            if time.process_time() - began_s > SIMULATION_S:
                return
            tell(step=seed, takes_s=takes_s)
            tell(changed=int(self._simulated(int(seed)) != found.runs[seed]["digest"]))

    def _turn_on(self, number: int) -> None:
        self._board.active = number
        os.environ[VARIABLE] = str(self._board.chosen[number])
        paths = (self._hooks, str(ROOT), str(ROOT / "tests"))
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)

    def _run(self, name: str, after: str | None) -> None:
        item = self._items[name]
        following = None if after is None else self._items[after]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    @staticmethod
    def _simulated(seed: int) -> str:
        """Return the digest of a simulated run."""
        from harness.faults.schedule import draw_case
        from harness.faults.simulation import simulate

        outcome = simulate(draw_case(seed))
        if outcome.problem:
            raise Failed(outcome.problem)
        return outcome.digest


def _in_order(tests: list[tuple[str, float]]) -> tuple[list[str], dict[str, float]]:
    """Return quick tests first; of the others those of a file together, as they share fixtures."""
    times = dict(tests)
    quick = [name for name, takes_s in tests if takes_s < 0.05]
    by_file = dict[str, list[str]]()
    for name, takes_s in tests:
        if takes_s >= 0.05:
            by_file.setdefault(name.split("::")[0], []).append(name)
    files = sorted(by_file.values(), key=lambda names: sum(times[it] for it in names))
    return [*quick, *(name for names in files for name in names)], times


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _spent_s() -> float:
    """Return the processor time of this process and of those that it has waited for."""
    spent = os.times()
    return sum(spent[:4])


# ------------------------------------------------------------------------ the sample


def sample(size: int, seed: int) -> list[Mutant]:
    """Return a seeded sample of all mutants of the rooms."""
    files = [path for room in ROOMS for path in sorted((ROOT / "daskxml" / room).glob("*.py"))]
    modules = [f"daskxml.{path.parent.name}.{path.stem}" for path in files if path.stem[0] != "_"]
    every = [mutant for module in modules for mutant in mutants(module)]
    return random.Random(seed).sample(every, min(size, len(every)))


def counted(rows: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Return how many mutants were tried, and what noticed them."""
    by = Counter(row["by"] or "survived" for row in rows)
    return {"tried": by.total(), **by}


def main() -> int:
    """Examine, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--map", type=Path, default=ROOT / "build" / "mutants.json")
    parser.add_argument("--result", default="mutants", help="its file's name in the results")
    parser.add_argument("--again", action="store_true", help="examine the survivors again")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="folders and files")
    chosen = parser.parse_args()
    sys.path.insert(0, str(ROOT / "benchmarks"))
    sys.path.insert(0, str(ROOT / "tests"))
    os.environ["CI"] = "true"  # Hypothesis draws the same examples each time
    board = Switchboard(sample(chosen.sample, chosen.seed))
    sys.meta_path.insert(0, board)
    import pytest

    import harness.faults.simulation  # noqa: F401 - for all forks
    from machine import RESULTS, write_result

    path = RESULTS / f"{chosen.result}.json"
    rows = (
        {it["mutant"]: it for it in json.loads(path.read_text())["rows"]} if path.exists() else {}
    )
    is_left = [row is None or (chosen.again and not row["by"])
               for row in (rows.get(str(it)) for it in board.chosen)]  # fmt: skip
    left = [number for number, it in enumerate(is_left) if it]
    chosen.map.parent.mkdir(exist_ok=True)

    def note(row: dict[str, Any]) -> None:
        rows[row["mutant"]] = row
        print(f"{row['by'] or 'SURVIVES':10} {row['mutant']}  {row['source']}", flush=True)
        with contextlib.redirect_stdout(io.StringIO()):  # without its table
            write_result(chosen.result, [*rows.values()], sample=chosen.sample, seed=chosen.seed,
                         counts=counted(rows.values()))  # fmt: skip

    with tempfile.TemporaryDirectory() as name:
        hooks = Path(name) / "hooks"
        hooks.mkdir()
        (hooks / "sitecustomize.py").write_text(HOOK)
        examiner = Examiner(board, str(hooks), chosen.map, left)
        examiner.note, examiner.until_s = note, time.monotonic() + 60.0 * chosen.minutes
        options = ["-q", "-s", "-m", "not slow", "-pno:cacheprovider", f"--basetemp={name}/tmp"]
        os.chdir(ROOT)
        ended = pytest.main([*options, *chosen.tests], plugins=[examiner])
    print(counted(rows.values()))
    return int(ended)


if __name__ == "__main__":
    sys.exit(main())
