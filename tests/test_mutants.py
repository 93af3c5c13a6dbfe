"""Faults made by machine are in the package of a process that names one, and nowhere else."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tools"))

import mutants

SOURCE = """
def f(a, b):
    if a < b:
        a.close()
        b.close()
    return a
"""


@pytest.mark.parametrize(
    ("mutant", "old", "new"),
    [
        (mutants.Mutant("m", 3, 7, "condition negated"), "if a < b", "if not a < b"),
        (mutants.Mutant("m", 3, 7, "bound moved"), "a < b", "a <= b"),
        (mutants.Mutant("m", 4, 8, "call dropped"), "a.close()\n", "pass\n"),
        (
            mutants.Mutant("m", 4, 8, "order swapped"),
            "a.close()\n        b",
            "b.close()\n        a",
        ),
    ],
)
def test_one_statement_is_changed(mutant, old, new):
    found = ast.unparse(mutants.mutated(SOURCE, mutant))
    assert found == ast.unparse(ast.parse(SOURCE.replace(old, new)))
    assert mutants.Mutant.parse(str(mutant)) == mutant


def test_every_mutant_of_the_sample_can_be_made():
    for mutant in mutants.sample(40, 1):
        source = mutant.path.read_text()
        assert ast.unparse(mutants.mutated(source, mutant)) != ast.unparse(ast.parse(source))


def test_a_process_imports_the_mutant_that_its_environment_names(tmp_path):
    module = "daskxml.session.ledger"
    call = next(it for it in mutants.mutants(module) if it.kind == "call dropped")
    (tmp_path / "sitecustomize.py").write_text(mutants.HOOK)
    code = f"import {module} as m; print(m.__spec__.loader.get_code(m.__name__).co_filename)"
    command = [sys.executable, "-c", f"{code}; print(type(m.__spec__.loader).__name__)"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(mutants.ROOT)])}
    for given, loader in (
        ({mutants.VARIABLE: str(call)}, "MutantLoader"),
        ({}, "SourceFileLoader"),
    ):
        ran = subprocess.run(command, env=env | given, capture_output=True, text=True, check=True)
        assert ran.stdout.split() == [str(call.path), loader]
