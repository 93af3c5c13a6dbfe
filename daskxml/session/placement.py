"""Which worker holds which rows: everything on every worker, or shards sized by measured speed.

Pure: names, sizes and speeds in, an assignment out. The backend moves the rows; rows that are
leased to a worker which does not hold them are fetched for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from daskxml.session.commands import Piece

Owners = dict[int, str]  # shard -> worker


def assign_shards(
    shard_rows: Sequence[int], speeds: Mapping[str, float], owners: Mapping[int, str] | None = None
) -> Owners:
    """Spread shards so that every worker holds rows in proportion to its speed.

    A shard stays where it is unless its owner is gone, or moving it evens out the load: in the
    end no two workers differ by more than one shard from what their speeds would give them.

    Examples
    --------
    >>> assign_shards([10, 10, 10], {"a": 2.0, "b": 1.0})
    {0: 'a', 1: 'a', 2: 'b'}
    >>> assign_shards([10, 10, 10], {"a": 1.0}, {0: "a", 1: "a", 2: "b"})
    {0: 'a', 1: 'a', 2: 'a'}
    """
    if not speeds:
        return {}
    excess = {name: -fair for name, fair in _fair_rows(sum(shard_rows), speeds).items()}
    result = {s: owner for s, owner in (owners or {}).items() if owner in excess}
    for shard, owner in result.items():
        excess[owner] += shard_rows[shard]
    for shard in range(len(shard_rows)):
        if shard not in result:
            result[shard] = min(excess, key=excess.__getitem__)
            excess[result[shard]] += shard_rows[shard]
    _level(result, excess, shard_rows)
    return dict(sorted(result.items()))


def _level(owners: Owners, excess: dict[str, float], shard_rows: Sequence[int]) -> None:
    """Move the smallest shard of the fullest worker while that makes two workers more equal."""
    while True:
        fullest, emptiest = max(excess, key=excess.__getitem__), min(excess, key=excess.__getitem__)
        held = [s for s, owner in owners.items() if owner == fullest and shard_rows[s]]
        shard = min(held, key=shard_rows.__getitem__, default=None)
        gap = (excess[fullest] - excess[emptiest]) * (1.0 - 1e-9)  # a gain, not a rounding error
        if shard is None or shard_rows[shard] >= gap:
            return
        owners[shard] = emptiest
        excess[fullest] -= shard_rows[shard]
        excess[emptiest] += shard_rows[shard]


def _fair_rows(rows: int, speeds: Mapping[str, float]) -> dict[str, float]:
    known = [speed for speed in speeds.values() if speed > 0.0]
    typical = sum(known) / len(known) if known else 1.0
    weights = {name: speed if speed > 0.0 else typical for name, speed in speeds.items()}
    total = sum(weights.values())
    return {name: rows * weight / total for name, weight in weights.items()}


@dataclass
class Placement:
    """Where the training and the test rows are.

    Attributes
    ----------
    is_replicated
        Every worker holds every row.
    train_rows, test_rows
        Rows of each shard.
    train_owners, test_owners
        Shard to worker; empty where replicated.
    """

    is_replicated: bool
    train_rows: tuple[int, ...]
    test_rows: tuple[int, ...]
    train_owners: Owners = field(default_factory=dict)
    test_owners: Owners = field(default_factory=dict)

    def streams(self) -> tuple[int, ...]:
        """Rows of each stream of the ledger: one over all rows, or one a shard."""
        return (sum(self.train_rows),) if self.is_replicated else self.train_rows

    def plain(self) -> dict[str, Any]:
        """Return how the rows are cut, as `daskxml.session.row_loading.DataLayout` takes it."""
        return {"is_replicated": self.is_replicated, "parts": len(self.train_rows)}

    def spread(self, speeds: Mapping[str, float]) -> None:
        """Assign the shards to the present workers."""
        if not self.is_replicated:
            self.train_owners = assign_shards(self.train_rows, speeds, self.train_owners)
            self.test_owners = assign_shards(self.test_rows, speeds, self.test_owners)

    def fits(self, workers: Collection[str]) -> bool:
        """Whether every shard is with one of these workers."""
        train = {self.train_owners.get(shard) for shard in range(len(self.train_rows))}
        test = {self.test_owners.get(shard) for shard in range(len(self.test_rows))}
        return self.is_replicated or train | test <= set(workers)

    def train_shards(self, worker: str) -> list[int]:
        """Training shards of a worker."""
        return _held(worker, self.is_replicated, self.train_rows, self.train_owners)

    def preferred_streams(self, worker: str) -> list[int]:
        """Streams of the ledger whose rows ``worker`` holds and others do not."""
        return [] if self.is_replicated else self.train_shards(worker)

    def test_shards(self, worker: str) -> list[int]:
        """Test shards of a worker."""
        return _held(worker, self.is_replicated, self.test_rows, self.test_owners)

    def split_test(self, speeds: Mapping[str, float]) -> dict[str, list[Piece]]:
        """Return (shard, start, stop) pieces of all test rows for each worker, by speed.

        Those of shards are the owners', unless there is only one that evaluates.
        """
        if not self.is_replicated and len(speeds) > 1:
            return _owned(self.test_rows, self.test_owners, speeds)
        return split_pieces([(s, 0, rows) for s, rows in enumerate(self.test_rows)], speeds)

    def split_train(self, speeds: Mapping[str, float], grain: int) -> dict[str, list[Piece]]:
        """Return (stream, start, stop) pieces of all training rows for each worker, by speed.

        Streams are cut at multiples of ``grain`` only.
        """
        if not self.is_replicated:
            return _owned(self.train_rows, self.train_owners, speeds)
        return split_pieces([(0, 0, sum(self.train_rows))], speeds, grain)


def _owned(
    shard_rows: Sequence[int], owners: Mapping[int, str], workers: Collection[str]
) -> dict[str, list[Piece]]:
    """Return every worker's shards, whole; those of a late one go to whoever has fewest."""
    pieces: dict[str, list[Piece]] = {name: [] for name in workers}
    for shard, owner in owners.items():
        name = owner if owner in pieces else min(pieces, key=lambda each: len(pieces[each]))
        pieces[name].append((shard, 0, shard_rows[shard]))
    return pieces


def _held(
    worker: str, is_replicated: bool, shard_rows: Sequence[int], owners: Mapping[int, str]
) -> list[int]:
    if is_replicated:
        return list(range(len(shard_rows)))
    return [shard for shard, owner in owners.items() if owner == worker]


def split_pieces(
    pieces: Sequence[Piece], speeds: Mapping[str, float], grain: int = 1
) -> dict[str, list[Piece]]:
    """Cut (shard, start, stop) pieces among workers in proportion to their speeds.

    They are cut where the row's number in its shard is a multiple of ``grain``: so the batches of
    ``grain`` rows are the same for any number of workers.

    >>> split_pieces([(0, 0, 90)], {"a": 2.0, "b": 1.0})
    {'a': [(0, 0, 60)], 'b': [(0, 60, 90)]}
    >>> split_pieces([(0, 0, 90)], {"a": 2.0, "b": 1.0}, grain=50)
    {'a': [(0, 0, 50)], 'b': [(0, 50, 90)]}
    """
    rows = sum(stop - start for _, start, stop in pieces)
    fair = _fair_rows(rows, speeds)
    result: dict[str, list[Piece]] = {name: [] for name in speeds}
    queue, given, due = list(pieces), 0, 0.0
    for index, name in enumerate(speeds):
        due += fair[name]
        quota = (rows if index == len(speeds) - 1 else round(due)) - given
        while quota > 0 and queue:
            shard, start, stop = queue.pop(0)
            middle = _cut(start, stop, quota, grain)
            if middle < stop:
                queue.insert(0, (shard, middle, stop))
                if middle == start:  # less than half a grain is due
                    break
            result[name].append((shard, start, middle))
            quota, given = quota - (middle - start), given + (middle - start)
    return result


def _cut(start: int, stop: int, quota: int, grain: int) -> int:
    """Return where to cut a piece that is to give about ``quota`` rows."""
    nearest = (start + quota + grain // 2) // grain * grain
    return stop if start + quota >= stop else min(stop, max(start, nearest))
