"""Whether every package that daskxml asks for, and those that they ask for, is there and fits."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from daskxml.doctor.findings import Finding

NAME = "daskxml"
EXTRAS = ("cuda12", "cuda13", "ucx")  # what users install; the others are for developers
PROJECT = Path(__file__).parents[2] / "pyproject.toml"

Installed = Callable[[str], "tuple[str, list[str]] | None"]


@dataclass(frozen=True, slots=True)
class Wish:
    """A requirement as it is written, and which package wants it."""

    text: str
    by: str


def installed(name: str) -> tuple[str, list[str]] | None:
    """Return a package's version and what it requires; None if it is not installed."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    return found.version, found.requires or []


def own_requirements() -> list[str]:
    """Return what daskxml requires, also where it runs from its source and is not installed."""
    found = installed(NAME)
    if found is not None:
        return found[1]
    if not PROJECT.is_file():
        return []
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].items()
    optional = [_of_extra(text, extra) for extra, texts in extras for text in texts]
    return [*project["dependencies"], *optional]


def _of_extra(text: str, extra: str) -> str:
    """Return an extra's requirement as the metadata of an installed package have it.

    Examples
    --------
    >>> _of_extra("a>=1; platform_system == 'Linux'", "test")
    "a>=1; (platform_system == 'Linux') and extra == 'test'"
    """
    wanted, _, marker = (part.strip() for part in text.partition(";"))
    return f"{wanted}; " + (f"({marker}) and " if marker else "") + f"extra == '{extra}'"


def check_requirements(texts: Iterable[str], installed: Installed = installed) -> Iterator[Finding]:
    """Yield what is missing, and what clashes, among packages and those that they require.

    Parameters
    ----------
    texts
        What daskxml requires; an extra counts once its first package is installed.
    installed
        Returns a package's version and requirements, or None.

    Examples
    --------
    >>> have = {"dask": ("2026.8.0", []), "dask-cuda": ("26.10", ["dask==2026.7.1"])}
    >>> found = check_requirements(["dask>=2026.7.1", "dask-cuda"], have.get)
    >>> [(it.text, it.remedy) for it in found]
    [('dask 2026.8.0 is installed, dask-cuda needs dask==2026.7.1', "pip install 'dask==2026.7.1'")]
    """
    parse = _parser()
    if parse is None:
        yield from _check_names(texts, installed)
        return
    wishes = [(parse(text), text) for text in texts]
    extras = _extras_in_use(wishes, installed)
    queue = deque((Wish(text, NAME), extra) for _, text in wishes for extra in extras)
    seen: set[tuple[str, str]] = set()
    told: set[str] = set()
    while queue:
        wish, extra = queue.popleft()
        requirement = parse(wish.text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        finding = _finding(requirement, wish, installed(requirement.name))
        if finding is not None and finding.text not in told:
            told.add(finding.text)
            yield finding
        for inner in ("", *sorted(requirement.extras)):
            key = (requirement.name.lower(), inner)
            if finding is None and key not in seen:
                seen.add(key)
                _, more = installed(requirement.name) or ("", [])
                queue.extend((Wish(text, requirement.name), inner) for text in more)


def _check_names(texts: Iterable[str], installed: Installed) -> Iterator[Finding]:
    """Yield what is missing where no versions can be compared."""
    text, remedy = "versions were not compared: packaging is missing", "pip install packaging"
    yield Finding(topic="packages", text=text, level="hint", remedy=remedy)
    for wanted in (text for text in texts if "extra ==" not in text):
        name = re.match(r"[\w.-]+", wanted)
        if name and installed(name[0]) is None:
            text, remedy = f"{name[0]} is not installed", f"pip install '{wanted}'"
            yield Finding(topic="packages", text=text, level="problem", remedy=remedy)


def _parser() -> Callable[[str], Any] | None:
    """Return what reads a requirement: of packaging, which Dask needs, or of pip."""
    for home in ("packaging.requirements", "pip._vendor.packaging.requirements"):
        try:
            return importlib.import_module(home).Requirement
        except ImportError:
            continue
    return None


def _extras_in_use(wishes: Iterable[tuple[Any, str]], installed: Installed) -> list[str]:
    """Return "" and the extras whose first package is installed."""
    first: dict[str, str] = {}
    for requirement, text in wishes:
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", text)
        if extra and extra[1] in EXTRAS:
            first.setdefault(extra[1], requirement.name)
    return ["", *(extra for extra, name in first.items() if installed(name))]


def _finding(requirement: Any, wish: Wish, found: tuple[str, list[str]] | None) -> Finding | None:
    wanted = f"{requirement.name}{requirement.specifier}"
    remedy = f"pip install '{wanted}'"
    if found is None:
        text = f"{requirement.name} is not installed, {wish.by} needs {wanted}"
    elif not requirement.specifier.contains(found[0], prereleases=True):
        text = f"{requirement.name} {found[0]} is installed, {wish.by} needs {wanted}"
    else:
        return None
    return Finding(topic="packages", text=text, level="problem", remedy=remedy)
