"""What a user waits for: installation, and the first metric of `best`.

    python benchmarks/speed/start.py FOLDER [--set bibtex] [--keep]

``FOLDER`` holds ``NAME.train.txt.gz`` and ``NAME.test.txt.gz``. A virtual environment is made in a
temporary folder, this checkout is installed there by pip, and `best` is trained twice, each
time in a new process that finds no other daskxml. Every line that a run prints is timed; pauses of
more than two seconds are reported with the last line before them. Pip takes packages from its cache
where it has them. Wall time depends on the machine's load, which is in the table, as is the
processor time of the command without its workers. Writes ``results/first_minute.json``.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import write_result

ROOT = Path(__file__).parents[2]
PAUSE_S = 2.0
Line = tuple[float, str]


def timed(command: list[str]) -> tuple[list[Line], dict[str, Any]]:
    """Run a command; return its lines with the seconds before each, and what it took.

    Raises
    ------
    SystemExit
        If it fails.
    """
    plain = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
    plain = {name: value for name, value in plain.items() if not name.startswith("NUMBA_")}
    begun_s, before_s = time.monotonic(), cpu_s()
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, **pipes, text=True, env=plain, cwd=tempfile.gettempdir()) as it:
        assert it.stdout is not None
        lines = [(time.monotonic() - begun_s, line.rstrip()) for line in it.stdout]
    if it.returncode:
        sys.exit("\n".join(line for _, line in lines[-20:]))
    wall_s = time.monotonic() - begun_s
    took = {"wall s": wall_s, "cpu s": cpu_s() - before_s, "load": os.getloadavg()[0]}
    return lines, {name: round(value, 1) for name, value in took.items()}


def cpu_s() -> float:
    """Return the processor time of all processes that have ended here."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def pauses(lines: list[Line], begin: str) -> list[dict[str, Any]]:
    """Return the pauses, and the last line before each."""
    found, (last_s, last) = [], (0.0, begin)
    for at_s, line in lines:
        if at_s - last_s > PAUSE_S:
            found.append({"after": last[:80], "pause s": round(at_s - last_s, 1)})
        last_s, last = at_s, line or last
    return found


def main() -> None:
    """Install, train twice, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", default="bibtex")
    parser.add_argument("--keep", action="store_true", help="leave the environment where it is")
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="first-minute-"))
    bin_folder = home / "venv/bin"
    _, made = timed([sys.executable, "-m", "venv", str(home / "venv")])
    _, installed = timed([str(bin_folder / "pip"), "install", "--quiet", str(ROOT)])
    rows = [{"step": "make an environment", **made, "first metric s": None}]
    rows.append({"step": "pip install", **installed, "first metric s": None})
    told = {}
    for number, step in enumerate(("first run", "second run"), start=1):
        files = [str(options.folder.absolute() / f"{options.set}.{part}.txt.gz")
                 for part in ("train", "test")]  # fmt: skip
        out = ["--out", str(home / f"run{number}")]
        command = [str(bin_folder / "daskxml"), "train", "best", "--train", files[0]]
        lines, took = timed([*command, "--test", files[1], *out])
        metric_s = next(at_s for at_s, line in lines if "P@1" in line)
        rows.append({"step": step, **took, "first metric s": round(metric_s, 1)})
        told[step] = pauses(lines, "the command")
        print("\n".join(f"{at_s:7.1f}  {line[:90]}" for at_s, line in lines), flush=True)
    write_result("first_minute", rows, data=options.set, pauses=told)
    if not options.keep:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
