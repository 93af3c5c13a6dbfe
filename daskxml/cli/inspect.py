"""``daskxml inspect``: data files and their problems, or this machine, and commands that fix it.

It runs wherever Python does: only the standard library is imported at the top of a module.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from daskxml._version import __version__
from daskxml.cli.arguments import Options
from daskxml.core import hardware
from daskxml.core.text import counted, one_line

REQUIRED = (
    "fsspec", "numba", "numpy", "psutil", "pyarrow", "rich", "safetensors", "scipy",
    "threadpoolctl", "tomli-w",
)  # fmt: skip
IMPORTED = ("bokeh", "dask", "distributed", *REQUIRED)
MODULES = {"scipy": "scipy.linalg", "tomli-w": "tomli_w"}  # where not called as the package
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


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

    def __str__(self) -> str:
        return f"{self.topic:<9} {self.text}" + f": {self.remedy}" * bool(self.remedy)


def inspect(options: Options) -> int:
    """Describe data files, or this machine where there are none, as lines or one JSON object.

    Returns
    -------
    The exit status: 1 if the files or the machine have a problem, else 0.
    """
    if options.data:
        from daskxml.data.inspection import inspect_file

        names = (options.feature_names or (), options.label_names or ())
        found = inspect_file(options.data, feature_names=names[0], label_names=names[1])
        print(json.dumps(dataclasses.asdict(found)) if options.json else "\n".join(found.lines()))
        return int(bool(found.problems))
    findings = [finding for topic in _TOPICS for finding in topic()]
    problems = sum(finding.level == "problem" for finding in findings)
    if options.json:
        plain = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"problems": problems, "findings": plain}))
    else:
        print(*map(str, findings), sep="\n")
        print(counted(problems, "problem") if problems else "no problems")
    return int(problems > 0)


def examine_python() -> Iterator[Finding]:
    """Yield the versions of Python and of daskxml, and where they are."""
    yield Finding("Python", f"{'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}")
    yield Finding("daskxml", f"{__version__}, {Path(__file__).parents[1]}")


def examine_packages() -> Iterator[Finding]:
    """Yield versions, then what is missing or does not load; `pip check` knows what clashes."""
    versions = hardware.versions(IMPORTED)
    present = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield Finding("packages", present or "none")
    if not hardware.versions(["daskxml"]):
        yield Finding("packages", "daskxml is not installed", "problem", "pip install .")
    elif missing := " ".join(name for name in REQUIRED if name not in versions):
        yield Finding("packages", f"not installed: {missing}", "problem", f"pip install {missing}")
    for name, version in versions.items():
        yield from import_problems("packages", f"{name} {version}", MODULES.get(name, name), name)


def import_problems(topic: str, name: str, module: str, package: str) -> list[Finding]:
    """Return the finding that a module cannot be imported; empty if it can."""
    try:
        importlib.import_module(module)
        return []
    except Exception as error:  # whatever a broken package raises
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    remedy = f"pip install --force-reinstall {package}"
    return [Finding(topic, f"{name} does not load: {problem}", "problem", remedy)]


def examine_cores() -> Iterator[Finding]:
    """Yield the cores that this process may use, and what limits the threads of products."""
    usable, total = hardware.usable_cores(), os.cpu_count() or 1
    yield Finding("cores", f"{usable}" if usable == total else f"{usable} of {total}")
    if limits := [f"{name}={os.environ[name]}" for name in _THREADS if name in os.environ]:
        yield Finding("cores", f"limited by {', '.join(limits)}")


def examine_gpus() -> Iterator[Finding]:
    """Yield GPUs, their driver, and whether the installed packages can use them."""
    variable = os.environ.get(hardware.VISIBLE)
    yield from describe_gpus(
        hardware.find_gpus(), variable, hardware.driver_cuda(), hardware.installed_cupy()
    )


def describe_gpus(
    gpus: Sequence[hardware.Gpu], variable: str | None, driver: tuple[int, int], cupy: Sequence[int]
) -> Iterator[Finding]:
    """Yield the findings about GPUs.

    Parameters
    ----------
    variable
        ``CUDA_VISIBLE_DEVICES``.
    driver, cupy
        See `daskxml.core.hardware.cuda_problem`.

    Examples
    --------
    >>> list(describe_gpus([], None, (0, 0), []))[0].text
    'none: training on CPUs'
    """
    if not gpus:
        yield Finding("GPUs", "none: training on CPUs")
        return
    visible = hardware.visible_gpus(gpus, variable)
    for gpu in gpus:
        hidden = "" if gpu in visible else f", hidden by {hardware.VISIBLE}={variable}"
        size = f"{gpu.memory_bytes / 2**30:,.0f} GiB"
        yield Finding("GPUs", f"{gpu.index}: {gpu.name}, {size}, {gpu.uuid}{hidden}")
    yield Finding("driver", f"{gpus[0].driver}, CUDA {driver[0]}.{driver[1]}")
    problem, _, remedy = hardware.cuda_problem(driver, cupy).partition(": ")
    if problem:  # CuPy may be missing on purpose
        yield Finding("CuPy", problem, "problem" if cupy else "hint", remedy)
    elif broken := import_problems("CuPy", "CuPy", "cupy", f"'{hardware.CUPY[cupy[0]]}[ctk]'"):
        yield from broken
    else:
        yield Finding("CuPy", f"for CUDA {cupy[0]}")
        extra = f"'daskxml[cuda{hardware.fitting_cuda(driver)}]'"
        yield from _examine_optional("dask-cuda", "dask_cuda", extra, "no local workers on GPUs")


def _examine_optional(topic: str, module: str, package: str, without: str) -> Iterator[Finding]:
    """Yield that a package loads, does not, or is not installed, and what goes on ``without``."""
    if importlib.util.find_spec(module) is None:
        yield Finding(
            topic, f"{topic} is not installed: {without}", "hint", f"pip install {package}"
        )
    else:
        yield from import_problems(topic, topic, module, package) or [Finding(topic, "loads")]


def examine_ucx() -> Iterator[Finding]:
    """Yield whether UCX is there."""
    return _examine_optional("UCX", "distributed_ucxx", "'daskxml[ucx]'", "workers talk tcp")


def examine_kernels() -> Iterator[Finding]:
    """Yield whether models can be trained, which compiles the kernels, and how long that took."""
    compiled, begun_s = [], time.monotonic()
    try:
        from daskxml.api.in_process import simulate, train_here
        from daskxml.kernels.registry import telling_of_compilation

        with (
            tempfile.TemporaryDirectory() as folder,
            telling_of_compilation(lambda: compiled.append(True)),
        ):
            rows = Path(folder) / "rows.txt"
            rows.write_text("4 2 2\n" + "0 0:1\n1 1:1\n" * 2)
            files: dict[str, Any] = {"train": str(rows), "test": str(rows)}
            models = [train_here(run_file, **files).model for run_file in ("best", "network")]
            for model in (*models, simulate("adaptive-sgd", [1.0, 1.0], **files).model):
                model.warm_up()
    except ImportError:  # reported by `examine_packages`
        return
    except Exception as error:
        yield Finding("kernels", f"a small training fails: {one_line(str(error))}", "problem")
        return
    took = f"compiled in {time.monotonic() - begun_s:.0f} s, and kept" if compiled else "compiled"
    yield Finding("kernels", took)


_TOPICS = (
    examine_python, examine_packages, examine_cores,
    examine_gpus, examine_ucx, examine_kernels,
)  # fmt: skip
