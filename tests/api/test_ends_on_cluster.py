"""How a run on a real cluster ends, and which model is its result."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import daskxml
from daskxml.core.errors import CallbackWarning
from daskxml.data.parse import parse_bytes
from daskxml.data.rows import to_scipy
from daskxml.records.run_dir import read_history
from harness.ledger_check import check_ledger


class PrunedError(Exception):
    """As a pruner raises it."""


def stop_at_two(row: dict[str, Any]) -> Any:
    return daskxml.STOP if row["megabatch"] == 2 else None


def prune(row: dict[str, Any]) -> None:
    raise PrunedError(row["megabatch"])


def test_best_models_names_patience_and_callbacks_on_a_cluster(
    client: Client, data: dict[str, Path], values: dict[str, Any], tmp_path: Path
) -> None:
    given: dict[str, Any] = {"client": client, "train": data["train"], "test": data["test"]}
    rough = {"strategy.lr": 60.0, "training.keep_best": True, "training.megabatches": 6}
    names = tuple(f"label {i}" for i in range(60))
    (tmp_path / "labels.txt").write_text("\n".join(names), encoding="utf-8")
    named = {**rough, "data.label_names": str(tmp_path / "labels.txt")}
    run = daskxml.train(values, overrides=named, out=tmp_path / "run", **given)
    found, stored = check_best(run), daskxml.load(tmp_path / "run")
    assert run.model.header.label_names == names
    assert stored.header == run.model.header
    part = parse_bytes(data["test"].read_bytes().split(b"\n", 1)[1]).partition
    X, Y = to_scipy(part.features), to_scipy(part.labels)
    X.resize(X.shape[0], 300)
    assert stored.evaluate(X, Y)["P@1"] == pytest.approx(max(found))

    run = daskxml.train(values, overrides={**rough, "training.patience": 1}, **given)
    found = check_best(run)
    if run.reason == "patience":
        assert len(found) == found.index(max(found)) + 2

    limits = {"training.epochs": 1.5, "training.megabatches": 0}
    run = daskxml.train(values, overrides=limits, **given)
    assert (run.reason, run.history[-1]["rows"]) == ("epochs", 2250)

    run = daskxml.train(values, on_megabatch=stop_at_two, **given)
    assert run.reason == "callback"
    assert 2 <= len(run.history) < 8
    with pytest.raises(PrunedError, match="1"):
        daskxml.train(values, on_megabatch=prune, raises=[PrunedError], **given)
    assert daskxml.runs(client) == []  # the scheduler has dropped it


def check_best(run: daskxml.Run) -> list[float]:
    """Check that the model is that of the best evaluation; return all of them."""
    found = [row["metrics"]["P@1"] for row in run.history]
    best = run.model.header.training["best_megabatch"]
    assert best == int(np.argmax(found)) + 1
    assert run.metrics["P@1"] == max(found)
    return found


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
