"""Where and with what a run was started: ``environment.json``, one object for each start.

Each has, under ``workers``, what the workers have that took part since then, equal ones together:
their ``names``, what `describe_machine` returns there, ``cores``, and ``gpu`` and ``driver`` where
there is a GPU.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from daskxml._version import __version__
from daskxml.model.tensors import replacing

ENVIRONMENT_FILE = "environment.json"
PACKAGE = Path(__file__).parents[1]
COMMIT_VARIABLE = "DASKXML_COMMIT"  # what an image was built from, where there is no git
PACKAGES = (
    "numpy",
    "scipy",
    "numba",
    "dask",
    "distributed",
    "safetensors",
    "cupy-cuda12x",
    "cupy-cuda13x",
)
_GIT_S = 5.0  # a repository on a slow disk must not hold a run up


def describe() -> dict[str, Any]:
    """Describe this machine by its hardware, its software, and the source's commit.

    It is the machine that a run is started from; `with_workers` adds those of the workers.

    Returns
    -------
    dict
        ``daskxml``, its version; ``commit`` of the source, with ``+`` where files differ from it,
        or that the image was built from, or None; ``python``; ``packages``, versions by name;
        ``os``; ``cpu``; ``cores`` that this process may use; ``memory_gib``; ``gpus``; ``date``.

    Examples
    --------
    >>> found = describe()
    >>> found["cores"] >= 1, "numpy" in found["packages"]
    (True, True)
    """
    return {
        "daskxml": __version__,
        "commit": _commit(),
        **describe_machine(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": _gpus(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def describe_machine() -> dict[str, Any]:
    """Return Python and versions of packages here, the system, the processor and its memory.

    Examples
    --------
    >>> list(describe_machine())
    ['python', 'packages', 'os', 'cpu', 'memory_gib']
    """
    return {
        "python": platform.python_version(),
        "packages": versions(PACKAGES),
        "os": platform.platform(),
        "cpu": _cpu(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
    }


def with_workers(
    start: Mapping[str, Any], workers: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the record of a start with what more workers have, by their names.

    Examples
    --------
    >>> found = with_workers({}, {"0": {"cores": 2}, "1": {"cores": 2}, "2": {"cores": 4}})
    >>> found["workers"]
    [{'names': ['0', '1'], 'cores': 2}, {'names': ['2'], 'cores': 4}]
    >>> with_workers(found, {"2": {"cores": 2}})["workers"]
    [{'names': ['0', '1', '2'], 'cores': 2}]
    """
    known = {
        name: {key: value for key, value in group.items() if key != "names"}
        for group in start.get("workers", ())
        for name in group["names"]
    }
    groups: list[dict[str, Any]] = []
    for name, has in {**known, **workers}.items():
        for group in groups:
            if group == {"names": group["names"], **has}:
                group["names"].append(name)
                break
        else:
            groups.append({"names": [name], **has})
    return {**start, "workers": groups}


def write_starts(directory: Path, starts: Sequence[Mapping[str, Any]]) -> None:
    """Write the directory's record, in the place of what was there.

    Raises
    ------
    ModelError
        If it cannot be written.
    """
    with replacing(directory / ENVIRONMENT_FILE) as partial:
        partial.write_text(json.dumps(list(starts), indent=2) + "\n", encoding="utf-8")


def read_starts(directory: Path) -> list[dict[str, Any]]:
    """Return the starts of a run, the first one first; none where there is no readable record."""
    try:
        starts = json.loads((directory / ENVIRONMENT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    is_record = isinstance(starts, list) and all(isinstance(start, dict) for start in starts)
    return starts if is_record else []


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed.

    Examples
    --------
    >>> versions(["numpy", "no-such-package"]) == {"numpy": importlib.metadata.version("numpy")}
    True
    """
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _gpus() -> list[str]:
    """Return the names of NVIDIA's GPUs as the driver lists them, without loading anything."""
    cards = Path("/proc/driver/nvidia/gpus").glob("*/information")
    lines = (line for card in sorted(cards) for line in card.read_text().splitlines())
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model")]


def _commit() -> str | None:
    """Return the commit: of the checkout, with ``+`` where it is changed, or the image's."""
    if not _git("ls-files", "--error-unmatch", str(PACKAGE / "__init__.py")):
        return os.environ.get(COMMIT_VARIABLE) or None
    changes = _git("status", "--porcelain", "--", ":/", ":(top,exclude)benchmarks/results")
    return _git("rev-parse", "HEAD") + "+" * bool(changes)


def _git(*words: str) -> str:
    command = ["git", "-C", str(PACKAGE), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
