"""The record of a run: one JSON object a mega-batch, in ``history.jsonl``.

``rows`` and ``epoch`` count from the beginning of the run; ``wall_s`` is since its start, with
evaluation; ``train_s``, ``merge_s`` and ``eval_s`` are of this mega-batch. ``workers`` has, for
every worker whose replica was merged, its leases as lists of ``[epoch, stream, start, stop]``:
together they are the rows of this mega-batch, each once. Where all update one shared model, a
worker that was lost is there too, with what it had done, and weights are shares of the updates.
``pool_threads`` is 0 but for pools, whose ``updates`` and ``lr`` are those of single threads.
``lr`` is the rate before the schedule. ``loss`` is the mean over the rows of this mega-batch, each
by the model of its time; ``training_loss``, where it is asked for and the mega-batch is evaluated,
the mean over all training rows by the merged model. ``merged_bytes`` and ``moved_bytes`` travelled
between workers in the merge, and in training where workers exchange arrays at every step; ``notes``
has means over the mega-batch of what an algorithm tells of itself: ``orthogonality/LAYER``
(Adasum), ``staleness`` (batches; asynchronous), ``active`` (of a sampled
output layer: the share of the labels that a row saw). ``events`` tell of workers that came
(``joined``), went (``lost``, with the rows that went back), and had no memory for a batch
(``memory``, with the rows of the largest that they are leased from then on; where workers step
together, a note ``memory rows``), and of the budget for logits that a worker with a GPU has chosen
(``logits``, with ``budget_bytes``, and milliseconds of a step by the sizes that it tried).

Where merges overlap with training, ``overlapped_s`` is how long this merge was under way while the
next mega-batch was worked on, and ``merge_s`` only what the workers waited for it. A worker whose
replica had not yet been corrected by the merge before when this mega-batch began has
``corrected_after``: the number of its batches that came before the correction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any

from daskxml.errors import ModelError
from daskxml.model.tensors import replacing
from daskxml.strategies.protocol import WorkerView
from daskxml.training.ledger import Span
from daskxml.training.orders import MergeReport, Notes, join_notes


@dataclass
class Tally:
    """What one worker did in this mega-batch."""

    rows: int = 0
    updates: int = 0
    busy_s: float = 0.0
    loss_sum: float = 0.0
    nonzeros: int = 0


class MegabatchLog:
    """Collects what becomes one row of the history."""

    def __init__(self, megabatch: int, begun_s: float) -> None:
        self.megabatch, self.begun_s, self.trained_s = megabatch, begun_s, begun_s
        self.untold_since_s = begun_s  # training from then on is in no row of the history yet
        self.tallies: dict[str, Tally] = {}
        self.views: Mapping[str, WorkerView] = {}
        self.departed: dict[str, WorkerView] = {}
        self.weights: Mapping[str, float] = {}
        self.perturbed = False
        self.events: list[dict[str, Any]] = []
        self.notes: Notes = {}
        self.moved_bytes = self.merged_bytes = 0
        self.merge_s = self.overlapped_s = 0.0
        self.corrected: dict[str, int] = {}  # batches of each worker before it was

    @property
    def rows(self) -> int:
        """Rows done so far in this mega-batch."""
        return sum(tally.rows for tally in self.tallies.values())

    def count(self, worker: str, done: Tally) -> None:
        """Book a lease, or a worker's part in a gang."""
        tally = self.tallies.setdefault(worker, Tally())
        for field in fields(Tally):
            setattr(tally, field.name, getattr(tally, field.name) + getattr(done, field.name))

    def note(self, notes: Notes) -> None:
        """Add what is worth telling."""
        self.notes = join_notes([self.notes, notes])

    def drop(self, worker: str) -> None:
        """Forget a lost worker's unmerged work."""
        self.tallies.pop(worker, None)
        self.corrected.pop(worker, None)

    def depart(self, worker: str, view: WorkerView) -> None:
        """Remember a lost worker whose work stays."""
        self.departed[worker] = view

    def drop_all(self) -> None:
        """Forget all work since the last merge; bytes that moved stay moved."""
        self.tallies, self.notes = {}, {}

    def event(self, event: dict[str, Any]) -> None:
        """Note something worth telling."""
        self.events.append(event)

    def trained(self, views: Mapping[str, WorkerView], now_s: float) -> None:
        """All leases are back."""
        self.views, self.trained_s = views, now_s

    def postpone(self, now_s: float) -> None:
        """What was between the end of training and now is no time of this mega-batch."""
        self.begun_s, self.trained_s = self.begun_s + now_s - self.trained_s, now_s
        self.untold_since_s = self.begun_s

    def update_shares(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return the share of the updates of all in ``weights``, and of those who departed."""
        names = [*weights, *(n for n in self.departed if n in self.tallies and n not in weights)]
        updates = {name: self.tallies.get(name, Tally()).updates for name in names}
        return {name: count / max(1, sum(updates.values())) for name, count in updates.items()}

    def merged(self, report: MergeReport, now_s: float) -> None:
        """The merge is done."""
        self.note(report.notes)
        self.merged_bytes, self.merge_s = report.sent_bytes, now_s - self.trained_s

    def weigh(self, weights: Mapping[str, float], perturbed: bool) -> None:
        """Note how the replicas are merged."""
        self.weights, self.perturbed = weights, perturbed

    def row(self, rows: int, epoch: float, spans: Mapping[str, list[list[Span]]]) -> dict[str, Any]:
        """Return this mega-batch's row; the time of its evaluation is still to come."""
        loss_sum = sum(tally.loss_sum for tally in self.tallies.values())
        return {
            "megabatch": self.megabatch,
            "rows": rows,
            "epoch": epoch,
            "wall_s": 0.0,
            "train_s": self.trained_s - self.begun_s,
            "merge_s": self.merge_s,
            "overlapped_s": self.overlapped_s,
            "eval_s": 0.0,
            "loss": loss_sum / max(1, self.rows),
            "metrics": {},
            "workers": {name: self._worker(name, spans.get(name, [])) for name in self.weights},
            "perturbed": self.perturbed,
            "merged_bytes": self.merged_bytes,
            "moved_bytes": self.moved_bytes,
            "notes": {name: total / count for name, (total, count) in self.notes.items() if count},
            "events": list(self.events),
        }

    def _worker(self, name: str, spans: list[list[Span]]) -> dict[str, Any]:
        tally, view = self.tallies.get(name, Tally()), (self.departed | {**self.views})[name]
        corrected = {"corrected_after": self.corrected[name]} if name in self.corrected else {}
        return {
            "updates": tally.updates,
            "rows": tally.rows,
            "nonzeros": tally.nonzeros,
            "batch_rows": view.batch_rows,
            "lr": view.lr,
            "weight": self.weights[name],
            "pool_threads": view.pool_threads,
            "busy_s": tally.busy_s,
            "idle_s": max(0.0, self.trained_s - self.begun_s - tally.busy_s),
            "leases": [[list(span) for span in lease] for lease in spans],
            **corrected,
        }


def worker_event(kind: str, worker: str, after_s: float, rows: int = 0) -> dict[str, Any]:
    """Describe a worker's arrival or loss; ``rows`` went back to be leased again."""
    return {"kind": kind, "worker": worker, "after_s": after_s, "rows_returned": rows}


def memory_event(worker: str, after_s: float, batch_rows: int) -> dict[str, Any]:
    """Describe that a worker had no memory for its batch, and the largest that it now takes."""
    return {"kind": "memory", "worker": worker, "after_s": after_s, "batch_rows": batch_rows}


def write_history(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the whole history, one JSON object a line, in the place of what was there.

    Raises
    ------
    ModelError
        If it cannot be written; what was there is unchanged.
    """
    with replacing(path) as partial:
        partial.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def append_history(path: Path, row: Mapping[str, Any]) -> None:
    """Add one mega-batch.

    Raises
    ------
    ModelError
        If it cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    except OSError as error:
        raise ModelError(f"{path}: cannot be written ({error.strerror}); free space") from error


def extend_history(path: Path, offset: int, rows: Iterable[Mapping[str, Any]]) -> list[int]:
    """Cut a history off at a byte and write rows behind it; return the byte behind each of them.

    So it may be called twice for the same rows, or after half a line was written.

    Raises
    ------
    ModelError
        If it cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "history.jsonl"
    >>> extend_history(path, 0, [{"megabatch": 1}, {"megabatch": 2}])
    [17, 34]
    >>> extend_history(path, 17, [])
    []
    >>> read_history(path)
    [{'megabatch': 1}]
    """
    lines = [(json.dumps(row) + "\n").encode() for row in rows]
    try:
        with path.open("ab") as file:
            if file.tell() < offset:
                raise ModelError(f"{path}: is shorter than it was: somebody else wrote to it")
            file.truncate(offset)
            file.write(b"".join(lines))
    except OSError as error:
        raise ModelError(f"{path}: cannot be written ({error.strerror}); free space") from error
    return [offset + length for length in accumulate(map(len, lines))]


def read_history(path: Path) -> list[dict[str, Any]]:
    """Read a history.

    Raises
    ------
    ModelError
        If the file is missing, or a line is no JSON object.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ModelError(f"{path}: no history of a run here ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ModelError(f"{path}: not a text file; the history is damaged") from None
    return [_parse_row(path, number, line) for number, line in enumerate(lines, 1)]


def _parse_row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if isinstance(row, dict):
            return row
    except json.JSONDecodeError:
        pass
    raise ModelError(f"{path}:{number}: not a JSON object; the history is damaged")
