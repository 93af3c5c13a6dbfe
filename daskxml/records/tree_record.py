"""Does the record of a run of label trees follow its rules? Every piece of a tree counts once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from daskxml.records.disagreements import Findings


def checked_row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row, which must be one of label trees.

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
    if type(row.get("pieces")) is not int:
        raise ValueError(f"pieces = {row.get('pieces')!r:.60}")
    for name, worker in row["workers"].items():
        pieces = worker.get("pieces")
        if not (isinstance(pieces, list) and all(type(piece) is int for piece in pieces)):
            raise ValueError(f"worker {name}: pieces = {pieces!r:.60}")
    return row


def check_tree_rows(history: Sequence[Mapping[str, Any]], findings: Findings) -> int:
    """Compare every row with what follows from the others; return the number of pieces.

    Parameters
    ----------
    history
        See `daskxml.session.tree_run`; a row a tree.
    findings
        Gets what does not agree.

    Examples
    --------
    >>> row = {"megabatch": 1, "rows": 9, "epoch": 1.0, "train_s": 2.0, "pieces": 2, "workers": {
    ...     "a": {"pieces": [0, 0], "updates": 2, "rows": 9, "weight": 1.0, "busy_s": 1.5,
    ...           "idle_s": 0.5}}}
    >>> check_tree_rows([row], findings := Findings())
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
        findings.compare(
            "", "rows of all workers", sum(worker["rows"] for worker in workers), whole
        )
        findings.compare(
            "", "weight of all workers", sum(worker["weight"] for worker in workers), 1.0
        )
        for name, worker in row["workers"].items():
            findings.compare(name, "updates", worker["updates"], len(worker["pieces"]))
            idle_s = max(0.0, row["train_s"] - worker["busy_s"])
            findings.compare(name, "idle_s", worker["idle_s"], idle_s)
    return sum(row["pieces"] for row in history)
