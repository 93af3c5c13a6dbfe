"""The record of a stage: how rows came from resident partitions to others, and what that took."""

from __future__ import annotations

from dataclasses import dataclass

DONE, SHARED, KEPT = "done", "shared", "kept"


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRecord:
    """What became of a stage when it was needed.

    Attributes
    ----------
    name
        Of the stage, such as ``read``.
    outcome
        ``done``; ``shared``: its partitions were on the workers; or ``kept``: its files were there
        from an earlier process.
    rows, nbytes, partitions
        Of what it makes: rows, their bytes in memory, and their pieces.
    seconds
        What it took, without the stages before it.
    key
        A hash of its settings and of all that it is made of; "" where there is none.
    """

    name: str
    outcome: str = DONE
    rows: int = 0
    nbytes: int = 0
    partitions: int = 0
    seconds: float = 0.0
    key: str = ""
