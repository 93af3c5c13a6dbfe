"""Callbacks of a run on a real cluster; their errors do not end the run."""

from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import daskxml
from daskxml.core.errors import CallbackWarning
from daskxml.records.run_dir import read_history
from harness.ledger_check import check_ledger


def test_callbacks_are_called_with_every_row_and_their_errors_are_warnings(
    client: Client, data: dict[str, Path], values: dict[str, Any], tmp_path: Path
) -> None:
    rows_seen = []

    def fail(row: Any) -> None:
        rows_seen.append(row["megabatch"])
        row.clear()
        raise ZeroDivisionError("oh")

    with pytest.warns(CallbackWarning) as warned:
        run = daskxml.train(
            values, client=client, train=data["train"], test=data["test"], out=tmp_path / "run",
            on_megabatch=fail,
        )  # fmt: skip
    assert rows_seen == [1, 2, 3]
    texts = [str(warning.message) for warning in warned]
    assert [text.split(" (")[0] for text in texts] == [
        "on_megabatch failed: ZeroDivisionError: oh"
    ] * 3
    assert [text.split("; ")[1] for text in texts] == [
        "the run continues", "the run continues", "it is not called again"
    ]  # fmt: skip
    assert read_history(tmp_path / "run" / "history.jsonl") == run.history
    check_ledger(run.history, 1500)
