"""Faults made by machine are in the package of a process that names one, and nowhere else."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tools"))

import mutants

SOURCE = """
def f(a, b, said):
    if a < b:
        said.append("low")
        said.append("below")
        said.append("last")
    return "less" if a <= b else "more"
"""


def every(source: str) -> list[mutants.Mutant]:
    return mutants._Switches("m", {}).every(ast.parse(source))


def outcome(source: str, a: int, b: int, active: int = -1) -> tuple[str, list[str]]:
    """Call the source's function, with all mutants in it and one of them on."""
    numbers = {mutant: number for number, mutant in enumerate(every(source))}
    names, said = {mutants.SWITCH: lambda number: number == active}, list[str]()
    exec(compile(mutants.switched(source, numbers, "m"), "m", "exec"), names)
    return names["f"](a, b, said), said


@pytest.mark.parametrize(
    ("mutant", "old", "new"),
    [
        (mutants.Mutant("m", 3, 7, "condition negated"), "if a < b", "if not a < b"),
        (mutants.Mutant("m", 3, 7, "bound moved"), "a < b", "a <= b"),
        (mutants.Mutant("m", 4, 8, "call dropped"), 'said.append("low")', "pass"),
        (mutants.Mutant("m", 6, 8, "call dropped"), 'said.append("last")', "pass"),
        (
            mutants.Mutant("m", 5, 8, "order swapped"),
            'said.append("below")\n        said.append("last")',
            'said.append("last")\n        said.append("below")',
        ),
        (mutants.Mutant("m", 7, 21, "bound moved"), "a <= b", "a < b"),
        (mutants.Mutant("m", 7, 21, "condition negated"), "if a <= b", "if not a <= b"),
    ],
)
def test_one_statement_is_changed_where_its_switch_is_on(mutant, old, new):
    assert SOURCE.count(old) == 1
    assert mutants.Mutant.parse(str(mutant)) == mutant
    for active, source in ((-1, SOURCE), (every(SOURCE).index(mutant), SOURCE.replace(old, new))):
        for a, b in ((0, 1), (1, 1), (1, 0)):
            assert outcome(SOURCE, a, b, active) == outcome(source, a, b)


def test_what_runs_at_import_is_not_changed():
    assert not every("if a < b:\n    print()\n    print()\n")


def test_every_mutant_of_the_sample_can_be_made():
    for mutant in mutants.sample(40, 1):
        changed = mutants.switched(mutant.path.read_text(), {mutant: 0}, mutant.module)
        assert ast.unparse(changed).count(f"{mutants.SWITCH}(0)") == 1 + (
            mutant.kind == "order swapped"
        )


def test_a_fork_tells_how_it_ends():
    def fail(tell):
        tell(step="first", takes_s=0.0)
        raise mutants.Failed("a test")

    ended = ("ended", [{"seen": 1}, {"how": "ended"}])
    assert mutants.forked(lambda tell: tell(seen=1), 1.0) == ended
    assert mutants.forked(fail, 1.0)[0] == "failed"
    assert mutants.forked(lambda _: 1 / 0, 1.0)[0] == "died"
    assert mutants.forked(lambda _: os._exit(3), 1.0) == ("died", [])


def test_a_process_imports_the_mutant_that_its_environment_names(tmp_path):
    module = "daskxml.session.ledger"
    call = next(it for it in mutants.mutants(module) if it.kind == "call dropped")
    (tmp_path / "sitecustomize.py").write_text(mutants.HOOK)
    code = f"import {module} as m; print(m.__spec__.loader.get_code(m.__name__).co_filename)"
    command = [sys.executable, "-c", f"{code}; print(type(m.__spec__.loader).__name__)"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(mutants.ROOT)])}
    for given, loader in (
        ({mutants.VARIABLE: str(call)}, "SwitchedLoader"),
        ({}, "SourceFileLoader"),
    ):
        ran = subprocess.run(command, env=env | given, capture_output=True, text=True, check=True)
        assert ran.stdout.split() == [str(call.path), loader]
