"""What a run's record says, recomputed in memory; and rows that a resumed run has in common."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import daskxml
from daskxml.config import load_run_config
from daskxml.records.audit import Audit, HistoryRow
from daskxml.records.disagreements import Findings
from daskxml.records.verification import check_fitted_rows
from daskxml.strategies.megabatch import Strategy
from harness.recount import recounted


def history(out: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's directory."""
    return [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]


def flat(run: daskxml.Run) -> Any:
    """Return all parameters of a run's model, one after the other."""
    return np.concatenate([np.ravel(array) for _, array in sorted(run.model.parameters.items())])


def audited(
    history: Sequence[Mapping[str, Any]],
    make_strategy: Callable[[Mapping[str, Any]], Strategy],
) -> Audit:
    """Return the audit of a history, as its file would have it."""
    audit = Audit(make_strategy)
    audit.run(_stored(history))
    return audit


def objections(
    history: Sequence[Mapping[str, Any]],
    make_strategy: Callable[[Mapping[str, Any]], Strategy],
) -> list[str]:
    """Return what the audit, and the recount beside it, find in a history."""
    found = audited(history, make_strategy)
    own = [*map(str, found.findings.disagreements), *found.notes]
    return own or [f"recounted: {line}" for line in recounted(_stored(history), make_strategy)]


def _stored(history: Sequence[Mapping[str, Any]]) -> list[HistoryRow]:
    return [HistoryRow.of(row) for row in json.loads(json.dumps(history))]


def check_record(history: Sequence[Mapping[str, Any]]) -> None:
    """Check that a history follows the rules of the strategy that it names."""

    def make_strategy(settings: Mapping[str, Any]) -> Strategy:
        table = {"strategy": dict(settings), "training": {"epochs": 1}}
        return load_run_config(table).make_strategy()

    found = objections(history, make_strategy)
    assert not found, "\n".join(found)
    assert audited(history, make_strategy).decisions


def check_trees(history: Sequence[Mapping[str, Any]]) -> None:
    """Check that the history of a run of label trees has every piece once."""
    found = Findings()
    check_fitted_rows(json.loads(json.dumps(history)), found)
    assert not found.disagreements, "\n".join(map(str, found.disagreements))


def without_starts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without what differs where a run is resumed."""
    trace = [entry for entry in row["trace"] if entry[0][0] not in ("Setup", "Started")]
    return {**row, "wall_s": 0.0, "trace": trace}
