"""All figures and tables of the papers again: the scripts in `figures/`, one after the other.

    python benchmarks/papers/paper_figures.py --data FOLDER [--only fig06,..] [--idle] [--quick]

`FOLDER` as in `figures/README.md`. Learning rates are chosen first, then come the studies that need
no data, and then the figures, which share finished runs. A script that fails is named and the
others go on; the exit status is 1 then. ``--idle`` adds, at the end, what is measured by the clock
on the wall or needs gigabytes, and so a machine that does nothing else; without it those are left
out. What each script took is written to ``results/paper_figures.json``: little where runs were kept
from before (``runs/figures/``). ``--quick`` runs only the scripts that have a ``--quick``, which
write nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from machine import write_result

FIGURES = Path(__file__).parent
NO_DATA = ("merge_stability", "merging", "adasum_table1")
SIMULATED = (
    "table", "pairs", "fig01", "fig06", "fig07", "fig08", "fig09", "fig10", "fig11", "fig12",
    "overlap", "adasum_fig02", "adasum_fig06", "adasum_fig01", "adasum_tables",
    "hogbatch_fig05", "hogbatch_fig06", "hogbatch_fig07", "hogbatch_fig08", "hogbatch_rates",
)  # fmt: skip
IDLE = ("hogbatch_real", "full_size")
QUICK = ("adasum_table1", "adasum_tables")
SCRIPTS = ("learning_rates", *NO_DATA, *SIMULATED, *IDLE)
ELSEWHERE = {"full_size": Path(__file__).parents[1] / "speed" / "full_size.py"}


def chosen(only: Sequence[str], *, idle: bool, quick: bool) -> list[str]:
    """Return the scripts to run, in their order.

    Raises
    ------
    SystemExit
        If ``only`` names one that is not there.

    Examples
    --------
    >>> chosen(["fig06", "merging"], idle=False, quick=False)
    ['merging', 'fig06']
    """
    for name in only:
        if name not in SCRIPTS:
            raise SystemExit(f"--only {name}: no such script; there are {', '.join(SCRIPTS)}")
    if only:
        return [name for name in SCRIPTS if name in only]
    return [name for name in SCRIPTS if (name in QUICK if quick else idle or name not in IDLE)]


def command(name: str, data: str, *, quick: bool) -> list[str]:
    """Return the command line of a script.

    Examples
    --------
    >>> [Path(word).name for word in command("merging", "sets", quick=False)[1:]]
    ['merging.py']
    >>> command("fig06", "sets", quick=False)[2:]
    ['--data', 'sets']
    """
    takes_data = name not in NO_DATA and name not in ELSEWHERE
    return [
        sys.executable, str(ELSEWHERE.get(name, FIGURES / f"{name}.py")),
        *(["--data", data] if takes_data else []), *(["--quick"] if quick else []),
    ]  # fmt: skip


def main() -> None:
    """Run the scripts, and write what they took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder with NAME.train.txt.gz")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[])
    parser.add_argument("--idle", action="store_true", help="also what needs an idle machine")
    parser.add_argument("--quick", action="store_true", help="short runs; writes no result")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in chosen(options.only, idle=options.idle, quick=options.quick):
        print(f"== {name}", flush=True)
        begun_s = time.perf_counter()
        done = subprocess.run(command(name, options.data, quick=options.quick), check=False)
        took_s = round(time.perf_counter() - begun_s, 1)
        rows.append({"script": name, "seconds": took_s, "status": done.returncode})
    if not options.quick:
        write_result("paper_figures", rows)
    if failed := [row["script"] for row in rows if row["status"]]:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
