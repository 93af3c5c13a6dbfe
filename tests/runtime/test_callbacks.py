"""What a user hears of a run on a real cluster while it goes on; the run does not mind errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import replay
from distributed import Client

import daskxml
from daskxml.errors import CallbackWarning
from daskxml.training.history import read_history


class Notes:
    """A logger that fails at every second mega-batch."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def begin(self, run: Any) -> None:
        self.told.append(("begin", run.title))

    def log(self, row: Any) -> None:
        self.told.append(("log", row["megabatch"]))
        if row["megabatch"] % 2 == 0:
            raise TimeoutError("no answer")

    def rewind(self, megabatch: int) -> None:
        self.told.append(("rewind", megabatch))

    def end(self, reason: str) -> None:
        self.told.append(("end", reason))


def test_callbacks_hear_every_row_and_their_errors_are_warnings(
    client: Client, data: dict[str, Path], values: dict[str, Any], tmp_path: Path
) -> None:
    heard, logger = [], Notes()

    def spoil(row: Any) -> None:
        heard.append(row["megabatch"])
        row.clear()
        raise ZeroDivisionError("oh")

    with pytest.warns(CallbackWarning) as warned:
        run = daskxml.train(
            values, client=client, train=data["train"], test=data["test"], out=tmp_path / "run",
            on_megabatch=spoil, loggers=[logger],
        )  # fmt: skip
    assert heard == [1, 2, 3]
    rows = [("log", megabatch) for megabatch in range(1, 9)]
    assert logger.told == [("begin", "run"), *rows, ("end", "megabatches")]
    told = [str(warning.message) for warning in warned]
    assert [text.split(" (")[0].removesuffix("; the run goes on") for text in told] == [
        "on_megabatch failed: ZeroDivisionError: oh",
        "Notes failed: TimeoutError: no answer",
        "on_megabatch failed 3 times in a row: not called again",
        "on_megabatch failed 3 times in 3 calls",
        "Notes failed 4 times in 9 calls",
    ]
    assert read_history(tmp_path / "run" / "history.jsonl") == run.history
    replay.check_ledger(run.history, 1500)
