"""``daskxml bench``: the runs of a suite, each in processes of its own, and one table.

=======================  =======================================================================
``cells/NAME-KEY/``      ``run.toml``, ``run/``, ``output.txt``, and ``result.json`` at its end
``data/``                generated rows
``results.json``         every result, with the machine and the software
``table.md``             the page
=======================  =======================================================================

The same command again does the runs that have no result with these settings, code and machine.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from daskxml.cli.arguments import Options
from daskxml.cli.suite import FOLDER, Cell, Limits, find_rows, load_suite, plan
from daskxml.core.errors import ClusterError
from daskxml.core.fields import size_text
from daskxml.core.files import lock_folder, read_json, replace_text
from daskxml.observe.run_view import History, elapsed, last_metrics, phases, reach
from daskxml.observe.wording import rounded
from daskxml.records.environment import PACKAGE, describe
from daskxml.records.run_dir import read_history

DONE, FAILED, SKIPPED = "done", "failed", "skipped"
OVER_TIME, OVER_MEMORY = "over time", "over memory"
CELL_VARIABLE = "DASKXML_BENCH_CELL"  # names the folder in the environment of its processes
SHOWN = ("P@1", "P@3", "P@5", "PSP@5")  # of the metrics; results.json has all
_CHECK_S, _KILL_S, _KILLS = 0.5, 1.0, 10

Result = dict[str, Any]


def bench(options: Options) -> int:
    """Do the runs of a suite, print the table, and count the failures.

    Returns
    -------
    The exit status: 1 if something failed or all was skipped, else 0.
    """
    suite = load_suite(options.suite)
    out = Path(options.out or f"runs/bench-{suite.path.stem}").absolute()
    print(f"bench in {out}; if interrupted, the same command continues", flush=True)
    with lock_folder(out, "a bench is under way here; choose another --out"):
        rows = find_rows(suite, options.data and Path(options.data), out / "data")
        planned, environment = plan(suite, rows), describe()
        results: list[Result] = []
        for number, cell in enumerate(planned, 1):
            print(f"[{number}/{len(planned)}] {cell.title}: ", end="", flush=True)
            results.append(
                {"title": cell.title, "names": cell.names, **measure(cell, suite.limits, out)}
            )
            print(_outcome(results[-1]), flush=True)
            found = {"title": suite.limits.title, "environment": environment, "results": results}
            replace_text(out / "results.json", json.dumps(found, indent=1) + "\n")
            page = table(suite.limits.title, environment, results, planned[number:])
            replace_text(out / "table.md", page)
    print(f"\n{page}")
    counts = Counter(result["status"] for result in results)
    if failed := len(results) - counts[DONE] - counts[SKIPPED]:
        print(f"{failed} of {len(results)} runs failed")
    elif not counts[DONE]:
        print("nothing was done: every run was skipped")
    return 1 if failed or not counts[DONE] else 0


def _outcome(result: Result) -> str:
    """Return how a cell ended, in one line."""
    parts = [result["status"]]
    if "seconds" in result:
        parts.append(f"{result['seconds']:.1f} s, {result['peak_bytes'] / 2**20:,.0f} MiB")
    return ", ".join(parts) + f": {result['reason']}" * bool(result.get("reason"))


# --------------------------------------------------------------------------------------- one cell


def measure(cell: Cell, limits: Limits, out: Path) -> Result:
    """Return the result of a cell: an earlier one, or that of its process.

    Returns
    -------
    ``status``, ``reason`` where it is not `DONE`, and of a process ``seconds``, ``peak_bytes`` and
    ``figures``.
    """
    if cell.missing:
        return {"status": SKIPPED, "reason": cell.missing}
    determining = json.dumps([cell.command, cell.run_file, _machine()])
    key = hashlib.sha256(determining.encode()).hexdigest()[:10]
    folder = out / "cells" / f"{''.join(filter(str.isalnum, cell.title))[:60]}-{key}"
    stored = folder / "result.json"
    if (known := read_json(stored)) and known.get("status") == DONE:
        return {**known, "reason": "before"}
    if folder.exists():  # of a bench that was killed
        kill_all(folder)
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text(cell.run_file, encoding="utf-8")
    command = [word.replace(FOLDER, str(folder)) for word in cell.command]
    result = execute(["-m", "daskxml", *command], folder, limits)
    if result["status"] == DONE:
        history = read_history(folder / "run/history.jsonl")
        figures = run_figures(history, cell.target[0], cell.target[1])
        if cell.names[-1] == "cluster":  # otherwise it is the speed of the simulator itself
            figures["in all s"] = result["seconds"]
        result["figures"] = figures | {"memory MiB": result["peak_bytes"] / 2**20}
    replace_text(stored, json.dumps(result) + "\n")
    return result


@functools.cache
def _machine() -> list[str]:
    """Return the machine, the software, and a digest of the package's source files."""
    code = hashlib.sha256()
    for path in sorted(p for p in PACKAGE.rglob("*") if p.suffix in (".py", ".cu", ".h")):
        code.update(path.relative_to(PACKAGE).as_posix().encode() + path.read_bytes())
    found = describe()
    return [code.hexdigest(), *(str(found[n]) for n in ("cpu", "cores", "python", "packages"))]


def execute(command: Sequence[str], folder: Path, limits: Limits) -> Result:
    """Run Python with a command, and wait for it; its output goes to ``output.txt`` in the folder.

    It is killed with all of its processes once it exceeds its limits, or if this call is
    interrupted. Memory is sampled twice a second.

    Parameters
    ----------
    command
        The interpreter's arguments.

    Returns
    -------
    ``status``, ``reason``, ``seconds`` and ``peak_bytes``.
    """
    output, begun_s = folder / "output.txt", time.monotonic()
    try:  # a signal may come before the process is known here
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the bench, which ends it
                env={**os.environ, CELL_VARIABLE: str(folder)},
            )
        exceeded, peak_bytes = _watch(process, folder, begun_s, limits)
    finally:
        kill_all(folder)
    process.wait()
    status = exceeded or (FAILED if process.returncode else DONE)
    lines = output.read_text(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    reasons = {
        OVER_TIME: f"ended after its {limits.minutes:g} minutes",
        OVER_MEMORY: f"ended for having more memory than its {size_text(limits.memory)}",
        FAILED: f"exit status {process.returncode}: {last}",
    }
    return {
        "status": status,
        "reason": reasons.get(status, ""),
        "seconds": time.monotonic() - begun_s,
        "peak_bytes": peak_bytes,
    }


def _watch(
    process: subprocess.Popen[bytes], folder: Path, begun_s: float, limits: Limits
) -> tuple[str, int]:
    """Wait for the end; return the status if a limit was exceeded, else "", and peak memory."""
    peak_bytes = 0
    while True:
        left_s = begun_s + 60 * limits.minutes - time.monotonic()
        try:
            process.wait(timeout=max(0.0, min(_CHECK_S, left_s)))
            return "", peak_bytes
        except subprocess.TimeoutExpired:
            peak_bytes = max(peak_bytes, memory_bytes(processes_of(folder)))
        if peak_bytes > limits.memory:
            return OVER_MEMORY, peak_bytes
        if time.monotonic() - begun_s >= 60 * limits.minutes:
            return OVER_TIME, peak_bytes


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the processes of a cell, also those that a killed bench has left."""
    return [
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get(CELL_VARIABLE) == str(folder)
    ]


def memory_bytes(processes: Iterable[psutil.Process]) -> int:
    """Return the memory of processes; pages that they share count once.

    Examples
    --------
    >>> memory_bytes([psutil.Process()]) > 2**20
    True
    """
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total


def kill_all(folder: Path) -> None:
    """Kill the processes of a cell until none is found.

    Raises
    ------
    ClusterError
        If some cannot be killed within ten seconds.
    """
    for _ in range(_KILLS):
        if not (processes := processes_of(folder)):
            return
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=_KILL_S)
    pids = [process.pid for process in processes]
    raise ClusterError(f"processes {pids} cannot be killed: end them, then repeat the command")


# -------------------------------------------------------------------------------- the page


def run_figures(history: History, metric: str, target: float) -> dict[str, float]:
    """Return the figures of a run from the rows of its history.

    Returns
    -------
    The metrics of the last evaluation; the last and the lowest ``training loss``, if recorded;
    ``train s``, training and merging without evaluation; ``rows/s`` in that time; ``idle %`` of
    the workers' training time; and ``s to METRIC`` if a target is given and was reached.

    Examples
    --------
    >>> workers = {"0": {"busy_s": 3.0, "idle_s": 1.0}}
    >>> row = {"megabatch": 1, "rows": 40, "train_s": 4.0, "merge_s": 1.0, "metrics": {"P@1": 0.5}}
    >>> run_figures([{**row, "workers": workers}], "P@1", 0.4)
    {'P@1': 0.5, 's to P@1 0.4': 5.0, 'train s': 5.0, 'rows/s': 8.0, 'idle %': 25.0}
    """
    found = {name: float(v) for name, v in last_metrics(history).items() if "@" in name}
    losses = [row["training_loss"] for row in history if row.get("training_loss") is not None]
    if losses := [float(loss) for loss in losses if math.isfinite(loss)]:
        found |= {"training loss": losses[-1], "lowest loss": min(losses)}
    reached = reach(history, metric, target) if target else None
    if reached is not None and reached.is_reached:
        found[f"s to {metric} {target:g}"] = reached.train_s
    found["train s"] = elapsed(history)[-1] if history else 0.0
    if found["train s"]:
        found["rows/s"] = history[-1]["rows"] / found["train s"]
    spent = phases(history)
    if training_s := spent["computing"] + spent["waiting"]:
        found["idle %"] = 100.0 * spent["waiting"] / training_s
    return found


def table(
    title: str, environment: Mapping[str, Any], results: Sequence[Result], left: Sequence[Cell]
) -> str:
    """Return the page: a row for the seeds of a run, and what has no result.

    ``left`` has not been begun.
    """
    rows: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for result in results:
        for quantity, value in result.get("figures", {}).items():
            rows.setdefault(tuple(result["names"]), {}).setdefault(quantity, []).append(value)
    undone = [f"- {r['title']}: {_outcome(r)}" for r in results if r["status"] != DONE]
    undone += [f"- {cell.title}: not begun" for cell in left]
    parts = [f"# {title}", _described(environment)]
    if rows:
        parts += [markdown(rows), "Medians, with the range over seeds where there are several."]
    if undone:
        parts += ["## Not done", "\n".join(undone)]
    return "\n\n".join(parts) + "\n"


def _described(found: Mapping[str, Any]) -> str:
    """Return an environment as one line."""
    packages = {"daskxml": f"{found['daskxml']} ({found['commit'] or 'no commit'})"}
    packages |= {"Python": found["python"], **found["packages"]}
    machine = [found["cpu"], f"{found['cores']} cores", f"{found['memory_gib']} GiB"]
    software = ", ".join(f"{name} {version}" for name, version in packages.items())
    parts = [", ".join([*machine, *found["gpus"]]), found["os"], software, found["date"][:10]]
    return "; ".join(parts)


def markdown(rows: Mapping[tuple[str, ...], Mapping[str, Sequence[float]]]) -> str:
    """Return a table of rows by their names, each with the values of its figures.

    Examples
    --------
    >>> first, second = ("elastic", "demo", "2", "cluster"), ("elastic", "demo", "", "simulate")
    >>> print(markdown({first: {"P@1": [0.5, 0.25]}, second: {"train s": [2000.0]}}))
    | run     | data | workers | executor | P@1                 | train s |
    | ------- | ---- | ------- | -------- | ------------------- | ------- |
    | elastic | demo | 2       | cluster  | 0.375 (0.25 to 0.5) | -       |
    | elastic | demo |         | simulate | -                   | 2,000   |
    """
    names = dict.fromkeys(name for row in rows.values() for name in row)
    shown = [name for name in names if "@" not in name or name in SHOWN or name.startswith("s to ")]
    lines = [["run", "data", "workers", "executor", *shown]]
    for key, row in rows.items():
        lines.append([*key, *(spell(row[name]) if name in row else "-" for name in shown)])
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    padded = ([f"{c:<{w}}" for c, w in zip(line, widths, strict=True)] for line in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)


def spell(values: Sequence[float]) -> str:
    """Return the median of some values, with their range where there are several.

    Examples
    --------
    >>> spell([0.589, 0.586, 0.592]), spell([12345.6])
    ('0.589 (0.586 to 0.592)', '12,346')
    """
    texts = list(map(rounded, (statistics.median(values), min(values), max(values))))
    return texts[0] if len(values) == 1 else f"{texts[0]} ({texts[1]} to {texts[2]})"
