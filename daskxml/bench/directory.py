"""The folder of a bench: a folder for every cell, and what came out of all.

=======================  =======================================================================
``cells/NAME-KEY/``      ``cell.json`` (what decides the result, the command), ``run.toml`` and
                         ``run/`` (of a run), ``output.txt``, ``result.json`` once it has ended
``data/``                rows that were made up
``results.json``         every cell's result, with the machine and the software
``table.md, table.csv``  the same as a table
``.lock``                locked while a bench is under way here
=======================  =======================================================================
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from daskxml.bench.plan import RUN_FILE, Cell
from daskxml.bench.processes import end, marked_members
from daskxml.errors import ModelError
from daskxml.model.tensors import replacing
from daskxml.training.locking import lock_folder

CELL, RESULT, RESULTS = "cell.json", "result.json", "results.json"


class BenchDir:
    """A folder that is this bench's alone while the context is open."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.data = self.path / "data"
        self._lock: IO[str] | None = None

    def __enter__(self) -> BenchDir:
        """Make the folder and lock it.

        Raises
        ------
        ModelError
            If it cannot be written to, or another bench is under way there.
        """
        busy = "a bench is under way here; choose another --out"
        self._lock = lock_folder(self.path, busy)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Unlock it."""
        assert self._lock is not None
        self._lock.close()

    def folder_of(self, cell: Cell, key: str) -> Path:
        """Return where a cell lies."""
        return self.path / "cells" / f"{cell.folder_name}-{key}"

    def result(self, cell: Cell, key: str) -> dict[str, Any] | None:
        """Return what a cell came to, None if it has not come to its end."""
        try:
            text = (self.folder_of(cell, key) / RESULT).read_text(encoding="utf-8")
            found = json.loads(text)
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def begin(self, cell: Cell, key: str, about: Mapping[str, Any]) -> Path:
        """Make a cell's folder anew; what a bench that was killed has left running there is ended.

        Raises
        ------
        ModelError
            If it cannot be written.
        """
        folder = self.folder_of(cell, key)
        if folder.exists():
            end(lambda: marked_members(folder))
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        if cell.run_file:
            (folder / RUN_FILE).write_text(cell.run_file, encoding="utf-8")
        write_json(folder / CELL, about)
        return folder


def write_json(path: Path, value: Any) -> None:
    """Write a file of JSON, as `write_text` does."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file in the place of what was there.

    Raises
    ------
    ModelError
        If it cannot be written; what was there is unchanged.
    """
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def read_results(path: Path) -> dict[str, Any]:
    """Return ``results.json`` of a folder.

    Raises
    ------
    ModelError
        If no bench has left its results there.
    """
    file = path / RESULTS
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        found["cells"], found["environment"]
    except OSError as error:
        raise ModelError(f"{path}: no results of a bench here ({error.strerror})") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file}: not the results of a bench: {error!r}") from error
    return dict(found)
