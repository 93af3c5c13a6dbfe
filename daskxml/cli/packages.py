"""Findings of an examination; Python and its packages: what is there, fits, and loads."""

from __future__ import annotations

import importlib
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Literal

from daskxml._version import __version__

NAME = "daskxml"
OLDEST = (3, 11)
EXTRAS = ("cluster", "cuda12", "cuda13", "ucx")  # for users; the others are for developers
IMPORTED = (
    "bokeh", "dask", "distributed", "fsspec", "numba", "numpy", "rich", "safetensors", "scipy",
    "threadpoolctl", "tomli-w",
)  # fmt: skip
MODULES = {"scipy": "scipy.linalg", "tomli-w": "tomli_w"}  # where not called as the package

Installed = Callable[[str], "tuple[str, list[str]] | None"]


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
    """Yield versions, then what is missing, clashes, or does not load."""
    versions = {name: found[0] for name in IMPORTED if (found := installed(name))}
    present = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield Finding("packages", present or "none")
    if own := installed(NAME):
        yield from check_requirements(own[1])
    else:
        text = "daskxml is not installed, so what it requires is not known"
        yield Finding("packages", text, "problem", "pip install .")
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


def installed(name: str) -> tuple[str, list[str]] | None:
    """Return a package's version and what it requires; None if it is not installed."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    return found.version, found.requires or []


def check_requirements(texts: Iterable[str], installed: Installed = installed) -> Iterator[Finding]:
    """Yield what is missing, and what clashes, among packages and their dependencies.

    Parameters
    ----------
    texts
        What daskxml requires; what is of an extra may be missing.
    installed
        Returns a package's version and requirements, or None.

    Examples
    --------
    >>> have = {"dask": ("2026.8.0", []), "dask-cuda": ("26.10", ["dask==2026.7.1"])}
    >>> found = check_requirements(["dask>=2026.7.1", "dask-cuda"], have.get)
    >>> [(it.text, it.remedy) for it in found]
    [('dask 2026.8.0 is installed, dask-cuda needs dask==2026.7.1', "pip install 'dask==2026.7.1'")]
    """
    try:
        from packaging.requirements import Requirement
    except ImportError:  # which Dask brings
        text = "versions were not compared: packaging is missing"
        yield Finding("packages", text, "hint", "pip install packaging")
        return
    queue = deque((text, NAME, extra) for text in texts for extra in ("", *EXTRAS))
    seen: set[tuple[str, str]] = set()
    reported: set[Finding] = set()
    while queue:
        text, by, extra = queue.popleft()
        parsed = Requirement(text)
        if parsed.marker is not None and not parsed.marker.evaluate({"extra": extra}):
            continue
        found, wanted = installed(parsed.name), f"{parsed.name}{parsed.specifier}"
        if found is None and by == NAME and extra:
            continue
        if found is not None and parsed.specifier.contains(found[0], prereleases=True):
            for key in ((parsed.name.lower(), inner) for inner in ("", *sorted(parsed.extras))):
                if key not in seen:
                    seen.add(key)
                    queue.extend((more, parsed.name, key[1]) for more in found[1])
            continue
        state = "not installed" if found is None else "installed"
        version = "" if found is None else f" {found[0]}"
        problem = f"{parsed.name}{version} is {state}, {by} needs {wanted}"
        finding = Finding("packages", problem, "problem", f"pip install '{wanted}'")
        if finding not in reported:
            reported.add(finding)
            yield finding
