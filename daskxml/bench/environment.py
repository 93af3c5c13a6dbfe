"""Where a cell ran: the machine, the software, and the code of daskxml itself."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from daskxml.training.environment import PACKAGE, versions
from daskxml.training.environment import describe as describe_machine

PEERS = ("torch", "scikit-learn", "napkinxc")
MACHINE = ("cpu", "cores")
_SOURCES = (".py", ".cu", ".h")


def environment() -> dict[str, Any]:
    """Describe this machine, its software, and the code that is measured.

    Examples
    --------
    >>> found = environment()
    >>> found["cores"] >= 1, "numpy" in found["packages"]
    (True, True)
    """
    return describe_machine() | {"peers": versions(PEERS), "code": code_digest()}


def decisive(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an `environment` that decides a cell's result.

    Two cells with the same settings are one where this is equal; the commit is no part of it, but
    the code is: a commit that changes a document makes no cell old.
    """
    return {name: found[name] for name in (*MACHINE, "python", "packages", "peers", "code")}


def same_machine(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether times of two environments compare."""
    return all(one.get(name) == other.get(name) for name in MACHINE)


def describe(found: Mapping[str, Any]) -> str:
    """Return an environment as one line.

    Examples
    --------
    >>> describe({"cpu": "Z80", "cores": 1, "memory_gib": 0.1, "os": "CP/M", "python": "3.11.2",
    ...           "daskxml": "0.1.0", "packages": {"numpy": "2.0"}, "peers": {}, "commit": None,
    ...           "code": "12ab", "date": "1976-07-01T00:00:00+00:00"})
    'Z80, 1 core, 0.1 GiB; CP/M; Python 3.11.2; daskxml 0.1.0 (code 12ab), numpy 2.0; 1976-07-01'
    """
    cores = f"{found['cores']} core{'s' * (found['cores'] != 1)}"
    source = f"commit {found['commit']}" if found["commit"] else f"code {found['code']}"
    versions = {**found["packages"], **found["peers"]}
    software = [
        f"daskxml {found['daskxml']} ({source})",
        *(f"{n} {v}" for n, v in versions.items()),
    ]
    parts = [
        f"{found['cpu']}, {cores}, {found['memory_gib']} GiB",
        found["os"],
        f"Python {found['python']}",
        ", ".join(software),
        found["date"][:10],
    ]
    return "; ".join(parts)


def digest(value: Any) -> str:
    """Return ten hexadecimal digits that differ where values of JSON differ.

    Examples
    --------
    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


@functools.cache
def code_digest() -> str:
    """Return a digest of daskxml's own source files."""
    found = hashlib.sha256()
    for path in sorted(path for path in PACKAGE.rglob("*") if path.suffix in _SOURCES):
        found.update(path.relative_to(PACKAGE).as_posix().encode() + path.read_bytes())
    return found.hexdigest()[:10]
