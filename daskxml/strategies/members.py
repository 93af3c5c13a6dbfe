"""What strategies with leases remember of the run and of each worker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A worker's part in this mega-batch.

    Attributes
    ----------
    batch_size
        Its batch size, kept as a real number; a pool's is divided among its threads.
    pool_threads
        Of a pool; 0 for a replica.
    updates, rows
        What it has done since the last merge; a pool's updates are its batches, unless the
        strategy counts those of its threads.
    total_updates
        Since the run began.
    leased_rows, leases
        What it has been given and not yet reported.
    quota_rows
        What is set aside for it and not yet leased (static assignment only).
    rows_per_s
        Its measured throughput; 0 while nothing is measured.
    came_late
        It arrived in the middle of this mega-batch.
    most_rows
        The largest batch that its memory holds, and so of ``batch_size``; 0 is no bound.
    """

    batch_size: float
    pool_threads: int = 0
    updates: int = 0
    rows: int = 0
    total_updates: float = 0.0
    leased_rows: int = 0
    leases: int = 0
    quota_rows: int = 0
    rows_per_s: float = 0.0
    came_late: bool = False
    most_rows: int = 0

    def __post_init__(self) -> None:
        if self.most_rows:
            object.__setattr__(self, "batch_size", min(self.batch_size, float(self.most_rows)))

    @property
    def parts(self) -> int:
        """Updates that a full batch is: one, or one by every thread of a pool."""
        return max(1, self.pool_threads)

    @property
    def batch_rows(self) -> int:
        """The batch size in whole rows, the same for every thread of a pool."""
        return self.parts * max(1, round(self.batch_size / self.parts))


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Where the run stands.

    Attributes
    ----------
    remaining_rows
        Rows of this mega-batch that are with nobody.
    phase
        ``"idle"``, ``"train"``, ``"measure"``, ``"merge"``, or one of a subclass's own.
    is_draining
        Nothing more is leased in this mega-batch.
    merges
        Since the run began.
    members
        Every worker, by name.
    """

    remaining_rows: int
    phase: str = "idle"
    is_draining: bool = False
    merges: int = 0
    members: Mapping[str, Member] = field(default_factory=dict)


def natural_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts worker 2 before worker 10.

    >>> sorted(["10", "2", "gpu-b", "gpu-a"], key=natural_order)
    ['2', '10', 'gpu-a', 'gpu-b']
    """
    parts = re.findall(r"\d+|\D+", name)
    return tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in parts)
