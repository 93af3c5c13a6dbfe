"""Which packages there are, and whether they load."""

from __future__ import annotations

import importlib
import socket
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from daskxml._version import __version__
from daskxml.doctor.findings import Finding
from daskxml.doctor.requirements import check_requirements, own_requirements

OLDEST = (3, 11)
# What daskxml imports, by the name that pip knows it by.
MODULES = {
    "bokeh": "bokeh",
    "dask": "dask",
    "distributed": "distributed",
    "fsspec": "fsspec",
    "numba": "numba",
    "numpy": "numpy",
    "rich": "rich",
    "safetensors": "safetensors",
    "scipy": "scipy.linalg",
    "threadpoolctl": "threadpoolctl",
    "tomli-w": "tomli_w",
}
DASHBOARD = ("127.0.0.1", 8787)


def examine_python() -> Iterator[Finding]:
    """Yield the interpreter and daskxml itself."""
    version = ".".join(map(str, sys.version_info[:3]))
    is_old = sys.version_info < OLDEST
    yield Finding(
        topic="Python",
        text=f"{version}, {sys.executable}",
        level="problem" if is_old else "fine",
        remedy="install Python 3.11 or newer" if is_old else "",
    )
    yield Finding(topic="daskxml", text=f"{__version__}, {Path(__file__).parents[1]}")


def examine_packages() -> Iterator[Finding]:
    """Yield versions, then what is missing, clashes, or does not load."""
    versions = {name: _version(name) for name in MODULES}
    there = [f"{name} {version}" for name, version in versions.items() if version]
    yield Finding(topic="packages", text=", ".join(there) or "none")
    requirements = own_requirements()
    if not requirements:
        yield Finding(topic="packages", text="what daskxml requires is not known: not installed")
    yield from check_requirements(requirements)
    for name, module in MODULES.items():
        problem = load_problem(module) if versions[name] else ""
        if problem:
            yield Finding(
                topic="packages",
                text=f"{name} {versions[name]} does not load: {problem}",
                level="problem",
                remedy=f"pip install --force-reinstall {name}",
            )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def load_problem(module: str) -> str:
    """Say why a module cannot be imported; "" if it can.

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


def examine_dashboard() -> Iterator[Finding]:
    """Yield whether a local run has Dask's dashboard, and where."""
    with socket.socket() as probe:
        try:
            probe.bind(DASHBOARD)
            where = f"http://{DASHBOARD[0]}:{DASHBOARD[1]}/status"
        except OSError:
            where = f"port {DASHBOARD[1]} is taken; a run takes another and says which"
    yield Finding(topic="dashboard", text=where)
