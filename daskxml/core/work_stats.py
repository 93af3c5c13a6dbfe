"""What work came to: sums that add up, over batches, threads, leases, ranks and mega-batches.

And the record of a stage: how rows came from resident partitions to others, and what that took.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Means = Mapping[str, tuple[float, int]]  # name to (sum, count)
_SUMS = ("rows", "updates", "loss_sum", "nonzeros", "labels_scored", "busy_s", "sent_bytes")


@dataclass(slots=True)
class WorkStats:
    """Sums over some batches, from the step of a replica to the row of the history.

    Attributes
    ----------
    rows, updates
        Rows that were stepped through; how often the model was changed: once a batch, or once for
        each thread's part of a batch in a pool.
    loss_sum
        Sum of the rows' losses, each before its update; rows without labels count 0 with softmax.
        A single step on a GPU gives a value whose conversion to float synchronizes with the device.
    nonzeros
        Stored features of the rows.
    labels_scored
        Labels whose logits were computed, summed over the rows.
    busy_s, sent_bytes
        Seconds of work without waiting for others; bytes sent to other workers.
    means
        What an algorithm reports of itself, by name as (sum, count).
    max_batch_rows
        Largest batch that the device's memory turned out to hold; 0: no bound was found.

    Examples
    --------
    >>> total = WorkStats(rows=2, updates=1, loss_sum=0.5)
    >>> total += WorkStats(rows=3, updates=1, loss_sum=0.25, means={"staleness": (2.0, 1)})
    >>> total.rows, total.loss_sum, total.means
    (5, 0.75, {'staleness': (2.0, 1)})
    """

    rows: int = 0
    updates: int = 0
    loss_sum: float = 0.0
    nonzeros: int = 0
    labels_scored: int = 0
    busy_s: float = 0.0
    sent_bytes: int = 0
    means: Means = field(default_factory=dict)
    max_batch_rows: int = 0

    def __iadd__(self, other: WorkStats) -> WorkStats:
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.means:
            self.means = merge_means([self.means, other.means])
        if other.max_batch_rows:
            bounds = self.max_batch_rows or other.max_batch_rows, other.max_batch_rows
            self.max_batch_rows = min(bounds)
        return self

    def observe(self, name: str, value: float) -> None:
        """Add one value to a mean."""
        self.means = merge_means([self.means, {name: (value, 1)}])


def sum_stats(parts: Iterable[WorkStats]) -> WorkStats:
    """Return the sum of some stats, which stay as they are."""
    total = WorkStats()
    for part in parts:
        total += part
    return total


def merge_means(parts: Iterable[Means]) -> dict[str, tuple[float, int]]:
    """Add up means by name.

    Examples
    --------
    >>> merge_means([{"a": (1.0, 1)}, {"a": (2.0, 3), "b": (0.5, 1)}])
    {'a': (3.0, 4), 'b': (0.5, 1)}
    """
    merged: dict[str, tuple[float, int]] = {}
    for means in parts:
        for name, (total, count) in means.items():
            before_sum, before_count = merged.get(name, (0.0, 0))
            merged[name] = before_sum + total, before_count + count
    return merged


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
