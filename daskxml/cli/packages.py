"""Findings of an examination; Python and its packages: what is there, fits, and loads."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Literal

from daskxml._version import __version__

NAME = "daskxml"
OLDEST = (3, 11)
REQUIRED = (
    "fsspec", "numba", "numpy", "psutil", "pyarrow", "rich", "safetensors", "scipy",
    "threadpoolctl", "tomli-w",
)  # fmt: skip
IMPORTED = ("bokeh", "dask", "distributed", *REQUIRED)
MODULES = {"scipy": "scipy.linalg", "tomli-w": "tomli_w"}  # where not called as the package


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was examined.

    Attributes
    ----------
    topic
        Python, packages, GPUs, UCX, ...
    text
        What was found.
    level
        ``problem``: daskxml does not work, or not as installed; ``hint``: something is optional.
    remedy
        The command that fixes it, or other advice; "" if nothing is to be done.
    """

    topic: str
    text: str
    level: Literal["fine", "hint", "problem"] = "fine"
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, in the order of their topics."""

    findings: tuple[Finding, ...]

    @property
    def problems(self) -> list[Finding]:
        """The findings that must be fixed."""
        return [finding for finding in self.findings if finding.level == "problem"]

    def lines(self) -> list[str]:
        """Return the report as text: all findings, then the remedies.

        Examples
        --------
        >>> missing = Finding("packages", "dask is missing", "problem", "pip install dask")
        >>> print(*Report((Finding("Python", "3.12.1"), missing)).lines(), sep="\\n")
        Python    3.12.1
        packages  dask is missing
        <BLANKLINE>
        1 problem
          dask is missing
            pip install dask
        """
        width = max(len(finding.topic) for finding in self.findings)
        lines = []
        for topic, findings in groupby(self.findings, key=lambda finding: finding.topic):
            first, *others = findings
            lines.append(f"{topic:<{width}}  {first.text}")
            lines += [f"{'':<{width}}  {finding.text}" for finding in others]
        hints = [finding for finding in self.findings if finding.level == "hint"]
        count = len(self.problems)
        lines += _section(f"{count} problem{'s' * (count > 1)}", self.problems)
        lines += _section("possible", hints)
        return lines if count else [*lines, "", "no problems"]


def _section(title: str, findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return []
    lines = [
        line for finding in findings for line in (f"  {finding.text}", f"    {finding.remedy}")
    ]
    return ["", title, *(line for line in lines if line.strip())]


def examine_python() -> Iterator[Finding]:
    """Yield the interpreter and daskxml itself."""
    text = f"{'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}"
    if sys.version_info < OLDEST:
        yield Finding("Python", text, "problem", "install Python 3.11 or newer")
    else:
        yield Finding("Python", text)
    yield Finding("daskxml", f"{__version__}, {Path(__file__).parents[1]}")


def examine_packages() -> Iterator[Finding]:
    """Yield versions, then what is missing or does not load; `pip check` knows what clashes."""
    versions = {name: found for name in IMPORTED if (found := installed(name))}
    present = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield Finding("packages", present or "none")
    if not installed(NAME):
        yield Finding("packages", "daskxml is not installed", "problem", "pip install .")
    elif missing := " ".join(name for name in REQUIRED if name not in versions):
        yield Finding("packages", f"not installed: {missing}", "problem", f"pip install {missing}")
    for name, version in versions.items():
        yield from import_problems("packages", f"{name} {version}", MODULES.get(name, name), name)


def import_problems(topic: str, name: str, module: str, package: str) -> list[Finding]:
    """Return the finding that a module cannot be imported; empty if it can."""
    problem = load_problem(module)
    remedy = f"pip install --force-reinstall {package}"
    text = f"{name} does not load: {problem}"
    return [Finding(topic, text, "problem", remedy)] if problem else []


def load_problem(module: str) -> str:
    """Return why a module cannot be imported; "" if it can.

    Examples
    --------
    >>> load_problem("json"), load_problem("no_such_module")
    ('', "ModuleNotFoundError: No module named 'no_such_module'")
    """
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever a broken package raises
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return ""


def installed(name: str) -> str:
    """Return a package's version; "" if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
