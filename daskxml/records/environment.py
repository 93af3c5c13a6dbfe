"""The hardware and software of a run: ``environment.json``, one object for each start.

Under ``workers`` it has those of the workers since that start, by their names: what
`describe_machine` returns there, ``cores``, and ``gpu`` and ``driver`` where there is a GPU. Under
``stages`` it has how the rows came to the workers (`daskxml.core.work_stats`).
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from daskxml._version import __version__
from daskxml.core import hardware
from daskxml.core.files import read_json, replace_text

ENVIRONMENT_FILE = "environment.json"
PACKAGE = Path(__file__).parents[1]
COMMIT_VARIABLE = "DASKXML_COMMIT"  # of the source of an image, where there is no git
PACKAGES = (
    "numpy",
    "scipy",
    "numba",
    "dask",
    "distributed",
    "safetensors",
    *hardware.CUPY.values(),
)
_GIT_S = 5.0  # a repository on a slow disk must not hold a run up


def describe() -> dict[str, Any]:
    """Describe this machine by its hardware, its software, and the source's commit.

    It describes the machine that starts a run; `daskxml.records.run_dir` adds those of the workers.

    Returns
    -------
    dict
        ``daskxml``, its version; ``commit`` of the checkout, with ``+`` where files differ from it,
        or of the image's source, or None; ``python``; ``packages``, versions by name;
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
        "cores": hardware.usable_cores(),
        "gpus": hardware.gpu_models(),
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
        "packages": hardware.versions(PACKAGES),
        "os": platform.platform(),
        "cpu": hardware.cpu_name(),
        "memory_gib": round(hardware.memory_bytes() / 2**30, 1),
    }


def write_starts(directory: Path, starts: Sequence[Mapping[str, Any]]) -> None:
    """Replace the directory's record.

    Raises
    ------
    ModelError
        If it cannot be written.
    """
    replace_text(directory / ENVIRONMENT_FILE, json.dumps(list(starts), indent=2) + "\n")


def read_starts(directory: Path) -> list[dict[str, Any]]:
    """Return the starts of a run, oldest first; none where there is no readable record."""
    starts = read_json(directory / ENVIRONMENT_FILE, list) or []
    return starts if all(isinstance(start, dict) for start in starts) else []


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
