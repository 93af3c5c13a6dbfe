"""GPUs, the packages that use them, and UCX."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from daskxml.doctor.findings import Finding
from daskxml.doctor.packages import load_problem
from daskxml.gpus import (
    CUPY,
    VISIBLE,
    Gpu,
    cuda_problem,
    driver_cuda,
    find_gpus,
    fitting_cuda,
    installed_cupy,
    visible_gpus,
)

PATIENCE_S = 30.0


def examine_gpus() -> Iterator[Finding]:
    """Yield GPUs, their driver, and whether the installed packages can use them."""
    variable = os.environ.get(VISIBLE)
    yield from describe_gpus(find_gpus(), variable, driver_cuda(), installed_cupy())


def describe_gpus(
    gpus: Sequence[Gpu], variable: str | None, driver: tuple[int, int], cupy: Sequence[int]
) -> Iterator[Finding]:
    """Yield what there is to tell of GPUs.

    Parameters
    ----------
    variable
        ``CUDA_VISIBLE_DEVICES``.
    driver, cupy
        See `daskxml.gpus.cuda_problem`.

    Examples
    --------
    >>> list(describe_gpus([], None, (0, 0), []))[0].text
    'none: training on CPUs'
    """
    if not gpus:
        yield Finding(topic="GPUs", text="none: training on CPUs")
        return
    shown = visible_gpus(gpus, variable)
    for gpu in gpus:
        hidden = "" if gpu in shown else f", hidden by {VISIBLE}={variable}"
        size = f"{gpu.memory_bytes / 2**30:,.0f} GiB"
        yield Finding(topic="GPUs", text=f"{gpu.index}: {gpu.name}, {size}, {gpu.uuid}{hidden}")
    yield Finding(topic="driver", text=f"{gpus[0].driver}, CUDA {driver[0]}.{driver[1]}")
    problem, _, remedy = cuda_problem(driver, cupy).partition(": ")
    if problem:
        level = "problem" if cupy else "hint"  # who has not installed CuPy may not want it
        yield Finding(topic="CuPy", text=problem, level=level, remedy=remedy)  # type: ignore[arg-type]
    elif broken := load_problem("cupy"):
        extra = f"pip install --force-reinstall '{CUPY[cupy[0]]}[ctk]'"
        text = f"CuPy does not load: {broken}"
        yield Finding(topic="CuPy", text=text, level="problem", remedy=extra)
    else:
        yield Finding(topic="CuPy", text=f"for CUDA {cupy[0]}")
        yield from _examine_dask_cuda(fitting_cuda(driver))


def _examine_dask_cuda(cuda: int) -> Iterator[Finding]:
    if importlib.util.find_spec("dask_cuda") is None:
        yield Finding(
            topic="dask-cuda",
            text="dask-cuda is not installed: no local workers on GPUs",
            level="hint",
            remedy=f"pip install 'daskxml[cuda{cuda}]'",
        )
    elif broken := load_problem("dask_cuda"):
        yield Finding(
            topic="dask-cuda",
            text=f"dask-cuda does not load: {broken}",
            level="problem",
            remedy=f"pip install --force-reinstall 'daskxml[cuda{cuda}]'",
        )
    else:
        yield Finding(topic="dask-cuda", text="loads")


def examine_ucx() -> Iterator[Finding]:
    """Yield the transports that UCX finds here."""
    if importlib.util.find_spec("distributed_ucxx") is None:
        yield Finding(
            topic="UCX",
            text="UCX is not installed: workers talk tcp",
            level="hint",
            remedy="pip install 'daskxml[ucx]'",
        )
        return
    spec = importlib.util.find_spec("libucx")
    folders = list(spec.submodule_search_locations or []) if spec else []
    told = ucx_info(Path(folders[0])) if folders else ""
    transports = parse_transports(told)
    text = ", ".join(transports) or "installed; its transports are not known"
    yield Finding(topic="UCX", text=text)
    if broken := load_problem("distributed_ucxx"):
        text = f"distributed-ucxx does not load: {broken}"
        remedy = "pip install --force-reinstall distributed-ucxx-cu12"
        yield Finding(topic="UCX", text=text, level="problem", remedy=remedy)


def ucx_info(folder: Path) -> str:
    """Return what the ``ucx_info`` that comes with UCX tells; "" if it cannot be run."""
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder / "lib"), "UCX_LOG_LEVEL": "fatal"}
    try:
        told = subprocess.run(
            [folder / "bin" / "ucx_info", "-d"],
            capture_output=True, text=True, timeout=PATIENCE_S, check=True, env=environment,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stdout


def parse_transports(told: str) -> list[str]:
    """Return transports with their devices, each once.

    Examples
    --------
    >>> parse_transports('''
    ... #      Transport: tcp
    ... #         Device: eth0
    ... #      Transport: tcp
    ... #         Device: lo
    ... #      Transport: posix
    ... #         Device: memory''')
    ['tcp (eth0, lo)', 'posix (memory)']
    """
    found: dict[str, list[str]] = {}
    for transport, device in re.findall(r"Transport: (\S+)\s+#\s+Device: (\S+)", told):
        devices = found.setdefault(transport, [])
        if device not in devices:
            devices.append(device)
    return [f"{transport} ({', '.join(devices)})" for transport, devices in found.items()]
