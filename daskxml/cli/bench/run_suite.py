"""Running a suite, from its first cell to its table, in a folder that a later call resumes.

=======================  =======================================================================
``cells/NAME-KEY/``      ``cell.json`` (settings, environment, command), ``run.toml`` and ``run/``
                         (of a run), ``output.txt``, ``result.json`` once it has ended
``data/``                generated rows
``results.json``         every cell's result, with the machine and the software
``table.md, table.csv``  the same as a table
``.lock``                locked while a bench uses the folder
=======================  =======================================================================
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daskxml.cli.bench.cells import FOLDER, RUN_FILE, Cell, digest, find_sets, plan_cells
from daskxml.cli.bench.execution import DONE, FAILED, Execution, cell_processes, execute, kill_all
from daskxml.cli.bench.figures import Figures, RowNames, cell_figures, collect
from daskxml.cli.bench.regression import Comparison, MetricSpec, compare, metric_spec
from daskxml.cli.bench.suite import Suite
from daskxml.cli.bench.tables import csv_text, markdown
from daskxml.core.errors import ConfigError, ModelError
from daskxml.core.files import lock_folder, replacing
from daskxml.core.text import parse_json
from daskxml.records.environment import PACKAGE, describe, versions

CELL_FILE, RESULT_FILE, RESULTS_FILE = "cell.json", "result.json", "results.json"
TABLE_FILE = "table.md"
SKIPPED = "skipped"
PEERS = ("torch", "scikit-learn", "napkinxc")
_MACHINE = ("cpu", "cores")
_SOURCES = (".py", ".cu", ".h")


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """The result of a bench.

    Attributes
    ----------
    path
        Its folder.
    cells
        As in ``results.json``.
    comparisons
        With the earlier bench, if one was named.
    """

    path: Path
    cells: Sequence[dict[str, Any]]
    comparisons: Sequence[Comparison]

    def count(self, *statuses: str) -> int:
        """Return the number of cells with one of these statuses."""
        return sum(cell["status"] in statuses for cell in self.cells)

    @property
    def failed(self) -> int:
        """The number of cells that were executed and have no result."""
        return len(self.cells) - self.count(DONE, SKIPPED)


def run_suite(
    suite: Suite,
    out: str | Path,
    *,
    data: str | Path | None = None,
    against: str | Path | None = None,
    write: Callable[[str], None] = lambda text: None,
) -> BenchResult:
    """Execute every cell of a suite that has no result in a folder yet, and write the table there.

    Parameters
    ----------
    out
        The folder. Cells that are done there with the same settings, code, software and machine
        are kept; others, including failed ones, are executed from their beginning.
    data
        The folder with the files of dataset cards.
    against
        The folder of an earlier bench to compare with.
    write
        Called with progress texts, which include their line ends.

    Raises
    ------
    ConfigError, InputError
        For a suite or data that cannot be used; nothing was executed.
    ModelError
        If the folder is in use or cannot be written, or the earlier bench has no results.
    """
    folder = Path(out).absolute()
    if against is not None and Path(against).resolve() == folder.resolve():
        raise ConfigError(
            "--out and --against name one directory: a bench is compared with another"
        )
    earlier = None if against is None else read_results(Path(against))
    with lock_folder(folder, "a bench is under way here; choose another --out"):
        sets = find_sets(suite, None if data is None else Path(data), folder / "data")
        cells = plan_cells(suite, sets)
        run = _SuiteRun(suite, folder, earlier, str(against))
        for number, cell in enumerate(cells, 1):
            write(f"[{number}/{len(cells)}] {cell.title}: ")
            write(run.execute(cell) + "\n")
            run.publish(open_cells=len(cells) - number)
        return BenchResult(path=folder, cells=run.cells, comparisons=run.comparisons)


def read_results(path: Path) -> dict[str, Any]:
    """Return ``results.json`` of a folder.

    Raises
    ------
    ModelError
        If there are no results of a bench.
    """
    file = path / RESULTS_FILE
    try:
        found = parse_json(file.read_text(encoding="utf-8"))
        found["cells"], found["environment"]
    except OSError as error:
        raise ModelError(f"{path}: no results of a bench here ({error.strerror})") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file}: not the results of a bench: {error!r}") from error
    return dict(found)


class _SuiteRun:
    """The results so far, and the files that hold them."""

    def __init__(
        self, suite: Suite, folder: Path, earlier: dict[str, Any] | None, against: str
    ) -> None:
        self.suite, self.folder, self.earlier, self.against = suite, folder, earlier, against
        self.environment = environment()
        self.cells: list[dict[str, Any]] = []
        self.comparisons: list[Comparison] = []

    def execute(self, cell: Cell) -> str:
        """Execute a cell, or take its earlier result; return a line about it."""
        if cell.missing:
            self._add(cell, {"status": SKIPPED, "reason": cell.missing}, {})
            return f"skipped: {cell.missing}"
        key = cell.key(determining(self.environment))
        folder = self.folder / "cells" / f"{cell.folder_name}-{key}"
        if earlier := _earlier_result(cell, folder):
            self._add(cell, *earlier)
            return "done before"
        self._prepare(cell, folder)
        command = [word.replace(FOLDER, str(folder)) for word in cell.command]
        execution, figures = _measure(cell, folder, execute(command, folder, cell.budget))
        result = dataclasses.asdict(execution) | {"folder": str(folder.relative_to(self.folder))}
        _write_json(folder / RESULT_FILE, result)
        self._add(cell, result, figures)
        taken = f"{execution.seconds:.1f} s, {execution.peak_bytes / 2**20:,.0f} MiB"
        return f"{execution.status}, {taken}" + f": {execution.reason}" * bool(execution.reason)

    def _prepare(self, cell: Cell, folder: Path) -> None:
        """Create a cell's folder anew, and kill what a killed bench has left running there."""
        if folder.exists():
            kill_all(lambda: cell_processes(folder))
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        if cell.run_file:
            (folder / RUN_FILE).write_text(cell.run_file, encoding="utf-8")
        about = {
            "title": cell.title,
            "settings": cell.settings,
            "repeat": cell.repeat,
            "command": cell.command,
            "environment": self.environment,
        }
        _write_json(folder / CELL_FILE, about)

    def _add(self, cell: Cell, result: dict[str, Any], figures: dict[str, Figures]) -> None:
        about = {
            "names": cell.names,
            "repeat": cell.repeat,
            "title": cell.title,
            "settings": digest(cell.settings),
        }
        self.cells.append(about | result | {"figures": figures})

    def publish(self, open_cells: int) -> None:
        """Write the results and the tables of the cells so far."""
        found = {
            "suite": self.suite.name,
            "title": self.suite.title,
            "environment": self.environment,
            "open": open_cells,
            "cells": self.cells,
        }
        notes = [] if self.earlier is None else self._compare(self.earlier)
        _write_json(self.folder / RESULTS_FILE, found)
        _write_text(self.folder / TABLE_FILE, markdown(found, self.comparisons, notes))
        _write_text(self.folder / "table.csv", csv_text(found, self.comparisons))

    def _compare(self, earlier: dict[str, Any]) -> list[str]:
        """Compare with the earlier bench; return the sentences above the table of changes."""
        then = earlier["environment"]
        is_same_machine = all(then.get(name) == self.environment[name] for name in _MACHINE)
        scripts = {script.name: script for script in self.suite.scripts}

        def spec_of(names: RowNames, quantity: str) -> MetricSpec | None:
            script = scripts.get(names[0]) if len(names) == 2 else None
            if script is None:
                spec = metric_spec(quantity, names[-1])
            elif quantity in script.told:
                spec = None
            else:
                is_larger = quantity in script.larger
                spec = MetricSpec(larger_is_better=is_larger, scale="ratio", by_clock=True)
            return None if spec is None or (spec.by_clock and not is_same_machine) else spec

        self.comparisons = compare(collect(earlier["cells"]), collect(self.cells), spec_of)
        return self._notes(earlier["cells"], is_same_machine)

    def _notes(
        self, earlier_cells: Sequence[Mapping[str, Any]], is_same_machine: bool
    ) -> list[str]:
        found = self.comparisons
        worse = sum(comparison.verdict == "worse" for comparison in found)
        better = sum(comparison.verdict == "better" for comparison in found)
        counts = f"{worse} worse, {better} better."
        notes = [f"{len(found)} figures compared with {self.against}: {counts}"]
        if not is_same_machine:
            notes.append("That was another machine: times by the clock are not compared.")
        if blind := sum(comparison.is_blind for comparison in found):
            notes.append(f"For {blind} of them no repeats tell the noise: a wide one is assumed.")
        settings = {tuple(cell["names"]): cell["settings"] for cell in earlier_cells}
        other = {
            ", ".join(name for name in cell["names"] if name)
            for cell in self.cells
            if settings.get(tuple(cell["names"]), cell["settings"]) != cell["settings"]
        }
        if other:
            notes.append(f"Settings or rows differ from then: {'; '.join(sorted(other))}.")
        return notes


def _earlier_result(cell: Cell, folder: Path) -> tuple[dict[str, Any], dict[str, Figures]] | None:
    """Return the result and the figures of a cell that is done, else None."""
    try:
        result = parse_json((folder / RESULT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(result, dict) or result.get("status") != DONE:
        return None
    values = {field.name: result[field.name] for field in dataclasses.fields(Execution)}
    execution, figures = _measure(cell, folder, Execution(**values))
    return (result, figures) if execution.status == DONE else None


def _measure(
    cell: Cell, folder: Path, execution: Execution
) -> tuple[Execution, dict[str, Figures]]:
    """Return the figures of a cell that is done; a cell whose files are damaged has failed."""
    if execution.status != DONE:
        return execution, {}
    try:
        return execution, cell_figures(cell, folder, execution)
    except ModelError as error:
        return dataclasses.replace(execution, status=FAILED, reason=error.message), {}


def _write_json(path: Path, value: Any) -> None:
    _write_text(path, json.dumps(value, indent=1) + "\n")


def _write_text(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def environment() -> dict[str, Any]:
    """Describe this machine, its software, and the code that is measured.

    Examples
    --------
    >>> found = environment()
    >>> found["cores"] >= 1, "numpy" in found["packages"]
    (True, True)
    """
    return describe() | {"peers": versions(PEERS), "code": code_digest()}


def determining(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an `environment` that determines a cell's result.

    The code is part of it and the commit is not: a commit that changes a document leaves results
    valid.
    """
    return {name: found[name] for name in (*_MACHINE, "python", "packages", "peers", "code")}


@functools.cache
def code_digest() -> str:
    """Return a digest of daskxml's own source files."""
    found = hashlib.sha256()
    for path in sorted(path for path in PACKAGE.rglob("*") if path.suffix in _SOURCES):
        found.update(path.relative_to(PACKAGE).as_posix().encode() + path.read_bytes())
    return found.hexdigest()[:10]
