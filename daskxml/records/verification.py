"""Does a run's record follow its rules? Its directory read, every row of its history recomputed.

`daskxml.records.audit` says what is recomputed, and from what; of runs in tasks, which no strategy
leases, every piece counts once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from daskxml.config import RunConfig, load_run_config
from daskxml.core.errors import ModelError
from daskxml.core.files import check_folder, is_locked
from daskxml.models.store import holds_model, read_header
from daskxml.records.audit import Audit, HistoryRow
from daskxml.records.disagreements import Disagreement, Findings
from daskxml.records.environment import read_starts
from daskxml.records.row_schema import check_kinds, check_row
from daskxml.records.run_dir import HISTORY_FILE, RUN_FILE, read_history
from daskxml.session.trace import Setup
from daskxml.strategies.megabatch import Strategy

_COUNTS = ("rows", "rows_without_labels")  # of metrics


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What came of verifying a run.

    Attributes
    ----------
    run
        Its directory.
    megabatches, rows, events, decisions
        What was verified: mega-batches and their rows, events that the strategy received, and
        commands that it decided on them.
    disagreements
        Where the record does not follow its rules.
    notes
        What could not be verified, and why.
    test_rows
        With which the metrics of the model were recomputed.
    """

    run: Path
    megabatches: int
    rows: int
    events: int
    decisions: int
    disagreements: tuple[Disagreement, ...]
    notes: tuple[str, ...]
    test_rows: int = 0

    @property
    def agrees(self) -> bool:
        """Whether the record follows its rules wherever they could be verified."""
        return not self.disagreements

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"agrees": self.agrees, **asdict(self), "run": str(self.run)}


def verify(run: str | Path, data: str | Sequence[str] = ()) -> Verification:
    """Recompute every decision and count of a run from its record alone.

    Parameters
    ----------
    run
        The run's directory, with its run file and its history.
    data
        Files of its test rows, or one: the metrics of its model are recomputed with them.

    Raises
    ------
    ModelError, ConfigError
        If there is no run, or its record is cut, damaged or of another version.

    Examples
    --------
    >>> import daskxml, numpy as np, tempfile
    >>> run = daskxml.simulate({"training": {"epochs": 1}, "strategy": {"megabatch_batches": 1}},
    ...                        speeds=[1.0, 0.5], train=daskxml.Matrices(np.eye(512), np.eye(512)),
    ...                        out=tempfile.mkdtemp() + "/run")
    >>> found = daskxml.verify(run.out)
    >>> found.megabatches, found.rows, found.agrees
    (2, 512, True)
    """
    directory = Path(run)
    check_folder(directory)
    history = read_history(directory / HISTORY_FILE)
    config = load_run_config(directory / RUN_FILE)
    read = HistoryRow.of if config.has_strategy else checked_row
    rows = _read_rows(directory / HISTORY_FILE, history, read)
    _check_length(directory, len(rows))
    if config.has_strategy:
        audit = _audit(directory, config, rows)
        findings, notes = audit.findings, audit.notes
        events, decisions = audit.events, audit.decisions
    else:
        findings, notes = Findings(), []
        events = decisions = check_fitted_rows(rows, findings)
    _check_evaluations(history, findings)
    files = [data] if isinstance(data, str) else data
    test_rows = _check_metrics(directory, history, files, findings) if files else 0
    if files and not test_rows:
        notes.append("the stored model was not evaluated in the run")
    return Verification(
        run=directory,
        megabatches=len(rows),
        rows=history[-1]["rows"],
        events=events,
        decisions=decisions,
        disagreements=tuple(findings.disagreements),
        notes=tuple(notes),
        test_rows=test_rows,
    )


def _audit(directory: Path, config: RunConfig, rows: Sequence[HistoryRow]) -> Audit:
    """Return the audit of a run with a strategy."""
    values = config.as_dict()

    def make_strategy(settings: Mapping[str, Any]) -> Strategy:
        strategy = dict(settings) or values["strategy"]
        return load_run_config(values | {"strategy": strategy}).make_strategy()

    audit = Audit(make_strategy)
    audit.run(rows)
    _check_settings(directory, values["strategy"], audit)
    return audit


def _check_settings(directory: Path, written: Mapping[str, Any], audit: Audit) -> None:
    """Compare the run file with the settings that the run had last."""
    if not (audit.setups and audit.setups[-1].strategy):
        return
    expected = audit.setups[-1].strategy
    if len(read_starts(directory)) <= len(audit.setups):
        audit.findings.compare("", f"{RUN_FILE}, strategy", written, expected)
    elif written != expected:
        audit.notes.append(f"{RUN_FILE} has another [strategy], of a start without a merge")


def _read_rows(
    path: Path, history: Sequence[Mapping[str, Any]], read: Callable[[Mapping[str, Any]], Any]
) -> list[Any]:
    if not history:
        raise ModelError(f"{path}: has no mega-batch; the run never merged, or the history is cut")
    rows = []
    for number, row in enumerate(history, 1):
        try:
            check_row(row)
            if row["megabatch"] != number:
                raise ValueError(f"mega-batch {row['megabatch']}, where {number} is to come")
            rows.append(read(row))
        except ValueError as error:
            raise ModelError(
                f"{path}:{number}: no row of a history of this version ({error}); it is damaged, "
                "edited, or another daskxml wrote it"
            ) from None
    return rows


def _check_evaluations(history: Sequence[Mapping[str, Any]], findings: Findings) -> None:
    """Compare how many rows each evaluation has counted; a run that goes on may be given others."""
    first: dict[str, Any] = {}
    for findings.megabatch, row in enumerate(history, 1):
        if any(entry[0][0] == Setup.__name__ for entry in row.get("trace", ())):
            first = {}
        counts = {name: n for name, n in row["metrics"].items() if name in _COUNTS}
        first = first or counts
        if counts:
            findings.compare("", "metrics", counts, first)


def _check_metrics(
    directory: Path, history: Sequence[Mapping[str, Any]], data: Sequence[str], findings: Findings
) -> int:
    """Compare the metrics of the stored model with those on its test rows; return how many."""
    from daskxml.models.rows import evaluate_partitions, read_rows
    from daskxml.models.trained import Model

    model = Model.load(directory)
    findings.megabatch = model.header.training.get("best_megabatch", len(history))
    written = history[findings.megabatch - 1]["metrics"]
    k = [int(name[2:]) for name in written if name.startswith("P@")]
    if not k:
        return 0
    found = evaluate_partitions(model, read_rows(model, data), k).result()
    ties = 2.0 / max(1.0, found["rows"])  # that another machine may rank otherwise
    for name, value in found.items():
        if name in _COUNTS or not abs(written.get(name, math.inf) - value) <= ties:
            findings.compare("", f"metrics of {name}", written.get(name, "absent"), value)
    return int(found["rows"])


def _check_length(directory: Path, megabatches: int) -> None:
    """Refuse a history that ends before the model of an ended run."""
    if is_locked(directory) or not holds_model(directory):
        return  # the run has not ended
    expected = read_header(directory).training.get("megabatches", 0)
    if isinstance(expected, int) and expected > megabatches:
        raise ModelError(
            f"{directory / HISTORY_FILE}: ends with mega-batch {megabatches}, but the model was "
            f"trained in {expected}: the history is cut"
        )


def checked_row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row, which must be of a run in tasks.

    Raises
    ------
    ValueError
        If it lists no pieces.

    Examples
    --------
    >>> checked_row({"pieces": 2, "workers": {"a": {"pieces": [0, "1"]}}})
    Traceback (most recent call last):
    ValueError: worker a: pieces = [0, '1']
    """
    check_kinds(row, {"pieces": int})
    for name, worker in row["workers"].items():
        pieces = worker.get("pieces")
        if not (isinstance(pieces, list) and all(type(piece) is int for piece in pieces)):
            raise ValueError(f"worker {name}: pieces = {pieces!r:.60}")
    return row


def check_fitted_rows(history: Sequence[Mapping[str, Any]], findings: Findings) -> int:
    """Compare every row with what follows from the others; return the number of pieces.

    Parameters
    ----------
    history
        See `daskxml.session.fit_run`; a row a member.
    findings
        Gets what does not agree.

    Examples
    --------
    >>> row = {"megabatch": 1, "rows": 9, "epoch": 1.0, "train_s": 2.0, "pieces": 2, "workers": {
    ...     "a": {"pieces": [0, 0], "updates": 2, "rows": 9, "weight": 1.0, "busy_s": 1.5,
    ...           "idle_s": 0.5}}}
    >>> check_fitted_rows([row], findings := Findings())
    2
    >>> print(*findings.disagreements, sep="; ")
    mega-batch 1: times that piece 0 counts is 2 in the record, by the rules 1; mega-batch 1: times
    that piece 1 counts is 0 in the record, by the rules 1
    """
    whole = history[0]["rows"]
    for number, row in enumerate(history, 1):
        findings.megabatch = number
        findings.compare("", "rows", row["rows"], number * whole)
        findings.compare("", "epoch", row["epoch"], float(number))
        workers = row["workers"].values()
        counts = Counter(piece for worker in workers for piece in worker["pieces"])
        for piece in sorted({*range(row["pieces"]), *counts}):
            times = int(0 <= piece < row["pieces"])
            findings.compare("", f"times that piece {piece} counts", counts[piece], times)
        for name, total in (("rows", whole), ("weight", 1.0)):
            found = sum(worker[name] for worker in workers)
            findings.compare("", f"{name} of all workers", found, total)
        for name, worker in row["workers"].items():
            findings.compare(name, "updates", worker["updates"], len(worker["pieces"]))
            idle_s = max(0.0, row["train_s"] - worker["busy_s"])
            findings.compare(name, "idle_s", worker["idle_s"], idle_s)
    return sum(row["pieces"] for row in history)
