"""Neither the package nor its tests grow unnoticed.

Raise a number only in the commit that says what the addition replaces and why it is worth its size.
After making something smaller, lower the number to what was reached.
"""

import functools
import sys
from pathlib import Path

import daskxml
from daskxml.cli.arguments import COMMANDS

ROOT = Path(__file__).parents[1]
SLACK = 1.01  # so that not every commit has to lower the lines of code
LIMITS = {
    "rooms": 18,
    "files of the package": 248,
    "lines of the package": 30_154,
    "benchmark scripts": 30,
    "lines of benchmarks": 5_500,
    "lines of tests": 36_668,
    "pages": 50,
    "run files": 26,
    "commands": 16,
    "public names": 20,
}


def code_lines(folder: str) -> int:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import code_size
    finally:
        sys.path.pop(0)
    return sum(
        len(code_size.code_numbers(path.read_text())) for path in (ROOT / folder).rglob("*.py")
    )


@functools.cache
def counted() -> dict[str, int]:
    package = ROOT / "daskxml"
    return {
        "rooms": sum((path / "__init__.py").exists() for path in package.iterdir()),
        "files of the package": len([*package.rglob("*.py")]),
        "lines of the package": code_lines("daskxml"),
        "benchmark scripts": len([*(ROOT / "benchmarks").rglob("*.py")]),
        "lines of benchmarks": code_lines("benchmarks"),
        "lines of tests": code_lines("tests"),
        "pages": len([*(ROOT / "docs").rglob("*.md")]),
        "run files": len([*(ROOT / "pipelines").glob("*.toml")]),
        "commands": len(COMMANDS),
        "public names": len(daskxml.__all__),
    }


def test_nothing_has_grown():
    found = counted()
    assert found.keys() == LIMITS.keys()
    grown = {name: (count, LIMITS[name]) for name, count in found.items() if count > LIMITS[name]}
    assert not grown, "say what it replaces, and raise the number"


def test_the_numbers_are_those_that_were_reached():
    found = counted()
    reached = {name: count for name, count in found.items() if count * SLACK < LIMITS[name]}
    assert not reached, "smaller than the numbers say: lower them to these"
