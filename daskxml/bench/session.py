"""A bench from its first cell to its table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daskxml.bench.directory import (
    RESULT,
    RESULTS,
    BenchDir,
    read_results,
    write_json,
    write_text,
)
from daskxml.bench.environment import decisive, digest, environment, same_machine
from daskxml.bench.execution import DONE, FAILED, Ending, perform
from daskxml.bench.figures import Figures, cell_figures
from daskxml.bench.noise import Change, Judged, compare, judged
from daskxml.bench.plan import FOLDER, Cell, packaged_scripts, plan
from daskxml.bench.sets import find_sets
from daskxml.bench.suite import Suite
from daskxml.bench.summary import Names, collect
from daskxml.bench.tables import csv_text, markdown
from daskxml.errors import ConfigError, ModelError

SKIPPED = "skipped"
TABLE = "table.md"

Tell = Callable[[str], None]  # takes text as it is to be printed, line ends and all


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a bench came to.

    Attributes
    ----------
    path
        Its folder.
    cells
        As in ``results.json``.
    changes
        Against the earlier bench, if one was named.
    """

    path: Path
    cells: Sequence[dict[str, Any]]
    changes: Sequence[Change]

    def count(self, *statuses: str) -> int:
        """Return how many cells have one of these states."""
        return sum(cell["status"] in statuses for cell in self.cells)

    @property
    def failed(self) -> int:
        """How many cells were begun and have no result."""
        return len(self.cells) - self.count(DONE, SKIPPED)


def run_bench(
    suite: Suite,
    out: str | Path,
    *,
    data: str | Path | None = None,
    against: str | Path | None = None,
    tell: Tell = lambda text: None,
) -> Outcome:
    """Do every cell of a suite that has no result yet in a folder, and write the table there.

    Parameters
    ----------
    out
        The folder. Cells that are done there, with the same settings, code, software and machine,
        are kept; others are done from their beginning, those that failed included.
    data
        Where the files of dataset cards lie.
    against
        The folder of an earlier bench to compare with.
    tell
        Hears of every cell as it begins and ends.

    Raises
    ------
    ConfigError, InputError
        For a suite or data that cannot be used; nothing was begun.
    ModelError
        If the folder is in use or cannot be written, or the earlier bench has no results.
    """
    if against is not None and Path(against).resolve() == Path(out).resolve():
        raise ConfigError(
            "--out and --against name one directory: a bench is compared with another"
        )
    earlier = None if against is None else read_results(Path(against))
    with BenchDir(Path(out)) as place:
        sets = find_sets(suite, None if data is None else Path(data), place.data)
        cells = plan(suite, sets, packaged_scripts())
        bench = _Bench(suite, place, earlier, str(against))
        for number, cell in enumerate(cells, 1):
            tell(f"[{number}/{len(cells)}] {cell.title}: ")
            tell(bench.do(cell) + "\n")
            bench.publish(open_cells=len(cells) - number)
        return Outcome(path=place.path, cells=bench.cells, changes=bench.changes)


class _Bench:
    """The results so far, and the files that hold them."""

    def __init__(
        self, suite: Suite, place: BenchDir, earlier: dict[str, Any] | None, against: str
    ) -> None:
        self.suite, self.place, self.earlier, self.against = suite, place, earlier, against
        self.environment = environment()
        self.cells: list[dict[str, Any]] = []
        self.changes: list[Change] = []
        self.scripts = {script.name: script for script in suite.scripts}

    def do(self, cell: Cell) -> str:
        """Do a cell, or take the result that is there; return what to tell of it."""
        if cell.missing:
            self._keep(cell, {"status": SKIPPED, "reason": cell.missing}, {})
            return f"skipped: {cell.missing}"
        key = cell.key(decisive(self.environment))
        if kept := self._kept(cell, key):
            self._keep(cell, *kept)
            return "done before"
        folder = self._begin(cell, key)
        command = [word.replace(FOLDER, str(folder)) for word in cell.command]
        ending = perform(command, folder, cell.limits)
        ending, figures = _read(cell, folder, ending)
        result = dataclasses.asdict(ending) | {"folder": str(folder.relative_to(self.place.path))}
        write_json(folder / RESULT, result)
        self._keep(cell, result, figures)
        taken = f"{ending.seconds:.1f} s, {ending.peak_bytes / 2**20:,.0f} MiB"
        return f"{ending.status}, {taken}" + f": {ending.reason}" * bool(ending.reason)

    def _begin(self, cell: Cell, key: str) -> Path:
        about = {
            "title": cell.title,
            "settings": cell.settings,
            "repeat": cell.repeat,
            "command": cell.command,
            "environment": self.environment,
        }
        return self.place.begin(cell, key, about)

    def _kept(self, cell: Cell, key: str) -> tuple[dict[str, Any], dict[str, Figures]] | None:
        result = self.place.result(cell, key)
        if result is None or result.get("status") != DONE:
            return None
        values = {field.name: result[field.name] for field in dataclasses.fields(Ending)}
        ending, figures = _read(cell, self.place.folder_of(cell, key), Ending(**values))
        return None if ending.status != DONE else (result, figures)

    def _keep(self, cell: Cell, result: dict[str, Any], figures: dict[str, Figures]) -> None:
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
        notes = self._compare() if self.earlier is not None else []
        write_json(self.place.path / RESULTS, found)
        write_text(self.place.path / TABLE, markdown(found, self.changes, notes))
        write_text(self.place.path / "table.csv", csv_text(found, self.changes))

    def _compare(self) -> list[str]:
        """Compare with the earlier bench; return what is to be said of it."""
        assert self.earlier is not None
        is_same = same_machine(self.earlier["environment"], self.environment)

        def judge(names: Names, quantity: str) -> Judged | None:
            how = self._judged(names, quantity)
            return how if how is None or is_same or not how.by_clock else None

        before, now = collect(self.earlier["cells"]), collect(self.cells)
        self.changes = compare(before, now, judge)
        return comparison_notes(self.against, self.earlier, self.cells, self.changes, is_same)

    def _judged(self, names: Names, quantity: str) -> Judged | None:
        script = self.scripts.get(names[0]) if len(names) == 2 else None
        if script is None:
            return judged(quantity, names[-1])
        if quantity in script.told:
            return None
        is_larger = quantity in script.larger
        return Judged(larger_is_better=is_larger, scale="ratio", by_clock=True)


def comparison_notes(
    against: str,
    earlier: dict[str, Any],
    cells: Sequence[dict[str, Any]],
    changes: Sequence[Change],
    is_same_machine: bool,
) -> list[str]:
    """Return the sentences that stand above what changed."""
    worse = sum(change.verdict == "worse" for change in changes)
    better = sum(change.verdict == "better" for change in changes)
    notes = [f"{len(changes)} figures compared with {against}: {worse} worse, {better} better."]
    if not is_same_machine:
        notes.append("That was another machine: times by the clock are not compared.")
    blind = sum(change.is_blind for change in changes)
    if blind:
        notes.append(f"For {blind} of them no repeats tell the noise: a wide one is assumed.")
    settings = {tuple(cell["names"]): cell["settings"] for cell in earlier["cells"]}
    other = {
        ", ".join(name for name in cell["names"] if name)
        for cell in cells
        if settings.get(tuple(cell["names"]), cell["settings"]) != cell["settings"]
    }
    if other:
        notes.append(f"Settings or rows differ from then: {'; '.join(sorted(other))}.")
    return notes


def _read(cell: Cell, folder: Path, ending: Ending) -> tuple[Ending, dict[str, Figures]]:
    """Return the figures of a cell that is done; one whose files are damaged has failed."""
    if ending.status != DONE:
        return ending, {}
    try:
        return ending, cell_figures(cell, folder, ending)
    except ModelError as error:
        return dataclasses.replace(ending, status=FAILED, reason=error.message), {}
